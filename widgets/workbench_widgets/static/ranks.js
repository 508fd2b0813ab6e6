// @ts-check
/** One row per rank: how far, how late, how much memory. */

import { element } from "./dom.js";
import { bytes, count, known, number, shortSeconds } from "./format.js";

const COLUMNS = ["Rank", "Step", "Loss", "Late by", "Memory peak", "State"];
/** @type {Record<string, string>} */
const MEANINGS = {
  "Late by": "How long after the first rank it enters backward: a running mean, in which the latest ten steps or so count most",
};

/** @param {any} rank @param {any} view */
function state(rank, view) {
  if (rank.ended) return typeof rank.ended === "string" ? rank.ended : "ended";
  if (rank.process_state === "T" || rank.process_state === "t") return "frozen (SIGSTOP)";
  if (rank.alive === true) return rank.phase ?? "alive";
  if (rank.alive === false) return view.phase === "ended" ? "ended" : "gone";
  return "n/a";
}

export class Ranks {
  constructor() {
    this.body = element("tbody");
    const heads = COLUMNS.map((text) => element("th", { scope: "col", title: MEANINGS[text] ?? "" }, text));
    const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.node = element(
      "section",
      { class: "wb-panel wb-area-ranks", "aria-label": "Ranks" },
      element("header", {}, element("h3", {}, "Ranks")),
      element("div", { class: "wb-table-box", tabindex: "0", role: "region", "aria-label": "Table of ranks" }, table),
    );
  }

  /** @param {any} view */
  draw(view) {
    const rows = (view.ranks ?? []).map((/** @type {any} */ rank) => [
      String(rank.rank),
      count(rank.step),
      number(rank.loss),
      known(rank.late_seconds) ? shortSeconds(Math.max(0, rank.late_seconds)) : "n/a",
      bytes(rank.peak_memory_bytes ?? rank.rss_bytes),
      state(rank, view),
    ]);
    if (view.ranks_hidden) rows.push([`${view.ranks_hidden} more ranks are hidden: none has failed, is further behind or later`]);
    const key = JSON.stringify(rows);
    if (this.body.dataset.key === key) return;
    this.body.dataset.key = key;
    const cells = rows.length ? rows : [["No rank has reported yet"]];
    this.body.replaceChildren(
      ...cells.map((/** @type {string[]} */ row) =>
        element("tr", {}, ...row.map((text) =>
          element("td", row.length === 1 ? { colspan: String(COLUMNS.length) } : {}, text))),
      ),
    );
  }
}
