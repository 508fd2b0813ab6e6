// @ts-check
/** Smoothing and logarithmic scale of a chart of losses. */

import { element } from "./dom.js";

/** @param {{logLoss: boolean, smoothing: number}} options @param {() => void} changed */
export function lossControls(options, changed) {
  const slider = /** @type {HTMLInputElement} */ (
    element("input", { type: "range", min: "0", max: "0.98", step: "0.01", "aria-label": "Smoothing of the loss" })
  );
  slider.value = String(options.smoothing);
  slider.addEventListener("input", () => {
    options.smoothing = Number(slider.value);
    changed();
  });
  const toggle = element("button", { type: "button", class: "wb-button", "aria-pressed": String(options.logLoss) }, "Log scale");
  toggle.addEventListener("click", () => {
    options.logLoss = !options.logLoss;
    toggle.setAttribute("aria-pressed", String(options.logLoss));
    changed();
  });
  return [element("label", { class: "wb-slider" }, "Smoothing", slider), toggle];
}
