// @ts-check
/** Cost of a finished run: the bill, the step's time, spot against on demand, where to rent. */

import { Calculator } from "./calculator.js";
import { Bill, doubts, drawRows, Numbers, titled } from "./cost_bars.js";
import { element, focusedElement, setText } from "./dom.js";
import { mounted } from "./face.js";
import { addPlanStyle } from "./plan_style.js";

/** @typedef {import("./loader.js").Context} Context */

class CostCalculator extends Calculator {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    super(root, context, "Cost calculator");
    this.numbers = new Numbers();
    this.where = element("p", { class: "wbc-where" });
    this.lacks = element("p", { class: "wb-banner", "data-tone": "warn", role: "status", hidden: "" });
    this.bill = new Bill();
    this.stepSays = element("span", { class: "wb-panel-value" });
    this.step = element("ol", { class: "wbm-rows wbc-rows" });
    this.spot = element("ol", { class: "wbm-rows wbc-rows wbc-spot" });
    this.verdict = element("p", { class: "wbc-verdict" });
    this.offers = element("tbody");
    const head = ["Provider", "Machine", "Region", "$/h", "Price of", "Action"];
    const titles = element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)));
    const table = element("table", { class: "wbc-offers" }, element("thead", {}, titles), this.offers);
    const summary = element("section", { class: "wb-panel", "aria-label": "In numbers" }, this.numbers.node, this.where);
    const step = titled("One step, by part", [this.step], [this.stepSays]);
    const spot = titled("Spot and on demand compared", [this.spot, this.verdict]);
    const offers = titled("Providers of these machines", [element("div", { class: "wbc-scroll" }, table)]);
    const pair = element("div", { class: "wbm-pair" }, step, spot);
    this.build([this.lacks, summary, this.bill.node, pair, offers]);
  }

  open() {
    addPlanStyle();
    super.open();
  }

  /** @param {any} figure */
  drawFigure(figure) {
    this.numbers.draw(figure.numbers);
    this.lacks.hidden = !figure.lacks;
    setText(this.lacks, figure.lacks);
    const { says, why, source, date, marks } = figure.offer;
    this.where.replaceChildren(`${says}. `, ...doubts(marks), element("span", { class: "wb-note" }, ` Price: ${source || "n/a"}, ${date}. ${why}`));
    this.bill.draw(figure.bill);
    setText(this.stepSays, figure.step.says);
    drawRows(this.step, figure.step.parts);
    drawRows(this.spot, figure.spot.rows);
    setText(this.verdict, figure.spot.verdict);
    this.drawOffers(figure.offers);
  }

  /** @param {any[]} offers */
  drawOffers(offers) {
    const held = [...this.offers.children].findIndex((row) => row.contains(focusedElement()));
    this.offers.replaceChildren(...offers.map((offer) => this.row(offer)));
    if (held >= 0) /** @type {HTMLElement|null} */ (this.offers.children[held]?.querySelector("button"))?.focus({ preventScroll: true });
  }

  /** @param {any} offer */
  row(offer) {
    const take = element("button", { type: "button", class: "wb-button", "aria-label": `Take ${offer.name} of ${offer.provider}`, "aria-pressed": String(offer.chosen) }, offer.chosen ? "taken" : "take");
    const { provider, name } = offer;
    take.addEventListener("click", () => this.moves.move({ provider, offer: name, usd_per_hour: "", spot_usd_per_hour: null }));
    return element(
      "tr",
      { "data-chosen": String(offer.chosen) },
      element("th", { scope: "row" }, provider),
      element("td", { title: name }, name),
      element("td", { title: offer.region }, offer.region),
      element("td", {}, offer.price),
      element("td", {}, `${offer.date} `, ...doubts(offer.marks)),
      element("td", {}, take),
    );
  }
}

export const mount = mounted(CostCalculator);
