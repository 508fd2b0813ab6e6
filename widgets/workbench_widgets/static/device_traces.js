// @ts-check
/**
 * What the panels over time show: one line per device, or the host's where a run trains on CPU.
 *
 * @typedef {import("./theme.js").Theme} Theme
 * @typedef {import("./traces.js").Drawing} Drawing
 * @typedef {import("./traces.js").Options} Options
 */

import { byteUnit, bytes, known, number, percent, plotText, timeUnit } from "./format.js";
import { called, median } from "./lines.js";
import { lastKnown, line, someKnown } from "./traces.js";

/** Seconds since the start in the unit that suits the run's length.
 * @param {any} view @param {number[]} times */
function sinceStart(view, times) {
  const length = Math.max(0, ...times.map((time) => time - view.started_at));
  const [unit, size] = timeUnit(length);
  const x = times.map((time) => (time - view.started_at) / size);
  return { x, size, axis: { ticksuffix: ` ${unit}` } };
}

/** The devices that train: a CPU run on a machine with GPUs has none. @param {any} view
 * @returns {any[]} */
const devicesOf = (view) => (view.device === "cpu" ? [] : (view.devices ?? []));

/** Of very many devices: lowest, median and highest at each moment. @param {any} view @returns {any} */
const spreadOf = (view) => (view.device === "cpu" ? {} : (view.device_spread ?? {}));

/** One line per device, or the host's on a CPU run.
 * @param {any} view @param {Theme} theme @param {string} column
 * @param {{name: string, column: string, scale?: number}[]} host */
function perDevice(view, theme, column, host) {
  const devices = devicesOf(view).filter((device) => someKnown(device.series?.[column]));
  const spread = spreadOf(view);
  if (someKnown(spread[column])) {
    const ends = [["highest", `${column}_high`, 1], ["median", column, 0], ["lowest", `${column}_low`, 2]];
    return ends.map(([name, key, color]) => ({ name, color: theme.series[/** @type {number} */ (color)], times: spread.time, y: spread[key] }));
  }
  const wanted = devices.length
    ? devices.map((/** @type {any} */ device) => ({ name: device.id, series: device.series, column, scale: 1 }))
    : host
        .map((line) => ({ scale: 1, ...line, series: view.host?.series ?? {} }))
        .filter((line) => someKnown(line.series[line.column]));
  return wanted.map((/** @type {any} */ line, /** @type {number} */ index) => ({
    name: line.name,
    color: theme.series[index % theme.series.length],
    times: line.series.time ?? [],
    y: line.series[line.column].map((/** @type {any} */ value) => (known(value) ? value * line.scale : null)),
  }));
}

const LEGEND_MAX = 4; // more would take the chart's room; the hover names each line

/** @param {ReturnType<typeof perDevice>} lines */
function legend(lines) {
  if (lines.length < 2 || lines.length > LEGEND_MAX) return [];
  return lines.map(({ name, color }) => ({ text: name, color }));
}

/** "88 % – 97 %" over the devices, or one value when they agree.
 * @param {ReturnType<typeof perDevice>} lines @param {(value: any) => string} say */
function range(lines, say) {
  const values = lines.map((line) => lastKnown(line.y)).filter(known);
  if (!values.length) return "n/a";
  const [low, high] = [say(Math.min(...values)), say(Math.max(...values))];
  return low === high ? low : `${low} – ${high}`;
}

/** The host's own lines are those of the first machine: say so. @param {any} view */
const partOf = (view) => (view.nodes > 1 && view.device === "cpu" ? `node 0 of ${view.nodes}` : "");

/** @param {any} view @param {ReturnType<typeof perDevice>} lines @param {string} suffix
 * @param {any} yaxis @param {(value: any) => string} say @param {string} what
 * @returns {Drawing} */
