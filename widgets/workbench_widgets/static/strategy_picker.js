// @ts-check
/** How to spread a run: controls, the ranks they make, memory and time, and what speaks against it. */

import { Advice } from "./advice.js";
import { Calculator } from "./calculator.js";
import { element, setText } from "./dom.js";
import { mounted } from "./face.js";
import { bytes } from "./format.js";
import { stack } from "./memory_bars.js";
import { Grid } from "./strategy_grid.js";
import { addStrategyStyle } from "./strategy_style.js";

/** @typedef {import("./loader.js").Context} Context */

class StrategyPicker extends Calculator {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    super(root, context, "Strategy");
    this.shell.classList.add("wbs");
    this.memory = element("div", { class: "wbm-bar wbc-bar", role: "img" });
    this.step = element("p", { class: "wb-note wbs-step" });
    this.why = element("ol", { class: "wbs-why" });
    this.warnings = element("ul", { class: "wbs-warnings", "aria-label": "Warnings" });
    this.grid = new Grid();
    this.advice = new Advice();
    const needs = element("div", { class: "wbs-needs" }, this.memory, this.step, this.warnings, this.why, this.advice.node);
    this.build([needs, this.grid.node]);
  }

  open() {
    addStrategyStyle();
    super.open();
  }

  /** The answer to a move follows its controls: what is wrong is said at the control then. */
  draw() {
    super.draw();
    if (!this.moves.waiting) this.sync();
  }

  /** @param {any} figure */
  drawFigure(figure) {
    const { parts, whole, says } = figure.memory;
    const needs = parts.reduce((/** @type {number} */ sum, /** @type {any} */ part) => sum + part.bytes, 0);
    this.memory.hidden = parts.length === 0;
    stack(this.memory, parts, Math.max(needs, whole, 1), true);
    this.memory.title = `${parts.map((/** @type {any} */ part) => `${part.name} ${bytes(part.bytes)}`).join("\n")}\n${says}`;
    setText(this.step, figure.step);
    lines(this.why, figure.why);
    lines(this.warnings, figure.warnings);
    this.advice.draw(figure.advice);
    this.grid.draw(figure.grid);
  }
}

/** @param {HTMLElement} list @param {string[]} texts */
function lines(list, texts) {
  list.hidden = texts.length === 0;
  if (list.dataset.key === texts.join("\n")) return;
  list.dataset.key = texts.join("\n");
  list.replaceChildren(...texts.map((text) => element("li", {}, text)));
}

export const mount = mounted(StrategyPicker);
