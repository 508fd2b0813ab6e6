// @ts-check
/** Ways to save memory and ways to make it fit, each with a button that sets the controls. */

import { element, focusedElement } from "./dom.js";
import { bytes, count } from "./format.js";

/** @typedef {(changes: Record<string, any>) => void} Apply */

const SHORT = 6; // switches shown before "Show all"
const ALONE = 4; // ways on one GPU, and
const MANY = 3; // on several, shown before "Show all"

/** A list whose buttons keep the focus when it is filled anew. */
class List {
  /** @param {string} title @param {string} none */
  constructor(title, none) {
    this.title = element("h3", { tabindex: "-1" }, title);
    this.none = element("p", { class: "wb-note", hidden: "" }, none);
    this.list = element("ol", { class: "wbm-switches" });
    this.all = element("button", { type: "button", class: "wb-button wbm-all", "aria-expanded": "false" });
    this.all.addEventListener("click", () => {
      this.open = !this.open;
      this.show();
    });
    this.open = false;
    this.rows = /** @type {HTMLElement[]} */ ([]);
    this.few = /** @type {HTMLElement[]} */ ([]);
    this.nodes = [element("header", {}, this.title), this.list, this.none, this.all];
  }

  /** @param {HTMLElement[]} rows all of them @param {HTMLElement[]} few shown at first */
  fill(rows, few) {
    this.rows = rows;
    this.few = few;
    this.show();
  }

  show() {
    const rows = this.open ? this.rows : this.few;
    this.all.hidden = this.few.length === this.rows.length;
    this.all.textContent = this.open ? "Show fewer" : `Show all ${this.rows.length}`;
    this.all.setAttribute("aria-expanded", String(this.open));
    const before = [...this.list.children].findIndex((row) => row.contains(focusedElement()));
    this.none.hidden = rows.length > 0;
    this.list.replaceChildren(...rows);
    if (before < 0) return;
    const buttons = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("button")]);
    (buttons[Math.min(before, buttons.length - 1)] ?? this.title).focus({ preventScroll: true });
  }
}

export class Switches {
  /** @param {Apply} apply */
  constructor(apply) {
    this.apply = apply;
    this.saving = new List("Ways to save memory", "No further way to save memory.");
    this.fitting = new List("Ways to fit, one GPU first", "None up to 1,024 GPUs of this type.");
    this.fitting.list.classList.add("wbm-ways");
    this.advice = /** @type {any} */ ({});
    this.key = "";
    this.node = element("section", { class: "wb-panel", "aria-label": "Ways to save memory" }, ...this.saving.nodes);
    this.facts = element("dl", { class: "wbm-facts" });
    this.reach = element("section", { class: "wb-panel", "aria-label": "Limits" }, this.facts, ...this.fitting.nodes);
  }

  /** @param {any} advice */
  draw(advice) {
    const key = JSON.stringify(advice);
    if (key === this.key) return;
    this.key = key;
    this.advice = advice;
    const row = (/** @type {any} */ change) => this.row(`−${bytes(change.saves)}`, change.name, this.cost(change), change.changes);
    this.saving.fill(advice.switches.map(row), advice.switches.slice(0, SHORT).map(row));
    const way = (/** @type {any} */ change) => this.way(change);
    const single = advice.ways.filter((/** @type {any} */ way) => way.gpus === 1).slice(0, ALONE);
    const many = advice.ways.filter((/** @type {any} */ way) => way.gpus > 1).slice(0, MANY);
    this.fitting.fill(advice.ways.map(way), [...single, ...many].map(way));
    this.facts.replaceChildren(
      ...advice.reach.map((/** @type {any} */ change) =>
        element("div", {}, element("dt", {}, change.name), element("dd", {}, `${count(change.value)} ${change.value === 1 ? change.unit.replace(/s$/, "") : change.unit}`), element("dd", { class: "wb-note" }, change.says)),
      ),
    );
  }

  /** @param {any} row */
  cost(row) {
    const result = row.result ? [element("span", { class: "wbm-result" }, "changes what is trained"), " "] : [];
    return [...result, `${row.cost} `, element("span", { class: "wbm-how" }, row.how)];
  }

  /** @param {any} way */
  way(way) {
    const gpus = `${count(way.gpus)} ${way.gpus === 1 ? "GPU" : "GPUs"}`;
    const result = way.result ? [element("span", { class: "wbm-result" }, "changes what is trained"), " "] : [];
    return this.row(gpus, way.name, [...result, `${bytes(way.free)} free`], way.changes);
  }

  /** @param {string} first @param {string} name @param {(Node|string)[]} text
   * @param {Record<string, any>|null} changes */
  row(first, name, text, changes) {
    const button = /** @type {HTMLButtonElement} */ (
      element("button", { type: "button", class: "wb-button", "aria-label": `Apply ${name}` }, "Apply")
    );
    button.addEventListener("click", () => changes && this.apply(changes));
    if (changes && Object.keys(changes).length === 0) {
      button.disabled = true;
      button.textContent = "In use";
    }
    const body = element("div", {}, element("b", {}, name), element("p", { class: "wb-note" }, ...text));
    return element("li", {}, element("span", { class: "wbm-saves" }, first), body, changes ? button : element("span"));
  }
}
