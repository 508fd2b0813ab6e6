// @ts-check
/** The selected plan: why, memory against the card, one step, the bill, and how to launch it. */

import { Advice } from "./advice.js";
import { Bill, doubts, drawRows, Numbers } from "./cost_bars.js";
import { element, makeButton, setText } from "./dom.js";
import { bytes } from "./format.js";
import { stack } from "./memory_bars.js";

export class Detail {
  /** @param {() => void} use */
  constructor(use) {
    this.title = element("h3", { class: "wbp-title" });
    this.layout = element("p", { class: "wb-note" });
    this.why = element("p", { class: "wbp-why" });
    this.numbers = new Numbers();
    this.where = element("p", { class: "wbc-where" });
    this.memorySays = element("span");
    this.memory = element("div", { class: "wbm-bar wbc-bar", role: "img" });
    this.stepSays = element("span");
    this.step = element("ol", { class: "wbm-rows wbc-rows" });
    this.bill = new Bill("Cost");
    this.bill.node.classList.remove("wb-panel");
    this.settings = element("pre", { class: "wb-command wbp-settings", tabindex: "0" });
    this.advice = new Advice();
    this.lacks = element("ul", { class: "wbm-assumptions" });
    this.use = makeButton("Use this plan", use, { class: "wb-button wbm-simulate" });
    this.handed = element("p", { class: "wb-banner", role: "status", hidden: "" });
    this.node = element(
      "section",
      { class: "wb-panel wbp-detail", "aria-label": "Selected plan" },
      element("header", {}, this.title, this.use),
      this.layout,
      this.why,
      this.handed,
      this.numbers.node,
      this.where,
      part("Memory of the fullest GPU", this.memorySays, this.memory),
      part("One step", this.stepSays, this.step),
      this.bill.node,
      this.advice.node,
      part("Launch settings", element("span"), this.settings, this.lacks),
    );
  }

  /** @param {any} detail @param {any} figure */
  draw(detail, figure) {
    this.node.hidden = !detail.title;
    if (!detail.title) return;
    const why = figure.why[String(detail.at)];
    setText(this.title, `Selected: ${detail.title}`);
    setText(this.layout, detail.layout);
    setText(this.why, why ? `Why: ${why}.` : figure.kept.includes(detail.at) ? "" : "Outside the limits.");
    this.why.hidden = !this.why.textContent;
    this.numbers.draw(detail.numbers);
    const { says, source, date, marks } = detail.offer;
    this.where.replaceChildren(`${says}. `, ...doubts(marks), element("span", { class: "wb-note" }, source ? ` Price: ${source}${date && `, ${date}`}` : ""));
    this.drawMemory(detail.memory);
    setText(this.stepSays, detail.step.says);
    drawRows(this.step, detail.step.parts);
    this.bill.draw(detail.bill);
    setText(this.settings, detail.launch.settings.join("\n"));
    this.lacks.replaceChildren(...detail.launch.lacks.map((/** @type {string} */ lack) => element("li", {}, lack)));
  }

  /** @param {any} memory */
  drawMemory({ says, card, parts, peak }) {
    const needs = parts.reduce((/** @type {number} */ sum, /** @type {any} */ part) => sum + part.bytes, 0);
    setText(this.memorySays, `${says}; highest in ${peak}`);
    stack(this.memory, parts, Math.max(needs, card ?? 0), true);
    this.memory.title = parts.map((/** @type {any} */ part) => `${part.name} ${bytes(part.bytes)}`).join("\n");
  }

  /** @param {any} handed */
  told(handed) {
    this.handed.hidden = !handed.says;
    setText(this.handed, handed.says ? `${handed.title}: ${handed.says}` : "");
  }
}

/** @param {string} title @param {HTMLElement} says @param {Node[]} inside */
function part(title, says, ...inside) {
  says.classList.add("wb-note");
  return element("div", { class: "wbp-part" }, element("h4", {}, title, " ", says), ...inside);
}
