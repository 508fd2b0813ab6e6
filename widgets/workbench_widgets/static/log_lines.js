// @ts-check
/** Log text as lines to show: colours, levels, progress bars folded. No DOM here.
 *
 * @typedef {{text: string, style: string}} Piece of a line, with the class names of its colour
 * @typedef {{from: string, pieces: Piece[], text: string, level: "plain"|"warning"|"error", folded: number}} Line */

import { plainLine } from "./format.js";

const SGR = /\u001b\[([\d;]*)m/g;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const ERROR = /\b(ERROR|CRITICAL|FATAL)\b|^\s*(\w+\.)*\w*(Error|Exception|Interrupt)\b\s*(:|$)/;
const WARNING = /\bWARN(ING)?\b|\w*Warning:/;
const PROGRESS = /\d+%\|.*\||\b\d+%\s*\[|\b\d+\/\d+ \[.*it\/s/;
const TRACEBACK = /^Traceback \(most recent call last\)/;

/** Class names after the codes of one escape. @param {string} codes @param {Set<string>} style */
function apply(codes, style) {
  for (const code of codes.split(";").map(Number)) {
    const colour = COLOURS[code % 10];
    if (code === 0) style.clear();
    else if (code === 1) style.add("wb-b");
    else if (code === 22) style.delete("wb-b");
    if ((code >= 30 && code <= 39) || (code >= 90 && code <= 97)) {
      for (const colour of COLOURS) style.delete(`wb-c-${colour}`);
      if (colour && code % 10 < 8) style.add(`wb-c-${colour}`);
    }
  }
}

/** A line's text by colour; other escapes are gone. @param {string} line @returns {Piece[]} */
export function pieces(line) {
  const raw = line.split("\r").filter((part) => part.trim() !== "").at(-1) ?? "";
  const style = new Set();
  /** @type {Piece[]} */
  const found = [];
  let from = 0;
  const take = (/** @type {number} */ to) => {
    const text = plainLine(raw.slice(from, to));
    if (text) found.push({ text, style: [...style].join(" ") });
  };
  for (const match of raw.matchAll(SGR)) {
    take(match.index);
    from = match.index + match[0].length;
    apply(match[1] || "0", style);
  }
  take(raw.length);
  return found;
}

/** Whether two lines that follow one another are states of a progress bar. @param {Line} before @param {Line} line */
export const continues = (before, line) => PROGRESS.test(line.text) && PROGRESS.test(before.text);

/** Lines of one file; states of a progress bar that follow one another become one line.
 * @param {string} text @param {string} [from] whose they are, where several are shown
 * @param {{inTraceback: boolean}} [state] where the text begins; afterwards where it ends @returns {Line[]} */
export function logLines(text, from = "", state = { inTraceback: false }) {
  /** @type {Line[]} */
  const lines = [];
  for (const raw of text.replaceAll("\r\n", "\n").split("\n")) {
    const parts = pieces(raw);
    const plain = parts.map((part) => part.text).join("");
    if (TRACEBACK.test(plain)) state.inTraceback = true;
    const error = state.inTraceback || ERROR.test(plain);
    // A traceback ends with the line that names the exception: the first that is not indented.
    if (state.inTraceback && !TRACEBACK.test(plain) && plain !== "" && !/^\s/.test(plain)) state.inTraceback = false;
    const level = error ? "error" : WARNING.test(plain) ? "warning" : "plain";
    const states = raw.split("\r").filter((part) => part.trim() !== "").length;
    /** @type {Line} */
    const line = { from, pieces: parts, text: plain, level, folded: Math.max(0, states - 1) };
    const before = lines.at(-1);
    if (before && continues(before, line)) {
      lines.pop();
      line.folded += before.folded + 1;
    }
    lines.push(line);
  }
  if (lines.at(-1)?.text === "") lines.pop();
  return lines;
}

/** @param {Line[]} lines @param {{level: string, query: string}} wanted @returns {Line[]} */
export function filtered(lines, { level, query }) {
  const text = query.toLowerCase();
  return lines.filter((line) => {
    if (level === "error" && line.level !== "error") return false;
    if (level === "warning" && line.level === "plain") return false;
    return !text || line.text.toLowerCase().includes(text);
  });
}
