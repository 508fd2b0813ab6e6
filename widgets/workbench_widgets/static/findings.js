// @ts-check
/** What is wrong with the run: evidence, cause and next move of each finding; the cleared ones folded. */

import { element, setAttribute, setText } from "./dom.js";
import { count, known, moment, percent } from "./format.js";

/** @typedef {{kind: string, severity: string, rank: number|null, step: number|null, cause: string,
 *   evidence: string, next: string, confidence: number|null, seen_at: number|null,
 *   cleared_at: number|null, replaced_by: string|null}} Finding */

const SEVERITIES = ["error", "warning", "note"];
const WORDS = { nan: "NaN", gpu: "GPU", cpu: "CPU", nccl: "NCCL", ecc: "ECC", xid: "Xid", ddp: "DDP", oom: "Out of memory" };

/** "nan-loss" -> "NaN loss", "out-of-memory" -> "Out of memory". @param {unknown} kind */
export function kindText(kind) {
  const words = String(kind ?? "finding").split("-").map((word) => /** @type {any} */ (WORDS)[word] ?? word);
  const text = words.join(" ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** An unknown severity is taken seriously. @param {any} finding */
export const severityOf = (finding) => (SEVERITIES.includes(finding?.severity) ? finding.severity : "warning");

/** Those that stand, worst first. @param {any} view @returns {Finding[]} */
export function standing(view) {
  const active = (view.findings ?? []).filter((/** @type {any} */ finding) => !known(finding.cleared_at));
  return active.sort((/** @type {any} */ left, /** @type {any} */ right) =>
    SEVERITIES.indexOf(severityOf(left)) - SEVERITIES.indexOf(severityOf(right)));
}

/** @param {any} finding */
export function placeOf(finding) {
  if (known(finding.rank)) return `rank ${finding.rank}`;
  if (known(finding.gpu)) return `gpu${finding.gpu}${finding.node ? ` of node ${finding.node}` : ""}`;
  return finding.node ? `node ${finding.node}` : "whole run";
}

/** Where and since when, as short words. @param {any} finding */
function circumstances(finding) {
  const words = [placeOf(finding)];
  if (known(finding.step)) words.push(`since step ${count(finding.step)}`);
  if (known(finding.seen_at)) words.push(`seen ${moment(finding.seen_at)}`);
  const by = finding.replaced_by ? `replaced by ${finding.replaced_by}` : "gone";
  if (known(finding.cleared_at)) words.push(`${by} ${moment(finding.cleared_at)}`);
  words.push(known(finding.confidence) ? `${percent(100 * finding.confidence)} sure` : "confidence n/a");
  return words.join("  ·  ");
}

/** @param {any} finding */
function card(finding) {
  const severity = known(finding.cleared_at) ? "cleared" : severityOf(finding);
  const rows = [["Evidence", finding.evidence], ["Next", finding.next]].filter(([, text]) => text);
  return element(
    "li",
    { class: "wb-finding", "data-severity": severity },
    element(
      "header",
      {},
      element("span", { class: "wb-severity" }, severity),
      element("h4", {}, kindText(finding.kind)),
      element("span", { class: "wb-circumstances" }, circumstances(finding)),
    ),
    element("p", { class: "wb-cause" }, String(finding.cause ?? "Cause n/a")),
    element("dl", {}, ...rows.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, String(text))])),
  );
}

export class Findings {
  constructor() {
    this.count = element("span", { class: "wb-panel-value" });
    this.calm = element("p", { class: "wb-note" });
    this.list = element("ul", { class: "wb-findings" });
    this.gone = element("ul", { class: "wb-findings" });
    this.summary = element("summary", {});
    this.fold = element("details", { class: "wb-cleared", hidden: "" }, this.summary, this.gone);
    this.node = element(
      "section",
      { class: "wb-panel wb-area-findings", "aria-label": "Findings", tabindex: "-1" },
      element("header", {}, element("h3", {}, "Findings"), this.calm, this.count),
      this.list,
      this.fold,
    );
    this.key = "";
    setText(this.calm, "No findings");
  }

  /** @param {any} view */
  draw(view) {
    const now = standing(view);
    const gone = (view.findings ?? []).filter((/** @type {any} */ finding) => known(finding.cleared_at));
    const key = JSON.stringify([now, gone]);
    if (key === this.key) return;
    this.key = key;
    setText(this.calm, now.length ? "" : gone.length ? "No open findings" : "No findings");
    setText(this.count, now.length > 1 ? count(now.length) : "");
    setAttribute(this.node, "data-severity", now.length ? severityOf(now[0]) : "none");
    this.list.replaceChildren(...now.map(card));
    this.gone.replaceChildren(...gone.map(card));
    this.fold.hidden = gone.length === 0;
    setText(this.summary, `${count(gone.length)} cleared`);
  }

  /** Brings the panel into sight and gives it the focus. */
  show() {
    this.node.scrollIntoView({ block: "center", behavior: "auto" });
    this.node.focus({ preventScroll: true });
  }
}

/** The header's alarm: the worst finding that stands, as a button that leads to the panel. */
export class Alarm {
  /** @param {() => void} show */
  constructor(show) {
    this.text = element("span", { class: "wb-alarm-text" });
    this.node = element(
      "button",
      { type: "button", class: "wb-alarm", hidden: "" },
      this.text,
      element("span", { class: "wb-alarm-more", "aria-hidden": "true" }, "Show"),
    );
    this.spoken = element("span", { class: "wb-spoken", role: "alert" });
    this.node.addEventListener("click", show);
  }

  /** @param {any} view @param {string} banner what the banner says already */
  draw(view, banner) {
    const serious = standing(view).filter((finding) => severityOf(finding) !== "note" && !banner.includes(finding.cause));
    this.node.hidden = serious.length === 0;
    const [worst] = serious;
    const severity = worst ? severityOf(worst) : "none";
    setAttribute(this.node, "data-severity", severity);
    const more = serious.length > 1 ? ` And ${count(serious.length - 1)} more.` : "";
    const cause = worst ? `: ${worst.cause}` : "";
    setText(this.text, worst ? `${severity === "error" ? "Error" : "Warning"}, ${kindText(worst.kind)}${cause}${more}` : "");
    setText(this.spoken, severity === "error" ? `Error: ${worst.cause}` : "");
  }
}
