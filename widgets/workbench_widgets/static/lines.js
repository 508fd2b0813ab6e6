// @ts-check
/** Values as traces for plotly.js: lines, the range around them, and a smoother line. No DOM here. */

import { known } from "./format.js";
import { fade } from "./theme.js";

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

/** What is logged now and then is shown as it is: fewer points are not made smoother. */
export const SMOOTHED_FROM = 40;

/** @param {any[]|undefined} values */
export const lastKnown = (values) => (values ?? []).filter(known).at(-1);

/** @param {any[]|undefined} values */
export const someKnown = (values) => (values ?? []).some(known);

/** @param {any[]} x @param {any[]} y @param {string} color @param {any} [more] */
export function line(x, y, color, more = {}) {
  const few = x.length < 3 ? { mode: "lines+markers", marker: { size: 5, color } } : {};
  return { type: "scatter", mode: "lines", x, y, line: { color, width: 1.6 }, ...few, ...more };
}

/** What a curve is called where no markup is read; of a smoothed one also its raw values and how they were smoothed.
 * @param {string} name @param {any[]} [raw] @param {number} [weight] as of `smooth`
 * @returns {{called: {name: string, raw?: any[], smoothed?: string}}} */
export const called = (name, raw, weight) => ({
  called: { name, ...(raw && { raw, smoothed: `${name} (exponential moving average, weight ${weight})` }) },
});

/** The area between two columns, for what the thinning hid.
 * @param {any[]} x @param {any[]} low @param {any[]} high @param {string} color */
export function band(x, low, high, color) {
  const edge = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip" };
  return [
    { ...edge, x, y: low },
    { ...edge, x, y: high, fill: "tonexty", fillcolor: fade(color, 0.16) },
  ];
}

/** The middle one of these numbers; undefined without any. @param {number[]} values */
export const median = (values) => [...values].sort((value, two) => value - two)[Math.floor(values.length / 2)];
