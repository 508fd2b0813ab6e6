// @ts-check
/**
 * What the charts over the steps are drawn along: steps, time at work, tokens or dollars. The same sums as the
 * engine's curves (workbench/observe/curves.py). No DOM here.
 *
 * @typedef {{by: string, title: string, known: boolean, missing: string, of: (step: number) => number|null,
 *   back: (x: number) => number|null, say: (x: number) => string, axis: any}} Scale
 */

import { count, known, seconds as clock, short, timeUnit, usd } from "./format.js";

export const SCALES = [
  { by: "step", name: "Step" },
  { by: "time", name: "Time" },
  { by: "tokens", name: "Tokens" },
  { by: "usd", name: "Cost" },
];

/** Seconds at work until a Unix time: pauses between attempts left out; null where a view has not what its earlier
 * attempts took. @param {any} view @returns {(time: number) => number|null} */
export function secondsAtWork(view) {
  const lines = view.attempts ?? [];
  const of = (/** @type {string} */ event) =>
    lines.filter((/** @type {any} */ line) => line.event === event && known(line.time)).map((/** @type {any} */ line) => line.time);
  const earlier = view.attempts_before?.clock ?? [];
  const first = lines.find((/** @type {any} */ line) => line.event === "start");
  if (first?.attempt > 1 && !earlier.length) return () => null;
  const ends = of("end");
  const starts = of("start").sort((/** @type {number} */ one, /** @type {number} */ two) => one - two);
  if (!starts.length) starts.push(view.started_at ?? 0);
  const intervals = starts.map((/** @type {number} */ at, /** @type {number} */ index) => {
    const next = starts[index + 1] ?? Infinity;
    const last = Math.max(...ends.filter((/** @type {number} */ end) => end >= at && end <= next));
    return [at, Number.isFinite(last) ? last : next];
  });
  const before = through(earlier.map((/** @type {number[]} */ [time]) => time), earlier.map((/** @type {number[]} */ [, seconds]) => seconds));
  const [begun, until] = [earlier[0]?.[0] ?? 0, earlier.at(-1)?.[0] ?? 0];
  return (time) => intervals.reduce((/** @type {number} */ sum, /** @type {number[]} */ [start, end]) =>
    sum + Math.max(0, Math.min(time, end) - start), before(Math.max(begun, Math.min(time, until))) ?? 0);
}

/** Seconds at work at each row, also where the host's clock was set: one that went back, or on by more than the whole
 * run, stood still for all but the steps (`StepClock` of workbench/observe/work_clock.py). @param {any} view
 * @returns {(number|null)[]} */
export function secondsOf(view) {
  const { time: times = [], step_seconds: durations = [] } = view.series ?? {};
  const atWork = secondsAtWork(view);
  const begun = [...(view.attempts ?? []).filter((/** @type {any} */ line) => line.event === "start").map((/** @type {any} */ line) => line.time), ...(view.attempts_before?.clock ?? []).map((/** @type {number[]} */ [time]) => time)];
  const elapsed = known(view.ended_at) && known(view.elapsed_seconds) ? view.elapsed_seconds : Infinity;
  let [setBy, last] = [0, -Infinity];
  return times.map((/** @type {any} */ time, /** @type {number} */ at) => {
    if (!known(time)) return null;
    let now = time + setBy;
    const far = now - last > elapsed && last > -Infinity && !begun.some((start) => last < start && start <= now);
    if (now < last || far) {
      setBy += last + (view.stride ?? 1) * (durations[at] ?? 0) - now;
      now = time + setBy;
    }
    last = now;
    const seconds = atWork(now);
    return seconds === null ? null : Math.min(seconds, elapsed);
  });
}

/** Dollars of the first so many seconds at work, as `RunRecord.usd_of`: before a resume an hour may have cost another
 * price. @param {any} view @param {any} seconds @returns {number|null} */
export function usdOf(view, seconds) {
  if (!known(view.usd_per_hour) || !known(seconds)) return null;
  let [total, since] = [0, 0];
  for (const part of view.usd_before ?? []) {
    const until = Math.min(seconds, part.until_seconds);
    total += (part.usd_per_hour * Math.max(0, until - since)) / 3600;
    since = Math.max(since, until);
  }
  return total + (view.usd_per_hour * Math.max(0, seconds - since)) / 3600;
}

