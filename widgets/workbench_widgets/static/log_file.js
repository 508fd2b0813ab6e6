// @ts-check
/** A log as a file of the browser's downloads. */

import { element } from "./dom.js";
import { bytes } from "./format.js";

/** @typedef {import("./source.js").RunSource} RunSource */

const PART_BYTES = 1_000_000;
const MOST_BYTES = 64e6; // over the comm

/** @param {string} name @param {string} url */
function offer(name, url) {
  const link = /** @type {HTMLAnchorElement} */ (element("a", { download: name, href: url }));
  link.click();
  if (url.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** One log: by the server where it can, else in parts over the comm.
 * @param {RunSource} source @param {string} name @param {(text: string) => void} say where not all of it could be had */
export async function saveLog(source, name, say) {
  const served = source.transport === "http" ? source.url(`logs/${name}`) : null;
  offer(name, served ?? URL.createObjectURL(await gathered(source, name, say)));
}

/** The lines of several logs, as they are shown. @param {import("./log_lines.js").Line[]} lines @param {string} name */
export function saveLines(lines, name) {
  const text = lines.map((line) => `${line.from}: ${line.text}\n`);
  offer(name, URL.createObjectURL(new Blob(text, { type: "text/plain" })));
}

/** @param {RunSource} source @param {string} name @param {(text: string) => void} say */
export async function gathered(source, name, say) {
  const parts = [];
  let [at, size] = [0, 0];
  while (at < MOST_BYTES) {
    const part = await source.part(`logs/${name}`, at, at + PART_BYTES);
    if (!part?.bytes.length) break;
    parts.push(part.bytes);
    at += part.bytes.length;
    size = part.size;
  }
  if (at < size) say(`The file has the first ${bytes(at)} of ${bytes(size)}. The whole log: ${source.context.config.run}/logs/${name}`);
  return new Blob(/** @type {any} */ (parts), { type: "text/plain" });
}
