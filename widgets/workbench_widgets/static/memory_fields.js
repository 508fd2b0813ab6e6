// @ts-check
/** The calculator's controls: labelled native inputs, built from what Python says there is. */

import { element, focusedElement, setText } from "./dom.js";
import { Search } from "./memory_search.js";

/** @typedef {{name: string, label: string, kind: string, options?: any[], marks?: number[],
 *   unit?: string, least?: number, most?: number|null, step?: string, hint?: string, help?: string,
 *   empty?: boolean}} Field
 * @typedef {(name: string, value: any) => void} Moved
 * @typedef {{show: (value: any, marks?: any) => void, input: HTMLElement}} Control */

let made = 0;

/** @param {Field} field @param {string} id @param {(value: any) => void} moved */
export function select(field, id, moved) {
  const options = (field.options ?? []).map(({ value, text }) => element("option", { value }, text));
  const input = /** @type {HTMLSelectElement} */ (element("select", { id }, ...options));
  input.addEventListener("change", () => moved(input.value));
  return { nodes: [input], input, show: (/** @type {any} */ value) => (input.value = String(value)) };
}

/** Tells of each finished entry once; Enter finishes one too (JupyterLab keeps the browser's own
 * Enter away). An entry that somebody is typing stays: an answer to an earlier move is shown afterwards.
 * @param {HTMLInputElement} input @param {(entered: string) => void} moved @returns {(value: any) => void} */
function onEntry(input, moved) {
  let last = "";
  const send = () => {
    const entered = input.value.trim();
    if (entered === last) return;
    last = entered;
    moved(entered);
  };
  input.addEventListener("change", send);
  input.addEventListener("keydown", (event) => event.key === "Enter" && send());
  input.addEventListener("blur", () => (input.value = last)); // after its "change": nothing is left to send
  return (value) => {
    const typing = input === focusedElement() && input.value.trim() !== last;
    last = String(value ?? "");
    if (!typing && input.value !== last) input.value = last;
  };
}

/** @param {HTMLInputElement} input @param {(value: number|null) => void} moved */
const onNumber = (input, moved) => onEntry(input, (entered) => moved(entered === "" ? null : Number(entered)));

/** Shows what comes while a slider is dragged once it is let go: its marks may be others then.
 * @template {any[]} T @param {HTMLInputElement} range @param {(...shown: T) => void} show
 * @returns {(...shown: T) => void} */
function onceReleased(range, show) {
  let held = false;
  /** @type {T|null} */
  let next = null;
  const ends = ["pointerup", "pointercancel"];
  const release = () => {
    ends.forEach((end) => window.removeEventListener(end, release));
    held = false;
    if (next) show(...next);
    next = null;
  };
  range.addEventListener("input", () => (next = null)); // the answer to this move brings what is true
  range.addEventListener("pointerdown", () => {
    ends.forEach((end) => window.addEventListener(end, release));
    held = true;
  });
  return (...shown) => (held ? (next = shown) : show(...shown));
}

/** @param {Field} field @param {string} id @param {(value: any) => void} moved */
function number(field, id, moved) {
  const limits = { min: String(field.least ?? 1), ...(field.most ? { max: String(field.most) } : {}) };
  const input = /** @type {HTMLInputElement} */ (element("input", { id, type: "number", step: field.step ?? "1", inputmode: "decimal", placeholder: field.hint ?? "", ...limits }));
  return { nodes: [input], input, show: onNumber(input, moved) };
}

/** @param {Field} field @param {string} id @param {(value: any) => void} moved */
function text(field, id, moved) {
  const input = /** @type {HTMLInputElement} */ (element("input", { id, type: "text", autocomplete: "off", spellcheck: "false", placeholder: field.hint ?? "" }));
  return { nodes: [input], input, show: onEntry(input, moved) };
}

/** @param {Field} field @param {string} id @param {(value: any) => void} moved */
export function check(field, id, moved) {
  const input = /** @type {HTMLInputElement} */ (element("input", { id, type: "checkbox" }));
  input.addEventListener("change", () => moved(input.checked));
  return { nodes: [input], input, show: (/** @type {any} */ value) => (input.checked = Boolean(value)) };
}

/** A slider over round values, with a field beside it for any other.
 * @param {Field} field @param {string} id @param {(value: any) => void} moved */
function slider(field, id, moved) {
  const marks = field.marks ?? [];
  const range = /** @type {HTMLInputElement} */ (
    element("input", { id, type: "range", min: "0", max: String(marks.length - 1), step: "1" })
  );
  const exact = /** @type {HTMLInputElement} */ (
    element("input", { type: "number", min: "1", step: "1", "aria-label": `${field.label}, exact` })
  );
  const say = (/** @type {any} */ value) =>
    range.setAttribute("aria-valuetext", `${Number(value).toLocaleString("en")} ${field.unit}`);
  range.addEventListener("input", () => {
    const value = marks[Number(range.value)];
    showExact(value);
    say(value);
    moved(value);
  });
  const showExact = onNumber(exact, moved);
  const show = onceReleased(range, (/** @type {any} */ value) => {
    const above = marks.findIndex((mark) => mark >= value);
    range.value = String(above < 0 ? marks.length - 1 : above);
    showExact(value);
    say(value);
  });
  return { nodes: [range, exact], input: range, show };
}

/** A slider whose marks come with the answers; its last position is "no limit".
 * @param {Field} field @param {string} id @param {(value: any) => void} moved */
