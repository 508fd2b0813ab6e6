// @ts-check
/** Numbers, times and foreign text for people. An unknown value is "n/a", never 0. */

export const UNKNOWN = "n/a";

/** @param {unknown} value @returns {value is number} */
export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** @param {unknown} value @param {number} [digits] */
export function number(value, digits = 4) {
  if (!known(value)) return UNKNOWN;
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) {
    return value.toExponential(2).replace(/\.?0+e/, "e");
  }
  return value.toLocaleString("en", { maximumSignificantDigits: digits });
}

/** @param {unknown} value */
export function count(value) {
  return known(value) ? Math.round(value).toLocaleString("en") : UNKNOWN;
}

/** 41234 -> "41.2 k". @param {unknown} value */
export function short(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["", " k", " M", " G", " T"];
  let power = 0;
  let rest = value;
  while (Math.abs(rest) >= 999.5 && power < units.length - 1) {
    rest /= 1000;
    power += 1;
  }
  return `${rest.toLocaleString("en", { maximumSignificantDigits: 3 })}${units[power]}`;
}

/** @param {unknown} value */
export function percent(value) {
  return known(value) ? `${Math.round(value)} %` : UNKNOWN;
}

/** Dollars; of less than a cent two digits that count, as Python's format_usd says them.
 * @param {unknown} value */
export function usd(value) {
  if (!known(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size > 0 && size < 0.01) {
    return `$${value.toFixed(Math.min(12, Math.max(4, 1 - Math.floor(Math.log10(size)))))}`;
  }
  return `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: value < 1 ? 3 : 2 })}`;
}

/** 950 J, 12 Wh, 3.4 kWh, as Python's format_joules says them. @param {unknown} value */
export function joules(value) {
  if (!known(value)) return UNKNOWN;
  return Math.abs(value) < 3600 ? `${number(value, 3)} J` : scaled(value / 3600, ["Wh", "kWh", "MWh"]);
}

/** 20 mg, 445 g, 12.3 kg, as Python's format_grams says them. @param {unknown} value */
export const grams = (value) => (known(value) ? scaled(value * 1000, ["mg", "g", "kg", "t"]) : UNKNOWN);

/** @param {number} value @param {string[]} units each a thousand of the one before */
function scaled(value, units) {
  let power = 0;
  while (Math.abs(value) >= 999.5 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${number(value, 3)} ${units[power]}`;
}

const BYTE_UNITS = [
  { name: "B", bytes: 1 },
  { name: "KiB", bytes: 2 ** 10 },
  { name: "MiB", bytes: 2 ** 20 },
  { name: "GiB", bytes: 2 ** 30 },
  { name: "TiB", bytes: 2 ** 40 },
];

/** The unit in which the largest of some byte counts reads best. @param {number} largest */
export function byteUnit(largest) {
  return [...BYTE_UNITS].reverse().find((unit) => largest >= (999.5 / 1024) * unit.bytes) ?? BYTE_UNITS[0];
}

/** @param {unknown} value */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const unit = byteUnit(Math.abs(value));
  return `${(value / unit.bytes).toLocaleString("en", { maximumSignificantDigits: 3 })} ${unit.name}`;
}

/** The unit in which a time axis of that many seconds reads best, and its size. @param {number} length
 * @returns {[string, number]} */
export const timeUnit = (length) => (length > 2 * 3600 ? ["h", 3600] : length > 180 ? ["min", 60] : ["s", 1]);

/** 95 -> "1:35", 4000 -> "1:06:40", from two days on 200000 -> "2 d 07:33". @param {unknown} value */
export function seconds(value) {
  if (!known(value) || value < 0) return UNKNOWN;
  const rounded = Math.round(value);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  if (rounded >= 172_800) {
    return `${Math.floor(rounded / 86_400)} d ${two(Math.floor(rounded / 3600) % 24)}:${two(Math.floor(rounded / 60) % 60)}`;
  }
  if (rounded >= 3600) {
    return `${Math.floor(rounded / 3600)}:${two(Math.floor(rounded / 60) % 60)}:${two(rounded % 60)}`;
  }
  return `${Math.floor(rounded / 60)}:${two(rounded % 60)}`;
}

/** A time in hours, as a clock. @param {unknown} value */
export const hours = (value) => seconds(known(value) ? 3600 * value : null); // null times 3600 is 0

/** @param {unknown} value */
export function shortSeconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 1) return `${number(value * 1000, 3)} ms`;
  return value < 60 ? `${number(value, 3)} s` : seconds(value);
}

/** The part of a clock time that matters. @param {unknown} value Unix seconds */
export function moment(value) {
  if (!known(value)) return UNKNOWN;
  const date = new Date(value * 1000);
  const today = new Date().toDateString() === date.toDateString();
  const clock = date.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return today ? clock : `${date.toLocaleDateString("sv")} ${clock}`;
}

/** Plotly shows a subset of HTML in names and hover labels. @param {string} text */
export function plotText(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// OSC (titles, clipboard writes), CSI (colours, cursor), other escapes; then controls, and the
// characters that reorder or hide text.
const OSC = /\u001b\][^\u0007\u001b]*(?:\u0007|\u001b\\|$)/g;
const CSI = /(?:\u001b\[|\u009b)[0-?]*[ -/]*[@-~]/g;
const CONTROLS = /\u001b[@-_]?|[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
const LINE_MAX = 2000;

/** One log line as plain text: no escapes, only the last state of a progress bar, bounded.
 * @param {string} line */
export function plainLine(line) {
  const states = line.split("\r").filter((part) => part.trim() !== "");
  const text = (states.at(-1) ?? "").replace(OSC, "").replace(CSI, "").replace(CONTROLS, "");
  return text.length > LINE_MAX ? `${text.slice(0, LINE_MAX)} …` : text;
}

/** The order of two values of a column; what is not known comes last in either direction.
 * @param {any} left @param {any} right @param {number} sign -1 = descending */
export function compareKnown(left, right, sign) {
  const [noLeft, noRight] = [left, right].map((value) => value === null || value === undefined || Number.isNaN(value));
  if (noLeft || noRight) return Number(noLeft) - Number(noRight);
  return sign * (left < right ? -1 : left > right ? 1 : 0);
}
