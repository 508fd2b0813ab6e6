// @ts-check
/**
 * A part of rank 0's metric file, read through Jupyter by ranges of bytes: for a zoom while the kernel is busy or gone.
 * The beginning is found by bisection; the other ranks' files are not read, and the panel says so.
 */

const BLOCK = 1 << 14;
const MOST_BYTES = 8 << 20;

/** @param {string} url @param {number} from @param {number} to @returns {Promise<{text: string, size: number}>} */
async function bytes(url, from, to) {
  const options = { headers: { Range: `bytes=${from}-${to}` }, cache: /** @type {RequestCache} */ ("no-store"), credentials: /** @type {RequestCredentials} */ ("same-origin") };
  const response = await fetch(url, options);
  if (response.status !== 206) throw new Error(`HTTP ${response.status}`);
  const size = Number((response.headers.get("Content-Range") ?? "").split("/")[1]);
  return { text: new TextDecoder().decode(await response.arrayBuffer()), size };
}

/** @param {string} text @returns {any[]} its whole lines */
export const rows = (text) => text.split("\n").slice(1, -1).flatMap((part) => {
  try {
    return [JSON.parse(part.replaceAll(/-?\b(NaN|Infinity)\b/g, "null"))];
  } catch {
    return [];
  }
});

/** @param {string} url @param {number} first @param {number} last
 * @returns {Promise<{series: any, stride: number, part: string}>} */
export async function readWindow(url, first, last) {
  let low = 0;
  let high = (await bytes(url, 0, 1)).size;
  while (high - low > BLOCK) {
    const middle = (low + high) >> 1;
    const [row] = rows((await bytes(url, middle, middle + 4096)).text);
    if (row && row.step < first) low = middle;
    else high = middle;
  }
  const { text, size } = await bytes(url, low, low + MOST_BYTES);
  const read = rows(low ? text : `\n${text}`);
  if ((read.at(-1)?.step ?? 0) < last && low + MOST_BYTES < size) throw new Error("more than can be read at once");
  const inside = read.filter((row) => row.step >= first && row.step <= last);
  const column = (/** @type {string} */ name) => inside.map((row) => row[name] ?? null);
  const names = ["step", "time", "loss", "lr", "grad_norm", "step_seconds"];
  const series = Object.fromEntries(names.map((name) => [name, column(name)]));
  series.tokens_per_second = inside.map((row) => (row.tokens && row.step_seconds ? row.tokens / row.step_seconds : null));
  return { series, stride: 1, part: "rank 0" };
}
