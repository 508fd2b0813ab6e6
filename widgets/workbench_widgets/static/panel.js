// @ts-check
/** One chart with its title, current value, legend and words for screen readers. */

import { csvOf } from "./curve_options.js";
import { element, setAttribute, setText } from "./dom.js";
import { plotText } from "./format.js";
import { Readings } from "./readings.js";

/** @typedef {import("./traces.js").Drawing} Drawing @typedef {import("./theme.js").Theme} Theme */

const PLOT_CONFIG = { displayModeBar: false, responsive: false, doubleClick: "reset" };

const SAVED = ["PNG", "SVG", "CSV"];
const LATEST_MS = 10_000; // a curve that hardly moves is drawn so often

export class Panel {
  /** @param {string} title @param {{area?: string, controls?: HTMLElement[], empty?: string}} [how] */
  constructor(title, how = {}) {
    this.title = title;
    this.value = element("span", { class: "wb-panel-value" });
    this.delta = element("span", { class: "wb-delta", hidden: "" });
    this.reset = element("button", { type: "button", class: "wb-button wb-reset", hidden: "" }, "Reset zoom");
    this.save = element("select", { class: "wb-save", "aria-label": `Save ${title}`, title: "Save this chart" },
      ...["⤓", ...SAVED].map((format) => element("option", { value: format }, format)));
    this.save.addEventListener("change", () => this.saveAs());
    this.cursor = element("i", { class: "wb-cursor", hidden: "" });
    /** Told of the Unix time under the pointer, null when it leaves. @type {(time: number|null) => void} */
    this.onCursor = () => {};
    /** Told of the part that was zoomed into, null = all. @type {(range: [number, number]|null) => void} */
    this.onZoom = () => {};
    this.chips = element("ul", { class: "wb-chips" });
    this.plot = element("div", { class: "wb-plot", role: "img", "aria-label": title });
    this.readings = new Readings();
    this.empty = element("p", { class: "wb-empty" }, how.empty ?? "No readings yet");
    this.node = element(
      "section",
      { class: `wb-panel wb-area-${how.area ?? "small"}`, "aria-label": title },
      element("header", {}, element("h3", {}, title), ...(how.controls ?? []), this.reset, this.value, this.delta, this.save),
      this.chips,
      element("div", { class: "wb-plot-box" }, this.plot, this.cursor, this.empty, this.readings.node),
    );
    this.emptyText = this.empty.textContent ?? "";
    this.drawn = false;
    this.paintedAt = 0;
    this.inSight = true;
    /** What is to be painted once it is in sight. @type {{drawing: Drawing, theme: Theme, Plotly: any}|null} */
    this.next = null;
    if (globalThis.IntersectionObserver) {
      this.sight = new IntersectionObserver((entries) => {
        this.inSight = entries.some((entry) => entry.isIntersecting);
        this.paint();
      });
      this.sight.observe(this.node);
    }
    /** @type {Drawing | null} */
    this.drawing = null;
  }

  /** @param {Drawing} drawing @param {Theme} theme @param {any} Plotly null while it loads
   * @param {boolean} [lazy] paint only where the curve has moved by a pixel */
  draw(drawing, theme, Plotly, lazy = false) {
    this.node.hidden = Boolean(drawing.hidden);
    if (drawing.hidden) return;
    setText(this.value, drawing.value);
    this.delta.hidden = !drawing.delta;
    if (drawing.delta) {
      setText(this.delta, drawing.delta.text);
      setAttribute(this.delta, "title", drawing.delta.title);
    }
    setAttribute(this.plot, "aria-label", drawing.label);
    this.drawChips(drawing.chips ?? []);
    const points = drawing.traces.some((trace) => trace.x?.length);
    this.empty.hidden = points && Plotly !== null;
    this.save.hidden = !points;
    this.plot.style.visibility = points ? "" : "hidden"; // what an earlier attempt left is not this one's
    setText(this.empty, drawing.empty ?? this.emptyText);
    if (!points) this.next = null;
    if (!Plotly || !points) return;
    this.next = { drawing, theme, Plotly };
    if (!lazy || performance.now() - this.paintedAt > LATEST_MS || this.hasMoved(drawing)) this.paint();
  }

  /** Whether the longest curve has grown by a pixel since it was painted. @param {Drawing} drawing */
  hasMoved(drawing) {
    const longest = (/** @type {Drawing|null} */ drawing) =>
      (drawing?.traces ?? []).map((trace) => trace.x ?? []).reduce((most, x) => (x.length > most.length ? x : most), []);
    const [before, now] = [longest(this.drawing), longest(drawing)];
    const [first, last, end] = [now[0], now.at(-1), before.at(-1)];
    const pixels = (this.plot.clientWidth * (last - end)) / (last - first);
    return !(pixels < 1) || before[0] !== first;
  }

