// @ts-check
/** What the script logged by name, as panels: a figure per group, validation losses on the loss. No DOM here.
 *
 * @typedef {import("./traces.js").Drawing} Drawing
 * @typedef {import("./traces.js").Options} Options
 */

import { known, number, plotText } from "./format.js";
import { SMOOTHED_FROM, band, called, line, someKnown, smooth } from "./lines.js";
import { fade } from "./theme.js";

const LOSS = "Loss";
const SHOWN_CHIPS = 5;

/** One series with its table's steps; rows in which only others of the table were logged left out.
 * @param {any} logged @param {any} entry */
function points(logged, entry) {
  const table = logged.tables[entry.table];
  const rows = table.step.map((/** @type {any} */ _, /** @type {number} */ at) => at)
    .filter((/** @type {number} */ at) => known(entry.mean[at]) || entry.nonfinite > 0);
  const pick = (/** @type {any[]|undefined} */ column) => column && rows.map((/** @type {number} */ at) => column[at]);
  return { ...entry, step: pick(table.step), mean: pick(entry.mean), low: pick(entry.low), high: pick(entry.high), stride: table.stride };
}

/** Title -> series, in the order in which they were first logged. @param {any} view
 * @returns {Map<string, any[]>} */
export function figures(view) {
  const drawn = new Map();
  for (const entry of view.logged?.series ?? []) {
    if (entry.figure === LOSS) continue;
    drawn.set(entry.figure, [...(drawn.get(entry.figure) ?? []), entry]);
  }
  return drawn;
}

/** Curves of validation losses for the loss panel, with their chips. @param {any} view @param {Options} options */
export function validation(view, { theme }) {
  const series = (view.logged?.series ?? []).filter((/** @type {any} */ entry) => entry.figure === LOSS);
  const curves = series.map((/** @type {any} */ entry, /** @type {number} */ at) => {
    const { step, mean } = points(view.logged, entry);
    const color = theme.series[(at + 1) % theme.series.length];
    return line(step, mean, color, { name: plotText(entry.name), ...called(entry.name), mode: "lines+markers", marker: { size: 5, color }, hoverinfo: "none" });
  });
  const chips = series.map((/** @type {any} */ entry, /** @type {number} */ at) => ({ text: `${entry.name} ${number(entry.last)}`, color: curves[at].line.color }));
  return { curves, chips };
}

/** @param {any} view @param {Options} options @param {string} title @returns {Drawing} */
export function figure(view, { theme, smoothing }, title) {
  const series = (figures(view).get(title) ?? []).map((entry) => points(view.logged, entry));
  const traces = series.flatMap((entry, at) => {
    const color = theme.series[at % theme.series.length];
    const gaps = { connectgaps: !entry.nonfinite };
    const raw = { name: plotText(entry.name), ...called(entry.name), hoverinfo: "none", ...gaps };
    const range = series.length === 1 && entry.stride > 1 && someKnown(entry.low) ? band(entry.step, entry.low, entry.high, color) : [];
    const few = entry.step.length < SMOOTHED_FROM ? { mode: "lines+markers", marker: { size: 4, color } } : {};
    if (!(smoothing > 0) || entry.step.length < SMOOTHED_FROM) return [...range, line(entry.step, entry.mean, color, { ...raw, ...few })];
    const faint = { line: { color: fade(color, 0.3), width: 1.2 }, hoverinfo: "skip", ...gaps };
    return [...range, line(entry.step, entry.mean, color, faint), line(entry.step, smooth(entry.mean, smoothing), color, { ...raw, ...called(entry.name, entry.mean, smoothing), line: { color, width: 2 } })];
  });
  const broken = series.filter((entry) => entry.nonfinite > 0);
  const chips = series.map((entry, at) => ({ text: `${shorter(entry.name, title)} ${number(entry.last)}`, color: theme.series[at % theme.series.length] }));
  const more = chips.length > SHOWN_CHIPS ? [{ text: `${chips.length - SHOWN_CHIPS} more`, color: "transparent" }] : [];
  const gaps = broken.map((entry) => ({ text: `${shorter(entry.name, title)}: first NaN or infinite at step ${entry.nonfinite_step}`, color: theme.bad, dash: true }));
  const only = series.length === 1 ? series[0] : null;
  return {
    steps: true,
    traces,
    value: only ? number(only.last) : "",
    label: `${title}: ${series.map((entry) => `${entry.name} ${number(entry.last)} at step ${entry.last_step}`).join(", ")}`,
    chips: [...(only ? [] : chips.slice(0, SHOWN_CHIPS)), ...more, ...gaps],
    layout: {},
  };
}

/** Without the group that the title names. @param {string} name @param {string} title */
function shorter(name, title) {
  const rest = name.toLowerCase().startsWith(title) ? name.slice(title.length).replace(/^[/_.:-]/, "") : name;
  return rest || name;
}

/** Names that have no curve here, in a sentence; "" where all have. @param {any} view */
export function leftOut(view) {
  const { more = [], more_count: count = 0 } = view.logged ?? {};
  if (!count) return "";
  const names = more.slice(0, 6).join(", ");
  return `${count} more logged names are in the metric files${names && `: ${names}${count > 6 ? ", …" : ""}`}. List them: workbench metrics ${view.run} --list`;
}
