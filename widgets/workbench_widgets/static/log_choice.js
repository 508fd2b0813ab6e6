// @ts-check
/** Which log is shown: chosen in a menu, and of very many ranks by number, for the menu names only those that stand out. */

import { element } from "./dom.js";
import { count } from "./format.js";

export const ALL = "all";
export const MERGED_RANKS = 16;

/** @param {number} rank */
export const logOf = (rank) => `rank-${rank}.log`;

export class LogChoice {
  /** @param {() => void} changed by the user */
  constructor(changed) {
    this.changed = changed;
    this.select = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Log" }));
    this.number = /** @type {HTMLInputElement} */ (element("input", { type: "number", min: "0", step: "1", class: "wb-log-search", placeholder: "Rank", "aria-label": "Log of another rank", hidden: "" }));
    this.nodes = [this.number, this.select];
    this.chosen = ""; // by the user: what was shown before any rank had told is no choice
    /** Ranks that were asked for: they stay in the menu. @type {Set<number>} */
    this.asked = new Set();
    /** @type {number[]} */
    this.ranks = [];
    this.view = /** @type {any} */ ({ ranks: [] });
    this.select.addEventListener("change", () => this.choose());
    this.number.addEventListener("change", () => this.typed());
    this.number.addEventListener("keydown", (event) => event.key === "Enter" && this.typed());
  }

  /** The file below `logs/`, or ALL; "" before there is any. */
  get name() {
    return this.select.value;
  }

  typed() {
    const rank = this.number.valueAsNumber;
    if (!Number.isInteger(rank) || !this.number.reportValidity()) return;
    this.number.value = "";
    this.ask(rank);
    this.changed();
  }

  choose() {
    this.chosen = this.select.value;
    const rank = this.ranks.find((one) => logOf(one) === this.chosen);
    if (rank !== undefined) this.asked.add(rank);
    this.changed();
  }

  /** @param {number} rank perhaps one that the view does not tell of */
  ask(rank) {
    this.asked.add(rank);
    this.chosen = logOf(rank);
    this.draw(this.view);
  }

  /** A menu of what the view tells of; what is chosen stays in it and stays chosen. @param {any} view */
  draw(view) {
    this.view = view;
    const told = (view.ranks ?? []).map((/** @type {any} */ rank) => rank.rank);
    const all = told.length + (view.ranks_hidden ?? 0);
    const first = all > told.length ? [0] : []; // what stands out may be others in a second
    this.ranks = [...new Set([...first, ...told, ...this.asked])].sort((one, two) => one - two);
    this.number.hidden = all <= told.length;
    this.number.max = String(all - 1);
    const names = this.ranks.map((rank) => [logOf(rank), `Rank ${rank}`]);
    const merged = all > told.length ? `${MERGED_RANKS} of ${count(all)} ranks` : all > MERGED_RANKS ? `First ${MERGED_RANKS} ranks` : "All ranks";
    if (this.ranks.length > 1 || this.chosen === ALL) names.push([ALL, merged]);
    names.push(["launcher.log", "Launcher"], ["supervisor.log", "Supervisor"]);
    const key = names.join();
    if (this.select.dataset.key !== key) this.fill(names);
    this.select.dataset.key = key;
    if (this.chosen) this.select.value = this.chosen;
  }

  /** @param {string[][]} names */
  fill(names) {
    const before = this.select.value;
    this.select.replaceChildren(...names.map(([value, text]) => element("option", { value }, text)));
    if (before.startsWith("rank-") && names.some(([value]) => value === before)) this.select.value = before;
  }
}
