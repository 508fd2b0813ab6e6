// @ts-check
/** Rules of thumb on a job: whether each holds, why, and what to do. */

import { element, setText } from "./dom.js";
import { addRules } from "./memory_style.js";

/** @typedef {{rule: string, holds: boolean|null, verdict: string, reason: string, next: string}} Rule */

const MARKS = { true: "✓", false: "!", null: "·" };
const WORDS = { true: "holds", false: "needs attention", null: "figures" };
const CSS = `
.wb-root .wba-rules { list-style: none; margin: 6px 0 0; padding: 0; display: grid; gap: 7px; font-size: 12.5px; overflow-wrap: anywhere; }
.wba-rules li { display: grid; grid-template-columns: 16px minmax(0, 1fr); }
.wba-rules i { font-style: normal; font-weight: 700; color: var(--wb-muted); }
.wba-rules [data-holds="true"] i { color: var(--wb-good); }
.wba-rules [data-holds="false"] i { color: var(--wb-warn); }
.wba-rules b { font-weight: 600; }
.wb-root .wba-rules p { margin: 1px 0 0; color: var(--wb-muted); }
.wb-root .wba-rules .wba-next { color: var(--wb-ink); }
`;

export class Advice {
  constructor() {
    addRules("workbench-advice-style", CSS);
    this.list = element("ul", { class: "wba-rules" });
    this.count = element("span", { class: "wb-note" });
    this.node = element(
      "details",
      { class: "wb-advice", hidden: "" },
      element("summary", { tabindex: "0" }, "Advice ", this.count),
      this.list,
    );
    this.key = "";
  }

  /** @param {Rule[]} rules */
  draw(rules) {
    this.node.hidden = rules.length === 0;
    const key = JSON.stringify(rules);
    if (key === this.key) return;
    this.key = key;
    const open = rules.filter(({ holds }) => holds === false).length;
    const all = rules.length === 1 ? "1 rule" : `${rules.length} rules`;
    setText(this.count, open ? `${open} of ${all} to look at` : `${all}, nothing to do`);
    this.list.replaceChildren(...rules.map(line));
  }
}

/** @param {Rule} rule */
function line({ rule, holds, verdict, reason, next }) {
  const key = /** @type {"true"|"false"|"null"} */ (String(holds));
  const more = next ? [element("p", { class: "wba-next" }, `Next: ${next}`)] : [];
  return element(
    "li",
    { "data-holds": key, "data-rule": rule },
    element("i", { role: "img", "aria-label": WORDS[key] }, MARKS[key]),
    element("div", {}, element("b", {}, verdict), element("p", {}, reason), ...more),
  );
}
