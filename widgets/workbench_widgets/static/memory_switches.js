// @ts-check
/** What would save memory and ways to make it fit, each with a button that sets the controls. */

import { element } from "./dom.js";
import { bytes, count } from "./format.js";

/** @typedef {(changes: Record<string, any>) => void} Apply */

const SHORT = 6; // switches shown before "Show all"

/** A list whose buttons keep the focus when it is filled anew. */
class List {
  /** @param {string} title @param {string} none */
  constructor(title, none) {
    this.title = element("h3", { tabindex: "-1" }, title);
    this.none = element("p", { class: "wb-note", hidden: "" }, none);
    this.list = element("ol", { class: "wbm-switches" });
    this.nodes = [element("header", {}, this.title), this.list, this.none];
  }

  /** @param {HTMLElement[]} rows */
  fill(rows) {
    const before = [...this.list.children].findIndex((row) => row.contains(document.activeElement));
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
    this.saving = new List("What would save memory", "Nothing left that would save memory here.");
    this.fitting = new List("Ways to fit, one GPU first", "None up to 1,024 GPUs of this type.");
    this.fitting.list.classList.add("wbm-ways");
    this.all = element("button", { type: "button", class: "wb-button wbm-all", "aria-expanded": "false", hidden: "" });
    this.all.addEventListener("click", () => {
      this.open = !this.open;
      this.draw(this.advice);
    });
    this.open = false;
    this.advice = /** @type {any} */ ({});
    this.key = "";
    this.node = element("section", { class: "wb-panel", "aria-label": "What would save memory" }, ...this.saving.nodes, this.all);
    this.facts = element("dl", { class: "wbm-facts" });
    this.reach = element("section", { class: "wb-panel", "aria-label": "How far it reaches" }, this.facts, ...this.fitting.nodes);
  }

  /** @param {any} advice */
  draw(advice) {
    const key = JSON.stringify([advice, this.open]);
    if (key === this.key) return;
    this.key = key;
    this.advice = advice;
    const rows = this.open ? advice.switches : advice.switches.slice(0, SHORT);
    this.saving.fill(rows.map((/** @type {any} */ row) => this.row(`−${bytes(row.saves)}`, row.name, this.cost(row), row.changes)));
    this.all.hidden = advice.switches.length <= SHORT;
    this.all.textContent = this.open ? "Show fewer" : `Show all ${advice.switches.length}`;
    this.all.setAttribute("aria-expanded", String(this.open));
    this.fitting.fill(advice.ways.map((/** @type {any} */ way) => this.way(way)));
    this.facts.replaceChildren(
      ...advice.reach.map((/** @type {any} */ one) =>
        element("div", {}, element("dt", {}, one.name), element("dd", {}, `${count(one.value)} ${one.value === 1 ? one.unit.replace(/s$/, "") : one.unit}`), element("dd", { class: "wb-note" }, one.says)),
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
