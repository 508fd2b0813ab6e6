// @ts-check
/** What the status bar says of live runs, and of one that ended. Texts only, never markup. */

/**
 * @typedef {{ run: string, name: string, state: string, rehearsal: boolean, steps: number|null, steps_total: number|null,
 *   loss: number|null, eta_seconds: number|null, usd_per_hour: number|null, usd_so_far: number|null,
 *   gpus: number, busy_percent: number|null, trouble: string|null }} Live
 */

const LONGEST_NAME = 28;

/** @param {string} text */
const short = (text) => (text.length > LONGEST_NAME ? `${text.slice(0, LONGEST_NAME - 1)}…` : text);

/** Its name; its id where another run of the store had that name. @param {{ run: string, name: string }} run */
const called = ({ run, name }) => (run.startsWith(`${name}-`) ? run : name);

/** @param {Live[]} runs */
function busy(runs) {
  const known = runs.filter((run) => run.busy_percent !== null);
  if (!known.length) return "";
  const gpus = known.filter((run) => run.gpus);
  const of = gpus.length ? gpus : known.slice(0, 1); // the cores are one host's: not to be added up
  const count = of.reduce((sum, run) => sum + Math.max(1, run.gpus), 0);
  const mean = of.reduce((sum, run) => sum + Math.max(1, run.gpus) * (run.busy_percent ?? 0), 0) / count;
  return `${gpus.length ? "GPU" : "CPU"} ${Math.round(mean)} %`;
}

/** @param {Live[]} runs */
function price(runs) {
  const known = runs.filter((run) => run.usd_per_hour !== null && !run.rehearsal);
  return known.length ? `$${known.reduce((sum, run) => sum + (run.usd_per_hour ?? 0), 0).toFixed(2)}/h` : "";
}

/** @param {Live} run */
function progress(run) {
  if (run.state !== "running") return run.state;
  if (run.steps === null || run.steps === 0) return "before the first step";
  return run.steps_total ? `step ${run.steps} / ${run.steps_total}` : `step ${run.steps}`;
}

/** @param {Live} run */
const loss = (run) => (run.loss === null || run.loss === undefined ? "" : `loss ${run.loss.toPrecision(3)}`);

/** @param {(string|null)[]} parts */
const joined = (parts) => parts.filter(Boolean).join(" · ");

/** One line of the live runs; there is at least one. @param {Live[]} runs */
export function runsText(runs) {
  const mark = runs.some((run) => run.trouble) ? "⚠ " : "";
  if (runs.length > 1) return mark + joined([`${runs.length} training runs`, busy(runs), price(runs)]);
  const [run] = runs;
  return mark + joined([short(called(run)), run.rehearsal ? "rehearsal" : "", progress(run), loss(run), busy(runs), price(runs)]);
}

/** A line per run, with what is wrong with it. @param {Live[]} runs */
export function tooltip(runs) {
  return runs
    .map((run) => {
      const spent = run.usd_so_far === null || run.rehearsal ? "" : `$${run.usd_so_far.toFixed(2)} so far`;
      const left = run.eta_seconds === null ? "" : `${minutes(run.eta_seconds)} left`;
      return joined([called(run), run.rehearsal ? "rehearsal" : "", progress(run), loss(run), left, spent]) + (run.trouble ? `\n⚠ ${run.trouble}` : "");
    })
    .join("\n");
}

/** @param {number} seconds */
function minutes(seconds) {
  const whole = Math.round(seconds / 60);
  return whole < 1 ? "less than a minute" : whole < 120 ? `${whole} min` : `${Math.floor(whole / 60)} h ${String(whole % 60).padStart(2, "0")} min`;
}

/** "bad" where one has a finding. @param {Live[]} runs */
export const worst = (runs) => (runs.some((run) => run.trouble) ? "bad" : "");

/** @param {{ run: string, name: string, outcome: string|null }} end */
export const endText = (end) => `${short(called(end))}: ${end.outcome ?? "ended"}`;
