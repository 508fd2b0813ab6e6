// @ts-check
/** All panels over the steps of a run, with what was logged by name, and the switches above them. */

import { Baseline } from "./baseline.js";
import { ChartBar } from "./chart_bar.js";
import { along, before } from "./curve_options.js";
import { element, setText } from "./dom.js";
import { figure, figures, leftOut } from "./logged_traces.js";
import { Panel } from "./panel.js";
import { moments, scaleOf } from "./scales.js";
import * as traces from "./traces.js";

/** @typedef {import("./theme.js").Theme} Theme @typedef {import("./traces.js").Drawing} Drawing
 * @typedef {import("./scales.js").Scale} Scale
 * @typedef {{first: number, last: number}} Part of the steps
 * @typedef {{panel: Panel, draw: (view: any, options: any) => Drawing, part: Part|null, detail: any,
 *   until: number, attempt: number, nextAt: number}} Curve `part`: what was zoomed into, `detail`: its rows in full
 *   as far as they were there at step `until` of that attempt, `nextAt`: when they may be asked for again
 * @typedef {{theme: Theme, scale: Scale, there: Scale|null}} Look with the scales of this run and of the baseline */

const AGAIN_MS = 4000; // between two looks at a part that still grows
const AGAIN_TIMES = 5; // as long as a look takes
const UNANSWERED_MS = 30_000; // after a look that nobody answered

const NOT_ZOOMED = { part: null, detail: null, until: 0, attempt: 0, nextAt: 0 };

export class Curves {
  /** @param {{smoothing: number}} config @param {import("./source.js").RunSource} source @param {() => void} changed */
  constructor(config, source, changed) {
    this.source = source;
    this.changed = changed;
    this.options = { by: "step", logLoss: false, smoothing: config.smoothing, clip: false };
    this.baseline = new Baseline(source, changed);
    this.axes = "";
    this.bar = new ChartBar(this.options, () => this.chosen(), [this.baseline.node]);
    this.own = [
      this.add(new Panel("Loss", { area: "loss", empty: traces.WAITING }), traces.loss),
      this.add(new Panel("Learning rate", { empty: "Not reported by the script" }), traces.learningRate),
      this.add(new Panel("Gradient norm", { empty: "Not reported by the script" }), traces.gradNorm),
      this.add(new Panel("Throughput", { empty: "Unknown for this script" }), traces.throughput),
      this.add(new Panel("Step time", { empty: traces.WAITING }), traces.stepTime),
    ];
    /** @type {Map<string, Curve>} */
    this.logged = new Map();
    /** Panels that are not over the steps, but have a place for the pointer. @type {Panel[]} */
    this.others = [];
    this.note = element("p", { class: "wb-note", hidden: "" });
    this.box = element("div", { class: "wb-logged", role: "group", "aria-label": "Logged by the script", hidden: "" });
    this.view = /** @type {any} */ (null);
  }

  /** What stands in the grid, in order. */
  get nodes() {
    return [this.bar.node, ...this.own.map(({ panel }) => panel.node), this.box];
  }

  /** @param {Panel} panel @param {(view: any, options: any) => Drawing} draw @returns {Curve} */
  add(panel, draw) {
    /** @type {Curve} */
    const curve = { panel, draw, ...NOT_ZOOMED };
    panel.onCursor = (time) => this.point(panel, time);
    panel.onZoom = (range) => this.zoom(curve, range);
    return curve;
  }

  /** Panels over time follow the pointer too. @param {Panel} panel */
  follow(panel) {
    this.others.push(panel);
    panel.onCursor = (time) => this.point(panel, time);
  }

  /** @param {Panel} from @param {number|null} time */
  point(from, time) {
    for (const panel of this.panels()) if (panel !== from) panel.point(time);
  }

  panels() {
    return [...this.own, ...this.logged.values()].map(({ panel }) => panel).concat(this.others);
  }

  /** @param {any} view @param {Theme} theme @param {any} Plotly @param {boolean} lazy see Panel.draw */
  draw(view, theme, Plotly, lazy) {
    this.view = view;
    this.bar.draw(view);
    this.arrange(view, Plotly);
    void this.baseline.renew();
    const other = this.baseline.view;
    const look = { theme, scale: scaleOf(view, this.options.by), there: other && scaleOf(other, this.options.by) };
    for (const curve of [...this.own, ...this.logged.values()]) {
      void this.fill(curve);
      curve.panel.draw(this.drawingOf(curve, look), theme, Plotly, lazy);
    }
  }