function limit(field, id, moved) {
  /** @type {number[]} */
  let marks = [];
  const range = /** @type {HTMLInputElement} */ (element("input", { id, type: "range", min: "0", max: "0", step: "1" }));
  const exact = /** @type {HTMLInputElement} */ (
    element("input", { type: "number", min: "0", step: "any", placeholder: "no limit", "aria-label": `${field.label}, exact` })
  );
  const say = (/** @type {any} */ value) =>
    range.setAttribute("aria-valuetext", value === null ? "no limit" : `${Number(value).toLocaleString("en")} ${field.unit}`);
  range.addEventListener("input", () => {
    const value = marks[Number(range.value)] ?? null;
    showExact(value);
    say(value);
    moved(value);
  });
  const showExact = onNumber(exact, moved);
  const show = onceReleased(range, (/** @type {any} */ value, /** @type {number[]} */ found) => {
    marks = found ?? marks;
    range.max = String(marks.length);
    const above = value === null ? -1 : marks.findIndex((mark) => mark >= value);
    range.value = String(above < 0 ? marks.length : above);
    showExact(value);
    say(value);
  });
  return { nodes: [range, exact], input: range, show };
}

/** @param {Field} field @param {string} id @param {(value: any) => void} moved */
function search(field, id, moved) {
  const box = new Search(field.options ?? [], { id, hint: field.hint ?? "" }, moved);
  return { nodes: [box.node], input: box.input, show: (/** @type {any} */ value) => box.show(String(value)) };
}

/** Chosen ones as chips with a button to take each away, and a field to add one.
 * @param {Field} field @param {string} id @param {(value: any) => void} moved */
function several(field, id, moved) {
  /** @type {string[]} */
  let chosen = [];
  const chips = element("ul", { class: "wbm-chips", "aria-label": "Chosen" });
  const box = new Search(
    field.options ?? [],
    { id, hint: field.hint ?? "", empties: true },
    (value) => chosen.includes(value) || moved([...chosen, value]),
  );
  const title = (/** @type {string} */ value) =>
    (field.options ?? []).find((option) => option.value === value)?.text ?? value;
  const show = (/** @type {string[]} */ values) => {
    if (values.join() === chosen.join() && chips.children.length === values.length) return;
    chosen = [...values];
    const nodes = values.map((value) => {
      const away = element("button", { type: "button", class: "wbm-away", "aria-label": `Remove ${title(value)}` }, "×");
      away.addEventListener("click", () => {
        box.input.focus();
        moved(chosen.filter((name) => name !== value));
      });
      if (values.length === 1 && !field.empty) away.hidden = true;
      return element("li", {}, title(value), away);
    });
    chips.replaceChildren(...nodes);
  };
  return { nodes: [chips, box.node], input: box.input, show };
}

/** Says in `place` what is wrong with an input; "" = nothing.
 * @param {HTMLElement} input @param {HTMLElement} place @param {string} problem */
export function markProblem(input, place, problem) {
  place.hidden = !problem;
  setText(place, problem);
  input.setAttribute("aria-invalid", String(Boolean(problem)));
  if (problem) input.setAttribute("aria-describedby", place.id);
  else input.removeAttribute("aria-describedby");
}

const KINDS = { select, number, text, check, slider, limit, search, several };

export class Controls {
  /** @param {{title: string, open: boolean, fields: Field[]}[]} groups @param {Moved} moved */
  constructor(groups, moved) {
    this.moved = moved;
    made += 1;
    this.prefix = `wbm-${made}`;
    this.folded = /** @type {HTMLElement[]} */ ([]);
    /** @type {Map<string, {row: HTMLElement, problem: HTMLElement, control: Control}>} */
    this.fields = new Map();
    this.groups = groups.map(({ title, open, fields }) => {
      const rows = fields.map((field) => this.row(field));
      const body = element("div", { class: "wbm-fields" }, ...rows);
      const attributes = { class: "wbm-group", "data-title": title, ...(open ? { open: "" } : {}) };
      return element("details", attributes, element("summary", { tabindex: "0" }, title), body);
    });
    this.node = element("div", { class: "wbm-controls", role: "group", "aria-label": "What to estimate" }, ...this.groups);
  }

  /** Where there is little room only model and batch stay open, so that the figure is near.
   * @param {boolean} away */
  fold(away) {
    const rest = this.groups.slice(2);
    if (away) this.folded = rest.filter((group) => group.hasAttribute("open"));
    (this.folded ?? []).forEach((group) => group.toggleAttribute("open", !away));
  }

  /** @param {Field} field */
  row(field) {
    const id = `${this.prefix}-${field.name}`;
    const kind = KINDS[/** @type {keyof typeof KINDS} */ (field.kind)];
    const control = kind(field, id, (value) => this.moved(field.name, value));
    const problem = element("p", { class: "wbm-problem", id: `${id}-problem`, hidden: "" });
    const unit = field.unit ? [element("span", { class: "wbm-unit" }, ` ${field.unit}`)] : [];
    const label = element("label", { for: id, ...(field.help ? { title: field.help } : {}) }, field.label, ...unit);
    const row = element("div", { class: `wbm-field wbm-${field.kind}`, "data-field": field.name }, label, ...control.nodes, problem);
    this.fields.set(field.name, { row, problem, control });
    return row;
  }

  /** @param {{values: Record<string, any>, hidden: string[], marks?: Record<string, number[]>}} state
   * @param {{field?: string, message?: string}} problem */
  show({ values, hidden, marks = {} }, problem) {
    for (const [name, { row, problem: place, control }] of this.fields) {
      control.show(values[name], marks[name]);
      row.hidden = hidden.includes(name);
      markProblem(control.input, place, problem?.field === name ? (problem.message ?? "") : "");
    }
  }
}
