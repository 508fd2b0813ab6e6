// @ts-check
/** Simulate exactly: the button, its progress, and the result beside the closed form. */

import { element, focusedElement, setText } from "./dom.js";
import { bytes, known, plotText } from "./format.js";
import { called } from "./lines.js";
import { look } from "./memory_bars.js";
import { Panel } from "./panel.js";
import { fade, readTheme, watchTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context */

export class Exact {
  /** @param {Context} context @param {any} model */
  constructor(context, model) {
    this.context = context;
    this.state = /** @type {any} */ ({});
    this.button = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button wbm-simulate" }, "Simulate exactly"));
    this.cancel = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button", hidden: "" }, "Cancel"));
    this.button.addEventListener("click", () => {
      model.send({ type: "simulate" });
      this.draw({ ...this.state, state: "running", share: 0, says: "starting" });
      this.cancel.focus();
    });
    this.cancel.addEventListener("click", () => model.send({ type: "cancel" }));
    this.progress = element("progress", { max: "1", "aria-label": "Progress of the simulation", hidden: "" });
    this.says = element("span", { class: "wb-note", role: "status" });
    this.old = element("p", { class: "wb-note wbm-old", hidden: "" }, "The controls have changed. Simulate again to compare.");
    this.body = element("tbody");
    const head = ["Part", "Closed form", "Simulated", "Ratio"].map((text) => element("th", { scope: "col" }, text));
    this.table = element("table", { class: "wbm-compared", hidden: "" }, element("thead", {}, element("tr", {}, ...head)), this.body);
    this.panel = new Panel("Memory over the last simulated steps", { area: "loss", empty: "Drawing …" });
    this.panel.node.hidden = true;
    this.panel.node.classList.add("wbm-timeline");
    this.node = element(
      "section",
      { class: "wb-panel wbm-exact", "aria-label": "Exact simulation" },
      element("header", {}, element("h3", {}, "Exact, without a GPU"), this.progress, this.cancel, this.button),
      this.says,
      this.old,
      this.table,
      this.panel.node,
    );
    this.endTheme = watchTheme(() => this.drawTimeline());
    this.resizing = new ResizeObserver(() => {
      cancelAnimationFrame(this.frame ?? 0);
      this.frame = requestAnimationFrame(() => this.drawTimeline());
    });
    this.resizing.observe(this.node);
  }

  /** @param {any} state */
  draw(state) {
    this.state = state ?? {};
    const running = this.state.state === "running";
    const focused = focusedElement() === this.cancel;
    this.button.disabled = running;
    this.cancel.hidden = this.progress.hidden = !running;
    if (focused && !running) this.button.focus();
    /** @type {HTMLProgressElement} */ (this.progress).value = this.state.share ?? 0;
    const empty = "Runs two steps of the real model and layout on fake tensors, in seconds to a minute.";
    setText(this.says, this.state.says ? (running ? `${this.state.says} …` : this.state.says) : empty);
    const done = this.state.state === "done";
    this.table.hidden = this.panel.node.hidden = !done;
    if (done) {
      this.body.replaceChildren(...this.state.rows.map((/** @type {any} */ row) => this.row(row)));
      this.drawTimeline();
    }
    this.mark();
  }

  /** @param {{name: string, closed: number|null, exact: number}} row */
  row({ name, closed, exact }) {
    const ratio = known(closed) && exact > 0 ? `${(closed / exact).toFixed(2)}x` : "";
    const texts = [known(closed) ? bytes(closed) : "", bytes(exact), ratio];
    return element("tr", {}, element("th", { scope: "row" }, name), ...texts.map((text) => element("td", {}, text)));
  }

  /** @param {any} values what the controls say now */
  compare(values) {
    this.values = JSON.stringify(values);
    this.mark();
  }

  /** A result for other settings stays, greyed, and says so. */
  mark() {
    const old = this.state.state === "done" && JSON.stringify(this.state.values) !== this.values;
    this.old.hidden = !old;
    this.node.dataset.stale = String(old);
  }

  async drawTimeline() {
    if (this.state.state !== "done" || !this.node.isConnected) return;
    this.Plotly ??= await this.context.plotly();
    const theme = readTheme(/** @type {HTMLElement} */ (this.node.closest(".wb-root") ?? this.node));
    this.panel.draw(drawing(this.state.timeline, theme), theme, this.Plotly);
  }

  close() {
    this.endTheme();
    this.resizing.disconnect();
    cancelAnimationFrame(this.frame ?? 0);
    this.panel.close(this.Plotly);
  }
}

/** Stacked areas, one per part, with the step's phases along the bottom.
 * @param {any} timeline @param {import("./theme.js").Theme} theme
 * @returns {import("./traces.js").Drawing} */
function drawing(timeline, theme) {
  const columns = /** @type {[string, number[]][]} */ (Object.entries(timeline.parts));
  const gib = Math.max(...totals(columns, timeline.event.length)) >= 1024;
  const scale = gib ? 1024 : 1;
  const colors = columns.map(([name]) => color(name, theme));
  const traces = columns.map(([name, values], at) => ({
    type: "scatter",
    mode: "lines",
    stackgroup: "memory",
    name: plotText(name),
    ...called(name),
    x: timeline.event,
    y: values.map((value) => value / scale),
    line: { width: 0.6, color: colors[at].line, shape: "hv" },
    fillcolor: colors[at].fill,
    hovertemplate: `%{y:.3~g} ${gib ? "GiB" : "MiB"}`,
  }));
  const marks = firsts(timeline.phases);
  const top = Math.max(...totals(columns, timeline.event.length)) * 2 ** 20;
  return {
    traces,
    value: `${bytes(top)} at the peak`,
    label: `Memory over the simulated steps: ${bytes(top)} at the peak`,
    chips: columns.map(([name], at) => ({ text: name, color: colors[at].line })),
    layout: {
      xaxis: { tickvals: marks.map((mark) => mark.event), ticktext: marks.map((mark) => mark.name), tickangle: 0 },
      yaxis: { rangemode: "tozero", ticksuffix: gib ? " GiB" : " MiB" },
    },
  };
}

/** @param {[string, number[]][]} columns @param {number} count */
const totals = (columns, count) =>
  Array.from({ length: count }, (_, at) => columns.reduce((sum, [, values]) => sum + values[at], 0));

/** Phases with room for their name: those that last. @param {any[]} phases */
function firsts(phases) {
  const end = phases.at(-1)?.event ?? 0;
  const begin = phases[0]?.event ?? 0;
  const least = (end - begin) / 9;
  return phases.filter((phase, at) => at === phases.length - 1 || phases[at + 1].event - phase.event >= least);
}

/** @param {string} name @param {import("./theme.js").Theme} theme */
function color(name, theme) {
  const { style, shade } = look(name);
  const base = theme.series[Number(/series-(\d)/.exec(style)?.[1] ?? 8) - 1];
  return { line: base, fill: fade(base, shade ? 0.3 : 0.72) };
}
