// @ts-check
/** Bars of money and time: a step's parts in rows, a bill as one stacked bar with its table. */

import { element, setAttribute, setText } from "./dom.js";
import { fillRows } from "./memory_rows.js";
import { fillBar } from "./stack.js";

/** @typedef {{name: string, share: number|null, says: string, chosen?: boolean}} Row */

/** A panel with its title. @param {string} title @param {(Node|string)[]} inside @param {Node[]} [head] */
export const titled = (title, inside, head = []) =>
  element("section", { class: "wb-panel", "aria-label": title }, element("header", {}, element("h3", {}, title), ...head), ...inside);

/** Names with a bar and a value; the longest bar fills the track. A row without a share has no bar.
 * @param {HTMLElement} list @param {Row[]} rows */
export function drawRows(list, rows) {
  const most = Math.max(1e-9, ...rows.map(({ share }) => share ?? 0));
  const nodes = fillRows(list, rows.length);
  rows.forEach(({ name, share, says, chosen }, at) => {
    const { row, name: title, value, bar } = nodes[at];
    setText(title, name);
    setText(value, says);
    setAttribute(row, "data-wins", String(Boolean(chosen)));
    setAttribute(bar, "style", `width: ${((100 * Math.max(0, share ?? 0)) / most).toFixed(2)}%`);
    setAttribute(bar, "aria-label", `${name} ${says}`);
  });
}

/** What each term looks like: work in the accent, waste warm, what is beside the hours cool. */
const LOOKS = new Map([
  ["useful work", ["1", ""]],
  ["start-up", ["7", "pale"]],
  ["evaluation", ["3", ""]],
  ["failed attempts", ["2", ""]],
  ["checkpoints written", ["6", ""]],
  ["lost work and restarts", ["2", "pale"]],
  ["idle", ["5", ""]],
  ["billing round-up", ["8", "pale"]],
  ["storage while running", ["4", ""]],
  ["storage while stopped", ["4", "pale"]],
  ["egress", ["7", ""]],
]);

/** @param {string} name */
function look(name) {
  const [series, shade] = LOOKS.get(name) ?? ["8", ""];
  return { style: `--part: var(--wb-series-${series})`, shade };
}

/** The bill of a finished run. */
export class Bill {
  /** @param {string} title */
  constructor(title = "Cost by term") {
    this.total = element("span", { class: "wb-panel-value" });
    this.bar = element("div", { class: "wbm-bar wbc-bar", role: "img" });
    this.body = element("tbody");
    this.sources = element("ol", { class: "wbc-sources" });
    this.nothing = element("p", { class: "wb-note" });
    const head = element("tr", {}, ...["Term", "$", "How", "Source"].map((text) => element("th", { scope: "col" }, text)));
    this.node = element(
      "section",
      { class: "wb-panel", "aria-label": title },
      element("header", {}, element("h3", {}, title), this.total),
      this.bar,
      element("table", { class: "wbc-bill" }, element("thead", {}, head), this.body),
      this.nothing,
      this.sources,
    );
  }

  /** @param {any} bill */
  draw(bill) {
    setText(this.total, bill.total);
    const known = bill.terms.filter((/** @type {any} */ term) => term.share);
    this.bar.hidden = known.length === 0;
    fillBar(this.bar, known.map((/** @type {any} */ term) => ({ ...look(term.name), share: term.share, says: `${term.name} ${term.says}`, label: term.name })));
    const sources = [...new Set(bill.terms.map(cited).filter(Boolean))];
    this.body.replaceChildren(...bill.terms.map((/** @type {any} */ term) => this.row(term, sources)));
    this.nothing.hidden = bill.nothing.length === 0;
    setText(this.nothing, `Not included: ${bill.nothing.join(", ")}.`);
    this.sources.replaceChildren(...sources.map((source) => element("li", {}, source)));
  }

  /** @param {any} term @param {string[]} sources */
  row(term, sources) {
    const { style, shade } = look(term.name);
    const swatch = element("i", { class: "wbm-part wbm-swatch", style, "data-shade": shade });
    const at = sources.indexOf(cited(term));
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, swatch, term.name),
      element("td", {}, term.says),
      element("td", { class: "wbc-how" }, term.how),
      element("td", {}, at < 0 ? "n/a" : `[${at + 1}]`),
    );
  }
}

/** @param {any} term */
const cited = (term) => (term.source ? `${term.source}, ${term.date || "undated"}` : "");

/** Reasons to doubt a price, as badges. @param {string[]} marks */
export function doubts(marks) {
  return marks.map((mark) => element("span", { class: "wbm-doubt", title: DOUBTS[/** @type {keyof typeof DOUBTS} */ (mark)] ?? mark }, mark));
}

const DOUBTS = {
  stale: "The price is older than 30 days",
  odd: "Far from other prices for the same accelerator",
  unverified: "Found in one source only",
  undated: "The source is undated",
  "form unknown": "The source does not name the form factor; the slower one is assumed",
};

/** Numbers in a row: name, value, what it means. */
export class Numbers {
  constructor() {
    this.node = element("dl", { class: "wbm-numbers wbc-numbers" });
  }

  /** @param {{name: string, value: string, says: string}[]} numbers */
  draw(numbers) {
    while (this.node.children.length < numbers.length) {
      this.node.append(element("div", {}, element("dt"), element("dd"), element("dd", { class: "wbm-says" })));
    }
    numbers.forEach(({ name, value, says }, at) => {
      const [title, number, meaning] = /** @type {HTMLElement[]} */ ([...this.node.children[at].children]);
      setText(title, name);
      setText(number, value);
      setText(meaning, says);
    });
  }
}
