// @ts-check
/** A script's arguments: fields grouped as its help groups them, and one text in step with them. */

import { element, makeButton, setText } from "./dom.js";
import { mounted } from "./face.js";
import { FilePicker } from "./file_picker.js";
import { addFormStyle } from "./launch_style.js";
import { check, markProblem, select } from "./memory_fields.js";
import { Moves } from "./moves.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{name: string, label: string, help: string, unit: string, required: boolean, kind: string,
 *   hint: string, path: boolean, number: boolean, options?: {value: string, text: string}[]}} Field
 * @typedef {{field: Field, row: HTMLElement, problem: HTMLElement, input: any, picker?: FilePicker}} Row */

const TYPING_MS = 350; // after the last key a field counts as filled in
const SEARCHED = 20; // more fields than this have a search box

/** Tells of what was typed once nobody types any more, or at Enter. @param {HTMLInputElement} input
 * @param {(value: string) => void} moved */
function onTyped(input, moved) {
  /** @type {number | undefined} */
  let timer;
  const send = () => {
    clearTimeout(timer);
    if (timer !== undefined) moved(input.value);
    timer = undefined;
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = window.setTimeout(send, TYPING_MS);
  });
  input.addEventListener("change", send);
  input.addEventListener("keydown", (event) => event.key === "Enter" && send());
}

/** A changed value behind its name. @param {any} value */
const said = (value) => (value === true ? "" : value === false ? " off" : ` ${value}`);

