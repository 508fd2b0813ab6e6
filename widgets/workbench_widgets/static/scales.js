// @ts-check
/**
 * What the charts over the steps are drawn along: steps, time at work, tokens or dollars. The same sums as the
 * engine's curves (workbench/observe/curves.py). No DOM here.
 *
 * @typedef {{by: string, title: string, known: boolean, of: (step: number) => number|null,
 *   back: (x: number) => number|null, say: (x: number) => string, axis: any}} Scale
 */

import { count, known, seconds as clock, short, usd } from "./format.js";

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

/** Tokens consumed up to each row, null from where a rate is unknown. @param {any} series
 * @returns {(number|null)[]} */
export function tokensOf(series) {
  let total = /** @type {number|null} */ (0);
  let before = 0;
  return (series.step ?? []).map((/** @type {number} */ step, /** @type {number} */ at) => {
    const [rate, each] = [series.tokens_per_second?.[at], series.step_seconds?.[at]];
    // The first step has no duration of its own: it consumed as many tokens as the next one.
    const [rateHere, eachHere] = at === 0 && !known(rate) ? [series.tokens_per_second?.[1], series.step_seconds?.[1]] : [rate, each];
    total = total !== null && known(rateHere) && known(eachHere) ? total + rateHere * eachHere * (step - before) : null;
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

/** @param {any} view @param {string} by @returns {Scale} */
export function scaleOf(view, by) {
  const series = view.series ?? {};
  const steps = series.step ?? [];
  const times = series.time ?? [];
  const atWork = secondsAtWork(view);
  const price = view.usd_per_hour;
  const raw = by === "tokens" ? tokensOf(series) : times.map((/** @type {number} */ time) => (known(time) ? atWork(time) : null));
  const rows = steps.map((/** @type {number} */ _, /** @type {number} */ at) => at).filter((/** @type {number} */ at) => known(steps[at]) && known(raw[at]));
  const length = Math.max(0, ...rows.map((/** @type {number} */ at) => raw[at]));
  const [unit, size] = length > 2 * 3600 ? ["h", 3600] : length > 180 ? ["min", 60] : ["s", 1];
  const factor = by === "time" ? 1 / size : by === "usd" ? (price ?? 0) / 3600 : 1;
  const [x, y] = [[0, ...rows.map((/** @type {number} */ at) => steps[at])], [0, ...rows.map((/** @type {number} */ at) => raw[at] * factor)]];
  const of = through(x, y);
  const back = through(y, x);
  const there = rows.length > 0;
  if (by === "time") {
    return { by, title: "running time", known: there, of, back, say: (at) => clock(at * size), axis: { ticksuffix: ` ${unit}` } };
  }
  if (by === "tokens") return { by, title: "tokens", known: there, of, back, say: (at) => `${short(at)} tokens`, axis: { tickformat: "~s" } };
  if (by === "usd") return { by, title: "dollars", known: there && known(price), of, back, say: usd, axis: { tickprefix: "$" } };
  const same = (/** @type {number} */ at) => at;
  return { by: "step", title: "optimizer step", known: true, of: same, back: same, say: (at) => `step ${count(at)}`, axis: {} };
}

/** A step's Unix time, and the step of a Unix time: what panels of different axes share.
 * @param {any} view */
export function moments(view) {
  const { step = [], time = [] } = view.series ?? {};
  return { timeOf: through(step, time), stepAt: through(time, step) };
}
