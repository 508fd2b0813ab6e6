// @ts-check
/**
 * What a page may say of a run's state: what the kernel read from the run's files and processes
 * (`workbench.store.status`, as the command line does) where that is newer than the view; else what
 * the view says, how old it is, and which link of the page is dead. No DOM here.
 *
 * @typedef {{state: string, outcome: string|null, message: string|null}} Answer
 * @typedef {Answer & {ageSeconds: number}} Status
 * @typedef {{transport: string, kernel: "none"|"gone"|"silent"|"answers"}} Link
 * @typedef {{badge: {state: string, text: string}, sentence: string, phase: string,
 *   followed: boolean, ended: boolean, outcome: string|null, silent: boolean, unwatched?: boolean}} RunState
 */

import { known, seconds } from "./format.js";

const PHASES = {
  queued: "Queued",
  starting: "Starting",
  running: "Running",
  stopping: "Stopping",
  ended: "Ended",
  unsupervised: "Not supervised",
  unreadable: "Unreadable",
  hung: "Hung",
};
const HANGS = ["hang", "deadlock", "stopped-rank", "gil-held"]; // workbench.store.findings.HANGS
const OUTCOMES = {
  succeeded: "Succeeded",
  failed: "Failed",
  stopped: "Stopped",
  preempted: "Preempted",
  interrupted: "Interrupted",
  "no-steps": "No steps",
};
const WATCHED = ["starting", "running", "stopping"]; // by a supervisor
const LATE_AFTER_SECONDS = 4; // a view is written every second
const SILENT_AFTER_SECONDS = 10;
const GONE_AFTER_SECONDS = 30; // workbench.store.status.HEARTBEAT_FRESH_SECONDS

/** @param {any} view @returns {{state: string, text: string}} */
export function badge(view) {
  const outcome = /** @type {any} */ (OUTCOMES)[view.outcome];
  const more = view.rehearsal ? ", rehearsal" : "";
  if (view.phase === "ended" && outcome) return { state: view.outcome, text: outcome + more };
  const text = /** @type {any} */ (PHASES)[view.phase] ?? "Waiting";
  return { state: view.phase ?? "starting", text: text + more };
}

/** Whether nothing goes on by itself. @param {any} view */
const hangs = (view) => (view.findings ?? []).some((/** @type {any} */ finding) => HANGS.includes(finding.kind) && finding.severity === "error" && !known(finding.cleared_at));

/** Whether nothing was heard of a living run's supervisor for a while.
 * @param {any} view @param {number|null} age seconds since the view was written */
export const silent = (view, age) => view.phase !== "ended" && known(age) && age > SILENT_AFTER_SECONDS;

/** Whether the kernel has to be asked what the run's files and processes say by now.
 * @param {any} view @param {number|null} age seconds since the view was written; null: by no supervisor */
export const late = (view, age) => view.phase !== "ended" && !(known(age) && age <= LATE_AFTER_SECONDS);

/** @param {any} view @param {number|null} age seconds since the view was written
 * @param {Link} link @param {Status|null} status what the kernel read, if it answered lately
 * @returns {RunState} */
export function runState(view, age, link, status) {
  const told = view.phase === "ended" && status?.state === "ended"; // by the view, with more detail
  const newer = status && !told && !(known(age) && age <= status.ageSeconds) ? status : null;
  if (newer && !WATCHED.includes(newer.state)) return unwatched(view, newer, age);
  const phase = newer ? newer.state : view.phase;
  const ended = phase === "ended";
  /** @type {RunState} */
  const usual = {
    badge: badge({ ...view, phase: phase === "running" && hangs(view) ? "hung" : phase }),
    sentence: "",
    phase,
    followed: !ended,
    ended,
    outcome: ended ? view.outcome ?? null : null,
    silent: silent(view, age),
  };
  if (!usual.silent) return usual;
  const since = seconds(age);
  const dead = link.kernel === "gone" || link.kernel === "silent";
  if (link.transport === "comm" && dead) {
    const why = link.kernel === "gone" ? "The kernel of this cell was restarted or shut down" : "The kernel does not respond";
    const sentence = `${why}, and this page has no other connection to the run; its figures are ${since} old. Training is not affected. Run the cell again.`;
    return { ...usual, followed: false, badge: { state: "unsupervised", text: "Not connected" }, sentence };
  }
  const old = `Supervisor silent for ${since}; the figures are that old.`;
  if (/** @type {number} */ (age) <= GONE_AFTER_SECONDS || newer) return { ...usual, sentence: old };
  const name = view.run ? ` ${view.run}` : "";
  const next = `It has ended, or this machine was suspended; the ranks may still be training. Check with workbench show${name}.`;
  return { ...usual, followed: false, badge: badge({ phase: "unsupervised" }), sentence: `${old} ${next}` };
}

/** A run that no supervisor tells of any more. @param {any} view @param {Status} status
 * @param {number|null} age of the view @returns {RunState} */
function unwatched(view, { state, outcome: told, message }, age) {
  const outcome = told ?? (state === "interrupted" ? state : null);
  const ended = state === "ended" || state === "interrupted";
  const old = state === "unsupervised" && known(age) ? ` The figures are ${seconds(age)} old.` : "";
  return {
    badge: badge(ended ? { phase: "ended", outcome, rehearsal: view.rehearsal } : { phase: state, rehearsal: view.rehearsal }),
    sentence: (message ?? "") + old,
    phase: ended ? "ended" : view.phase,
    followed: false,
    ended,
    outcome,
    silent: true,
    unwatched: state === "unsupervised",
  };
}