class LaunchFields {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.root = root;
    this.model = /** @type {any} */ (context.model);
    this.prefix = `wbf-${context.config.instance}`;
    this.moves = new Moves(this.model, () => this.sync());
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    this.moves.slow.className = "wb-note"; // the picker below says it in a banner
    this.text = /** @type {HTMLInputElement} */ (element("input", { id: `${this.prefix}-text`, type: "text", autocomplete: "off", spellcheck: "false", placeholder: "as in a shell" }));
    onTyped(this.text, (value) => this.moves.move({ "": value }));
    this.textProblem = element("p", { class: "wbm-problem", id: `${this.prefix}-problem`, role: "alert", hidden: "" });
    this.note = element("p", { class: "wbf-note" });
    this.read = makeButton("Read its options", () => this.model.send({ type: "read" }), { class: "wb-button wbf-read" });
    this.reading = element("div", { class: "wbf-row" }, this.note, this.read);
    this.search = /** @type {HTMLInputElement} */ (element("input", { type: "text", placeholder: "Find an option", "aria-label": "Find an option" }));
    this.search.addEventListener("input", () => this.filter());
    this.only = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox" }));
    this.only.addEventListener("change", () => this.filter());
    this.tools = element("div", { class: "wbf-row wbf-tools" }, this.search, element("label", {}, this.only, "Only changed"));
    this.groups = element("div", { class: "wbf-groups" });
    this.summary = element("p", { class: "wbf-summary" });
    this.forecast = element("p", { class: "wbf-forecast", role: "status" });
    this.largest = makeButton("Largest micro-batch that fits", () => this.model.send({ type: "largest" }), { class: "wb-button wbf-largest" });
    this.sized = element("p", { class: "wbf-note", role: "status" });
    this.shortest = element("button", { type: "button", class: "wb-button" }, "Shortest epoch");
    this.shortest.title = "The micro-batch with the shortest pass over the data, accumulation unchanged";
    this.shortest.addEventListener("click", () => this.model.send({ type: "shortest" }));
    this.sizing = element("div", { class: "wbf-row" }, this.largest, this.shortest, this.sized);
    const label = element("label", { for: this.text.id }, "Arguments");
    this.shell = element(
      "div",
      { class: "wb-root wbm wbf", role: "group", "aria-label": "Arguments" },
      element("div", { class: "wbm-field" }, label, this.text, this.textProblem),
      this.reading, this.tools, this.groups, this.summary, this.forecast, this.sizing, this.moves.slow,
    );
  }

  open() {
    addFormStyle();
    this.root.append(this.shell);
    this.onForm = () => this.build();
    this.onFigure = () => this.draw();
    this.model.on("change:form", this.onForm);
    this.model.on("change:figure", this.onFigure);
    this.build();
    this.moves.open();
    this.draw();
  }

  /** Fields for what Python says there is; what was open stays open. */
  build() {
    const { groups = [], note = "", can_run: canRun = false, running = false, what = "" } = this.model.get("form");
    setText(this.note, canRun && !running ? `${note} ${what}` : running ? "Running the script up to its parser …" : note);
    this.reading.hidden = !note;
    this.read.hidden = !canRun;
    this.read.disabled = running;
    const key = JSON.stringify(groups);
    if (key === this.key) return;
    this.key = key;
    this.closeRows();
    const parts = groups.map((/** @type {any} */ group) => {
      const rows = group.fields.map((/** @type {Field} */ field) => this.row(field));
      const count = element("span", { class: "wbf-count" }, `${rows.length}`);
      const summary = element("summary", { tabindex: "0" }, group.title, count);
      return element("details", { class: "wbm-group", ...(group.open ? { open: "" } : {}) }, summary, element("div", { class: "wbm-fields" }, ...rows));
    });
    this.groups.replaceChildren(...parts);
    this.tools.hidden = this.rows.size === 0;
    this.search.hidden = this.rows.size <= SEARCHED;
    this.search.value = "";
    this.sync();
  }

  /** @param {Field} field */
  row(field) {
    const id = `${this.prefix}${field.name}`;
    const moved = (/** @type {any} */ value) => this.moves.move({ [field.name]: value });
    const input = this.input(field, id, moved);
    const problem = element("p", { class: "wbm-problem", id: `${id}-problem`, hidden: "" });
    const unit = field.unit ? [element("span", { class: "wbm-unit" }, ` ${field.unit}`)] : [];
    const label = element("label", { for: id, title: field.help }, field.label, ...unit);
    /** @type {FilePicker | undefined} */
    let picker;
    let control = [input];
    if (field.path) {
      picker = new FilePicker(this.model, { label: field.name, folders: true }, (path) => {
        input.value = path;
        moved(path);
      });
      control = [element("div", { class: "wbf-row" }, input, picker.button), picker.panel];
    }
    const row = element("div", { class: `wbm-field wbm-${field.kind}`, "data-field": field.name }, label, ...control, problem);
    this.rows.set(field.name, { field, row, problem, input, picker });
    return row;
  }

  /** @param {Field} field @param {string} id @param {(value: any) => void} moved @returns {any} */
  input(field, id, moved) {
    if (field.kind === "check" || field.kind === "select") {
      const { input } = (field.kind === "check" ? check : select)(field, id, moved);
      input.title = field.help;
      return input;
    }
    const input = /** @type {HTMLInputElement} */ (
      element("input", { id, type: "text", placeholder: field.hint, title: field.help, autocomplete: "off", spellcheck: "false", ...(field.number ? { inputmode: "decimal" } : {}) })
    );
    onTyped(input, moved);
    return input;
  }

  /** Controls follow Python, but for the one that somebody types in. */
  sync() {
    const { text = "", values = {}, problems = {}, changed = [], missing = [] } = this.model.get("controls");
    if (!this.text.matches(":focus")) this.text.value = text;
    markProblem(this.text, this.textProblem, problems[""] ?? "");
    for (const [name, { field, row, problem, input }] of this.rows) {
      if (field.kind === "check") input.checked = Boolean(values[name]);
      else if (!input.matches(":focus") || field.kind === "select") input.value = values[name] ?? "";
      row.dataset.changed = String(changed.includes(name));
      markProblem(input, problem, problems[name] ?? "");
      if (problems[name]) row.closest("details")?.setAttribute("open", "");
    }
    const needs = missing.length ? ` Required: ${missing.join(", ")}.` : "";
    const given = changed.map((/** @type {string} */ name) => `${name}${said(values[name])}`);
    setText(this.summary, `${given.length ? `Changed: ${given.join(", ")}.` : "Nothing is changed: every option has its default."}${needs}`);
    this.summary.hidden = this.rows.size === 0;
    if (this.only.checked) this.filter();
  }

  /** Hides fields that do not match; a group with a match opens. */
  filter() {
    const words = this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const { field, row } of this.rows.values()) {
      const hay = `${field.name} ${field.help}`.toLowerCase();
      row.hidden = !words.every((word) => hay.includes(word)) || (this.only.checked && row.dataset.changed !== "true");
    }
    for (const group of /** @type {NodeListOf<HTMLElement>} */ (this.groups.querySelectorAll("details"))) {
      group.hidden = !group.querySelector(".wbm-field:not([hidden])");
      if (words.length && !group.hidden) group.setAttribute("open", "");
    }
  }

  draw() {
    const { forecast = "", batch = "", epoch = "", note = "" } = this.model.get("figure");
    setText(this.forecast, forecast);
    this.forecast.hidden = !forecast;
    setText(this.sized, note);
    this.largest.hidden = !batch;
    this.shortest.hidden = !epoch;
    this.sizing.hidden = !batch && !epoch;
  }

  closeRows() {
    for (const { picker } of this.rows.values()) picker?.close();
    this.rows.clear();
  }

  close() {
    this.model.off("change:form", this.onForm);
    this.model.off("change:figure", this.onFigure);
    this.closeRows();
    this.moves.close();
    this.shell.remove();
  }
}

export const mount = mounted(LaunchFields);
