// @ts-check
/** A field that finds its options while somebody types: ARIA's combobox with a list. */

import { element, focusedElement } from "./dom.js";

/** @typedef {{value: string, text: string, detail?: string}} Option */

export class Search {
  /** @param {Option[]} options @param {{id: string, hint: string, empties?: boolean}} how
   * `empties`: the field is for adding and is empty after each choice
   * @param {(value: string) => void} chosen */
  constructor(options, { id, hint, empties = false }, chosen) {
    this.options = options;
    this.chosen = chosen;
    this.empties = empties;
    this.value = "";
    this.active = -1;
    /** @type {Option[]} */
    this.shown = [];
    this.list = element("ul", { id: `${id}-list`, role: "listbox", class: "wbm-list", "aria-label": hint, hidden: "" });
    this.input = /** @type {HTMLInputElement} */ (
      element("input", {
        id, type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", placeholder: hint,
        "aria-expanded": "false", "aria-controls": `${id}-list`, "aria-autocomplete": "list",
      })
    );
    this.node = element("div", { class: "wbm-search" }, this.input, this.list);
    this.input.addEventListener("focus", () => this.input.select());
    this.input.addEventListener("click", () => this.open(""));
    this.input.addEventListener("input", () => this.open(this.input.value));
    this.input.addEventListener("blur", () => this.leave());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.list.addEventListener("pointerdown", (event) => this.press(event));
  }

  /** @param {string} value */
  show(value) {
    this.value = value;
    if (this.empties || (focusedElement() === this.input && !this.list.hidden)) return;
    this.input.value = value;
  }

  /** @param {string} text */
  open(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (/** @type {Option} */ option) => {
      const hay = `${option.value} ${option.text}`.toLowerCase();
      return words.every((word) => hay.includes(word));
    };
    this.shown = this.options.filter(matches);
    this.active = text && this.shown.length ? 0 : this.shown.findIndex((option) => option.value === this.value);
    const rows = this.shown.map((option, at) =>
      element(
        "li",
        { role: "option", id: `${this.list.id}-${at}`, "data-at": String(at) },
        element("span", {}, option.text),
        element("span", { class: "wbm-detail" }, option.detail ?? ""),
      ),
    );
    if (rows.length === 0) rows.push(element("li", { class: "wbm-none" }, "No match. Press Enter to use the text as typed."));
    this.list.replaceChildren(...rows);
    this.list.hidden = false;
    this.input.setAttribute("aria-expanded", "true");
    this.mark();
  }

  mark() {
    [...this.list.children].forEach((row, at) => row.setAttribute("aria-selected", String(at === this.active)));
    const row = this.list.children[this.active];
    if (this.active >= 0 && row) {
      this.input.setAttribute("aria-activedescendant", row.id);
      const { offsetTop, offsetHeight } = /** @type {HTMLElement} */ (row);
      const end = offsetTop + offsetHeight - this.list.clientHeight;
      this.list.scrollTop = Math.min(offsetTop, Math.max(this.list.scrollTop, end));
    } else {
      this.input.removeAttribute("aria-activedescendant");
    }
  }

  shut() {
    this.list.hidden = true;
    this.input.setAttribute("aria-expanded", "false");
    this.input.removeAttribute("aria-activedescendant");
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      if (this.list.hidden) return this.open("");
      const count = this.shown.length;
      if (count) this.active = (this.active + step + count) % count;
      this.mark();
    } else if (event.key === "Enter") {
      event.preventDefault();
      const option = this.list.hidden ? null : this.shown[this.active];
      this.take(option ? option.value : this.input.value.trim());
    } else if (event.key === "Escape" && !this.list.hidden) {
      event.stopPropagation();
      this.input.value = this.empties ? "" : this.value;
      this.shut();
    }
  }

  /** @param {PointerEvent} event */
  press(event) {
    event.preventDefault(); // the field keeps its focus
    const row = /** @type {HTMLElement} */ (event.target).closest("[data-at]");
    const option = row && this.shown[Number(row.getAttribute("data-at"))];
    if (option) this.take(option.value);
  }

  /** @param {string} value */
  take(value) {
    this.shut();
    this.input.value = this.empties ? "" : value;
    if (value && (this.empties || value !== this.value)) this.chosen(value);
  }

  /** Leaving the field takes what stands in it, as every other field does. */
  leave() {
    const typed = this.input.value.trim();
    if (this.empties || !typed) {
      this.shut();
      this.input.value = this.empties ? "" : this.value;
    } else {
      this.take(typed);
    }
  }
}
