// @ts-check
/** Steer: a small panel that asks the living run for something after one of its next steps. */

import { element, makeButton, setText } from "./dom.js";
import { number, percent } from "./format.js";

/** @typedef {{action: string, value?: string, hold?: boolean, module?: string}} Wish
 * @typedef {{text: string, bad: boolean, busy?: boolean, ranks?: any[]}} Said */

const ANSWER_MS = 150_000; // workbench.launching.steering.TIMEOUT_SECONDS and some for the way

const COLUMNS = ["mean", "std", "min", "max", "norm"];

/** @param {string} label @param {Record<string, string>} attributes */
function field(label, attributes) {
  const input = /** @type {HTMLInputElement} */ (element("input", { class: "wb-input", ...attributes }));
  return { input, node: element("label", {}, label, input) };
}

export class Steer {
  /** @param {(wish: Wish) => void} ask */
  constructor(ask) {
    this.ask = ask;
    const rate = field("Learning rate", { type: "text", inputmode: "decimal", placeholder: "1e-4", size: "8" });
    const module = field("Module", { type: "text", placeholder: "empty: list names", size: "18", spellcheck: "false" });
    const hold = field("hold", { type: "checkbox" });
    hold.node.title = "Keep the rate constant; else the script's schedule continues, scaled";
    this.rate = rate.input;
    this.module = module.input;
    this.hold = hold.input;
    this.buttons = [
      makeButton("Set", () => this.send({ action: "set", value: this.rate.value, hold: this.hold.checked }), { title: "Change the rate on all ranks at one step" }),
      makeButton("Save checkpoint", () => this.send({ action: "checkpoint" }), { title: "Have the script save after one of its next steps, and train on" }),
      makeButton("Evaluate", () => this.send({ action: "evaluate" }), { title: "Have the script evaluate after one of its next steps" }),
      makeButton("Look", () => this.send({ action: "look", module: this.module.value }), { title: "Statistics of its weights, gradients and activations in one step, per rank" }),
    ];
    const [set, save, evaluate, look] = this.buttons;
    for (const [input, press] of /** @type {[HTMLInputElement, HTMLButtonElement][]} */ ([[this.rate, set], [this.module, look]])) {
      input.addEventListener("keydown", (event) => event.key === "Enter" && press.click());
    }
    this.note = element("p", { class: "wb-detail", role: "status", "aria-live": "polite" });
    this.table = element("div", { class: "wb-table-box", hidden: "" });
    this.node = element(
      "details",
      { class: "wb-steer", hidden: "" },
      element("summary", {}, "Steer this run"),
      element("div", { class: "wb-steer-row" }, rate.node, hold.node, set, save, evaluate, module.node, look),
      this.note,
      this.table,
    );
  }

  /** @param {Wish} wish */
  send(wish) {
    this.say({ text: "Asking the ranks …", bad: false, busy: true });
    this.limit = window.setTimeout(() => this.say({ text: "No answer came. The ranks may have done it: look at the run before asking again.", bad: true }), ANSWER_MS);
    this.ask(wish);
  }

  /** @param {boolean} possible the kernel answers and the run trains */
  show(possible) {
    this.node.hidden = !possible && !this.note.textContent;
    for (const button of this.buttons) button.disabled = !possible || this.busy === true;
    this.possible = possible;
  }

  /** @param {Said} said */
  say(said) {
    clearTimeout(this.limit);
    this.busy = Boolean(said.busy);
    setText(this.note, said.text);
    this.note.dataset.tone = said.bad ? "bad" : "note";
    this.show(this.possible ?? false);
    if (!said.busy) this.draw(said.ranks ?? []);
  }

  /** What a look found. @param {any[]} ranks */
  draw(ranks) {
    const modules = ranks[0]?.modules ?? [];
    const rows = ranks.flatMap((rank) => (rank.tensors ?? []).map((/** @type {any} */ row) => [
      String(rank.rank), row.kind, row.name, row.count.toLocaleString("en"), ...COLUMNS.map((name) => number(row[name])), percent(100 * row.zeros), percent(100 * row.nonfinite),
    ]));
    this.table.hidden = modules.length + rows.length === 0;
    if (modules.length) {
      const names = modules.map((/** @type {[string, string]} */ [name, kind]) => {
        const press = makeButton(name, () => { this.module.value = name; }, { title: kind });
        return press;
      });
      this.table.replaceChildren(element("div", { class: "wb-steer-names" }, ...names));
      return;
    }
    const head = ["rank", "", "tensor", "elements", ...COLUMNS, "zeros", "not finite"];
    this.table.replaceChildren(element(
      "table",
      { class: "wb-table" },
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", {}, name)))),
      element("tbody", {}, ...rows.map((cells) => element("tr", {}, ...cells.map((text) => element("td", {}, text))))),
    ));
  }
}
