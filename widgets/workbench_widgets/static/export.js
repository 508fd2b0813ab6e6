// @ts-check
/** The files of another engine, what to type, and what each engine would refuse. */

import { Calculator } from "./calculator.js";
import { copyButton } from "./clipboard.js";
import { element, setAttribute, setText } from "./dom.js";
import { addExportStyle } from "./export_style.js";
import { mounted } from "./face.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{what: string, reason: string, instead: string}} Reason
 * @typedef {{name: string, text: string}} File */

/** @param {Node[]} children @param {string} label */
const panel = (label, ...children) => element("section", { class: "wb-panel", "aria-label": label }, element("header", {}, element("h3", {}, label)), ...children);

/** Text with a button that copies it. @param {string} kind @param {string} label */
function box(kind, label) {
  const text = element("pre", { class: `wb-command wbx-text ${kind}`, tabindex: "0", role: "region", "aria-label": label });
  const button = copyButton(() => text.textContent ?? "", `Copy: ${label}`);
  return { text, node: element("div", { class: "wb-command-box" }, text, button) };
}

class Export extends Calculator {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    super(root, context, "Export");
    this.shell.classList.add("wbx");
    this.chosen = "";
    this.reasons = element("ul", { class: "wbx-reasons", "aria-live": "polite", "aria-label": "Why this is not supported" });
    this.notes = element("ul", { class: "wbx-notes", "aria-label": "Notes" });
    this.tabs = element("div", { class: "wbx-tabs", role: "tablist", "aria-label": "Files" });
    this.file = box("", "the file");
    this.next = box("wbx-next", "commands");
    this.copies = element("p", { class: "wb-note" });
    this.save = element("button", { type: "button", class: "wb-button" }, "Save the folder");
    this.saved = element("span", { class: "wb-note", role: "status", "aria-live": "polite" });
    this.save.addEventListener("click", () => this.model.send({ type: "save" }));
    this.engines = element("tbody");
    const saving = element("div", { class: "wbx-save" }, this.save, this.saved);
    this.files = panel("Files", this.tabs, this.file.node, this.copies, saving);
    this.typing = panel("Run in that folder", this.next.node);
    const table = element("table", { class: "wbx-engines" }, this.engines);
    this.build([this.reasons, this.files, this.typing, this.notes, panel("The same on each engine", table)]);
  }

  open() {
    addExportStyle();
    super.open();
    this.listen("saved", () => setText(this.saved, this.model.get("saved")));
  }

  /** @param {any} figure */
  drawFigure(figure) {
    const refused = figure.refused.length > 0;
    this.headline.dataset.fits = String(!refused);
    for (const part of [this.files, this.typing]) part.hidden = refused;
    this.reasons.hidden = !refused;
    this.reasons.replaceChildren(...figure.refused.map(reason));
    this.notes.hidden = figure.notes.length === 0;
    this.notes.replaceChildren(...figure.notes.map((/** @type {string} */ note) => element("li", {}, note)));
    this.drawFiles(figure.files);
    setText(this.next.text, figure.next.join("\n"));
    const { copies } = figure;
    const more = copies.length - 1;
    const beside = more > 0 ? ` and ${more} ${more === 1 ? "module" : "modules"} that it imports` : "";
    setText(this.copies, copies.length ? `Also copied: ${copies[0]}${beside}.` : "");
    this.engines.replaceChildren(...figure.engines.map((/** @type {any} */ engine) => this.row(engine, figure)));
  }

  /** @param {File[]} files */
  drawFiles(files) {
    if (!files.some(({ name }) => name === this.chosen)) this.chosen = files[0]?.name ?? "";
    const key = files.map(({ name }) => name).join("\n");
    if (this.tabs.dataset.key !== key) {
      this.tabs.dataset.key = key;
      this.tabs.replaceChildren(...files.map(({ name }) => this.tab(name)));
    }
    for (const tab of this.tabs.children) {
      setAttribute(/** @type {HTMLElement} */ (tab), "aria-selected", String(tab.textContent === this.chosen));
    }
    setText(this.file.text, files.find(({ name }) => name === this.chosen)?.text ?? "");
  }

  /** @param {string} name */
  tab(name) {
    const tab = element("button", { type: "button", class: "wb-button", role: "tab" }, name);
    tab.addEventListener("click", () => {
      this.chosen = name;
      this.guard(() => this.drawFiles(this.model.get("figure").files));
    });
    return tab;
  }

  /** @param {{name: string, title: string, refused: Reason[]}} choice @param {any} figure */
  row(choice, figure) {
    const able = choice.refused.length === 0;
    const verdict = able ? "supported" : choice.refused.map(({ reason }) => reason).join(" ");
    const chosen = figure.engine === choice.name;
    const take = element("button", { type: "button", class: "wb-button", "aria-label": `Show ${choice.title}`, "aria-pressed": String(chosen) }, chosen ? "shown" : "show");
    take.addEventListener("click", () => this.moves.move({ engine: choice.name }));
    return element("tr", { "data-able": String(able) }, element("th", { scope: "row" }, choice.title), element("td", {}, verdict), element("td", {}, take));
  }
}

/** @param {Reason} choice */
function reason(choice) {
  const ways = choice.instead ? [element("p", {}, choice.instead)] : [];
  return element("li", {}, element("p", {}, choice.reason), ...ways);
}

export const mount = mounted(Export);