  /** The curves of the part that was zoomed into, beside the values that the run has come to.
   * @param {Curve} curve @param {Look} look */
  drawingOf(curve, look) {
    const live = this.compared(curve, this.view, look);
    if (!curve.detail) return live;
    const { value, label, delta } = live;
    const drawing = { ...this.compared(curve, partOf(this.view, curve.detail), look), value, label, delta };
    return curve.detail.part ? noted(drawing, `${curve.detail.part} alone`) : drawing;
  }

  /** Curves with those of the baseline behind them.
   * @param {Curve} curve @param {any} shown the view, or a part of it @param {Look} look */
  compared(curve, shown, { theme, scale, there }) {
    const options = { theme, ...this.options };
    const drawing = along(curve.draw(shown, options), this.view, scale, this.options);
    const { view: other, name } = this.baseline;
    if (!there) return drawing;
    if (there.known) return before(drawing, along(curve.draw(other, options), other, there, this.options), name, theme, this.options.by);
    return drawing.layout?.xaxis?.title ? noted(drawing, `${name}: no ${scale.title}`) : drawing;
  }

  /** A panel for each figure of what was logged; one that is gone goes. @param {any} view @param {any} Plotly */
  arrange(view, Plotly) {
    const titles = [...figures(view).keys()];
    for (const [title, { panel }] of this.logged) {
      if (titles.includes(title)) continue;
      panel.close(Plotly);
      panel.node.remove();
      this.logged.delete(title);
    }
    for (const title of titles) {
      if (this.logged.has(title)) continue;
      this.logged.set(title, this.add(new Panel(title), (shown, options) => figure(shown, options, title)));
    }
    const text = leftOut(view);
    setText(this.note, text);
    this.note.hidden = !text;
    const wanted = [...titles.map((title) => /** @type {Curve} */ (this.logged.get(title)).panel.node), this.note];
    if (wanted.some((node, at) => this.box.children[at] !== node)) this.box.replaceChildren(...wanted);
    this.box.hidden = !titles.length && !text;
  }

  /** Another scale shows all of each curve again, as its axes do. */
  chosen() {
    const { by, logLoss, clip } = this.options;
    const axes = `${by} ${logLoss} ${clip}`;
    if (axes !== this.axes) {
      for (const curve of [...this.own, ...this.logged.values()]) Object.assign(curve, NOT_ZOOMED);
    }
    this.axes = axes;
    this.changed();
  }

  /** @param {Curve} curve @param {[number, number]|null} range of the horizontal axis; null: all of it */
  zoom(curve, range) {
    Object.assign(curve, NOT_ZOOMED);
    if (range) {
      const scale = scaleOf(this.view, this.options.by);
      const [first, last] = range.map((x) => Math.max(0, Math.round(scale.back(x) ?? 0)));
      curve.part = { first, last };
    }
    this.changed();
  }

  /** Reads what was zoomed into in full where the view has only every so many steps: now and then again, as long as
   * its steps are still being made. @param {Curve} curve */
  async fill(curve) {
    const { part, nextAt } = curve;
    const { stride, logged, steps = 0, attempt = 0 } = this.view;
    const thinned = stride > 1 || logged?.tables?.some((/** @type {any} */ table) => table.stride > 1);
    if (!part || !thinned || Date.now() < nextAt) return;
    const until = Math.min(part.last, steps);
    if (until <= curve.until && attempt === curve.attempt) return;
    Object.assign(curve, { until, attempt, nextAt: Infinity });
    const begun = Date.now();
    const detail = await this.source.questions.window(part.first, part.last);
    if (curve.part !== part) return; // another was chosen meanwhile
    curve.nextAt = Date.now() + Math.max(AGAIN_MS, AGAIN_TIMES * (Date.now() - begun));
    if (!detail) return void Object.assign(curve, { until: 0, nextAt: Date.now() + UNANSWERED_MS });
    curve.detail = detail;
    this.changed();
  }

  /** @param {any} Plotly */
  close(Plotly) {
    for (const { panel } of [...this.own, ...this.logged.values()]) panel.close(Plotly);
  }
}

/** A view with only a part of its curves, in full; what is known of the whole run stays. @param {any} view @param {any} detail */
function partOf(view, detail) {
  if (!detail.logged) return { ...view, ...detail };
  const whole = new Map((view.logged?.series ?? []).map((/** @type {any} */ { table: _table, mean: _mean, low: _low, high: _high, ...facts }) => [facts.name, facts]));
  const series = (detail.logged.series ?? []).map((/** @type {any} */ entry) => ({ ...entry, ...whole.get(entry.name) }));
  return { ...view, ...detail, logged: { ...detail.logged, series } };
}

/** @param {Drawing} drawing @param {string} text @returns {Drawing} */
const noted = (drawing, text) => ({ ...drawing, chips: [...(drawing.chips ?? []), { text, color: "transparent" }] });
