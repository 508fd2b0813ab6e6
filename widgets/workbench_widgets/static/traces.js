// @ts-check
/**
 * What each panel over the steps shows, computed from a snapshot: traces and axes for plotly.js, the value in the
 * panel's corner and the sentence a screen reader says. No DOM here.
 *
 * @typedef {import("./theme.js").Theme} Theme
 * @typedef {{traces: any[], value: string, label: string, layout?: any,
 *   chips?: {text: string, color: string, dash?: boolean}[], hidden?: boolean, empty?: string,
 *   readings?: (x: number) => string, say?: (value: any) => string, steps?: boolean, along?: string,
 *   timeAt?: (x: number) => number|null, placeOf?: (time: number) => number|null,
 *   delta?: {text: string, title: string}|"", unit?: (value: any) => string,
 *   table?: {head: string[], rows: any[][]}}} Drawing `table`: what is saved of a chart that has no curves
 * @typedef {{theme: Theme, logLoss: boolean, smoothing: number}} Options
 */

import { known, number, plotText, short, shortSeconds } from "./format.js";
import { validation } from "./logged_traces.js";
import { band, called, lastKnown, line, smooth, someKnown } from "./lines.js";
import { lossText, lossTitle } from "./run_words.js";
import { fade } from "./theme.js";

export { lastKnown, line, smooth, someKnown } from "./lines.js";

export const WAITING = "Waiting for the first step …";

/** What an empty chart says. @param {any} view @returns {string | undefined} */
function emptySentence(view) {
  if (view.steps > 0) return undefined;
  return view.phase === "ended" ? "No steps were run." : WAITING;
}

/** @param {any} view @param {Options} options @returns {Drawing} */
export function loss(view, options) {
  const { theme, smoothing } = options;
  const { step = [], loss: raw = [], loss_min: low = [], loss_max: high = [] } = view.series ?? {};
  const smoothed = smooth(raw, smoothing);
  const thinned = view.stride > 1 && someKnown(low);
  const traces = thinned ? band(step, low, high, theme.accent) : [];
  const rawColor = smoothing > 0 ? fade(theme.accent, 0.38) : theme.accent;
  const unseen = smoothing > 0 ? { hoverinfo: "skip" } : { name: "loss", ...called("loss"), hoverinfo: "none" };
  traces.push(line(step, raw, rawColor, unseen));
  const chips = [{ text: thinned ? `mean of ${view.stride} steps, range` : "raw", color: rawColor }];
  if (smoothing > 0) {
    const width = { line: { color: theme.accent, width: 2.4 } };
    traces.push(line(step, smoothed, theme.accent, { ...width, name: "loss", ...called("loss", raw, smoothing), hoverinfo: "none" }));
    chips.push({ text: "smoothed", color: theme.accent });
  }
  const validated = validation(view, options);
  const current = view.loss_last ?? lastKnown(raw);
  const first = known(view.loss_first) ? `, ${number(view.loss_first)} at the first step` : "";
  return {
    steps: true,
    traces: [...validated.curves, ...traces],
    chips: [...chips, ...validated.chips],
    empty: emptySentence(view),
    value: lossText({ ...view, loss_last: current }),
    label: known(view.nonfinite_step)
      ? `Training loss: ${number(current)}${first}. ${lossTitle(view)}`
      : `Training loss: ${number(current)} at step ${view.steps}${first}`,
    layout: {
      xaxis: { title: { text: "optimizer step" } },
      ...marks(view, theme),
    },
  };
}

/** Rules where attempts began and where the loss stopped being a number.
 * @param {any} view @param {Theme} theme */
function marks(view, theme) {
  const [first, second] = [restarts(view, theme), nonfinite(view, theme)];
  const points = [...saved(view, theme), ...found(view, theme), ...steered(view, theme)];
  return { shapes: [...first.shapes, ...second.shapes], annotations: [...first.annotations, ...second.annotations, ...points] };
}

/** A sign at the edge of the chart that says more under the pointer. @param {number} x @param {string} text
 * @param {string} hovertext @param {string} color @param {number} y 0 = bottom */
const sign = (x, text, hovertext, color, y) => ({
  x, y, yref: "paper", yanchor: y ? "top" : "bottom", showarrow: false, text, hovertext: plotText(hovertext), captureevents: true, font: { color, size: 11 },
});

/** Checkpoints, at the foot of the curve. @param {any} view @param {Theme} theme */
function saved(view, theme) {
  const whole = (view.checkpoints ?? []).filter((/** @type {any} */ checkpoint) => known(checkpoint.step));
  return whole.map((/** @type {any} */ checkpoint) => sign(checkpoint.step, "▴", `checkpoint of step ${checkpoint.step}${checkpoint.problem ? `: ${checkpoint.problem}` : ""}`, checkpoint.problem ? theme.bad : theme.muted, 0));
}

/** Findings that know their step, at the top. @param {any} view @param {Theme} theme */
function found(view, theme) {
  const placed = (view.findings ?? []).filter((/** @type {any} */ finding) => known(finding.step) && finding.step > 0);
  return placed.slice(0, 6).map((/** @type {any} */ finding) => sign(finding.step, "⚑", `${finding.kind}, step ${finding.step}: ${finding.cause ?? ""}`, theme.bad, 1));
}

