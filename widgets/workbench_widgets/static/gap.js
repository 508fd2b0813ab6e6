// @ts-check
/** Predicted beside measured: two bars a term, their ratio, and beneath why they differ. */

import { element, setAttribute, setText } from "./dom.js";
import { bytes, known, number, short, shortSeconds, usd } from "./format.js";

/** @typedef {{what: string, group: string, unit: string, predicted: number|null, low: number|null,
 *   high: number|null, measured: number|null, ratio: number|null}} Row */

const COLUMNS = ["Term", "Predicted", "Measured", "Ratio"];
/** @type {Record<string, (value: unknown) => string>} */
const SAYS = { s: shortSeconds, bytes, usd, share: (value) => (known(value) ? `${number(100 * value, 3)} %` : "n/a") };

/** @param {Row} row @param {unknown} value */
const say = (row, value) => (SAYS[row.unit] ?? short)(value);

/** @param {Row} row */
const largestOf = (row) => Math.max(...[row.predicted, row.measured, row.high].filter(known), 0);

/** The terms that were predicted; the others have a panel of their own. @param {any} view @returns {Row[]} */
export const predictedRows = (view) => (view.comparison?.rows ?? []).filter((/** @type {Row} */ row) => known(row.predicted));

/** Null where it cannot be said. @param {Row} row */
export function within(row) {
  if (!known(row.measured) || !known(row.low) || !known(row.high)) return null;
  return row.low <= row.measured && row.measured <= row.high;
}

/** @param {string} kind @param {unknown} from @param {unknown} to @param {number} largest */
function bar(kind, from, to, largest) {
  const node = element("i", { class: `wb-gap-${kind}` });
  const share = (/** @type {number} */ value) => `${Math.min(100, Math.max(0, (100 * value) / largest)).toFixed(2)}%`;
  node.hidden = !known(from) || !known(to) || largest <= 0;
  if (known(from) && known(to)) {
    node.style.left = share(from);
    node.style.width = share(to - from);
  }
  return node;
}

/** @param {Row} row @param {number} largest */
function bars(row, largest) {
  return element(
    "div",
    { class: "wb-gap-bars", "aria-hidden": "true" },
    bar("range", row.low, row.high, largest),
    bar("predicted", 0, row.predicted, largest),
    bar("measured", 0, row.measured, largest),
  );
}

/** @param {Row} row @param {number} largest */
function line(row, largest) {
  const range = known(row.low) && known(row.high) ? `Range ${say(row, row.low)} to ${say(row, row.high)}` : "";
  const ratio = known(row.ratio) ? `${row.ratio.toFixed(2)}x` : "n/a";
  return element(
    "tr",
    { "data-group": row.group, "data-within": String(within(row)) },
    element("th", { scope: "row" }, row.what),
    element("td", {}, bars(row, largest)),
    element("td", range ? { title: range } : {}, say(row, row.predicted)),
    element("td", {}, say(row, row.measured)),
    element("td", {}, ratio),
  );
}

export class Gap {
  constructor() {
    this.value = element("span", { class: "wb-panel-value" });
    this.basis = element("span", { class: "wb-gap-basis" });
    this.body = element("tbody");
    this.why = element("p", { class: "wb-gap-why" });
    const heads = COLUMNS.map((text) => element("th", { scope: "col" }, text));
    heads.splice(1, 0, element("td", { class: "wb-gap-key", "aria-hidden": "true" }, element("i", { "data-bar": "predicted" }), "predicted", element("i", {}), "measured"));
    this.table = element("table", { class: "wb-gap" }, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.node = element(
      "section",
      { class: "wb-panel wb-area-gap", "aria-label": "Predicted and measured", hidden: "" },
      element("header", {}, element("h3", {}, "Predicted and measured"), this.basis, this.value),
      this.table,
      this.why,
    );
    this.key = "";
  }

  /** @param {any} view */
  draw(view) {
    const comparison = view.comparison;
    const rows = predictedRows(view);
    this.node.hidden = !comparison || !(rows.length || comparison.explanation);
    if (this.node.hidden) return;
    const step = rows.find((row) => row.group === "time");
    setText(this.value, step && known(step.ratio) ? `step ${step.ratio.toFixed(2)}x` : "");
    setAttribute(this.value, "data-within", String(step ? within(step) : null));
    setText(this.basis, [comparison.source, comparison.final ? "" : "so far"].filter(Boolean).join(", "));
    setText(this.why, comparison.explanation ?? "");
    this.table.hidden = rows.length === 0;
    const key = JSON.stringify(rows);
    if (key === this.key) return;
    this.key = key;
    const largest = step ? largestOf(step) : 0;
    this.body.replaceChildren(...rows.map((row) => line(row, row.group === "cause" ? largest : largestOf(row))));
  }
}
