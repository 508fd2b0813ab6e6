// @ts-check
/** The checkpoints of a run: step, size, whether they are complete, and "Resume from here". */

import { element, setAttribute, setRows, setText } from "./dom.js";
import { bytes, count, known, moment } from "./format.js";
import { ResumeButton, whyNot } from "./resume.js";
import { RunSource } from "./source.js";
import { silent } from "./state.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{step: number|null, name: string, path: string, bytes: number|null, saved_at: number|null,
 *   kind: string|null, sealed: boolean|null, problem: string|null}} Checkpoint */

const REHEARSED = "rehearsed"; // of a plan that is played: there is nothing to resume from
const COLUMNS = ["Step", "Size", "Saved", "Written by", "Verified", "Action"];

/** @param {Checkpoint} checkpoint @returns {{state: string, text: string, title: string}} */
export function verified(checkpoint) {
  if (checkpoint.kind === REHEARSED) return { state: "open", text: "not written", title: "A rehearsal writes no checkpoints" };
  if (checkpoint.problem) return { state: "bad", text: "broken", title: checkpoint.problem };
  if (checkpoint.sealed) return { state: "good", text: "complete", title: "Every file has the size and hash of its manifest" };
  return { state: "open", text: "not yet", title: "Not verified yet. It is verified before a run resumes from it." };
}

/** One line of the table; keeps its button, so that an armed one outlives a redraw. */
class Line {
  /** @param {Checkpoint} checkpoint @param {(name: string) => void} resume */
  constructor(checkpoint, resume) {
    this.cells = COLUMNS.map(() => element("td"));
    this.button = new ResumeButton("Resume from here", () => resume(checkpoint.name), `Resume from ${checkpoint.name}`);
    this.problem = element("span", { class: "wb-problem" });
    this.mark = element("span", { class: "wb-verified" });
    this.cells[4].append(this.mark, this.problem);
    this.cells[5].append(this.button.node);
    this.node = element("tr", {}, ...this.cells);
  }

  /** @param {Checkpoint} checkpoint @param {string} refused */
  draw(checkpoint, refused) {
    const texts = [count(checkpoint.step), bytes(checkpoint.bytes), moment(checkpoint.saved_at), checkpoint.kind ?? "n/a"];
    texts.forEach((text, at) => setText(this.cells[at], text));
    this.cells[0].title = checkpoint.path ?? checkpoint.name;
    const { state, text, title } = verified(checkpoint);
    setAttribute(this.mark, "data-state", state);
    setText(this.mark, text);
    this.mark.title = title;
    setText(this.problem, checkpoint.problem ?? "");
    this.button.node.hidden = state === "bad" || checkpoint.kind === REHEARSED;
    this.button.refuse(refused);
  }
}

export class Checkpoints {
  /** @param {(checkpoint: string|null) => void} resume @param {boolean} kernel
   * @param {string} [refusal] why this page may not act */
  constructor(resume, kernel, refusal = "") {
    this.refusal = refusal;
    this.resume = resume;
    this.kernel = kernel;
    this.body = element("tbody");
    this.total = element("span", { class: "wb-panel-value" });
    this.note = element("p", { class: "wb-note", role: "status", "aria-live": "polite" });
    const heads = COLUMNS.map((text) => element("th", { scope: "col" }, text));
    this.table = element("table", { class: "wb-checkpoints" }, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.node = element(
      "section",
      { class: "wb-panel wb-area-checkpoints", "aria-label": "Checkpoints" },
      element("header", {}, element("h3", {}, "Checkpoints"), this.total),
      this.note,
      element("div", { class: "wb-table-box", tabindex: "0", role: "region", "aria-label": "Table of checkpoints" }, this.table),
    );
    /** @type {Map<string, Line>} */
    this.lines = new Map();
    this.message = "";
    this.attempt = 0;
  }

  /** @param {any} view @param {boolean} unheard nothing was heard of its supervisor for a while */
  draw(view, unheard) {
    /** @type {Checkpoint[]} */
    const checkpoints = view.checkpoints ?? [];
    if ((view.attempt ?? 0) !== this.attempt) this.say(""); // the message of the attempt before
    this.attempt = view.attempt ?? 0;
    const refused = this.refusal || whyNot(view, unheard, this.kernel);
    const names = new Set(checkpoints.map((checkpoint) => checkpoint.name));
    for (const name of [...this.lines.keys()].filter((key) => !names.has(key))) this.lines.delete(name);
    const rows = checkpoints.map((checkpoint) => {
      const line = this.lines.get(checkpoint.name) ?? new Line(checkpoint, this.resume);
      this.lines.set(checkpoint.name, line);
      line.draw(checkpoint, refused);
      return line.node;
    });
    setRows(this.body, rows);
    this.table.hidden = rows.length === 0;
    const sizes = checkpoints.map((checkpoint) => checkpoint.bytes).filter(known);
    setText(this.total, sizes.length ? bytes(sizes.reduce((sum, size) => sum + size, 0)) : "");
    setText(this.note, this.message || (rows.length ? "" : view.phase === "ended" ? "No checkpoint saved" : "No checkpoint yet"));
  }

  /** An answer of the kernel, or what is being done. @param {string} text @param {boolean} bad */
  say(text, bad = false) {
    this.message = text;
    setText(this.note, text);
    setAttribute(this.note, "data-tone", bad ? "bad" : "note");
  }
}

/** The panel alone. @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const panel = new Checkpoints((name) => ask(name), context.model !== null);
  const lost = element("div", { class: "wb-banner", role: "status", hidden: "" });
  const shell = element("div", { class: "wb-root", role: "group", "aria-label": "Checkpoints" }, panel.node, lost);
  const source = new RunSource(
    context,
    ({ view, ageSeconds }) => panel.draw(view, silent(view, ageSeconds)),
    (text) => {
      lost.hidden = text === null;
      setText(lost, text ?? "");
    },
  );
  const ask = (/** @type {string|null} */ name) => {
    panel.say("Resuming …");
    source.resume(name);
  };
  source.onResumed = (text, bad) => panel.say(text, bad);
  root.append(shell);
  panel.draw({ run: context.config.run, phase: "starting", checkpoints: [] }, false);
  source.start().catch((error) => panel.say(String(error), true));
  return () => {
    source.close();
    shell.remove();
  };
}
