// @ts-check
/** The switches that hold for all curves: along what, smoothing, scale, outliers, the run to compare with. */

import { element } from "./dom.js";
import { SCALES, scaleOf } from "./scales.js";

/** @typedef {{by: string, logLoss: boolean, smoothing: number, clip: boolean}} CurveOptions */

export class ChartBar {
  /** @param {CurveOptions} options @param {() => void} changed @param {HTMLElement[]} more */
  constructor(options, changed, more) {
    this.options = options;
    this.scales = SCALES.map(({ by, name }) => {
      const button = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button", "aria-pressed": String(options.by === by) }, name));
      button.addEventListener("click", () => {
        options.by = by;
        for (const scale of this.scales) scale.button.setAttribute("aria-pressed", String(scale.by === by));
        changed();
      });
      return { by, button };
    });
    const slider = /** @type {HTMLInputElement} */ (element("input", { type: "range", min: "0", max: "0.98", step: "0.01", "aria-label": "Smoothing" }));
    slider.value = String(options.smoothing);
    const weight = element("output", {}, slider.value);
    slider.addEventListener("input", () => {
      options.smoothing = Number(slider.value);
      weight.textContent = options.smoothing > 0 ? slider.value : "none";
      changed();
    });
    const scales = this.scales.map(({ button }) => button);
    this.node = element(
      "div",
      { class: "wb-chart-bar", role: "toolbar", "aria-label": "Curves" },
      element("span", { class: "wb-switch", role: "group", "aria-label": "Horizontal axis" }, ...scales),
      element("label", { class: "wb-slider" }, "Smoothing", slider, weight),
      this.toggle("Log scale", "logLoss", changed),
      this.toggle("Clip outliers", "clip", changed),
      ...more,
    );
  }

  /** @param {string} text @param {"logLoss"|"clip"} name @param {() => void} changed */
  toggle(text, name, changed) {
    const button = element("button", { type: "button", class: "wb-button", "aria-pressed": String(this.options[name]) }, text);
    button.addEventListener("click", () => {
      this.options[name] = !this.options[name];
      button.setAttribute("aria-pressed", String(this.options[name]));
      changed();
    });
    return button;
  }

  /** Scales that this run has no figures for are off, and say why. @param {any} view */
  draw(view) {
    for (const { by, button } of this.scales) {
      const { known, missing } = scaleOf(view, by);
      button.disabled = !known;
      button.title = missing;
    }
    if (this.scales.find((scale) => scale.by === this.options.by)?.button.disabled && view.steps > 1) this.scales[0].button.click();
  }
}
