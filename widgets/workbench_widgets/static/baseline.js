// @ts-check
/** The run to compare with: chosen in the store, its curves drawn behind the live ones. */

import { element } from "./dom.js";

const NONE = "No baseline";
const AGAIN_MS = 15_000; // between two looks at a run that still trains
const AGAIN_TIMES = 20; // as long as a look takes

export class Baseline {
  /** @param {import("./source.js").RunSource} source @param {() => void} changed */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    /** What is drawn, and whose it is. */
    this.view = /** @type {any} */ (null);
    this.name = "";
    this.nextAt = 0;
    this.select = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Baseline run", title: "Draw another run's curves behind these" }, element("option", { value: "" }, NONE)));
    this.node = element("label", { class: "wb-slider" }, "Baseline", this.select);
    this.select.addEventListener("focus", () => this.list());
    this.select.addEventListener("mousedown", () => this.list());
    this.select.addEventListener("change", () => this.choose());
    this.listed = 0;
  }

  /** The store's other runs, looked up when the menu is opened. */
  async list() {
    if (Date.now() - this.listed < 5000) return;
    this.listed = Date.now();
    const runs = (await this.source.questions.runs()).filter((/** @type {string} */ run) => run !== this.source.context.config.run);
    const chosen = this.select.value; // perhaps while they were looked up
    if (chosen && !runs.includes(chosen)) runs.unshift(chosen);
    this.select.replaceChildren(element("option", { value: "" }, runs.length ? NONE : "No other run"), ...runs.map((/** @type {string} */ run) => element("option", { value: run }, run)));
    this.select.value = chosen;
  }

  async choose() {
    const run = this.select.value;
    const view = run ? await this.read(run) : null;
    if (this.select.value !== run) return; // another was chosen meanwhile
    [this.name, this.view] = [run, view];
    this.node.title = run && !view ? `${run} has no curves to draw` : "";
    this.changed();
  }

  /** A run that still trains has new curves now and then. */
  async renew() {
    const { name, view } = this;
    if (!view || view.phase === "ended" || Date.now() < this.nextAt) return;
    const now = await this.read(name);
    if (!now || this.view !== view) return;
    this.view = now;
    this.changed();
  }

  /** @param {string} run */
  async read(run) {
    const begun = Date.now();
    this.nextAt = Infinity;
    try {
      return await this.source.questions.viewOf(run);
    } finally {
      this.nextAt = Date.now() + Math.max(AGAIN_MS, AGAIN_TIMES * (Date.now() - begun));
    }
  }
}
