// @ts-check
/**
 * What a page may say of a run's state: from its view, from how old that is, from what the kernel
 * read from the run's files (`workbench.store.status`, as the command line does), and from which
 * link of the page is dead. No DOM here.
 *
 * @typedef {{state: string, outcome: string|null, message: string|null, at: number}} Status
 * @typedef {{transport: string, kernel: "none"|"gone"|"silent"|"answers"}} Link
 * @typedef {{badge: {state: string, text: string}, sentence: string, followed: boolean,
 *   ended: boolean, outcome: string|null, silent: boolean}} RunState
 */

import { known, seconds } from "./format.js";

const PHASES = { starting: "Starting", running: "Running", stopping: "Stopping", ended: "Ended" };
const OUTCOMES = {
  succeeded: "Succeeded",
  failed: "Failed",
  stopped: "Stopped",
  preempted: "Preempted",
  interrupted: "Interrupted",
  "no-steps": "No steps",
};
const SILENT_AFTER_SECONDS = 10;
const GONE_AFTER_SECONDS = 30; // workbench.store.status.HEARTBEAT_FRESH_SECONDS

/** @param {any} view @returns {{state: string, text: string}} */
export function badge(view) {
  const outcome = /** @type {any} */ (OUTCOMES)[view.outcome];
  if (view.phase === "ended" && outcome) return { state: view.outcome, text: outcome };
  const text = /** @type {any} */ (PHASES)[view.phase] ?? "Waiting";
  return { state: view.phase ?? "starting", text };
}

/** Whether nothing was heard of a living run's supervisor for a while.
 * @param {any} view @param {number|null} age seconds since the view was written */
export const silent = (view, age) => view.phase !== "ended" && known(age) && age > SILENT_AFTER_SECONDS;

/** @param {any} view @param {number|null} age seconds since the view was written
 * @param {Link} link @param {Status|null} status what the kernel read, if it answered lately
 * @returns {RunState} */
export function runState(view, age, link, status) {
  const ended = view.phase === "ended";
  /** @type {RunState} */
  const usual = { badge: badge(view), sentence: "", followed: !ended, ended, outcome: view.outcome ?? null, silent: false };
  if (!silent(view, age)) return usual;
  const since = seconds(age);
  const lost = { ...usual, followed: false, silent: true };
  if (status?.state === "ended" || status?.state === "interrupted") {
    const outcome = status.outcome ?? "interrupted";
    const sentence = status.message ?? "";
    return { ...lost, badge: badge({ phase: "ended", outcome }), sentence, ended: true, outcome };
  }
  if (status?.state === "unsupervised") {
    const sentence = `${status.message ?? "The supervisor has ended; training continues."} The figures are ${since} old.`;
    return { ...lost, badge: { state: "unsupervised", text: "Not supervised" }, sentence };
  }
  const dead = link.kernel === "gone" || link.kernel === "silent";
  if (link.transport === "comm" && dead) {
    const why = link.kernel === "gone" ? "The kernel of this cell was restarted or shut down" : "The kernel does not respond";
    const sentence = `${why}, and this page has no other connection to the run; its figures are ${since} old. Training is not affected. Run the cell again.`;
    return { ...lost, badge: { state: "unsupervised", text: "Not connected" }, sentence };
  }
  const old = `Supervisor silent for ${since}; the figures are that old.`;
  if (/** @type {number} */ (age) <= GONE_AFTER_SECONDS || status) return { ...usual, sentence: old, silent: true };
  const name = view.run ? ` ${view.run}` : "";
  const next = `It has ended, or this machine was suspended; the ranks may still be training. Check with workbench show${name}.`;
  return { ...lost, badge: { state: "unsupervised", text: "Not supervised" }, sentence: `${old} ${next}` };
}
