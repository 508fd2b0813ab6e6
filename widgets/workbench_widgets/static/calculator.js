// @ts-check
/** What the calculators share: controls on one side, the figure that Python computed on the other. */

import { element, setText } from "./dom.js";
import { Controls } from "./memory_fields.js";
import { addStyle } from "./memory_style.js";
import { Moves } from "./moves.js";

/** @typedef {import("./loader.js").Context} Context */

/** Abstract: a face fills `drawing`, listens to its own traits and draws the figure. */
export class Calculator {
  /** @param {HTMLElement} root @param {Context} context @param {string} name */
  constructor(root, context, name) {
    this.root = root;
    this.context = context;
    this.name = name;
    this.model = /** @type {any} */ (context.model);
    const { groups } = /** @type {any} */ (context.config);
    this.moves = new Moves(this.model, () => this.guard(() => this.sync()));
    this.controls = new Controls(groups, (field, value) => this.moves.move({ [field]: value }));
    this.headline = element("h2", { class: "wbm-headline", "aria-live": "polite" });
    this.setting = element("p", { class: "wb-note" });
    this.problem = element("p", { class: "wb-banner", role: "alert", "data-tone": "bad", hidden: "" });
    this.assumptions = element("ul", { class: "wbm-assumptions" });
    this.drawing = element("div", { class: "wbm-figure" });
    this.shell = element("div", { class: "wb-root wbm", role: "group", "aria-label": name });
    /** @type {[string, () => void][]} */
    this.listening = [];
  }

  /** @param {Node[]} figure greyed while the controls say something that cannot be
   * @param {Node[]} [rest] what stays as it is */
  build(figure, rest = []) {
    this.drawing.append(...figure);
    const fold = element(
      "details",
      { class: "wb-panel wbm-fold" },
      element("summary", { tabindex: "0" }, "Assumptions and sources"),
      this.assumptions,
    );
    const head = element("div", { class: "wbm-head" }, this.headline, this.setting);
    const output = element("div", { class: "wbm-output" }, head, this.problem, this.moves.slow, this.drawing, ...rest, fold);
    this.shell.append(this.controls.node, output);
  }

  /** Draws now and at every change of these traits. @param {string} traits @param {() => void} draw */
  listen(traits, draw) {
    const guarded = () => this.guard(draw);
    for (const trait of traits.split(" ")) { // one event a call: marimo's models do not take several
      this.model.on(`change:${trait}`, guarded);
      this.listening.push([`change:${trait}`, guarded]);
    }
    guarded();
  }

  open() {
    addStyle();
    this.root.append(this.shell);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.shell);
    this.resize();
    this.moves.open();
    this.listen("figure problem", () => this.draw());
  }

  resize() {
    const width = this.shell.clientWidth;
    const size = width >= 1020 ? "large" : width >= 560 ? "medium" : "small";
    const before = this.shell.dataset.size;
    if ((size === "small") !== (before === "small")) this.controls.fold(size === "small");
    this.shell.dataset.size = size;
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
    if (typeof figure.fits === "boolean") this.headline.dataset.fits = String(figure.fits);
    else delete this.headline.dataset.fits;
    setText(this.setting, figure.setting);
    this.problem.hidden = !wrong;
    setText(this.problem, wrong ? `${problem.message}${figure.setting ? " The figure shows the last valid settings." : ""}` : "");
    this.drawing.dataset.stale = String(wrong);
    this.drawing.inert = wrong; // its buttons belong to the setting before
    this.headline.dataset.stale = String(wrong);
    const sentences = [...figure.assumptions, ...figure.sources.map((/** @type {string} */ source) => `Source: ${source}`)];
    if (sentences.join("\n") !== this.assumed) {
      this.assumed = sentences.join("\n");
      this.assumptions.replaceChildren(...sentences.map((sentence) => element("li", {}, sentence)));
    }
    this.drawFigure(figure);
  }

  /** @param {any} _figure */
  drawFigure(_figure) {
    throw new Error("a face draws its own figure");
  }

  /** Draws; an error is shown in the face itself instead of the browser's console alone.
   * @param {() => void} draw */
  guard(draw) {
    try {
      draw();
    } catch (error) {
      console.error(error);
      this.problem.hidden = false;
      this.problem.textContent = `The ${this.name.toLowerCase()} could not draw this: ${error}`;
    }
  }

  close() {
    for (const [event, draw] of this.listening) this.model.off(event, draw);
    this.moves.close();
    this.resizing?.disconnect();
    this.shell.remove();
  }
}