/** What somebody changed or asked for while it trained, at the top. @param {any} view @param {Theme} theme */
function steered(view, theme) {
  return (view.actions ?? []).map((/** @type {any} */ action) => sign(action.step, "◆", `after step ${action.step}: ${action.text}`, theme.ink, 1));
}

const NAMED_RESTARTS = 3; // more names would lie over one another; the rules stay

/** @param {any} view @param {Theme} theme */
function restarts(view, theme) {
  const restarted = (view.attempts ?? []).filter((/** @type {any} */ attempt) =>
    attempt.event === "start" && attempt.attempt > 1 && known(attempt.first_step));
  return {
    shapes: restarted.map((/** @type {any} */ restart) => ({
      type: "line", x0: restart.first_step, x1: restart.first_step, yref: "paper", y0: 0, y1: 1,
      layer: "below", line: { color: fade(theme.muted, 0.45), width: 1 },
    })),
    annotations: restarted.slice(-NAMED_RESTARTS).map((/** @type {any} */ restart, /** @type {number} */ at) => ({
      x: restart.first_step, yref: "paper", y: 0.88 - 0.09 * at, xanchor: "left", showarrow: false,
      text: ` attempt ${restart.attempt}`, font: { color: theme.muted, size: 10.5 },
    })),
  };
}

/** A mark where the loss was no finite number for the first time. @param {any} view @param {Theme} theme */
function nonfinite(view, theme) {
  if (!known(view.nonfinite_step)) return { shapes: [], annotations: [] };
  const x = view.nonfinite_step;
  const early = x < view.steps / 2; // to the side with room: a text beyond the axis would stretch it below step 0
  const text = `first NaN or infinite at step ${x}`;
  const rule = { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1 };
  return {
    shapes: [{ ...rule, line: { color: theme.bad, width: 1.5, dash: "dot" } }],
    annotations: [
      {
        x,
        yref: "paper",
        y: 0.94, // the signs of findings are above
        xanchor: early ? "left" : "right",
        showarrow: false,
        text: early ? ` ${text}` : `${text} `,
        font: { color: theme.bad, size: 11 },
      },
    ],
  };
}

/** A column over the steps, with its extreme when rows are thinned.
 * @param {any} view @param {Options} options @param {string} column
 * @param {{what: string, color: string, say: (value: any) => string, peak?: string,
 *   layout?: any, last?: any, smooth?: boolean, unit?: (value: any) => string}} how
 * @returns {Drawing} */
function overSteps(view, { theme, smoothing }, column, how) {
  const series = view.series ?? {};
  const step = series.step ?? [];
  const values = series[column] ?? [];
  const peak = how.peak && view.stride > 1 ? series[how.peak] : undefined;
  const traces = someKnown(peak) ? band(step, values, peak, how.color) : [];
  const name = how.what.toLowerCase();
  const shown = { name, ...called(name), hoverinfo: "none" };
  const smoothed = how.smooth && smoothing > 0;
  traces.push(line(step, values, smoothed ? fade(how.color, 0.35) : how.color, smoothed ? { hoverinfo: "skip" } : shown));
  if (smoothed) traces.push(line(step, smooth(values, smoothing), how.color, { ...shown, ...called(name, values, smoothing), line: { color: how.color, width: 2.2 } }));
  const value = how.say(how.last ?? lastKnown(values));
  const drawn = someKnown(values) ? traces : [];
  const empty = emptySentence(view);
  return { steps: true, unit: how.unit, ...(how.unit && { say: how.unit }), traces: drawn, value, label: `${how.what}: ${value}`, layout: how.layout, empty };
}

/** A rehearsal has no script that could report it. @param {any} view @param {Drawing} drawing @returns {Drawing} */
const reported = (view, drawing) => ({ ...drawing, hidden: Boolean(view.rehearsal) });

/** @param {any} view @param {Options} options */
export const learningRate = (view, options) =>
  reported(view, overSteps(view, options, "lr", {
    what: "Learning rate",
    color: options.theme.accent,
    say: (value) => number(value, 3),
    layout: { yaxis: { rangemode: "tozero", exponentformat: "e" } },
  }));

/** @param {any} view @param {Options} options */
export const gradNorm = (view, options) =>
  reported(view, overSteps(view, options, "grad_norm", {
    what: "Gradient norm",
    color: options.theme.accent,
    say: (value) => number(value, 3),
    peak: "grad_norm_max",
    smooth: true,
    layout: { yaxis: { rangemode: "tozero" } },
  }));

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
    smooth: true,
    unit: short,
    what: rateUnit(view) === "samples" ? "Samples per second" : "Tokens per second",
    color: options.theme.accent,
    // Of the recent steps: the line's end is of the last ones it stands for.
    say: (value) => (known(value) ? `${rateText(view)} ${rateUnit(view) === "tokens" ? "tok" : rateUnit(view)}/s (median)` : "n/a"),
    last: view[`${rateUnit(view)}_per_second`],
    layout: { yaxis: { rangemode: "tozero", tickformat: "~s" } },
  });

/** @param {any} view @param {Options} options */
export const stepTime = (view, options) =>
  overSteps(view, options, "step_seconds", {
    what: "Step time",
    color: options.theme.accent,
    say: (value) => (known(value) ? `${shortSeconds(value)} (median)` : "n/a"),
    peak: "step_seconds_max",
    unit: shortSeconds,
    smooth: true,
    last: view.step_seconds_median,
    layout: { yaxis: { rangemode: "tozero", ticksuffix: " s" } },
  });
