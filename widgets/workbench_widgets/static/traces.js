// @ts-check
/**
 * What each panel shows, computed from a snapshot: traces and axes for plotly.js, the value in the
 * panel's corner and the sentence a screen reader says. No DOM here.
 *
 * @typedef {import("./theme.js").Theme} Theme
 * @typedef {{traces: any[], value: string, label: string, layout?: any,
 *   chips?: {text: string, color: string, dash?: boolean}[], hidden?: boolean, empty?: string}} Drawing
 * @typedef {{theme: Theme, logLoss: boolean, smoothing: number}} Options
 */

import { byteUnit, bytes, known, number, percent, plotText, short, shortSeconds } from "./format.js";
import { fade } from "./theme.js";

export const WAITING = "Waiting for the first step …";

/** Exponential moving average with the start's bias removed; gaps stay gaps.
 * @param {(number|null)[]} values @param {number} weight 0 = raw, towards 1 = smoother */
export function smooth(values, weight) {
  let mean = 0;
  let mass = 0;
  return values.map((value) => {
    if (!known(value)) return null;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return mean / mass;
  });
}

/** @param {any[]|undefined} values */
const lastKnown = (values) => (values ?? []).filter(known).at(-1);

/** @param {any[]|undefined} values */
const someKnown = (values) => (values ?? []).some(known);

/** @param {any[]} x @param {any[]} y @param {string} color @param {any} [more] */
function line(x, y, color, more = {}) {
  const few = x.length < 3 ? { mode: "lines+markers", marker: { size: 5, color } } : {};
  return { type: "scatter", mode: "lines", x, y, line: { color, width: 1.6 }, ...few, ...more };
}

/** The area between two columns, for what the thinning hid.
 * @param {any[]} x @param {any[]} low @param {any[]} high @param {string} color */
