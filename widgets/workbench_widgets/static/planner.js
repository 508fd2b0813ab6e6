// @ts-check
/** Plans of a run: sliders, the Pareto scatter, the table, one plan in detail, and why. */

import { Calculator } from "./calculator.js";
import { element } from "./dom.js";
import { mounted } from "./face.js";
import { Detail } from "./plan_detail.js";
import { Prices } from "./plan_prices.js";
import { Scatter } from "./plan_scatter.js";
import { Story } from "./plan_story.js";
import { addPlanStyle } from "./plan_style.js";
import { Table } from "./plan_table.js";

/** @typedef {import("./loader.js").Context} Context */

class Planner extends Calculator {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    super(root, context, "Planner");
    const pick = (/** @type {number} */ at) => this.model.send({ type: "pick", at, set: this.model.get("points").set });
    this.scatter = new Scatter(context, pick);
    this.table = new Table(pick);
    this.detail = new Detail(() => this.model.send({ type: "use" }));
    this.story = new Story();
    this.prices = new Prices(() => this.model.send({ type: "refresh" }));
    this.searching = element("p", { class: "wbp-searching", role: "status", hidden: "" }, element("progress", { "aria-label": "Searching" }), " Searching all layouts on all machines …");
    const left = element("div", { class: "wbm-column wbp-left" }, this.scatter.node, this.table.node, this.story.words, this.story.sensitivity, this.story.rejected);
    this.build([this.searching, element("div", { class: "wbp-pair" }, left, this.detail.node)], [this.prices.node]);
  }

  open() {
    addPlanStyle();
    super.open();
    this.listen("points detail", () => this.draw());
    this.listen("story rejected advice", () => this.tell());
    this.listen("refreshed", () => this.prices.draw(this.model.get("refreshed")));
    this.listen("handed", () => this.detail.told(this.model.get("handed")));
  }

  /** @param {any} figure */
  drawFigure(figure) {
    const points = this.model.get("points");
    const detail = this.model.get("detail");
    this.searching.hidden = figure.exact || Boolean(this.model.get("problem")?.message);
    const rows = points.set === figure.set ? (points.rows ?? []) : [];
    const current = detail.set === figure.set ? detail : {};
    if (rows.length < figure.kept.length) return; // the other half of this message follows
    const selected = current.at ?? -1;
    this.scatter.draw({ rows, figure, values: this.model.get("controls").values, selected });
    this.table.draw(rows, figure, selected);
    this.detail.draw(current, figure);
    this.tell();
  }

  tell() {
    const story = this.model.get("story");
    const rejected = this.model.get("rejected");
    const figure = this.model.get("figure");
    this.story.draw(story.set === figure.set ? story : {}, rejected.set === figure.set ? rejected : {});
    this.story.age(story.moves !== figure.moves);
    const advice = this.model.get("advice");
    const own = advice.set === figure.set && advice.at === this.model.get("detail").at;
    this.detail.advice.draw(own ? (advice.rules ?? []) : []);
  }

  close() {
    super.close();
    this.scatter.close();
  }
}

export const mount = mounted(Planner);
