// @ts-check
/** Small bars in rows: the moments that compete for the peak, and the stages of a pipeline. */

import { element, setAttribute, setText } from "./dom.js";
import { bytes, number } from "./format.js";
import { stack } from "./memory_bars.js";

/** Rows of name, bar and value that are filled again and again. @param {HTMLElement} list
 * @param {number} count */
export function fillRows(list, count) {
  while (list.children.length > count) list.lastElementChild?.remove();
  while (list.children.length < count) {
    list.append(
      element(
        "li",
        {},
        element("span", { class: "wbm-name" }),
        element("span", { class: "wbm-track" }, element("span", { class: "wbm-small", role: "img" })),
        element("span", { class: "wbm-value" }),
      ),
    );
  }
  return [...list.children].map((row) => {
    const [name, track, value] = /** @type {HTMLElement[]} */ ([...row.children]);
    return { row: /** @type {HTMLElement} */ (row), name, value, bar: /** @type {HTMLElement} */ (track.firstElementChild) };
  });
}

/** Options of the command line, which must not be broken after their hyphens, with the full stop behind them.
 * @param {string} text */
export const options = (text) =>
  text.split(/(\(--[^)]*\)[.,;:]?)/).map((part) => (part.startsWith("(--") ? element("span", { class: "wbm-option" }, part) : part));

export class Rows {
  constructor() {
    this.moments = element("ol", { class: "wbm-rows" });
    this.why = element("div", { class: "wbm-why", role: "status" });
    this.peaks = element(
      "section",
      { class: "wb-panel", "aria-label": "Moments of a step" },
      element("header", {}, element("h3", {}, "Peak by moment")),
      this.moments,
      this.why,
    );
    this.stageList = element("ol", { class: "wbm-rows wbm-stage-rows" });
    this.stages = element(
      "section",
      { class: "wb-panel", "aria-label": "Pipeline stages" },
      element("header", {}, element("h3", {}, "Pipeline stages")),
      this.stageList,
    );
  }

  /** @param {any} figure */
  draw(figure) {
    const top = Math.max(1, ...figure.peaks.map((/** @type {any} */ peak) => peak.bytes));
    const rows = fillRows(this.moments, figure.peaks.length);
    figure.peaks.forEach((/** @type {any} */ peak, /** @type {number} */ at) => {
      const { row, name, value, bar } = rows[at];
      const wins = peak.name === figure.peak;
      setText(name, peak.name);
      setText(value, wins ? `${bytes(peak.bytes)}, highest` : bytes(peak.bytes));
      setAttribute(row, "data-wins", String(wins));
      setAttribute(bar, "style", `width: ${((100 * peak.bytes) / top).toFixed(2)}%`);
      setAttribute(bar, "aria-label", `${peak.name} ${bytes(peak.bytes)}`);
    });
    this.drawStages(figure.stages);
  }

  /** The winner in words. @param {string[]} sentences */
  explain(sentences) {
    const text = sentences.join("\n");
    if (text === this.text) return;
    this.text = text;
    this.why.replaceChildren(...sentences.map((sentence) => element("p", {}, ...options(sentence))));
  }

  /** @param {any[]} stages */
  drawStages(stages) {
    this.stages.hidden = stages.length === 0;
    const top = Math.max(1, ...stages.map((stage) => stage.bytes));
    const rows = fillRows(this.stageList, stages.length);
    stages.forEach((stage, at) => {
      const { row, name, value, bar } = rows[at];
      const blocks = `${stage.layers} ${stage.layers === 1 ? "block" : "blocks"}`;
      setText(name, `Stage ${stage.stage}: ${blocks}, ${number(stage.in_flight, 3)} in flight`);
      setText(value, bytes(stage.bytes));
      setAttribute(row, "data-wins", String(stage.bytes === top));
      bar.classList.add("wbm-stacked");
      stack(bar, stage.parts, top);
    });
  }
}