function overTime(view, lines, suffix, yaxis, say, what) {
  let axis = { ticksuffix: "" };
  let size = 1;
  const many = lines.length > LEGEND_MAX; // plotly.js would cut a label of so many lines at the chart's edge
  const traces = lines.map((source) => {
    const time = sinceStart(view, source.times);
    axis = time.axis;
    size = time.size;
    const hovertemplate = `${plotText(source.name)} %{y:.4~g}${suffix}<extra></extra>`;
    if (!many) return line(time.x, source.y, source.color, { ...called(source.name), hovertemplate });
    const thin = { opacity: 0.8, line: { color: source.color, width: 1.1 } };
    return line(time.x, source.y, source.color, { name: plotText(source.name), ...called(source.name), hoverinfo: "none", ...thin });
  });
  const latest = lines.map((line) => `${line.name} ${say(lastKnown(line.y))}`);
  const part = partOf(view);
  return {
    traces,
    ...(many && { readings: (/** @type {number} */ x) => `${number(x)}${axis.ticksuffix}`, say }),
    chips: [...legend(lines), ...(part ? [{ text: part, color: "transparent" }] : [])],
    value: lines.length > 1 && view.device !== "cpu" ? range(lines, say) : say(lastKnown(lines[0]?.y)),
    timeAt: (x) => view.started_at + x * size,
    placeOf: (time) => (time - view.started_at) / size,
    label: `${what}${part && `, ${part}`}: ${latest.join(", ") || "n/a"}`,
    layout: { xaxis: axis, yaxis: { ticksuffix: suffix, ...yaxis } },
  };
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function utilisation(view, { theme }) {
  const cores = known(view.host?.cores) ? view.host.cores : 1;
  const lines = perDevice(view, theme, "util", [
    { name: "host", column: "cpu_percent" },
    { name: "this run", column: "run_cpu_percent", scale: 1 / cores },
  ]);
  const yaxis = { range: [0, 103], tickvals: [0, 25, 50, 75, 100] };
  const drawing = overTime(view, lines, " %", yaxis, percent, "Utilisation");
  const ended = view.phase === "ended"; // its last sample is of a run that has nothing left to do
  const value = (/** @type {any[]} */ y) => (ended ? median(y.filter(known)) : lastKnown(y));
  const [host, own] = view.device === "cpu" ? lines.map((line) => value(line.y)) : [];
  if (!known(host) || !known(own)) return drawing;
  return { ...drawing, value: `this run ${percent(own)}, host ${percent(host)}${ended ? " (median)" : ""}` };
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function memory(view, { theme }) {
  const onHost = devicesOf(view).length === 0 && !spreadOf(view).time;
  const lines = perDevice(view, theme, "memory_bytes", [
    { name: "this run", column: "run_rss_bytes" },
  ]);
  const perRank = view.predicted?.memory?.total_bytes;
  const nodes = view.nodes > 1 ? view.nodes : 1; // the host's reading is of node 0, which has its share of the ranks
  const copies = onHost ? (view.world_size ?? view.processes) / nodes : 1;
  const predicted = known(perRank) && lines.length ? perRank * copies : null;
  const largest = Math.max(predicted ?? 0, ...lines.flatMap((line) => line.y.filter(known)));
  const unit = byteUnit(largest);
  const scaled = lines.map((line) => ({
    ...line,
    y: line.y.map((/** @type {any} */ value) => (known(value) ? value / unit.bytes : null)),
  }));
  const say = (/** @type {any} */ value) => bytes(known(value) ? value * unit.bytes : null);
  const yaxis = { rangemode: "tozero", ticksuffix: ` ${unit.name}` };
  const peaks = scaled.map((trace) => ({ ...trace, y: [trace.y.filter(known).reduce((/** @type {any} */ most, /** @type {any} */ value) => (most > value ? most : value), null)] }));
  const shown = range(peaks, say);
  const drawing = { ...overTime(view, scaled, ` ${unit.name}`, yaxis, say, "Memory"), value: shown === "n/a" ? shown : `peak ${shown}` };
  if (predicted === null) return drawing;
  // On the host the readings are of all that runs there, the prediction is of its ranks: say so.
  const here = nodes > 1 ? " of node 0" : "";
  const names = onHost
    ? ["whole run, launcher included", `ranks${here}, predicted ${bytes(predicted)}`]
    : ["measured", `predicted ${bytes(predicted)}`];
  return withPrediction(drawing, predicted / unit.bytes, names, theme);
}

/** @param {Drawing} drawing @param {number} y @param {string[]} names @param {Theme} theme
 * @returns {Drawing} */
function withPrediction(drawing, y, [measured, latest], theme) {
  const times = drawing.traces.flatMap((trace) => trace.x);
  const ends = [Math.min(...times), Math.max(...times)];
  const dashed = { line: { color: theme.ink, width: 1.4, dash: "dash" }, mode: "lines" };
  const hover = drawing.readings ? { hoverinfo: "skip" } : { hovertemplate: `${latest}<extra></extra>` };
  const named = drawing.traces.length > 1 && drawing.chips?.length; // each line has its chip
  const chips = named ? (drawing.chips ?? []) : [{ text: measured, color: theme.series[0] }, ...(drawing.chips ?? [])];
  return {
    ...drawing,
    traces: [...drawing.traces, line(ends, [y, y], theme.ink, { ...dashed, ...hover })],
    chips: [...chips, { text: latest, color: theme.ink, dash: true }],
    label: `${drawing.label}; ${latest}`,
  };
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function temperature(view, { theme }) {
  const lines = perDevice(view, theme, "temperature_c", []);
  const say = (/** @type {any} */ value) => (known(value) ? `${Math.round(value)} °C` : "n/a");
  const drawing = overTime(view, lines, " °C", {}, say, "Temperature");
  return { ...drawing, hidden: !lines.length };
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function power(view, { theme }) {
  const lines = perDevice(view, theme, "power_w", []);
  const say = (/** @type {any} */ value) => (known(value) ? `${Math.round(value)} W` : "n/a");
  const drawing = overTime(view, lines, " W", { rangemode: "tozero" }, say, "Power");
  return { ...drawing, hidden: !lines.length };
}
