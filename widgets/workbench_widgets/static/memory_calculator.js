// @ts-check
/** Memory of a training job: controls on one side, the figure that Python computed on the other. */

import { element, setText } from "./dom.js";
import { Bars } from "./memory_bars.js";
import { Exact } from "./memory_exact.js";
import { Controls } from "./memory_fields.js";
import { Rows } from "./memory_rows.js";
import { addStyle } from "./memory_style.js";
import { Switches } from "./memory_switches.js";

/** @typedef {import("./loader.js").Context} Context */

const SILENT_MS = 1500; // then a move counts as waiting for the kernel

class Calculator {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.root = root;
    this.model = /** @type {any} */ (context.model);
    this.page = `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 7)}`;
    this.asked = 0;
    this.waiting = "";
    /** @type {Record<string, any>} changes made while an answer is on its way */
    this.next = {};
    const { groups } = /** @type {any} */ (context.config);
    this.controls = new Controls(groups, (name, value) => this.move({ [name]: value }));
    this.bars = new Bars();
    this.rows = new Rows();
    this.switches = new Switches((changes) => this.move(changes));
    this.exact = new Exact(context, this.model);
    this.headline = element("h2", { class: "wbm-headline", role: "status" });
    this.setting = element("p", { class: "wb-note" });
    this.problem = element("p", { class: "wb-banner", role: "alert", "data-tone": "bad", hidden: "" });
    this.slow = element("p", { class: "wb-banner", role: "status", hidden: "" }, "Waiting for the kernel: it is busy with another cell, or it was restarted.");
    this.assumptions = element("ul", { class: "wbm-assumptions" });
    this.shell = this.build();
  }

  build() {
    const fold = element(
      "details",
      { class: "wb-panel wbm-fold" },
      element("summary", { tabindex: "0" }, "Assumptions and sources"),
      this.assumptions,
    );
    this.drawing = element(
      "div",
      { class: "wbm-figure" },
      this.bars.node,
      element("div", { class: "wbm-pair" }, element("div", { class: "wbm-column" }, this.rows.peaks, this.switches.reach), this.switches.node),
      this.rows.stages,
    );
    const output = element(
      "div",
      { class: "wbm-output" },
      element("header", { class: "wbm-head" }, this.headline, this.setting),
      this.problem,
      this.slow,
      this.drawing,
      this.exact.node,
      fold,
    );
    return element(
      "div",
      { class: "wb-root wbm", role: "group", "aria-label": "Memory calculator" },
      this.controls.node,
      output,
    );
  }

  open() {
    addStyle();
    this.root.append(this.shell);
    this.onAnswer = () => this.answer();
    this.onFigure = () => this.guard(() => this.draw());
    this.onAdvice = () => this.guard(() => this.advise());
    this.onExact = () => this.guard(() => this.exact.draw(this.model.get("exact")));
    this.model.on("change:answered", this.onAnswer);
    this.model.on("change:figure change:problem", this.onFigure);
    this.model.on("change:advice", this.onAdvice);
    this.model.on("change:exact", this.onExact);
    this.model.on("change:controls", this.onAnswer);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.shell);
    this.resize();
    this.guard(() => this.sync());
    this.onFigure();
    this.onAdvice();
    this.onExact();
  }

  resize() {
    const width = this.shell.clientWidth;
    const size = width >= 1020 ? "large" : width >= 560 ? "medium" : "small";
    const before = this.shell.dataset.size;
    if ((size === "small") !== (before === "small")) this.controls.fold(size === "small");
    this.shell.dataset.size = size;
  }

  /** A control was moved: at most one move is on its way, the last ones are sent together.
   * @param {Record<string, any>} changes */
  move(changes) {
    Object.assign(this.next, changes);
    if (!this.waiting) this.send();
  }

  send() {
    this.asked += 1;
    this.waiting = `${this.page}:${this.asked}`;
    const changes = this.next;
    this.next = {};
    this.model.send({ type: "change", changes, token: this.waiting });
    clearTimeout(this.silence);
    this.silence = window.setTimeout(() => (this.slow.hidden = false), SILENT_MS);
  }

  answer() {
    if (this.waiting && this.model.get("answered") !== this.waiting) return;
    this.waiting = "";
    clearTimeout(this.silence);
    this.slow.hidden = true;
    if (Object.keys(this.next).length > 0) this.send();
    else this.guard(() => this.sync());
  }

  /** Controls follow Python, unless somebody is moving them. */
  sync() {
    this.controls.show(this.model.get("controls"), this.model.get("problem"));
  }

  draw() {
    const figure = this.model.get("figure");
    const problem = this.model.get("problem");
    const wrong = Boolean(problem?.message);
    setText(this.headline, figure.headline);
    this.headline.dataset.fits = String(figure.fits);
    setText(this.setting, figure.setting);
    this.problem.hidden = !wrong;
    setText(this.problem, wrong ? `${problem.message} The figure shows the last setting that can be.` : "");
    this.drawing.dataset.stale = String(wrong);
    this.drawing.inert = wrong; // its buttons belong to the setting before
    this.headline.dataset.stale = String(wrong);
    this.bars.draw(figure);
    this.rows.draw(figure);
    const said = [...figure.assumptions, ...figure.sources.map((/** @type {string} */ one) => `Source: ${one}`)];
    if (said.join("\n") !== this.said) {
      this.said = said.join("\n");
      this.assumptions.replaceChildren(...said.map((one) => element("li", {}, one)));
    }
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

  /** Draws; an error is shown in the face itself instead of the browser's console alone.
   * @param {() => void} draw */
  guard(draw) {
    try {
      draw();
    } catch (error) {
      console.error(error);
      this.problem.hidden = false;
      this.problem.textContent = `The calculator could not draw this: ${error}`;
    }
  }

  close() {
    this.model.off("change:answered", this.onAnswer);
    this.model.off("change:figure change:problem", this.onFigure);
    this.model.off("change:advice", this.onAdvice);
    this.model.off("change:exact", this.onExact);
    this.model.off("change:controls", this.onAnswer);
    this.resizing?.disconnect();
    clearTimeout(this.silence);
    this.exact.close();
    this.shell.remove();
  }
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const calculator = new Calculator(root, context);
  calculator.open();
  return () => calculator.close();
}
