// @ts-check
/** A part of one log, however large that is: its end while it is followed, any other when it is scrolled. */

/** @typedef {(name: string, start: number, end: number|null) => Promise<{bytes: Uint8Array, start: number, size: number}|null>} ReadPart */

export const STEP_BYTES = 64_000;
const KEPT_BYTES = 256_000;
const SEARCH_BYTES = 512_000; // read at once
const SEARCHED_BYTES = 256e6; // by one press

/** What came of a search: `further`: there is more before what was searched, `unread`: it could not be read.
 * @typedef {"found"|"nowhere"|"further"|"unread"} Found */

export class LogWindow {
  /** @param {string} name such as `rank-0.log` @param {ReadPart} read */
  constructor(name, read) {
    this.name = name;
    this.path = `logs/${name}`;
    this.read = read;
    this.bytes = new Uint8Array();
    this.start = 0;
    this.size = 0;
    this.loaded = false;
    /** Without the text, between two bytes. */
    this.searched = { query: "", from: 0, to: 0 };
  }

  get end() {
    return this.start + this.bytes.length;
  }

  get atEnd() {
    return this.end >= this.size;
  }

  /** Whole lines of what is loaded. */
  text() {
    let text = new TextDecoder().decode(this.bytes);
    if (this.start > 0) text = text.slice(text.indexOf("\n") + 1);
    return text;
  }

  /** @param {{bytes: Uint8Array, start: number, size: number}|null} part @returns {boolean} whether there is something new */
  replace(part) {
    if (!part) return false;
    Object.assign(this, { bytes: part.bytes, start: part.start, size: part.size, loaded: true });
    return true;
  }

  /** The log's end as it is now. @param {number} [bytes] */
  async follow(bytes = STEP_BYTES) {
    if (!this.loaded || !this.atEnd) return this.replace(await this.read(this.path, -bytes, null));
    // From the last known byte on: asking for what is not there yet would be an error.
    const from = Math.max(0, this.end - 1);
    const to = from + KEPT_BYTES;
    const part = await this.read(this.path, from, to);
    if (!part) return false;
    // Begun again, or more than is kept: nobody looked for long.
    if (part.size < this.size || part.size > to) return this.replace(await this.read(this.path, -bytes, null));
    const more = part.bytes.subarray(this.end - from);
    this.size = part.size;
    if (!more.length) return false;
    this.bytes = joined(this.bytes, more);
    this.cut(true);
    return true;
  }

  /** The lines before. */
  async older() {
    if (this.start === 0) return false;
    const part = await this.read(this.path, Math.max(0, this.start - STEP_BYTES), this.start);
    if (!part?.bytes.length) return false;
    this.bytes = joined(part.bytes, this.bytes);
    this.start = part.start;
    this.cut(false);
    return true;
  }

  /** The lines after. */
  async newer() {
    if (this.atEnd) return false;
    const part = await this.read(this.path, this.end, Math.min(this.size, this.end + STEP_BYTES));
    if (!part?.bytes.length) return false;
    this.bytes = joined(this.bytes, part.bytes);
    this.size = part.size;
    this.cut(true);
    return true;
  }

  /** What begins at this byte. @param {number} at */
  async jump(at) {
    return this.replace(await this.read(this.path, at, at + 2 * STEP_BYTES));
  }

  /** Goes back to the nearest lines before these with the text in them; a search that ended early goes on.
   * @param {string} query @param {() => boolean} [wanted] whether anyone waits for it still @returns {Promise<Found>} */
  async find(query, wanted = () => true) {
    const text = query.toLowerCase();
    const { searched } = this;
    const goesOn = searched.query === text && searched.from < this.start && this.start <= searched.to;
    if (!goesOn) this.searched = { query: text, from: this.start, to: this.start };
    let left = SEARCHED_BYTES;
    while (this.searched.from > 0 && left > 0 && wanted()) {
      const end = this.searched.from;
      const part = await this.read(this.path, Math.max(0, end - SEARCH_BYTES), end);
      if (!part) return "unread";
      if (!part.bytes.length) return "nowhere";
      const there = new TextDecoder().decode(part.bytes).toLowerCase();
      const found = there.lastIndexOf(text);
      if (found >= 0) {
        const before = new TextEncoder().encode(there.slice(0, found)).length;
        return (await this.jump(Math.max(0, part.start + before - STEP_BYTES))) ? "found" : "unread";
      }
      // Over the edge, so that a word that lies on it is found.
      this.searched.from = part.start === 0 ? 0 : part.start + Math.min(part.bytes.length - 1, text.length);
      left -= part.bytes.length;
    }
    return this.searched.from > 0 ? "further" : "nowhere";
  }

  /** @param {boolean} front where to give room */
  cut(front) {
    const over = this.bytes.length - KEPT_BYTES;
    if (over <= 0) return;
    this.bytes = front ? this.bytes.slice(over) : this.bytes.slice(0, KEPT_BYTES);
    if (front) this.start += over;
  }
}

/** @param {Uint8Array} first @param {Uint8Array} two */
export function joined(first, two) {
  const both = new Uint8Array(first.length + two.length);
  both.set(first);
  both.set(two, first.length);
  return both;
}
