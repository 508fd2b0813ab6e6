// @ts-check
/**
 * What each panel over the steps shows, computed from a snapshot: traces and axes for plotly.js, the value in the
 * panel's corner and the sentence a screen reader says. No DOM here.
 *
 * @typedef {import("./theme.js").Theme} Theme
 * @typedef {{traces: any[], value: string, label: string, layout?: any,
 *   chips?: {text: string, color: string, dash?: boolean}[], hidden?: boolean, empty?: string,
 *   readings?: (x: number) => string, say?: (value: any) => string}} Drawing
 * @typedef {{theme: Theme, logLoss: boolean, smoothing: number}} Options
 */

import { known, number, short, shortSeconds } from "./format.js";
import { fade } from "./theme.js";

export const WAITING = "Waiting for the first step …";

/** What an empty chart says. @param {any} view @returns {string | undefined} */
function emptySentence(view) {
  if (view.steps > 0) return undefined;
  return view.phase === "ended" ? "No steps were run." : WAITING;
}

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
export const lastKnown = (values) => (values ?? []).filter(known).at(-1);

/** @param {any[]|undefined} values */
export const someKnown = (values) => (values ?? []).some(known);

/** @param {any[]} x @param {any[]} y @param {string} color @param {any} [more] */
export function line(x, y, color, more = {}) {
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
    empty: emptySentence(view),
    value: number(current),
    label: `Training loss: ${number(current)} at step ${view.steps}${first}`,
    layout: {
      xaxis: { title: { text: "optimizer step" } },
      yaxis: { type: logLoss ? "log" : "linear" },
      ...marks(view, theme),
    },
  };
}

/** Rules where attempts began and where the loss stopped being a number.
 * @param {any} view @param {Theme} theme */
function marks(view, theme) {
  const [first, second] = [restarts(view, theme), nonfinite(view, theme)];
  return { shapes: [...first.shapes, ...second.shapes], annotations: [...first.annotations, ...second.annotations] };
}

const NAMED_RESTARTS = 3; // more names would lie over one another; the rules stay

/** @param {any} view @param {Theme} theme */
function restarts(view, theme) {
  const restarted = (view.attempts ?? []).filter((/** @type {any} */ one) =>
    one.event === "start" && one.attempt > 1 && known(one.first_step));
  return {
    shapes: restarted.map((/** @type {any} */ one) => ({
      type: "line", x0: one.first_step, x1: one.first_step, yref: "paper", y0: 0, y1: 1,
      layer: "below", line: { color: fade(theme.muted, 0.45), width: 1 },
    })),
    annotations: restarted.slice(-NAMED_RESTARTS).map((/** @type {any} */ one, /** @type {number} */ at) => ({
      x: one.first_step, yref: "paper", y: 0.88 - 0.09 * at, xanchor: "left", showarrow: false,
      text: ` attempt ${one.attempt}`, font: { color: theme.muted, size: 10.5 },
    })),
  };
}

/** A mark where the loss stopped being a number. @param {any} view @param {Theme} theme */
function nonfinite(view, theme) {
  if (!known(view.nonfinite_step)) return { shapes: [], annotations: [] };
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
  const empty = emptySentence(view);
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

/** "samples" where the script's tokens are not known. @param {any} view */
export const rateUnit = (view) =>
  (!known(view.tokens_per_second) && known(view.samples_per_second) ? "samples" : "tokens");

/** The rate; "≤" where ranks may have been counted that share their data. @param {any} view */
export function rateText(view) {
  const value = view[`${rateUnit(view)}_per_second`];
  const text = known(value) && value < 100 ? number(value, 3) : short(value);
  return known(value) && view.throughput_upper_bound ? `≤ ${text}` : text;
}

/** @param {any} view @param {Options} options */
export const throughput = (view, options) =>
  overSteps(view, options, `${rateUnit(view)}_per_second`, {
    what: rateUnit(view) === "samples" ? "Samples per second" : "Tokens per second",
    color: options.theme.accent,
    // Of the recent steps: the line's end is of the last ones it stands for.
    say: () => `${rateText(view)} ${rateUnit(view)}/s (median)`,
    last: view[`${rateUnit(view)}_per_second`],
    layout: { yaxis: { rangemode: "tozero", tickformat: "~s" } },
  });

/** @param {any} view @param {Options} options */
export const stepTime = (view, options) =>
  overSteps(view, options, "step_seconds", {
    what: "Step time",
    color: options.theme.accent,
    say: (value) => `${shortSeconds(value)} (median)`,
    peak: "step_seconds_max",
    last: view.step_seconds_median,
    layout: { yaxis: { rangemode: "tozero", ticksuffix: " s" } },
  });
