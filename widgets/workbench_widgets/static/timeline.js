// @ts-check
/**
 * Rank timeline: the latest steps, one row per rank. In each step the bar of a rank says how
 * long it was still on its way after the first rank had entered backward, how long it then waited
 * for the last one, and how long they exchanged gradients together. No DOM here.
 *
 * Step times cannot show a straggler: in data parallelism all ranks end a step together, so all
 * are equally slow. The time of entering backward can.
 *
 * @typedef {import("./traces.js").Drawing} Drawing
 * @typedef {import("./traces.js").Options} Options
 * @typedef {{rank: number, entered: number|null, ended: number|null, data: number|null}} Moment
 * @typedef {{rank: number, entered: number|null}} Last
 * @typedef {{step: number, moments: Moment[], last: Last|null, length: number}} Slot
 */

import { known, shortSeconds } from "./format.js";
import { median } from "./lines.js";
import { fade } from "./theme.js";

const STEPS_MAX = 12;
const NOTICED = 0.003; // seconds within which ranks count as together


/** The latest steps that have a time of every kind. @param {any} view @returns {Slot[]} */
export function slots(view) {
  const { step = [], ranks = [], last: lasts = [] } = view.timeline ?? {};
  const first = Math.max(0, step.length - STEPS_MAX);
  const recent = step.slice(first).map((/** @type {number} */ number, /** @type {number} */ at) => {
    const moments = ranks.map((/** @type {any} */ rank) => ({
      rank: rank.rank,
      entered: rank.entered?.[first + at] ?? null,
      ended: rank.ended?.[first + at] ?? null,
      data: rank.data?.[first + at] ?? null,
    }));
    const there = moments.filter((/** @type {Moment} */ moment) => known(moment.entered));
    // Of all ranks, where the view says it: not all have a row.
    const last = lasts[first + at] ?? there.reduce((/** @type {any} */ late, /** @type {any} */ slot) =>
      (late === null || slot.entered > late.entered ? slot : late), null);
    const length = Math.max(0, ...moments.flatMap((/** @type {Moment} */ moment) => [moment.entered ?? 0, moment.ended ?? 0]));
    return { step: number, moments, last, length };
  });
  return recent.filter((/** @type {Slot} */ slot) => slot.last !== null && slot.length > 0);
}

/** What a rank's bar says in words. @param {Slot} slot @param {Moment} rank */
export function words(slot, rank) {
  const { last } = slot;
  const data = known(rank.data) && rank.data > NOTICED ? `; it waited ${shortSeconds(rank.data)} for data` : "";
  if (!last || !known(rank.entered)) return `step ${slot.step}: rank ${rank.rank} n/a`;
  const late = /** @type {number} */ (last.entered);
  const begin = `step ${slot.step}: rank ${rank.rank} entered backward`;
  if (late < NOTICED) return `${begin} with the others, within ${shortSeconds(late)}${data}`;
  if (rank.rank === last.rank) return `${begin} ${shortSeconds(late)} after the first; the others waited${data}`;
  const when = rank.entered < NOTICED ? "first" : `${shortSeconds(rank.entered)} after the first`;
  return `${begin} ${when} and waited ${shortSeconds(late - rank.entered)} for rank ${last.rank}${data}`;
}

/** The rank that is late most, by the median over the steps. @param {any} view @param {Slot[]} recent */
function latest(view, recent) {
  const { latest: latestRank } = view.timeline;
  if (latestRank && known(latestRank.seconds)) return { rank: latestRank.rank, late: latestRank.seconds };
  const all = recent[0].moments.map(({ rank }) => {
    const times = recent.map((slot) => slot.moments.find((moment) => moment.rank === rank)?.entered).filter(known);
    return { rank, late: times.length ? median(times) : 0 };
  });
  return all.reduce((late, rank) => (rank.late > late.late ? rank : late));
}

/** @param {Slot[]} recent @param {(slot: Slot, one: Moment) => [number, number]} part from, to
 * @param {any} marker */
