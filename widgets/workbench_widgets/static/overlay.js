// @ts-check
/** The loss curves of several runs in one chart, along steps, tokens, time or dollars. */

import { element } from "./dom.js";
import { known, number, plotText, seconds, short, timeUnit, usd } from "./format.js";
import { SMOOTHED_FROM, called, someKnown, smooth } from "./lines.js";
import { lossControls } from "./loss_controls.js";
import { Panel } from "./panel.js";
import { readTheme, watchTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{run: string, name: string, step: any[], tokens: any[], seconds: any[], usd: any[], loss: any[]}} Curve
 * @typedef {{name: string, column: "step"|"tokens"|"seconds"|"usd", title: string, text: (value: unknown) => string}} Axis */

/** @type {Axis[]} */
const AXES = [
  { name: "Steps", column: "step", title: "optimizer step", text: short },
  { name: "Tokens", column: "tokens", title: "tokens", text: short },
  { name: "Time", column: "seconds", title: "running time", text: seconds },
  { name: "Dollars", column: "usd", title: "US dollars", text: usd },
];
// Ten runs, eight colours: the last two are dashed.
const DASHES = ["solid", "dash"];

export class Overlay {
  /** @param {Context} context @param {{title: string, empty: string, controls?: HTMLElement[]}} words */
  constructor(context, words) {
    this.context = context;
    this.options = { logLoss: false, smoothing: 0.6 };
    this.axis = AXES[0];
    this.select = /** @type {HTMLSelectElement} */ (
      element("select", { "aria-label": "Horizontal axis" }, ...AXES.map((axis) => element("option", {}, axis.name)))
    );
    this.select.addEventListener("change", () => {
      this.axis = AXES[this.select.selectedIndex];
      this.redraw();
    });
    const along = element("label", { class: "wb-slider" }, "Along", this.select);
    const controls = [...(words.controls ?? []), along, ...lossControls(this.options, () => this.redraw())];
    this.panel = new Panel(words.title, { area: "loss", controls, empty: words.empty });
    this.node = this.panel.node;
    /** @type {Curve[]} */
    this.curves = [];
    this.what = "loss";
    this.endTheme = watchTheme(() => this.redraw());
    this.resizing = new ResizeObserver(() => this.redraw());
    this.resizing.observe(this.node);
  }

  /** @param {Curve[]} curves @param {string} [what] the name of their values */
  async draw(curves, what = "loss") {
    this.curves = curves;
    this.what = what;
    this.redraw();
    if (this.Plotly || curves.length === 0) return;
    this.Plotly = await this.context.plotly();
    this.redraw();
  }

  redraw() {
    if (!this.Plotly || !this.node.isConnected) return;
    const theme = readTheme(this.node);
    const { axis, curves } = this;
    const shown = curves.map((curve, index) => ({ curve, color: theme.series[index % 8], dash: DASHES[index < 8 ? 0 : 1] }));
    const drawn = shown.filter(({ curve }) => someKnown(curve[axis.column]));
    const inTime = axis.column === "seconds";
    const [unit, size] = inTime ? timeUnit(Math.max(0, ...drawn.flatMap(({ curve }) => curve.seconds.filter(known)))) : ["", 1];
    const missing = shown.filter((item) => !drawn.includes(item));
    const last = (/** @type {Curve} */ curve) => number(smooth(curve.loss, this.weight(curve)).filter((value) => value !== null).at(-1));
    const without = missing.length ? ` Unknown along ${axis.name.toLowerCase()}: ${missing.map(({ curve }) => curve.name).join(", ")}.` : "";
    this.panel.draw(
      {
        traces: drawn.map((item) => this.trace(item.curve, item.color, item.dash, theme.font, size)),
        value: "",
        label: `${this.what} along ${axis.name.toLowerCase()}: ${curves.map((curve) => `${curve.name} ${last(curve)}`).join(", ")}.${without}`,
        chips: shown.map((item) => ({
          text: `${item.curve.name}  ${missing.includes(item) ? `no ${axis.name.toLowerCase()}` : last(item.curve)}`,
          color: item.color,
          dash: item.dash !== "solid",
        })),
        empty: drawn.length ? undefined : curves.length ? `Unknown along ${axis.name.toLowerCase()}` : undefined,
        layout: {
          xaxis: { title: { text: axis.title }, ...(inTime && { ticksuffix: ` ${unit}` }) },
          yaxis: { type: this.options.logLoss ? "log" : "linear" },
          uirevision: `${axis.column} ${this.options.logLoss} ${this.what}`,
        },
      },
      theme,
      this.Plotly,
    );
  }

  /** How smooth a curve is made: what was logged a few times, as an evaluation, not at all. @param {Curve} curve */
  weight(curve) {
    return this.what !== "loss" && curve.loss.filter(known).length < SMOOTHED_FROM ? 0 : this.options.smoothing;
  }

  /** @param {Curve} curve @param {string} color @param {string} dash @param {string} family
   * @param {number} size of a unit of the axis */
  trace(curve, color, dash, family, size) {
    const hovertemplate = `${plotText(curve.name)} %{y:.4~g}<extra></extra>`;
    const smoothing = this.weight(curve);
    const y = smooth(curve.loss, smoothing);
    const name = smoothing > 0 ? called(curve.name, curve.loss, smoothing) : called(curve.name);
    const line = { color, dash, width: 2 };
    const x = curve[this.axis.column].map((at) => (known(at) ? at / size : at));
    return { type: "scatter", mode: "lines", x, y, line, ...name, hovertemplate, hoverlabel: { font: { family } } };
  }

  close() {
    this.endTheme();
    this.resizing.disconnect();
    this.panel.close(this.Plotly);
  }
}
