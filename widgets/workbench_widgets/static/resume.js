// @ts-check
/** A button that asks twice and then resumes the run: from its newest complete checkpoint, or a named one. */

import { element, setText } from "./dom.js";

const CONFIRM_WITHIN_MS = 5000;

export class ResumeButton {
  /** @param {string} text @param {() => void} resume */
  constructor(text, resume) {
    this.text = text;
    this.resume = resume;
    this.armed = false;
    this.timer = 0;
    this.node = /** @type {HTMLButtonElement} */ (
      element("button", { type: "button", class: "wb-button wb-resume" }, text)
    );
    this.node.addEventListener("click", () => this.press());
  }

  press() {
    clearTimeout(this.timer);
    if (this.armed) {
      this.arm(false);
      this.resume();
      return;
    }
    this.arm(true);
    this.timer = window.setTimeout(() => this.arm(false), CONFIRM_WITHIN_MS);
  }

  /** @param {boolean} armed */
  arm(armed) {
    this.armed = armed;
    this.node.dataset.armed = String(armed);
    setText(this.node, armed ? `Press again: ${this.text.toLowerCase()}` : this.text);
  }

  /** @param {string} why what stands against it, "" when nothing does */
  refuse(why) {
    this.node.disabled = why !== "";
    this.node.title = why;
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
