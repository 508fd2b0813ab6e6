// @ts-check
/** The plans that keep the limits, cheapest first; a row selects its plan. */

import { titled, doubts } from "./cost_bars.js";
import { element, focusedElement, setText } from "./dom.js";

const FEW = 8; // rows before "Show all"
const HEAD = ["Rank", "Machines and layout", "Time", "Cost", "Tokens/s"];

export class Table {
  /** @param {(at: number) => void} pick */
  constructor(pick) {
    this.pick = pick;
    this.open = false;
    this.body = element("tbody");
    this.all = element("button", { type: "button", class: "wb-button wbm-all", "aria-expanded": "false" });
    this.all.addEventListener("click", () => {
      this.open = !this.open;
      this.show();
    });
    this.none = element("p", { class: "wb-note", hidden: "" });
    const head = element("tr", {}, ...HEAD.map((text) => element("th", { scope: "col" }, text)));
    const table = element("table", { class: "wbp-table" }, element("thead", {}, head), this.body);
    this.scroll = element("div", { class: "wbc-scroll wbp-scroll" }, table);
    this.order = element("span", { class: "wb-note" });
    this.node = titled("Best plans", [this.scroll, this.none, this.all], [this.order]);
  }

  /** @param {any[]} rows @param {any} figure @param {number} selected */
  draw(rows, figure, selected) {
    this.rows = rows;
    this.figure = figure;
    this.selected = selected;
    this.show();
  }

  show() {
    const { kept, front, own, exact } = this.figure;
    setText(this.order, own ? "the fastest first" : "the cheapest first; ● nothing is cheaper and faster");
    const shown = this.open ? kept : kept.slice(0, FEW);
    const held = focusedElement()?.closest("[data-plan]")?.getAttribute("data-plan");
    const inside = this.body.contains(focusedElement());
    this.body.replaceChildren(...shown.map((/** @type {number} */ at, /** @type {number} */ row) => this.row(at, row + 1, front.includes(at))));
    if (inside && held) /** @type {HTMLElement|null} */ (this.body.querySelector(`[data-plan="${held}"] button`))?.focus({ preventScroll: true });
    this.scroll.dataset.open = String(this.open);
    setText(this.none, exact ? "No plan meets the limits." : "No plan yet."); // before a search has ended nothing is known of the limits
    this.none.hidden = kept.length > 0;
    this.all.hidden = kept.length <= FEW;
    setText(this.all, this.open ? "Show fewer" : `Show all ${kept.length}`);
    this.all.setAttribute("aria-expanded", String(this.open));
  }

  /** @param {number} at @param {number} rank @param {boolean} front */
  row(at, rank, front) {
    const plan = /** @type {any[]} */ (this.rows)[at];
    const chosen = at === this.selected;
    const name = element("button", { type: "button", class: "wbp-pick", "aria-pressed": String(chosen), title: plan.offer }, plan.where);
    const row = element(
      "tr",
      { "data-plan": String(at), "data-chosen": String(chosen), "data-front": String(front) },
      element("td", {}, `${rank}${front ? " ●" : ""}`),
      element("th", { scope: "row" }, name, " ", element("span", { class: "wb-note" }, plan.region), element("div", { class: "wbp-layout" }, plan.layout, " ", ...doubts(plan.marks))),
      element("td", {}, plan.time),
      element("td", { title: plan.range }, plan.cost),
      element("td", { title: plan.speed }, plan.rate),
    );
    row.addEventListener("click", () => this.pick(at));
    return row;
  }
}