function band(x, low, high, color) {
  const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  return [
    { ...edge, x, y: low },
    { ...edge, x, y: high, fill: "tonexty", fillcolor: fade(color, 0.16) },
  ];
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function loss(view, { theme, logLoss, smoothing }) {
  const { step = [], loss: raw = [], loss_min: low = [], loss_max: high = [] } = view.series ?? {};
  const smoothed = smooth(raw, smoothing);
  const thinned = view.stride > 1 && someKnown(low);
  const traces = thinned ? band(step, low, high, theme.accent) : [];
  const rawColor = smoothing > 0 ? fade(theme.accent, 0.38) : theme.accent;
  const hover = "%{y:.4~g}<extra></extra>";
  traces.push(line(step, raw, rawColor, { name: "raw", hovertemplate: `raw ${hover}` }));
  const chips = [{ text: thinned ? `mean of ${view.stride} steps, range` : "raw", color: rawColor }];
  if (smoothing > 0) {
    const width = { line: { color: theme.accent, width: 2.4 } };
    traces.push(line(step, smoothed, theme.accent, { ...width, hovertemplate: `smoothed ${hover}` }));
    chips.push({ text: "smoothed", color: theme.accent });
  }
  const current = view.loss_last ?? lastKnown(raw);
  const first = known(view.loss_first) ? `, ${number(view.loss_first)} at the first step` : "";
  return {
    traces,
    chips,
    value: number(current),
    label: `Training loss: ${number(current)} at step ${view.steps}${first}`,
    layout: {
      xaxis: { title: { text: "optimizer step" } },
      yaxis: { type: logLoss ? "log" : "linear" },
      ...nonfinite(view, theme),
    },
  };
}

/** A mark where the loss stopped being a number. @param {any} view @param {Theme} theme */
function nonfinite(view, theme) {
  if (!known(view.nonfinite_step)) return {};
  const x = view.nonfinite_step;
  const rule = { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1 };
  return {
    shapes: [{ ...rule, line: { color: theme.bad, width: 1.5, dash: "dot" } }],
    annotations: [
      {
        x,
        yref: "paper",
        y: 1,
        xanchor: "right",
        showarrow: false,
        text: `NaN or infinite from step ${x} `,
        font: { color: theme.bad, size: 11 },
      },
    ],
  };
}

/** A column over the steps, with its extreme when rows are thinned.
 * @param {any} view @param {Options} options @param {string} column
 * @param {{what: string, color: string, say: (value: any) => string, peak?: string,
 *   layout?: any, last?: any}} how
 * @returns {Drawing} */
function overSteps(view, { theme }, column, how) {
  const series = view.series ?? {};
  const step = series.step ?? [];
  const values = series[column] ?? [];
  const peak = how.peak && view.stride > 1 ? series[how.peak] : undefined;
  const traces = someKnown(peak) ? band(step, values, peak, how.color) : [];
  const hovertemplate = "%{y:.4~g}<extra></extra>";
  traces.push(line(step, values, how.color, { hovertemplate }));
  const value = how.say(how.last ?? lastKnown(values));
  const drawn = someKnown(values) ? traces : [];
  const empty = view.steps > 0 ? undefined : WAITING;
  return { traces: drawn, value, label: `${how.what}: ${value}`, layout: how.layout, empty };
}

/** @param {any} view @param {Options} options */
export const learningRate = (view, options) =>
  overSteps(view, options, "lr", {
    what: "Learning rate",
    color: options.theme.accent,
    say: (value) => number(value, 3),
    layout: { yaxis: { rangemode: "tozero", exponentformat: "e" } },
  });

/** @param {any} view @param {Options} options */
export const gradNorm = (view, options) =>
  overSteps(view, options, "grad_norm", {
    what: "Gradient norm",
    color: options.theme.accent,
    say: (value) => number(value, 3),
    peak: "grad_norm_max",
    layout: { yaxis: { rangemode: "tozero" } },
  });

/** @param {any} view @param {Options} options */
export const tokensPerSecond = (view, options) =>
  overSteps(view, options, "tokens_per_second", {
    what: "Tokens per second",
    color: options.theme.accent,
    say: short,
    last: view.tokens_per_second,
    layout: { yaxis: { rangemode: "tozero", tickformat: "~s" } },
  });

/** @param {any} view @param {Options} options */
export const stepTime = (view, options) =>
  overSteps(view, options, "step_seconds", {
    what: "Step time, median",
    color: options.theme.accent,
    say: shortSeconds,
    peak: "step_seconds_max",
    last: view.step_seconds_median,
    layout: { yaxis: { rangemode: "tozero", ticksuffix: " s" } },
  });

/** Seconds since the start in the unit that suits the run's length.
 * @param {any} view @param {number[]} times */
function sinceStart(view, times) {
  const length = Math.max(0, ...times.map((time) => time - view.started_at));
  const [unit, size] = length > 2 * 3600 ? ["h", 3600] : length > 180 ? ["min", 60] : ["s", 1];
  const x = times.map((time) => (time - view.started_at) / size);
  return { x, axis: { ticksuffix: ` ${unit}` } };
}

/** The devices that train: a CPU run on a machine with GPUs has none. @param {any} view
 * @returns {any[]} */
const devicesOf = (view) => (view.device === "cpu" ? [] : (view.devices ?? []));

/** One line per device, or the host's on a CPU run.
 * @param {any} view @param {Theme} theme @param {string} column
 * @param {{name: string, column: string, scale?: number}[]} host */
function perDevice(view, theme, column, host) {
  const devices = devicesOf(view).filter((one) => someKnown(one.series?.[column]));
  const wanted = devices.length
    ? devices.map((/** @type {any} */ one) => ({ name: one.id, series: one.series, column, scale: 1 }))
    : host
        .map((one) => ({ scale: 1, ...one, series: view.host?.series ?? {} }))
        .filter((one) => someKnown(one.series[one.column]));
  return wanted.map((/** @type {any} */ one, /** @type {number} */ index) => ({
    name: one.name,
    color: theme.series[index % theme.series.length],
    times: one.series.time ?? [],
    y: one.series[one.column].map((/** @type {any} */ value) => (known(value) ? value * one.scale : null)),
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
  const values = lines.map((one) => lastKnown(one.y)).filter(known);
  if (!values.length) return "n/a";
  const [low, high] = [say(Math.min(...values)), say(Math.max(...values))];
  return low === high ? low : `${low} – ${high}`;
}

/** @param {any} view @param {ReturnType<typeof perDevice>} lines @param {string} suffix
 * @param {any} yaxis @param {(value: any) => string} say @param {string} what
 * @returns {Drawing} */
function overTime(view, lines, suffix, yaxis, say, what) {
  let axis = {};
  const traces = lines.map((one) => {
    const time = sinceStart(view, one.times);
    axis = time.axis;
    const hovertemplate = `${plotText(one.name)} %{y:.4~g}${suffix}<extra></extra>`;
    const many = lines.length > LEGEND_MAX ? { opacity: 0.8, line: { color: one.color, width: 1.1 } } : {};
    return line(time.x, one.y, one.color, { hovertemplate, ...many });
  });
  const said = lines.map((one) => `${one.name} ${say(lastKnown(one.y))}`);
  return {
    traces,
    chips: legend(lines),
    value: devicesOf(view).length ? range(lines, say) : say(lastKnown(lines[0]?.y)),
    label: `${what}: ${said.join(", ") || "n/a"}`,
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
  return overTime(view, lines, " %", yaxis, percent, "Utilisation");
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function memory(view, { theme }) {
  const onHost = devicesOf(view).length === 0;
  const lines = perDevice(view, theme, "memory_bytes", [
    { name: "this run", column: "run_rss_bytes" },
  ]);
  const perRank = view.predicted?.memory?.total_bytes;
  const copies = onHost ? (view.world_size ?? view.processes) : 1;
  const predicted = known(perRank) && lines.length ? perRank * copies : null;
  const largest = Math.max(predicted ?? 0, ...lines.flatMap((one) => one.y.filter(known)));
  const unit = byteUnit(largest);
  const scaled = lines.map((one) => ({
    ...one,
    y: one.y.map((/** @type {any} */ value) => (known(value) ? value / unit.bytes : null)),
  }));
  const say = (/** @type {any} */ value) => bytes(known(value) ? value * unit.bytes : null);
  const yaxis = { rangemode: "tozero", ticksuffix: ` ${unit.name}` };
  const drawing = overTime(view, scaled, ` ${unit.name}`, yaxis, say, "Memory");
  if (predicted === null) return drawing;
  return withPrediction(drawing, predicted / unit.bytes, bytes(predicted), theme);
}

/** @param {Drawing} drawing @param {number} y @param {string} said @param {Theme} theme
 * @returns {Drawing} */
function withPrediction(drawing, y, said, theme) {
  const times = drawing.traces.flatMap((trace) => trace.x);
  const ends = [Math.min(...times), Math.max(...times)];
  const dashed = { line: { color: theme.ink, width: 1.4, dash: "dash" }, mode: "lines" };
  const hovertemplate = `predicted ${said}<extra></extra>`;
  const chips = drawing.chips?.length
    ? drawing.chips
    : [{ text: "measured", color: theme.series[0] }];
  return {
    ...drawing,
    traces: [...drawing.traces, line(ends, [y, y], theme.ink, { ...dashed, hovertemplate })],
    chips: [...chips, { text: `predicted ${said}`, color: theme.ink, dash: true }],
    label: `${drawing.label}; predicted ${said}`,
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
