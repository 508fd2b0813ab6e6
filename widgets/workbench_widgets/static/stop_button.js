// @ts-check
/** Stop: a second press confirms; first graceful (checkpoint at the same step), then at once. */

import { Confirmation } from "./confirm.js";
import { element, setText } from "./dom.js";

export class StopButton {
  /** @param {(now: boolean) => Promise<void>} requestStop */
  constructor(requestStop) {
    this.requestStop = requestStop;
    this.button = element("button", { type: "button", class: "wb-button wb-stop" });
    this.note = element("span", { class: "wb-stop-note", "aria-live": "polite" });
    this.question = new Confirmation(this.button, () => this.draw());
    this.node = element("span", { class: "wb-stop-box" }, this.note, this.button, this.question.spoken);
    this.requested = false;
    this.current = "starting";
    this.attempt = 0;
    this.refused = "";
    this.button.addEventListener("click", () => this.press());
    this.draw();
  }

  /** What was pressed belongs to one attempt of the run: the next one can be stopped gracefully.
   * @param {string} phase @param {number} [attempt] @param {string} [refused] why it cannot now */
  phase(phase, attempt = 0, refused = "") {
    if (phase === "ended" || attempt !== this.attempt) this.reset();
    this.attempt = attempt;
    this.refused = refused;
    this.current = phase;
    if (refused) this.question.cancel();
    if (phase === "stopping") this.request();
    this.draw();
  }

  /** From here on a press means "Stop now": a question about the graceful stop is not taken for it. */
  request() {
    if (!this.requested) this.question.cancel();
    this.requested = true;
  }

  async press() {
    const now = this.requested;
    if (!this.question.press(this.action)) return;
    try {
      await this.requestStop(now);
      this.request();
      setText(this.note, now ? "Ending every process …" : "Stopping …");
    } catch (error) {
      setText(this.note, `Stop failed: ${/** @type {Error} */ (error).message}`);
    }
    this.draw();
  }

  /** It was not stopped after all. @param {string} why */
  failed(why) {
    if (!this.requested) return;
    this.requested = false;
    setText(this.note, why);
    this.draw();
  }

  reset() {
    this.question.cancel();
    this.requested = false;
    setText(this.note, "");
  }

  get action() {
    return this.requested ? "Stop now" : "Stop";
  }

  draw() {
    setText(this.button, this.question.label(this.action));
    /** @type {HTMLButtonElement} */ (this.button).disabled = Boolean(this.refused);
    this.button.title = this.refused ? this.refused : this.requested
      ? "End all processes of the run without a checkpoint"
      : "Finish the current step, save a checkpoint if the script can, then end";
    this.button.hidden = this.current === "ended";
  }
}
