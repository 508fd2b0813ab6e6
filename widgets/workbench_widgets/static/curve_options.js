// @ts-check
/**
 * What people choose for all curves over the steps: the scale along, a logarithmic axis, outliers cut off, a run to
 * compare with. Applied to what a panel draws. No DOM here.
 *
 * @typedef {import("./traces.js").Drawing} Drawing
 * @typedef {import("./scales.js").Scale} Scale
 * @typedef {import("./theme.js").Theme} Theme
 */

import { known, number, plotText } from "./format.js";
import { moments } from "./scales.js";

const INSIDE = 0.98; // of the points are shown when outliers are cut off

/** The traces that are values, not bands or rules. @param {Drawing} drawing */
export const curvesOf = (drawing) => drawing.traces.filter((trace) => trace.hoverinfo !== "skip" && trace.name);

/** Their numbers, each once whether or not a smoothed line is drawn with it. @param {Drawing} drawing @returns {number[]} */
const valuesOf = (drawing) => curvesOf(drawing).flatMap((trace) => (trace.called?.raw ?? trace.y).filter(known));

/** @param {Drawing} drawing @param {any} view @param {Scale} scale @param {{logLoss: boolean, clip: boolean}} options
 * @returns {Drawing} */
export function along(drawing, view, scale, options) {
  if (!drawing.steps) return drawing;
  const place = (/** @type {any} */ step) => (known(step) ? scale.of(step) : step);
  const placed = (/** @type {any} */ mark) => !(known(mark.x ?? mark.x0) && place(mark.x ?? mark.x0) === null);
  const moved = (/** @type {any} */ trace) => ({ ...trace, ...("x" in trace && { x: place(trace.x) }), ...("x0" in trace && { x0: place(trace.x0), x1: place(trace.x1) }) });
  const traces = scale.by === "step" ? drawing.traces : drawing.traces.map((trace) => ({ ...trace, x: trace.x.map(place) }));
  const { yaxis = {}, xaxis = {}, shapes = [], annotations = [] } = drawing.layout ?? {};
  const title = xaxis.title && { title: { text: scale.title } };
  const range = options.clip ? clipped(drawing, options.logLoss) : null;
  const y = { ...yaxis, type: options.logLoss ? "log" : "linear" };
  if (options.logLoss || range) delete y.rangemode;
  const hidden = options.logLoss ? valuesOf(drawing).filter((value) => value <= 0).length : 0;
  const notes = [...(hidden ? [`${hidden} at or below 0: on no log scale`] : []), ...(range?.outside ? [`${range.outside} outside`] : []), ...(title && scale.known && scale.missing ? [scale.missing] : [])];
  const { timeOf, stepAt } = moments(view);
  return {
    ...drawing,
    traces,
    along: scale.title,
    readings: (x) => readAt(view, scale, x),
    say: drawing.say ?? ((value) => number(value, 5)),
    timeAt: (x) => { const step = scale.back(x); return step === null ? null : timeOf(step); },
    placeOf: (time) => { const step = stepAt(time); return step === null ? null : scale.of(step); },
    layout: {
      ...drawing.layout,
      xaxis: { ...xaxis, ...title, ...scale.axis },
      yaxis: { ...y, ...(range && { range: range.ends, autorange: false }) },
      shapes: shapes.filter(placed).map(moved),
      annotations: annotations.filter(placed).map(moved),
      uirevision: `${scale.by} ${options.logLoss} ${options.clip}`,
    },
    chips: notes.length ? [...(drawing.chips ?? []), ...notes.map((text) => ({ text, color: "transparent" }))] : drawing.chips,
  };
}

/** The pointer's place on all scales that are known. @param {any} view @param {Scale} scale @param {number} x */
function readAt(view, scale, x) {
  const step = scale.back(x);
  const here = known(step) ? `step ${Math.round(step).toLocaleString("en")}` : "";
  return scale.by === "step" ? here : `${here} · ${scale.say(x)}`;
}

/** The range that holds nearly all points, and how many lie outside; null where none would.
 * @param {Drawing} drawing @param {boolean} log @returns {{ends: number[], outside: number}|null} */
export function clipped(drawing, log) {
  const values = valuesOf(drawing).filter((y) => !log || y > 0);
  if (values.length < 10) return null;
  const sorted = values.sort((value, two) => value - two);
  const cut = Math.floor(((1 - INSIDE) / 2) * sorted.length);
  const [low, high] = [sorted[cut], sorted[sorted.length - 1 - cut]];
  if (!(high > low)) return null;
  const margin = 0.08 * (high - low);
  const ends = log ? [Math.log10(low) - 0.05, Math.log10(high) + 0.05] : [low - margin, high + margin];
  const [bottom, top] = log ? ends.map((end) => 10 ** end) : ends;
  return { ends, outside: sorted.filter((value) => value < bottom || value > top).length };
}

