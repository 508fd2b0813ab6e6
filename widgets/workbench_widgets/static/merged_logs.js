// @ts-check
/** The ends of several ranks' logs, then what each writes, in the order in which it comes. */

import { logOf } from "./log_choice.js";
import { continues, logLines } from "./log_lines.js";
import { joined, LogWindow } from "./log_window.js";

/** @typedef {import("./log_lines.js").Line} Line */

const FIRST_BYTES = 8_000; // of each rank's end
const UNFINISHED_BYTES = 8_000; // of a line, such as a progress bar that never ends one
const LINES = 2000;
const NEWLINE = 10;

/** One rank's log: whole lines, and what there is of the last one. */
class Tail {
  /** @param {number} rank @param {import("./log_window.js").ReadPart} read */
  constructor(rank, read) {
    this.from = `rank ${rank}`;
    this.window = new LogWindow(logOf(rank), read);
    this.begin();
  }

  begin() {
    this.state = { inTraceback: false };
    this.rest = new Uint8Array();
    /** @type {Line|undefined} */
    this.last = undefined;
    /** What is shown of a line that has not ended. @type {Line[]} */
    this.unfinished = [];
  }

  /** Lines to take away, and those that come instead of them at the end; null where nothing is new.
   * @returns {Promise<{gone: Line[], lines: Line[]}|null>} */
  async news() {
    const { window } = this;
    const known = window.loaded ? window.end : -1;
    if (!(await window.follow(FIRST_BYTES))) return null;
    const gone = this.unfinished;
    let bytes = window.bytes.subarray(Math.max(0, known - window.start));
    if (known < window.start || known > window.end) {
      this.begin(); // the first look, a log that was begun again, or more than is kept
      bytes = window.bytes.subarray(window.start > 0 ? window.bytes.indexOf(NEWLINE) + 1 : 0);
    }
    const text = joined(this.rest, bytes);
    const whole = text.lastIndexOf(NEWLINE) + 1;
    this.rest = text.slice(Math.max(whole, text.length - UNFINISHED_BYTES));
    const lines = logLines(new TextDecoder().decode(text.subarray(0, whole)), this.from, this.state);
    // A character that is not whole yet is left for the next look.
    this.unfinished = logLines(new TextDecoder().decode(this.rest, { stream: true }), this.from, { ...this.state });
    const shown = [...lines, ...this.unfinished];
    if (this.last && shown[0] && continues(this.last, shown[0])) {
      gone.push(this.last);
      shown[0].folded += this.last.folded + 1;
    }
    this.last = lines.at(-1) ?? this.last;
    return { gone, lines: shown };
  }
}

export class MergedLogs {
  /** @param {import("./log_window.js").ReadPart} read @param {number} most ranks, the first that there are */
  constructor(read, most) {
    this.read = read;
    this.most = most;
    /** @type {Map<number, Tail>} */
    this.tails = new Map();
    /** @type {Line[]} */
    this.lines = [];
  }

  /** @param {number[]} ranks those that have written something @returns {Promise<boolean>} whether anything is new */
  async follow(ranks) {
    let fresh = false;
    for (const rank of ranks) {
      if (!this.tails.has(rank) && this.tails.size < this.most) this.tails.set(rank, new Tail(rank, this.read));
    }
    for (const tail of this.tails.values()) {
      const news = await tail.news();
      if (!news) continue;
      fresh = true;
      this.lines = [...this.lines.filter((line) => !news.gone.includes(line)), ...news.lines].slice(-LINES);
    }
    return fresh;
  }
}
