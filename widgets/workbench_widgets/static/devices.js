// @ts-check
/** What is known of each device of a run, from the view's grid, and how a tile is coloured. No DOM here. */

import { decode } from "./coded.js";
import { bytes, known, number } from "./format.js";

/** @typedef {{at: number, node: number, host: string, index: number, part: number|null, several: boolean, kind: string, model: any,
 *   util: number|null, memory: number|null, temperature: number|null, power: number|null, deviation: number|null, throttle: string|null}} Device
 * @typedef {{node: number, host: string, devices: Device[]}} Machine
 * @typedef {{tone: "none"|"usual"|"odd"|"bad"|"level", level: number}} Shade */

export const SMALL_ABOVE = 64; // of more devices a tile has no room for words
export const MEASURES = /** @type {[string, string][]} */ ([
  ["deviation", "Deviation from peers"],
  ["util", "Utilisation"],
  ["memory", "Memory"],
  ["temperature", "Temperature"],
  ["power", "Power"],
]);
const ODD = 1; // a deviation over it is unusual, over twice as much alarming
const HOT_C = 90;

/** @param {any} grid @returns {Machine[]} */
export function machines(grid) {
  let at = 0;
  const nodes = grid?.nodes ?? [];
  return nodes.map((/** @type {any} */ { node, host = "", count, index, part }) => {
    const devices = Array.from({ length: count }, (_, place) => {
      const here = at++;
      return {
        at: here,
        node,
        host,
        index: index?.[place] ?? place,
        part: part?.[place] ?? null,
        several: nodes.length > 1,
        kind: grid.kind,
        model: grid.models?.[grid.model?.[here] ?? 0] ?? {},
        util: decode(grid.util, here),
        memory: decode(grid.memory_percent, here),
        temperature: decode(grid.temperature_c, here),
        power: decode(grid.power_w, here),
        deviation: decode(grid.deviation, here),
        throttle: known(grid.throttle?.[here]) ? grid.reasons?.[grid.throttle[here]] ?? null : null,
      };
    });
    return { node, host, devices };
  });
}

/** @param {Device} device */
export const nameOf = (device) => (device.kind === "core" ? `core ${device.index}` : `gpu${device.index}${known(device.part) ? `:${device.part}` : ""}`);

/** @param {Device} device */
export const placeOf = (device) => (device.several ? `${nameOf(device)} of node ${device.node}${device.host ? ` (${device.host})` : ""}` : nameOf(device));

/** @param {Device} device */
export function memoryText(device) {
  const total = device.model.memory_total_bytes;
  if (!known(device.memory)) return "n/a";
  return known(total) ? `${bytes((device.memory / 100) * total)} of ${bytes(total)}` : `${number(device.memory, 2)} %`;
}

/** @param {number|null} value @param {string} unit */
const whole = (value, unit) => (known(value) ? `${Math.round(value)} ${unit}` : `n/a ${unit}`);

/** A device in one line. @param {Device} device */
export function words(device) {
  if (device.kind === "core") return `${placeOf(device)}: ${whole(device.util, "%")} busy`;
  if (!known(device.util) && !known(device.memory)) return `${placeOf(device)}: no readings`;
  const slow = device.throttle === null ? "throttling n/a" : device.throttle ? `throttled: ${device.throttle}` : "not throttled";
  const peers = known(device.deviation) ? `; ${number(device.deviation, 2)} × the usual spread from its peers` : "";
  return `${placeOf(device)}: ${whole(device.util, "%")} busy, ${memoryText(device)}, ${whole(device.temperature, "°C")}, ${whole(device.power, "W")}, ${slow}${peers}`;
}

/** What most are coloured by: with few devices, or cores, there is no odd one. @param {any} grid */
export function usualMeasure(grid) {
  return machines(grid).some(({ devices }) => devices.some((device) => known(device.deviation))) ? "deviation" : "util";
}

/** @param {Device} device @param {string} measure @returns {Shade} */
export function shade(device, measure) {
  const value = /** @type {any} */ (device)[measure];
  if (!known(value)) return { tone: "none", level: 0 };
  if (measure === "deviation") {
    const tone = value > 2 * ODD ? "bad" : value > ODD ? "odd" : "usual";
    return { tone, level: Math.min(1, 0.3 + value / (3 * ODD)) };
  }
  const full = measure === "temperature" ? HOT_C : measure === "power" ? device.model.power_limit_w ?? 700 : 100;
  return { tone: "level", level: Math.max(0.04, Math.min(1, value / full)) };
}

/** "64 × NVIDIA H100 80GB HBM3, 79.6 GiB, 700 W" for each model. @param {any} grid @returns {string[]} */
export function modelTexts(grid) {
  const all = machines(grid).flatMap(({ devices }) => devices);
  return (grid?.models ?? []).map((/** @type {any} */ model) => {
    const many = all.filter((device) => device.model === model).length;
    if (grid.kind === "core") return `${many} processor ${many === 1 ? "core" : "cores"}`;
    const parts = [model.name || "GPU", known(model.memory_total_bytes) ? bytes(model.memory_total_bytes) : "", known(model.power_limit_w) ? `${Math.round(model.power_limit_w)} W` : ""];
    return `${many} × ${parts.filter(Boolean).join(", ")}`;
  });
}

/** One device's curves out of its machine's samples, as the view has those of few devices.
 * @param {string} text the end of a `system.jsonl`, its first line cut @param {number} index
 * @param {number|null} [part] which slice (MIG) of its card */
export function curvesOf(text, index, part = null) {
  /** @type {Record<string, (number|null)[]>} */
  const series = { time: [], util: [], memory_bytes: [], temperature_c: [], power_w: [] };
  for (const line of text.split("\n")) {
    try {
      const sample = JSON.parse(line);
      const own = sample.gpus?.filter((/** @type {any} */ gpu) => gpu.index === index)[part ?? 0];
      if (!own || !known(sample.time)) continue;
      series.time.push(sample.time);
      for (const name of Object.keys(series)) if (name !== "time") series[name].push(own[name] ?? null);
    } catch {
      // the first line is cut, the last one may not be whole yet
    }
  }
  return series;
}
