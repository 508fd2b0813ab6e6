// @ts-check
/** What the model answered to fixed prompts, or drew, while it trained: one step at a time, the newest first. */

import { element, makeButton, setText } from "./dom.js";
import { count } from "./format.js";
import { addRules } from "./memory_style.js";

/** @typedef {{prompts: string[], steps: number[], answers: (string|null)[][], steps_left_out: number}} Found */

const PICTURE = /^samples\/[\w-]+\.png$/; // the same in pages/questions.py
const CSS = `
.wb-root .wb-area-samples { grid-column: 1 / -1; }
.wb-area-samples > header { gap: 6px; }
.wb-area-samples input[type="range"] { flex: 0 1 260px; min-width: 80px; }
.wb-samples-step { min-width: 7.5em; text-align: right; font-variant-numeric: tabular-nums; }
.wb-root .wb-samples { display: grid; grid-template-columns: minmax(8em, 1fr) 3fr; margin: 4px 0 0; font-size: 12.5px; }
.wb-root .wb-samples > * { padding: 5px 10px 5px 0; margin: 0; border-top: 1px solid var(--wb-grid); overflow-wrap: anywhere; white-space: pre-wrap; max-height: 12em; overflow-y: auto; }
.wb-samples dt { color: var(--wb-muted); font-weight: 400; }
.wb-samples dd { font-family: var(--jp-code-font-family, ui-monospace, monospace); }
.wb-root .wb-samples img { display: block; max-width: min(100%, 320px); min-width: min(100%, 128px); border: 1px solid var(--wb-border); }
.wb-root .wb-samples dd.wb-samples-picture { max-height: none; }
.wb-root[data-size="small"] .wb-samples { grid-template-columns: minmax(0, 1fr); }
.wb-root[data-size="small"] .wb-samples dd { border-top: 0; padding-top: 0; }
`;

export class Samples {
  /** @param {(name: string) => Promise<string|null>} picture where a picture of the run can be had */
  constructor(picture) {
    this.picture = picture;
    if (typeof document.getElementById === "function") addRules("workbench-samples-style", CSS);
    this.slider = /** @type {HTMLInputElement} */ (element("input", { type: "range", min: "0", step: "1", "aria-label": "Step of the samples" }));
    this.older = makeButton("‹", () => this.go(this.at - 1), { title: "Earlier step", "aria-label": "Earlier step" });
    this.newer = makeButton("›", () => this.go(this.at + 1), { title: "Later step", "aria-label": "Later step" });
    this.step = element("span", { class: "wb-panel-value wb-samples-step", role: "status" });
    this.list = element("dl", { class: "wb-samples" });
    this.note = element("p", { class: "wb-note" });
    this.node = element("section", { class: "wb-panel wb-area-samples", "aria-label": "Samples", hidden: "" },
      element("header", {}, element("h3", {}, "Samples"), this.older, this.slider, this.newer, this.step), this.list, this.note);
    this.found = /** @type {Found|null} */ (null);
    this.chosen = /** @type {number|null} */ (null); // a step; null: the newest
    this.at = 0;
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
  }

  /** @param {any} view */
  draw(view) {
    const found = view.text_samples;
    this.found = found?.steps?.length ? found : null;
    this.node.hidden = !this.found;
    if (this.found) this.show(this.found);
  }

  /** @param {number} at place among the steps */
  go(at) {
    if (!this.found) return;
    const last = this.found.steps.length - 1;
    const kept = Math.max(0, Math.min(last, at));
    this.chosen = kept === last ? null : this.found.steps[kept];
    this.show(this.found);
  }

  /** Its text, or the picture that it names. @param {string} prompt @param {string|null} text */
  answer(prompt, text) {
    const node = element("dd", {}, text ?? "no answer at this step");
    if (text && PICTURE.test(text)) {
      this.picture(text).then((source) => {
        if (!source) return;
        const image = element("img", { src: source, alt: prompt, title: text });
        image.addEventListener("load", () => node.replaceChildren(image));
        node.classList.add("wb-samples-picture");
      });
    }
    return node;
  }

  /** @param {Found} found */
  show(found) {
    const { steps, prompts, answers } = found;
    const last = steps.length - 1;
    // A step that had to give way: the one before it.
    const place = steps.findLastIndex((step) => step <= (this.chosen ?? Infinity));
    this.at = Math.max(0, this.chosen === null ? last : place);
    this.slider.max = String(last);
    this.slider.value = String(this.at);
    this.slider.setAttribute("aria-valuetext", `step ${steps[this.at]}`);
    this.slider.disabled = last === 0;
    this.older.disabled = this.at === 0;
    this.newer.disabled = this.at === last;
    setText(this.step, `step ${count(steps[this.at])}${this.chosen === null ? " · newest" : ""}`);
    const now = JSON.stringify([prompts, answers[this.at]]);
    if (now !== this.drawn) {
      this.drawn = now;
      this.list.replaceChildren(...prompts.flatMap((prompt, at) => [
        element("dt", {}, prompt),
        this.answer(prompt, answers[this.at][at]),
      ]));
    }
    const left = found.steps_left_out;
    setText(this.note, left ? `${count(left)} steps between are left out here: workbench metrics ${view.run} --samples prints all.` : "");
    this.note.hidden = !left;
  }
}
