// @ts-check
/** One chart with its title, current value, legend and words for screen readers. */

import { element, setAttribute, setText } from "./dom.js";
import { Readings } from "./readings.js";

/** @typedef {import("./traces.js").Drawing} Drawing @typedef {import("./theme.js").Theme} Theme */

const PLOT_CONFIG = { displayModeBar: false, responsive: false, doubleClick: "reset" };

export class Panel {
  /** @param {string} title @param {{area?: string, controls?: HTMLElement[], empty?: string}} [how] */
  constructor(title, how = {}) {
    this.value = element("span", { class: "wb-panel-value" });
    this.chips = element("ul", { class: "wb-chips" });
    this.plot = element("div", { class: "wb-plot", role: "img", "aria-label": title });
    this.readings = new Readings();
    this.empty = element("p", { class: "wb-empty" }, how.empty ?? "No readings yet");
    this.node = element(
      "section",
      { class: `wb-panel wb-area-${how.area ?? "small"}`, "aria-label": title },
      element("header", {}, element("h3", {}, title), ...(how.controls ?? []), this.value),
      this.chips,
      element("div", { class: "wb-plot-box" }, this.plot, this.empty, this.readings.node),
    );
    this.emptyText = this.empty.textContent ?? "";
    this.drawn = false;
    /** @type {Drawing | null} */
    this.drawing = null;
  }

  /** @param {Drawing} drawing @param {Theme} theme @param {any} Plotly null while it loads */
  draw(drawing, theme, Plotly) {
    this.node.hidden = Boolean(drawing.hidden);
    if (drawing.hidden) return;
    setText(this.value, drawing.value);
    setAttribute(this.plot, "aria-label", drawing.label);
    this.drawChips(drawing.chips ?? []);
    const points = drawing.traces.some((trace) => trace.x?.length);
    this.empty.hidden = points && Plotly !== null;
    setText(this.empty, drawing.empty ?? this.emptyText);
    const { clientWidth: width, clientHeight: height } = this.plot;
    if (!Plotly || !points || width < 40) return;
    Plotly.react(this.plot, drawing.traces, layout(theme, drawing.layout, width, height), PLOT_CONFIG);
    this.drawing = drawing;
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
        const { name, line } = traces[curveNumber] ?? {};
        return { name, color: line?.color, value: y };
      });
      this.readings.show(readings(points[0].x), lines, say);
    });
    plot.on("plotly_unhover", () => this.readings.hide());
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
    if (this.drawn) Plotly?.purge(this.plot);
  }
}

/** @param {Theme} theme @param {any} own @param {number} width @param {number} height */
function layout(theme, own = {}, width, height) {
  const axis = {
    gridcolor: theme.grid,
    linecolor: theme.grid,
    zeroline: false,
    automargin: true,
    fixedrange: false,
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
    yaxis: { ...axis, nticks: Math.max(3, Math.round(height / 34)), ...own.yaxis },
  };
}
