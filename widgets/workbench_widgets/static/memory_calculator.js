// @ts-check
/** Memory of a training job: what the fullest GPU needs, and what would help. */

import { Calculator } from "./calculator.js";
import { element } from "./dom.js";
import { mounted } from "./face.js";
import { Bars } from "./memory_bars.js";
import { Exact } from "./memory_exact.js";
import { Rows } from "./memory_rows.js";
import { Switches } from "./memory_switches.js";

/** @typedef {import("./loader.js").Context} Context */

class MemoryCalculator extends Calculator {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    super(root, context, "Memory calculator");
    this.bars = new Bars();
    this.rows = new Rows();
    this.switches = new Switches((changes) => this.moves.move(changes));
    this.exact = new Exact(context, this.model);
    const column = element("div", { class: "wbm-column" }, this.rows.peaks, this.switches.reach);
    const pair = element("div", { class: "wbm-pair" }, column, this.switches.node);
    this.build([this.bars.node, pair, this.rows.stages], [this.exact.node]);
  }

  open() {
    super.open();
    this.listen("advice", () => this.advise());
    this.listen("exact", () => this.exact.draw(this.model.get("exact")));
  }

  /** @param {any} figure */
  drawFigure(figure) {
    this.bars.draw(figure);
    this.rows.draw(figure);
    this.exact.compare(this.model.get("controls").values);
    this.age();
  }

  /** The advice follows the figure a moment later. */
  advise() {
    const advice = this.model.get("advice");
    this.rows.explain(advice.why);
    this.switches.draw(advice);
    this.age();
  }

  /** Advice for an earlier setting is greyed until its own comes. */
  age() {
    const old = this.model.get("advice").at < this.model.get("figure").at;
    this.rows.why.dataset.stale = this.switches.node.dataset.stale = String(old);
  }

  close() {
    super.close();
    this.exact.close();
  }
}

export const mount = mounted(MemoryCalculator);
