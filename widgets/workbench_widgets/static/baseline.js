// @ts-check
/** The run to compare with: chosen in the store, its curves drawn behind the live ones. */

import { element } from "./dom.js";

const NONE = "No baseline";

export class Baseline {
  /** @param {import("./source.js").RunSource} source @param {() => void} changed */
  constructor(source, changed) {
    this.source = source;
    this.changed = changed;
    this.view = /** @type {any} */ (null);
    this.name = "";
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
    const chosen = this.select.value;
    const runs = (await this.source.questions.runs()).filter((/** @type {string} */ run) => run !== this.source.context.config.run);
    this.select.replaceChildren(element("option", { value: "" }, runs.length ? NONE : "No other run"), ...runs.map((/** @type {string} */ run) => element("option", { value: run }, run)));
    this.select.value = runs.includes(chosen) ? chosen : "";
  }

  async choose() {
    const run = this.select.value;
    this.name = run;
    this.view = run ? await this.source.questions.viewOf(run) : null;
    this.node.title = run && !this.view ? `${run} has no curves to draw` : "";
    this.changed();
  }
}
