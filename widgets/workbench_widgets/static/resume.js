// @ts-check
/** A button that asks twice and then resumes the run: from its newest complete checkpoint, or a named one. */

import { Confirmation } from "./confirm.js";
import { element, setAttribute, setText } from "./dom.js";

export class ResumeButton {
  /** @param {string} text @param {() => void} resume @param {string} [spoken] its name where `text` alone says too little */
  constructor(text, resume, spoken = "") {
    this.text = text;
    this.spoken = spoken;
    this.button = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button wb-resume" }));
    this.question = new Confirmation(this.button, () => this.draw());
    this.button.addEventListener("click", () => this.question.press(spoken || text) && resume());
    this.node = element("span", { class: "wb-confirm" }, this.button, this.question.spoken);
    this.draw();
  }

  draw() {
    setText(this.button, this.question.label(this.text));
    if (this.spoken) setAttribute(this.button, "aria-label", this.question.label(this.spoken));
  }

  /** @param {string} why what stands against it, "" when nothing does */
  refuse(why) {
    if (why) this.question.cancel();
    this.button.disabled = why !== "";
    this.button.title = why;
  }
}

const RESUMABLE = ["failed", "stopped", "preempted", "interrupted"];

/** Why this run cannot be resumed now; "" when it can.
 * @param {any} view @param {boolean} silent nothing was heard of its supervisor for a while
 * @param {boolean} kernel whether there is one to ask */
export function whyNot(view, silent, kernel) {
  if (!kernel) return "Resuming needs the notebook's kernel. Run the cell again.";
  if (view.phase !== "ended") return silent ? "" : "This run is still running. Stop it first.";
  return view.why_not_resumable ?? "";
}

/** Whether a Resume button belongs into the header. @param {any} view */
export const resumable = (view) => view.phase === "ended" && RESUMABLE.includes(view.outcome);
