// @ts-check
/** How tables and charts call a run and write its last loss. No DOM here. */

import { count, known, number } from "./format.js";

export const NO_RUNS = "No runs in this store yet: launch one, and it is listed here";

/** The rows, each with what it is `called`: its name; its id where another run has, or had, that
 * name, or is called so. @param {any[]} rows */
export function withNames(rows) {
  const taken = new Map();
  for (const { run, name } of rows) for (const one of new Set([run, name])) taken.set(one, (taken.get(one) ?? 0) + 1);
  return rows.map((row) => {
    const shared = taken.get(row.name) > 1 || String(row.run).startsWith(`${row.name}-`);
    return { ...row, called: shared ? row.run : row.name };
  });
}

/** The last finite loss, and the first step that had none. @param {any} run a view or a row */
export const lossText = (run) =>
  number(run.loss_last) + (known(run.nonfinite_step) ? ` (NaN at ${count(run.nonfinite_step)})` : "");

/** What a table sorts losses by: one that was NaN comes behind all others. @param {any} run */
export const lossKey = (run) => (known(run.nonfinite_step) ? Infinity : run.loss_last);

/** What `lossText` says, in words; "" where every loss was finite. @param {any} run */
export const lossTitle = (run) =>
  known(run.nonfinite_step)
    ? `The last finite loss. The first NaN or infinite loss was that of step ${count(run.nonfinite_step)}.`
    : "";
