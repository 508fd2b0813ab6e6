// @ts-check
/** The tail of one rank's log, as plain text. */

import { element, setText } from "./dom.js";
import { plainLine } from "./format.js";

/** @typedef {import("./source.js").RunSource} RunSource */

const LINES_SHOWN = 200;
const REFRESH_MS = 1500;

export class Logs {
  /** @param {RunSource} source */
  constructor(source) {
    this.source = source;
    this.select = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Log" }));
    this.text = element("pre", { class: "wb-log", tabindex: "0", role: "region", "aria-label": "Log" });
    this.node = element(
      "section",
      { class: "wb-panel wb-area-logs", "aria-label": "Logs" },
      element("header", {}, element("h3", {}, "Log"), this.select),
      this.text,
    );
    this.view = /** @type {any} */ ({ ranks: [] });
    this.drawnAt = 0;
    this.chosen = ""; // by the user: what was shown before any rank had told is no choice
    this.select.addEventListener("change", () => {
      this.chosen = this.select.value;
      this.refresh(true);
    });
    setText(this.text, "No output yet");
  }

  /** @param {any} view */
  draw(view) {
    this.view = view;
    this.drawOptions((view.ranks ?? []).map((/** @type {any} */ one) => one.rank));
    this.refresh(view.phase === "ended");
  }

  /** @param {number[]} ranks */
  drawOptions(ranks) {
    const names = ranks.map((rank) => [`rank-${rank}.log`, `Rank ${rank}`]);
    if (this.source.transport === "http") names.push(["launcher.log", "Launcher"], ["supervisor.log", "Supervisor"]);
    const key = names.join();
    if (this.select.dataset.key === key) return;
    this.select.dataset.key = key;
    this.select.replaceChildren(...names.map(([value, text]) => element("option", { value }, text)));
    if (names.some(([value]) => value === this.chosen)) this.select.value = this.chosen;
  }

  /** @param {boolean} force */
  async refresh(force) {
    if (!force && Date.now() - this.drawnAt < REFRESH_MS) return;
    this.drawnAt = Date.now();
    const name = this.select.value;
    if (!name) return;
    const inView = this.tailInView(name);
    // Asking for the end of an empty file is an error (416), for one that is not there yet as well.
    const early = name === "launcher.log" && !this.chosen && this.view.phase === "starting";
    const lines = (early || inView?.length === 0 ? null : await this.source.logTail(name)) ?? inView ?? [];
    if (name === this.select.value) this.show(lines);
  }

  /** @param {string} name @returns {string[]|undefined} */
  tailInView(name) {
    const rank = Number(/^rank-(\d+)/.exec(name)?.[1] ?? -1);
    return this.view.ranks?.find((/** @type {any} */ one) => one.rank === rank)?.log_tail;
  }

  /** @param {string[]} lines */
  show(lines) {
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    const following = scrollHeight - scrollTop - clientHeight < 24;
    const text = lines.slice(-LINES_SHOWN).map(plainLine).join("\n");
    setText(this.text, text || "No output yet");
    if (following) this.text.scrollTop = this.text.scrollHeight;
  }
}
