// @ts-check
/** Stop: a second press confirms; first graceful (checkpoint at the same step), then at once. */

import { element, setText } from "./dom.js";

const CONFIRM_WITHIN_MS = 5000;

export class StopButton {
  /** @param {(now: boolean) => Promise<void>} requestStop */
  constructor(requestStop) {
    this.requestStop = requestStop;
    this.button = element("button", { type: "button", class: "wb-button wb-stop" });
    this.note = element("span", { class: "wb-stop-note", "aria-live": "polite" });
    this.node = element("span", { class: "wb-stop-box" }, this.note, this.button);
    this.armed = false;
    this.requested = false;
    this.timer = 0;
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
    if (phase === "stopping") this.requested = true;
    this.draw();
  }

  async press() {
    clearTimeout(this.timer);
    if (!this.armed) {
      this.armed = true;
      this.timer = window.setTimeout(() => this.disarm(), CONFIRM_WITHIN_MS);
      this.draw();
      return;
    }
    const now = this.requested;
    this.disarm();
    try {
      await this.requestStop(now);
      this.requested = true;
      setText(this.note, now ? "Ending every process …" : "Stopping …");
    } catch (error) {
      setText(this.note, `Stop failed: ${/** @type {Error} */ (error).message}`);
    }
    this.draw();
  }

  reset() {
    clearTimeout(this.timer);
    this.armed = this.requested = false;
    setText(this.note, "");
  }

  disarm() {
    this.armed = false;
    this.draw();
  }

  draw() {
    const what = this.requested ? "Stop now" : "Stop";
    setText(this.button, this.armed ? `Press again: ${what.toLowerCase()}` : what);
    this.button.dataset.armed = String(this.armed);
    /** @type {HTMLButtonElement} */ (this.button).disabled = Boolean(this.refused);
    this.button.title = this.refused ? this.refused : this.requested
      ? "End all processes of the run without a checkpoint"
      : "Finish the current step, save a checkpoint if the script can, then end";
    this.button.hidden = this.current === "ended";
  }
}