  /** Hands what is next to plotly.js, if it can be seen. */
  paint() {
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!this.next || !this.inSight || document.hidden || width < 40) return;
    const { drawing, theme, Plotly } = this.next;
    this.next = null;
    this.paintedAt = performance.now();
    const data = drawing.traces.map(({ called: _, ...trace }) => trace); // plotly.js knows no such key
    Plotly.react(this.plot, data, layout(theme, drawing.layout, width, height), PLOT_CONFIG);
    this.drawing = drawing;
    this.theme = theme;
    this.Plotly = Plotly;
    if (!this.drawn) this.follow(/** @type {any} */ (this.plot));
    this.drawn = true;
  }

  /** Shows the readings under the pointer where a drawing has them. @param {any} plot made by plotly.js */
  follow(plot) {
    plot.on("plotly_hover", (/** @type {any} */ { points }) => {
      const { readings, say = String, traces = [] } = this.drawing ?? {};
      if (!readings || !points.length) return;
      const inOrder = [...points].sort((one, other) => one.curveNumber - other.curveNumber);
      const lines = inOrder.map((/** @type {any} */ { curveNumber, y }) => {
        const { name, called, line } = traces[curveNumber] ?? {};
        return { name: called?.name ?? name, color: line?.color, value: y };
      });
      this.readings.show(readings(points[0].x), lines, say);
    });
    plot.on("plotly_hover", (/** @type {any} */ { points }) => points.length && this.onCursor(this.drawing?.timeAt?.(points[0].x) ?? null));
    plot.on("plotly_unhover", () => {
      this.readings.hide();
      this.onCursor(null);
    });
    plot.on("plotly_relayout", (/** @type {any} */ change) => this.zoomed(change));
    this.reset.addEventListener("click", () => this.showAll());
  }

  /** The axes as they are drawn: outliers that are cut off stay so. */
  showAll() {
    const { range } = this.drawing?.layout?.yaxis ?? {};
    const y = range ? { "yaxis.range": [...range] } : { "yaxis.autorange": true };
    this.Plotly.relayout(this.plot, { "xaxis.autorange": true, ...y });
  }

  /** @param {any} change what plotly.js tells of the axes */
  zoomed(change) {
    if (!Object.keys(change).some((key) => /^[xy]axis\./.test(key))) return;
    const { xaxis } = /** @type {any} */ (this.plot)._fullLayout;
    const from = change["xaxis.range[0]"];
    this.reset.hidden = from === undefined && change["yaxis.range[0]"] === undefined;
    if (from !== undefined || this.reset.hidden) this.onZoom(this.reset.hidden ? null : [xaxis.range[0], xaxis.range[1]]);
  }

  /** A rule where the pointer is in another panel. @param {number|null} time Unix seconds; null = none */
  point(time) {
    const axis = /** @type {any} */ (this.plot)._fullLayout?.xaxis;
    const x = time === null || !this.drawn ? null : (this.drawing?.placeOf?.(time) ?? null);
    const at = x === null || !axis ? -1 : axis.l2p(x);
    this.cursor.hidden = !(at >= 0 && at <= axis?._length);
    if (!this.cursor.hidden) this.cursor.style.left = `${axis._offset + at}px`;
  }

  /** Saves what is chosen in the menu: the chart as a picture, or its curves. */
  saveAs() {
    const kind = /** @type {HTMLSelectElement} */ (this.save).value;
    /** @type {HTMLSelectElement} */ (this.save).selectedIndex = 0;
    if (!this.drawing || !SAVED.includes(kind)) return;
    const filename = this.title.toLowerCase().replace(/[^\w.-]+/g, "-");
    if (kind === "CSV") {
      offer(new Blob([csvOf(this.drawing)], { type: "text/csv" }), `${filename}.csv`);
      return;
    }
    const { data, layout } = /** @type {any} */ (this.plot);
    const paper = { paper_bgcolor: this.theme?.surface, margin: { l: 12, r: 16, t: 34, b: 12, pad: 4 }, title: { text: plotText(this.title), font: { size: 13 } } };
    const picture = { data, layout: { ...layout, ...paper } };
    this.Plotly.downloadImage(picture, { format: kind.toLowerCase(), width: 900, height: 500, scale: 2, filename });
  }

  /** @param {{text: string, color: string, dash?: boolean}[]} chips */
  drawChips(chips) {
    const key = JSON.stringify(chips);
    this.chips.hidden = chips.length === 0;
    if (this.chips.dataset.key === key) return;
    this.chips.dataset.key = key;
    this.chips.replaceChildren(
      ...chips.map(({ text, color, dash }) => {
        const mark = element("i", { class: dash ? "wb-mark wb-dash" : "wb-mark" });
        mark.style.borderColor = color;
        return element("li", {}, mark, text);
      }),
    );
  }

  /** @param {any} Plotly */
  close(Plotly) {
    this.sight?.disconnect();
    this.next = null;
    if (this.drawn) Plotly?.purge(this.plot);
  }
}

/** Hands a file to the browser's downloads. @param {Blob} blob @param {string} name */
function offer(blob, name) {
  const link = /** @type {HTMLAnchorElement} */ (element("a", { href: URL.createObjectURL(blob), download: name }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** @param {Theme} theme @param {any} own @param {number} width @param {number} height */
function layout(theme, own = {}, width, height) {
  const axis = {
    gridcolor: theme.grid,
    linecolor: theme.grid,
    zeroline: false,
    automargin: true,
    fixedrange: false,
    spikecolor: theme.muted,
    spikethickness: 1,
    spikedash: "dash",
    tickfont: { size: 10.5, color: theme.muted },
  };
  const title = own.xaxis?.title && { ...own.xaxis.title, font: { size: 10.5 }, standoff: 4 };
  const x = { ...own.xaxis, ...(title && { title }) };
  return {
    width,
    height,
    margin: { l: 8, r: 10, t: 6, b: 8, pad: 4 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: theme.font, size: 11, color: theme.muted },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: {
      bgcolor: theme.surface,
      bordercolor: theme.grid,
      font: { family: theme.font, size: 12, color: theme.ink },
    },
    uirevision: "kept", // a zoom outlives the next snapshot
    ...own,
    xaxis: { ...axis, showgrid: false, nticks: Math.max(3, Math.round(width / 50)), ...x },
    yaxis: { ...axis, showspikes: false, nticks: Math.max(3, Math.round(height / 34)), ...own.yaxis },
  };
}