function bars(recent, part, marker) {
  const trace = { type: "bar", orientation: "h", x: [], y: [], base: [], hovertext: [], hoverinfo: "text", textposition: "none" };
  /** @type {any} */
  const filled = { ...trace, marker: { line: { width: 0 }, ...marker } };
  let start = 0;
  for (const slot of recent) {
    for (const moment of slot.moments) {
      const [from, to] = part(slot, moment);
      if (!(to > from)) continue;
      filled.base.push(start + from);
      filled.x.push(to - from);
      filled.y.push(`rank ${moment.rank}`);
      filled.hovertext.push(words(slot, moment));
    }
    start += slot.length * 1.12;
  }
  return filled;
}

/** @param {Slot[]} recent @param {import("./theme.js").Theme} theme */
function axes(recent, theme) {
  const tickvals = [];
  const shapes = [];
  let start = 0;
  for (const slot of recent) {
    tickvals.push(start + slot.length / 2);
    if (start > 0) {
      const x = start - slot.length * 0.06;
      shapes.push({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, layer: "below", line: { color: theme.grid, width: 1 } });
    }
    start += slot.length * 1.12;
  }
  const ticktext = recent.map((slot, at) => (recent.length <= 6 || at % 2 === (recent.length - 1) % 2 ? String(slot.step) : ""));
  return {
    barmode: "overlay",
    bargap: 0.28,
    hovermode: "closest",
    shapes,
    xaxis: { title: { text: "optimizer step, times to scale" }, tickmode: "array", tickvals, ticktext, fixedrange: true, showgrid: false },
    yaxis: { autorange: "reversed", type: "category", showgrid: false, fixedrange: true, categoryorder: "array", categoryarray: recent[0]?.moments.map(({ rank }) => `rank ${rank}`) },
  };
}

/** Seconds since the first rank entered backward in each step. @param {Slot[]} recent */
const table = (recent) => ({
  head: ["optimizer step", "rank", "entered backward, s", "last rank entered backward, s", "step ended, s", "waited for data, s"],
  rows: recent.flatMap((slot) => slot.moments.map(({ rank, entered, ended, data }) => [slot.step, rank, entered, slot.last?.entered, ended, data])),
});

/** @param {any} view @param {Options} options @returns {Drawing} */
export function waiting(view, { theme }) {
  const hidden = (view.processes ?? 1) < 2;
  const recent = slots(view);
  const label = "Rank timeline";
  if (!recent.length) return { traces: [], value: "", label: `${label}: n/a`, hidden: true };
  const [onTheWay, waits, together] = [theme.series[1], fade(theme.muted, 0.4), fade(theme.series[0], 0.5)];
  const last = (/** @type {Slot} */ slot) => slot.last?.entered ?? 0;
  const { rank, late } = latest(view, recent);
  const more = view.timeline.ranks_hidden || 0;
  const left = more ? `; ${more} of ${more + view.timeline.ranks.length} ranks in between are hidden` : "";
  const noticed = late >= NOTICED;
  const value = noticed ? `rank ${rank}: ${shortSeconds(late)} late (median)` : `in sync within ${shortSeconds(Math.max(late, 1e-4))} (median)`;
  const others = noticed ? `rank ${rank} entered backward ${shortSeconds(late)} after the first (median); the others waited` : "all ranks entered backward together";
  return {
    traces: [
      bars(recent, (_, rank) => [0, rank.entered ?? 0], { color: onTheWay }),
      bars(recent, (slot, rank) => [rank.entered ?? 0, known(rank.entered) ? last(slot) : 0], { color: waits }),
      bars(recent, (slot, rank) => [last(slot), rank.ended ?? 0], { color: together }),
    ],
    chips: [
      { text: "before backward", color: onTheWay },
      { text: "waits for the last rank", color: waits },
      { text: "backward and exchange", color: together },
      ...(more ? [{ text: `${more} ranks in between hidden`, color: "transparent" }] : []),
    ],
    value,
    label: `${label}: over the last ${recent.length} steps ${others}${left}`,
    layout: axes(recent, theme),
    table: table(recent),
    hidden,
  };
}
