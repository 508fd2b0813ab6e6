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
 * @typedef {{panel: Panel, draw: (view: any, options: any) => Drawing, detail: any, wanted: string}} Curve */

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
    const curve = { panel, draw, detail: null, wanted: "" };
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
    this.arrange(view);
    const options = { theme, ...this.options };
    const scale = scaleOf(view, this.options.by);
    const other = this.baseline.view;
    const scaleThere = other && scaleOf(other, this.options.by);
    for (const curve of [...this.own, ...this.logged.values()]) {
      const shown = curve.detail ? { ...view, ...curve.detail } : view;
      let drawing = along(curve.draw(shown, options), view, scale, this.options);
      if (curve.detail?.part) drawing = { ...drawing, chips: [...(drawing.chips ?? []), { text: `${curve.detail.part} alone`, color: "transparent" }] };
      if (other && !scaleThere.known) {
        if (drawing.layout?.xaxis?.title) drawing = { ...drawing, chips: [...(drawing.chips ?? []), { text: `${this.baseline.name}: no ${scale.title}`, color: "transparent" }] };
      } else if (other) {
        drawing = before(drawing, along(curve.draw(other, options), other, scaleThere, this.options), this.baseline.name, theme, this.options.by);
      }
      curve.panel.draw(drawing, theme, Plotly, lazy);
    }
  }

  /** A panel for each figure of what was logged; one that is gone goes. @param {any} view */
  arrange(view) {
    const titles = [...figures(view).keys()];
    for (const [title, { panel }] of this.logged) {
      if (titles.includes(title)) continue;
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
      for (const curve of [...this.own, ...this.logged.values()]) [curve.detail, curve.wanted] = [null, ""];
    }
    this.axes = axes;
    this.changed();
  }

  /** What was zoomed into, in full, where the view has only every so many steps.
   * @param {Curve} curve @param {[number, number]|null} range */
  async zoom(curve, range) {
    curve.detail = null;
    const thinned = this.view?.stride > 1 || this.view?.logged?.tables?.some((/** @type {any} */ table) => table.stride > 1);
    if (range && thinned) {
      const scale = scaleOf(this.view, this.options.by);
      const [first, last] = range.map((x) => Math.max(0, Math.round(scale.back(x) ?? 0)));
      curve.wanted = `${first} ${last}`;
      const detail = await this.source.questions.window(first, last);
      if (curve.wanted === `${first} ${last}` && detail) curve.detail = detail;
    } else {
      curve.wanted = "";
    }
    this.changed();
  }

  /** @param {any} Plotly */
  close(Plotly) {
    for (const { panel } of [...this.own, ...this.logged.values()]) panel.close(Plotly);
  }
}
