// @ts-check
/** Numbers as `workbench.observe.coded` writes them: one or two characters each. No DOM here. */

/** @typedef {{digits: number, low: number, high: number, rows: string[]}} Coded */

const LEVELS = Array.from({ length: 0x7f - 0x23 }, (_, at) => String.fromCharCode(0x23 + at)).filter((char) => char !== "\\").join("");
const [UNKNOWN, NOT_FINITE] = [" ", "!"];

/** The value at one place of a row; null where it is unknown, NaN where it is no finite number.
 * @param {Coded|undefined} coded @param {number} at @param {number} [row] @returns {number|null} */
export function decode(coded, at, row = 0) {
  const text = coded?.rows?.at(row);
  if (!coded || text === undefined) return null;
  const code = text.slice(at * coded.digits, (at + 1) * coded.digits);
  if (code === "" || code[0] === UNKNOWN) return null;
  if (code[0] === NOT_FINITE) return NaN;
  let level = 0;
  for (const char of code) level = level * LEVELS.length + LEVELS.indexOf(char);
  return coded.low + (level / (LEVELS.length ** coded.digits - 1)) * (coded.high - coded.low);
}