/** Tokens consumed up to each row: counted where a step's are known, else from the rates; null from where those of a
 * step are unknown: the sum is then, too. The first step of an attempt has no duration, so no rate: it consumed as many
 * as the next one. @param {any} view @returns {(number|null)[]} */
export function tokensOf(view) {
  const { step: steps = [], tokens_per_second: rates = [], step_seconds: durations = [] } = view.series ?? {};
  const each = view.tokens_per_step;
  if (each > 0) return steps.map((/** @type {any} */ step) => (known(step) ? step * each : null));
  const timed = steps.map((/** @type {any} */ _, /** @type {number} */ at) => at).filter((/** @type {number} */ at) => known(durations[at]));
  let place = 0; // in `timed`
  let [total, before] = [/** @type {number|null} */ (0), 0];
  return steps.map((/** @type {number} */ step, /** @type {number} */ at) => {
    while (timed[place] < at && place < timed.length - 1) place += 1;
    const [rate, duration] = [rates[timed[place]], durations[timed[place]]];
    total = total !== null && known(rate) && known(duration) ? total + rate * duration * (step - before) : null;
    before = step;
    return total;
  });
}

/** Straight lines through points; beyond the ends the last one's slope. @param {number[]} x @param {number[]} y */
function through(x, y) {
  return (/** @type {number} */ at) => {
    if (!x.length) return null;
    if (x.length === 1) return y[0];
    let [low, high] = [0, x.length - 1];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (x[middle] <= at) low = middle;
      else high = middle;
    }
    const width = x[high] - x[low];
    return width > 0 ? y[low] + ((y[high] - y[low]) * (at - x[low])) / width : y[low];
  };
}

/** Why a scale has no places, or not all; "" where it has. @param {string} by @param {any} view @param {number[]} steps
 * @param {any[]} raw */
function missing(by, view, steps, raw) {
  if (by === "usd" && !known(view.usd_per_hour)) return "The price of this run is unknown: set WORKBENCH_USD_PER_HOUR before the launch";
  if (by === "step" || raw.every(known)) return steps.length || by === "step" ? "" : "Not known of this run yet";
  if (by !== "tokens") return "This run was recorded without what its earlier attempts took";
  if (!known(raw[0])) return "The tokens of this run's steps are unknown";
  return `Tokens are known up to step ${count(steps[raw.findIndex((value) => !known(value)) - 1])}`;
}

/** @param {any} view @param {string} by @returns {Scale} */
export function scaleOf(view, by) {
  const series = view.series ?? {};
  const steps = series.step ?? [];
  const raw = by === "tokens" ? tokensOf(view) : secondsOf(view);
  const rows = steps.map((/** @type {number} */ _, /** @type {number} */ at) => at).filter((/** @type {number} */ at) => known(steps[at]) && known(raw[at]));
  const length = Math.max(0, ...rows.map((/** @type {number} */ at) => raw[at]));
  const [unit, size] = timeUnit(length);
  const placeOf = (/** @type {number} */ value) => (by === "time" ? value / size : by === "usd" ? usdOf(view, value) ?? 0 : value);
  const [x, y] = [[0, ...rows.map((/** @type {number} */ at) => steps[at])], [0, ...rows.map((/** @type {number} */ at) => placeOf(raw[at]))]];
  const along = through(x, y);
  const last = by === "tokens" && raw.at(-1) === null ? /** @type {number} */ (x.at(-1)) : Infinity; // none is guessed
  const there = rows.length > 0 && (by !== "usd" || known(view.usd_per_hour));
  const all = { by, known: there, missing: missing(by, view, steps, raw), of: (/** @type {number} */ step) => (step > last ? null : along(step)), back: through(y, x) };
  if (by === "time") return { ...all, title: "running time", say: (at) => clock(at * size), axis: { ticksuffix: ` ${unit}` } };
  if (by === "tokens") return { ...all, title: "tokens", say: (at) => `${short(at)} tokens`, axis: { tickformat: "~s" } };
  if (by === "usd") return { ...all, title: "dollars", say: usd, axis: { tickprefix: "$" } };
  const same = (/** @type {number} */ at) => at;
  return { ...all, by: "step", title: "optimizer step", known: true, of: same, back: same, say: (at) => `step ${count(at)}`, axis: {} };
}

/** A step's Unix time, and the step of a Unix time: what panels of different axes share.
 * @param {any} view */
export function moments(view) {
  const { step = [], time = [] } = view.series ?? {};
  return { timeOf: through(step, time), stepAt: through(time, step) };
}
