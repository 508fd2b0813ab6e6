// @ts-check
/** Comparison of runs as one table: what was asked for differently, what came of it, what a loss took. */

import { element } from "./dom.js";
import { bytes, count, hours, known, number, seconds, short, shortSeconds, UNKNOWN, usd } from "./format.js";

const NAMES = {
  loss_last: "loss, last step",
  loss_best: "best loss, mean of some steps",
  nonfinite_step: "first NaN, at step",
  tokens_per_second: "tokens/s",
  samples_per_second: "samples/s",
  step_seconds_median: "step, median",
  memory_bytes: "peak memory",
  hours: "running time",
  usd: "cost",
  step_ratio: "step ÷ predicted",
  memory_ratio: "memory ÷ predicted",
};

/** A result as text. @param {string} what @param {string} unit @param {any} value */
function result(what, unit, value) {
  if (!known(value)) return value === null || value === undefined ? UNKNOWN : String(value);
  if (unit === "bytes") return bytes(value);
  if (unit === "s") return shortSeconds(value);
  if (unit === "h") return hours(value);
  if (unit === "USD") return usd(value);
  if (unit.startsWith("tokens")) return short(value);
  if (unit === "x predicted") return `${value.toFixed(2)}x`;
  return Number.isInteger(value) && !what.startsWith("loss") ? count(value) : number(value);
}

/** @param {any} value */
function setting(value) {
  if (value === null || value === undefined) return "-";
  if (typeof value === "boolean") return value ? "yes" : "no";
  return Array.isArray(value) ? value.join(" ") || "none" : String(value);
}

/** @param {any} reached @param {string} key @param {(value: unknown) => string} text */
function taken(reached, key, text) {
  if (!reached) return key === "step" ? "never" : UNKNOWN;
  const exact = key === "step" && reached.resolution_steps > 1 ? ` ± ${reached.resolution_steps}` : "";
  return text(reached[key]) + exact;
}

/** The lines of a comparison: heads have no cells. @param {any} comparison @returns {{what: string, cells: string[]|null}[]} */
export function lines(comparison) {
  const { runs, configuration, results, reach: target } = comparison;
  const each = (/** @type {(run: string) => string} */ text) => runs.map(text);
  const settings = configuration.map((/** @type {any} */ row) => ({
    what: row.what,
    cells: each((run) => setting(row.values[run])),
  }));
  const came = results.map((/** @type {any} */ row) => ({
    what: NAMES[/** @type {keyof typeof NAMES} */ (row.what)] ?? row.what,
    cells: each((run) => result(row.what, row.unit, row.values[run])),
  }));
  /** @type {[string, string, (value: unknown) => string][]} */
  const scales = [["step", "step", count], ["tokens", "tokens", short], ["seconds", "time", seconds], ["usd", "cost", usd]];
  const took = scales
    .map(([key, what, text]) => ({ what, cells: each((run) => taken(target.runs[run], key, text)) }))
    .filter((row, index) => index === 0 || row.cells.some((/** @type {string} */ cell) => cell !== UNKNOWN));
  const head = (/** @type {string} */ what) => ({ what, cells: null });
  return [
    head(settings.length ? "Different settings" : "Same settings"),
    ...settings,
    head("Results"),
    ...came,
    ...(known(target.loss) ? [head(`To a smoothed loss of ${number(target.loss)}`), ...took] : []),
  ];
}

/** @param {any} comparison @param {string[]} colors */
export function besideTable(comparison, colors) {
  const heads = comparison.runs.map((/** @type {string} */ run, /** @type {number} */ index) => {
    const mark = element("i");
    mark.style.background = colors[index % colors.length];
    return element("th", { scope: "col", title: run }, mark, String(comparison.names[run]));
  });
  const span = String(comparison.runs.length + 1);
  const rows = lines(comparison).map(({ what, cells }) =>
    cells === null
      ? element("tr", { class: "wbx-head" }, element("th", { colspan: span, scope: "rowgroup" }, what))
      : element("tr", {}, element("th", { scope: "row" }, what), ...cells.map((text) => element("td", {}, text))),
  );
  return element(
    "table",
    { class: "wbx-beside" },
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Difference"), ...heads)),
    element("tbody", {}, ...rows),
  );
}
