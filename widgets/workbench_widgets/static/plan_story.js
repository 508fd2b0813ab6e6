// @ts-check
/** Why this plan, what would change it, and why not each of the others. */

import { titled } from "./cost_bars.js";
import { element, setText } from "./dom.js";
import { count } from "./format.js";

export class Story {
  constructor() {
    this.sentences = element("div", { class: "wbm-why" });
    this.worse = element("ul", { class: "wbp-worse" });
    this.total = element("span", { class: "wb-note" });
    this.groups = element("div", { class: "wbp-groups" });
    this.words = titled("Explanation", [this.sentences]);
    this.sensitivity = titled("Sensitivity", [this.worse]);
    this.rejected = titled("Rejected layouts", [this.groups], [this.total]);
    this.key = "";
    /** @type {Set<string>} reasons that somebody has opened, whatever search they belong to */
    this.opened = new Set();
  }

  /** @param {any} story of the limits of now @param {any} rejected of the whole search */
  draw({ explain = [], sensitivity = [], lost = [] }, { groups = [], total = 0, combinations = 0 }) {
    const key = JSON.stringify([explain, sensitivity, lost, groups]);
    if (key === this.key) return;
    this.key = key;
    this.sentences.replaceChildren(...explain.map((/** @type {string} */ sentence) => element("p", {}, sentence)));
    this.words.hidden = !explain.length;
    this.worse.replaceChildren(...sensitivity.map((/** @type {any} */ change) => element("li", { "data-changes": String(change.changes) }, change.says)));
    this.sensitivity.hidden = !sensitivity.length;
    const every = [...lost, ...groups];
    this.rejected.hidden = !every.length;
    const away = lost.reduce((/** @type {number} */ sum, /** @type {any} */ group) => sum + group.count, 0);
    setText(this.total, `${count(total + away)} of ${count(combinations)} combinations`);
    this.groups.replaceChildren(...every.map((group) => this.group(group)));
  }

  /** @param {any} group */
  group({ kind, means, count: many, examples }) {
    const rows = examples.map((/** @type {any} */ example) =>
      element("li", {}, element("b", {}, example.offer), example.layout === "any" ? "" : ` ${example.layout}`, ": ", element("span", { class: "wb-note" }, example.reason)),
    );
    const more = many > rows.length ? [element("li", { class: "wb-note" }, `and ${count(many - rows.length)} more`)] : [];
    const open = this.opened.has(kind) ? { open: "" } : {};
    const node = element(
      "details",
      { class: "wbp-group", "data-kind": kind, ...open },
      element("summary", { tabindex: "0" }, element("span", { class: "wbm-value wbp-count" }, count(many)), ` ${kind}`, element("span", { class: "wb-note" }, means ? `: ${means}` : "")),
      element("ul", { class: "wbp-examples" }, ...rows, ...more),
    );
    node.addEventListener("toggle", () => (node.hasAttribute("open") ? this.opened.add(kind) : this.opened.delete(kind)));
    return node;
  }

  /** What was told of an earlier setting is greyed until its own comes. @param {boolean} old */
  age(old) {
    for (const node of [this.words, this.sensitivity, this.rejected]) node.dataset.stale = String(old);
  }
}