/** The curve's value at a place, between its two neighbours. @param {any} trace @param {number} x */
export function valueAt(trace, x) {
  let before = /** @type {number[]|null} */ (null);
  for (const [at, place] of trace.x.entries()) {
    const y = trace.y[at];
    if (!known(place) || !known(y)) continue;
    if (place >= x) return place === x || !before ? (place === x ? y : null) : before[1] + ((y - before[1]) * (x - before[0])) / (place - before[0]);
    before = [place, y];
  }
  return null;
}

/** What a curve of another run is called. @param {{name: string, raw?: any[], smoothed?: string}|undefined} own @param {string} run */
const against = (own, run) => (own ? { ...own, name: `${own.name} · ${run}`, ...(own.smoothed && { smoothed: `${own.smoothed} · ${run}` }) } : null);

/** Another run's curves behind the live ones, thin, and how far the live one is from it now.
 * @param {Drawing} live @param {Drawing} other drawn in the same way @param {string} name @param {Theme} theme
 * @param {string} scale such as "step"
 * @returns {Drawing} */
export function before(live, other, name, theme, scale) {
  if (!live.steps || !other.traces.length) return live;
  const own = curvesOf(live);
  const behind = curvesOf(other).map((trace) => {
    const pair = own.find((mine) => mine.name === trace.name);
    const color = pair?.line?.color ?? theme.muted;
    const line = { color, width: 1, dash: "dot" };
    return { type: "scatter", mode: "lines", x: trace.x, y: trace.y, opacity: 0.7, connectgaps: Boolean(trace.connectgaps), line, name: `${trace.name} · ${plotText(name)}`, called: against(trace.called, name), hoverinfo: "none" };
  });
  const main = own.at(-1) ?? null;
  const same = main && curvesOf(other).find((trace) => trace.name === main.name);
  const last = main ? main.x.findLastIndex((/** @type {any} */ x, /** @type {number} */ at) => known(x) && known(main.y[at])) : -1;
  const end = same ? same.x.findLastIndex((/** @type {any} */ x, /** @type {number} */ at) => known(x) && known(same.y[at])) : -1;
  const short = end >= 0 && last >= 0 && same.x[end] < main.x[last];
  const there = same && last >= 0 ? (short ? same.y[end] : valueAt(same, main.x[last])) : null;
  const delta = known(there) ? main.y[last] - there : null;
  const text = known(delta) ? `${delta >= 0 ? "+" : "−"}${live.unit ? live.unit(Math.abs(delta)) : number(Math.abs(delta), 3)}` : "n/a";
  return {
    ...live,
    traces: [...behind, ...live.traces],
    delta: live.value && { text, title: known(there) ? `against ${name} ${short ? "at its end" : `at the same ${scale}`}: ${number(there)}` : `${name} has no value here` },
    chips: [...(live.chips ?? []), ...(live.layout?.xaxis?.title ? [{ text: name, color: theme.muted, dash: true }] : [])],
    label: `${live.label}; ${text} against ${name}`,
  };
}

/** The columns of a drawing: its curves' own values, and beside them what was made smoother. @param {Drawing} drawing
 * @returns {{name: string, x: any[], y: any[]}[]} */
function columnsOf(drawing) {
  const named = drawing.traces.filter((trace) => trace.hoverinfo !== "skip" && (trace.called?.name ?? trace.name));
  return named.flatMap(({ name, called, x, y }) => [
    { name: called?.name ?? name, x, y: called?.raw ?? y },
    ...(called?.smoothed ? [{ name: called.smoothed, x, y }] : []),
  ]);
}

/** @param {any} cell */
const quote = (cell) => {
  const text = String(cell);
  return `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
};

/** All curves of a drawing as CSV: a line per place; of what is no curve, the drawing's own table.
 * @param {Drawing} drawing */
export function csvOf(drawing) {
  if (drawing.table) return lines(drawing.table.head, drawing.table.rows);
  const curves = columnsOf(drawing);
  const places = [...new Set(curves.flatMap((curve) => curve.x))].filter(known).sort((curve, two) => curve - two);
  const columns = curves.map((curve) => new Map(curve.x.map((/** @type {any} */ x, /** @type {number} */ at) => [x, curve.y[at]])));
  const { title, ticksuffix = "" } = drawing.layout?.xaxis ?? {};
  const place = drawing.along ?? title?.text ?? (ticksuffix ? "running time" : "x");
  const head = [ticksuffix ? `${place}, ${ticksuffix.trim()}` : place, ...curves.map((curve) => curve.name)];
  return lines(head, places.map((x) => [x, ...columns.map((column) => column.get(x))]));
}

/** @param {string[]} head @param {any[][]} rows of numbers; an unknown one is an empty cell */
const lines = (head, rows) => `${[head.map(quote), ...rows.map((row) => row.map((cell) => cell ?? ""))].map((cells) => cells.join(",")).join("\n")}\n`;
