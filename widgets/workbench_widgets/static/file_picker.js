// @ts-check
/** Folders and files below the notebook's working directory, asked for over the comm alone. */

import { element, setText } from "./dom.js";

export class FilePicker {
  /** @param {any} model @param {{label: string, folders?: boolean}} how `folders`: one may be chosen
   * @param {(path: string) => void} chosen */
  constructor(model, { label, folders = false }, chosen) {
    this.model = model;
    this.chosen = chosen;
    this.folder = "";
    this.waiting = false;
    this.button = element("button", { type: "button", class: "wb-button", "aria-expanded": "false", "aria-label": `Browse for ${label}` }, "Browse");
    this.place = element("span", { class: "wb-note wbf-place" });
    this.use = element("button", { type: "button", class: "wb-button", hidden: "" }, "Use this folder");
    this.problem = element("p", { class: "wbm-problem", hidden: "" });
    this.list = element("ul", { class: "wbf-files", "aria-label": `Files for ${label}` });
    this.panel = element("div", { class: "wbf-browser", hidden: "" }, element("div", { class: "wbf-row" }, this.place, this.use), this.list, this.problem);
    this.button.addEventListener("click", () => (this.panel.hidden ? this.ask("") : this.shut()));
    this.panel.addEventListener("keydown", (event) => event.key === "Escape" && this.shut(true));
    this.use.hidden = !folders;
    this.use.addEventListener("click", () => this.take(this.folder || "."));
    this.heard = (/** @type {any} */ message) => message?.type === "listing" && this.waiting && this.show(message);
    model.on("msg:custom", this.heard);
  }

  /** @param {string} folder */
  ask(folder) {
    this.waiting = true;
    this.model.send({ type: "list", folder });
  }

  /** @param {{folder: string, root: string, problem: string, entries: {name: string, folder: boolean}[]}} found */
  show({ folder, root, problem, entries }) {
    this.waiting = false;
    this.folder = folder;
    this.panel.hidden = false;
    this.button.setAttribute("aria-expanded", "true");
    setText(this.place, folder ? `${folder}/` : root);
    this.problem.hidden = !problem;
    setText(this.problem, problem);
    const path = (/** @type {string} */ name) => (folder ? `${folder}/${name}` : name);
    const rows = entries.map((entry) => {
      const text = entry.folder ? `${entry.name}/` : entry.name;
      return this.row(text, () => (entry.folder ? this.ask(path(entry.name)) : this.take(path(entry.name))));
    });
    if (folder) rows.unshift(this.row("..", () => this.ask(folder.split("/").slice(0, -1).join("/"))));
    if (rows.length === 0) rows.push(element("li", { class: "wb-note" }, "Nothing to choose here."));
    this.list.replaceChildren(...rows);
    /** @type {HTMLElement | null} */ (this.list.querySelector("button"))?.focus();
  }

  /** @param {string} text @param {() => void} press */
  row(text, press) {
    const button = element("button", { type: "button" }, text);
    button.addEventListener("click", press);
    return element("li", {}, button);
  }

  /** @param {string} path */
  take(path) {
    this.shut(true);
    this.chosen(path);
  }

  shut(focus = false) {
    this.panel.hidden = true;
    this.button.setAttribute("aria-expanded", "false");
    if (focus) this.button.focus();
  }

  close() {
    this.model.off("msg:custom", this.heard);
  }
}
