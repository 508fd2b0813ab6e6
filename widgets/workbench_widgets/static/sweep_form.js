// @ts-check
/** The form of a new sweep: what runs, what is varied; Predict says what that takes, then Start. */

import { element, setAttribute, setText } from "./dom.js";
import { count, hours, known, usd } from "./format.js";

/** @typedef {import("./loader.js").Context} Context */

const WHAT = [
  { name: "target", label: "Recipe or script", help: "A recipe's name, or the path of a Python script.", kind: "text", hint: "train.py", choices: [] },
  { name: "arguments", label: "Arguments", help: "The script's other arguments, as typed in a terminal.", kind: "text", hint: "--steps 200", choices: [] },
];
const WIDE = ["target", "arguments", "grid", "random"];
const MORE = ["direction", "first_look", "sampler", "parallel", "seed", "strategy", "processes", "name"];

/** Hours and dollars of a part of all trials. @param {any} predicted @param {number} share */
function both(predicted, share) {
  const time = hours(predicted.wall_hours * share);
  return known(predicted.usd) ? `${time}, ${usd(predicted.usd * share)}` : time;
}

/** What is predicted, in sentences. @param {any} predicted @returns {string[]} */
export function predictedTexts(predicted) {
  if (!known(predicted?.hours)) return ["Hours and dollars: n/a; a trial's steps or step time are not known. Measure a few steps: workbench measure SCRIPT"];
  const { low, expected, high } = predicted.share;
  const [short, long] = [predicted.trial_hours_low, predicted.trial_hours_high].map(hours);
  const lines = [`A trial takes ${short === long ? short : `${short} to ${long}`}; all trials, each to its end: ${both(predicted, 1)}`];
  if (expected < 1) lines.push(`With early stops: ${both(predicted, expected)} where good trials come at any time; ${both(predicted, low)} to ${both(predicted, high)} in other orders`);
  return lines;
}

/** Whether a prediction is of what the form says now. @param {any} ready @param {Record<string, string>} values */
export function isOf(ready, values) {
  const names = Object.keys(values);
  return names.length === Object.keys(ready.values).length && names.every((name) => ready.values[name] === values[name]);
}

export class Form {
  /** @param {Context} context */
  constructor(context) {
    this.model = /** @type {any} */ (context.model);
    const config = /** @type {any} */ (context.config);
    /** @type {Record<string, HTMLInputElement>} */
    this.inputs = {};
    const fields = [...WHAT, ...config.fields].map((/** @type {any} */ field) => ({ ...field, node: this.field(field, config.first[field.name] ?? "") }));
    const few = fields.filter((field) => !MORE.includes(field.name)).map((field) => field.node);
    const rest = fields.filter((field) => MORE.includes(field.name)).map((field) => field.node);
    this.ask = element("button", { type: "button", class: "wb-button" }, "Predict");
    this.go = element("button", { type: "button", class: "wb-button" }, "Start");
    this.said = element("p", { class: "wb-banner", role: "alert", "data-tone": "bad" });
    this.would = element("ul", { class: "wbw-would", "aria-live": "polite" });
    this.node = element("details", { class: "wb-panel wbw-new" },
      element("summary", {}, "New sweep"),
      element("div", { class: "wbw-fields" }, ...few),
      element("details", { class: "wbw-more" }, element("summary", {}, "More options"), element("div", { class: "wbw-fields" }, ...rest)),
      this.said, this.would,
      element("div", { class: "wbw-buttons" }, this.ask, this.go));
    this.ask.addEventListener("click", () => {
      setText(this.ask, "Checking …");
      this.model.send({ type: "check", values: this.values() });
    });
    this.go.addEventListener("click", (event) => event.detail > 1 || this.model.send({ type: "start", values: this.values() }));
    this.draw();
  }

  /** @param {any} field @param {string} first */
  field(field, first) {
    const tag = field.kind === "lines" ? "textarea" : field.kind === "select" ? "select" : "input";
    const input = /** @type {any} */ (element(tag, { "data-field": field.name, title: field.help, spellcheck: "false" }));
    for (const choice of tag === "select" ? field.choices : []) input.append(element("option", { value: choice }, choice || "as its name tells"));
    if (tag === "textarea") input.rows = 2;
    if (tag !== "select") input.placeholder = tag === "textarea" ? `${field.hint}, one a line` : field.hint;
    input.value = first;
    input.addEventListener("input", () => this.draw());
    this.inputs[field.name] = input;
    const attributes = WIDE.includes(field.name) ? { class: "wbw-wide", title: field.help } : { title: field.help };
    return element("label", attributes, field.label, input);
  }

  values() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value]));
  }

  draw() {
    const ready = this.model.get("ready");
    const said = this.model.get("said");
    const same = ready.trials && isOf(ready, this.values());
    if (ready.trials || said.of === "check") setText(this.ask, "Predict");
    const refused = said.bad && ["check", "start"].includes(said.of);
    this.said.hidden = !refused;
    setText(this.said, refused ? said.text : "");
    this.go.hidden = !same;
    setText(this.go, `Start ${count(ready.trials)} trials`);
    const lines = same ? this.lines(ready) : [];
    setAttribute(this.would, "data-key", JSON.stringify(lines));
    this.would.replaceChildren(...lines.map((text) => element("li", {}, text)));
  }

  /** @param {any} ready @returns {string[]} */
  lines(ready) {
    const looks = ready.looks.length ? [`At steps ${ready.looks.join(", ")} the best third continues`] : [];
    return [
      `${count(ready.trials)} trials, ${count(ready.room)} at a time: ${ready.varied}`,
      `Judged by ${ready.judged}`,
      ...looks,
      `First trial: ${ready.first}`,
      ...predictedTexts(ready.predicted),
      ...ready.notes,
    ];
  }
}
