// @ts-check
/** The question of a button that acts at its second press, which a double click is not. It has no time limit:
 * Escape, or moving the focus away, takes it back. Screen readers hear both. */

import { element, focusedElement, setText } from "./dom.js";

export class Confirmation {
  /** @param {HTMLElement} button @param {() => void} changed draws the button anew */
  constructor(button, changed) {
    this.button = button;
    this.changed = changed;
    this.armed = false;
    this.spoken = element("span", { class: "wb-spoken", "aria-live": "polite" });
    // A double click, and a key that is held down, are one press: nothing was read between the two.
    button.addEventListener("click", (event) => event.detail > 1 && event.stopImmediatePropagation(), true);
    button.addEventListener("keydown", (event) => {
      if (event.repeat) event.preventDefault();
      if (event.key !== "Escape" || !this.armed) return;
      event.preventDefault();
      event.stopPropagation(); // in JupyterLab it would also leave the output
      this.cancel();
    });
    // Asked afterwards: a redraw that gives the focus back, or another window in front, takes nothing back.
    button.addEventListener("blur", () => queueMicrotask(() => focusedElement() !== button && this.cancel()));
  }

  /** Whether this press confirms; else it asks. @param {string} action "Stop" */
  press(action) {
    const confirmed = this.armed;
    this.arm(!confirmed, confirmed ? "" : `${action}? Press again to confirm, or Escape to cancel.`);
    if (!confirmed) this.button.focus({ preventScroll: true }); // Safari gives a clicked button no focus
    return confirmed;
  }

  cancel() {
    if (this.armed) this.arm(false, "Canceled.");
  }

  /** @param {boolean} armed @param {string} announcement */
  arm(armed, announcement) {
    this.armed = armed;
    this.button.dataset.armed = String(armed);
    setText(this.spoken, announcement);
    this.changed();
  }

  /** What the button reads. @param {string} text of the button at rest */
  label(text) {
    return this.armed ? `Press again: ${text[0].toLowerCase()}${text.slice(1)}` : text;
  }
}
