// @ts-check
/** Choose runs of a store, lay their curves over each other, and read what differed and what it cost. */

import { addCompareStyle } from "./compare_style.js";
import { besideTable } from "./compare_table.js";
import { element, focusedElement, makeButton, setAttribute, setText } from "./dom.js";
import { mounted } from "./face.js";
import { count, moment, usd } from "./format.js";
import { lossText, lossTitle, NO_RUNS, withNames } from "./run_words.js";
import { badge } from "./state.js";
import { Overlay } from "./overlay.js";
import { ResumeButton } from "./resume.js";
import { readTheme, watchTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context */

const COLUMNS = [
  { title: "Name", field: "name" },
  { title: "State", field: "outcome" },
  { title: "Strategy", field: "strategy" },
  { title: "Steps", field: "steps" },
  { title: "Last loss", field: "loss_last" },
  { title: "Cost", field: "usd" },
  { title: "Tags", field: "tags" },
  { title: "Created", field: "created_at" },
];
const EXAMPLE = "strategy=ddp outcome=succeeded tag=baseline loss<2";

/** Tells of each finished text once; Enter finishes one too (JupyterLab keeps the browser's own Enter away).
 * @param {HTMLInputElement} input @param {() => void} changed */
function finished(input, changed) {
  let last = "";
  const ask = () => {
    if (input.value === last) return;
    last = input.value;
    changed();
  };
  input.addEventListener("focus", () => (last = input.value));
  input.addEventListener("change", ask);
  input.addEventListener("keydown", (event) => event.key === "Enter" && ask());
}

/** The run whose labels are being edited. */
class Editor {
  /** @param {(message: any) => void} send */
  constructor(send) {
    this.send = send;
    this.run = "";
    this.name = element("strong");
    this.tags = /** @type {HTMLInputElement} */ (element("input", { type: "text", placeholder: "baseline lr:3e-4" }));
    this.note = /** @type {HTMLInputElement} */ (element("input", { type: "text", maxlength: "2000" }));
    this.archive = element("button", { type: "button", class: "wb-button" });
    this.remove = new ResumeButton("Delete", () => send({ type: "delete", run: this.run }));
    this.remove.button.classList.add("wb-stop");
    this.remove.button.addEventListener("click", () => this.remove.question.armed && send({ type: "size", run: this.run }));
    finished(this.tags, () => send({ type: "label", run: this.run, tags: this.tags.value }));
    finished(this.note, () => send({ type: "label", run: this.run, note: this.note.value }));
    this.archive.addEventListener("click", () => send({ type: "label", run: this.run, archived: !this.archived }));
    this.node = element(
      "div",
      { class: "wbx-edit", hidden: "", role: "group", "aria-label": "Labels of the run" },
      this.name,
      element("label", {}, "Tags", this.tags),
      element("label", {}, "Note", this.note),
      this.archive,
      this.remove.node,
    );
    this.archived = false;
  }

  /** @param {any} row undefined closes it */
  show(row) {
    this.node.hidden = !row;
    if (!row) return;
    const other = this.run !== row.run;
    this.run = row.run;
    this.archived = row.archived;
    setText(this.name, row.called);
    // what somebody is typing outlives a refresh of the table
    if (other || focusedElement() !== this.tags) this.tags.value = row.tags.join(" ");
    if (other || focusedElement() !== this.note) this.note.value = row.note ?? "";
    setText(this.archive, row.archived ? "Unarchive" : "Archive");
    this.remove.refuse(row.outcome ? "" : "This run is still running. Stop it first.");
    if (other) this.remove.question.cancel();
  }
}

class Face {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.root = root;
    this.model = /** @type {any} */ (context.model);
    this.most = /** @type {any} */ (context.config).most;
    this.editing = "";
    this.sort = "";
    this.where = /** @type {HTMLInputElement} */ (
      element("input", { type: "text", "aria-label": "Conditions", placeholder: EXAMPLE, spellcheck: "false" })
    );
    this.archived = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox" }));
    finished(this.where, () => this.list());
    this.archived.addEventListener("change", () => this.list());
    this.refresh = makeButton("Refresh", () => this.model.send({ type: "refresh" }));
    this.counts = element("span", { class: "wb-note" });
    this.note = element("p", { class: "wb-note", role: "status", "aria-live": "polite" });
    this.heads = COLUMNS.map((column) => this.head(column));
    this.body = element("tbody");
    this.editor = new Editor((message) => this.model.send(message));
    this.shown = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Curve" }));
    this.shown.addEventListener("change", () => this.model.send({ type: "show", name: this.shown.value }));
    const controls = [element("label", { class: "wb-slider" }, "Curve", this.shown)];
    this.overlay = new Overlay(context, { title: "Curves", controls, empty: "Select two or more runs to compare their curves" });
    this.loss = /** @type {HTMLInputElement} */ (element("input", { type: "number", step: "any", "aria-label": "Loss to reach" }));
    finished(this.loss, () => this.pick(this.model.get("picked")));
    this.beside = element("div", { class: "wb-table-box wbx-all", tabindex: "0", role: "region", "aria-label": "Comparison of runs" });
    this.differences = this.besidePanel();
    this.shell = element("div", { class: "wb-root wbx" }, this.choice(), this.overlay.node, this.differences);
    this.onMessage = (/** @type {any} */ message) => {
      if (message?.type !== "said") return;
      if (message.bad && this.asked) {
        this.asked = null;
        this.draw(); // what was ticked in vain
      }
      this.say(message.text, message.bad);
    };
    /** What was asked for and is not answered yet: the next tick adds to it. @type {string[]|null} */
    this.asked = null;
    this.answered = () => (this.asked = null);
    this.redraw = () => this.draw();
    this.besides = () => this.drawBeside();
  }

  choice() {
    const head = element("thead", {}, element("tr", {}, element("td"), ...this.heads, element("td")));
    return element(
      "section",
      { class: "wb-panel", "aria-label": "Runs to compare" },
      element("header", {}, element("h3", {}, "Runs"), this.counts, this.refresh),
      element("div", { class: "wbx-filter" }, this.where, element("label", {}, this.archived, "Archived")),
      this.note,
      element(
        "div",
        { class: "wb-table-box wb-tall", tabindex: "0", role: "region", "aria-label": "Table of runs" },
        element("table", { class: "wbx-runs" }, head, this.body),
      ),
      this.editor.node,
    );
  }

  besidePanel() {
    const ask = element("label", { class: "wbx-loss" }, "Cost to reach a loss of", this.loss);
    return element(
      "section",
      { class: "wb-panel", "aria-label": "Differences", hidden: "" },
      element("header", {}, element("h3", {}, "Comparison"), ask),
      this.beside,
    );
  }

  /** @param {{title: string, field: string}} column */
  head(column) {
    const button = element("button", { type: "button", class: "wb-sort" }, column.title);
    button.addEventListener("click", () => {
      this.sort = this.sort === `-${column.field}` ? column.field : `-${column.field}`;
      this.list();
    });
    return element("th", { scope: "col" }, button);
  }

  list() {
    const sort = this.sort || null;
    this.model.send({ type: "list", where: this.where.value, archived: this.archived.checked, sort });
  }

  /** @param {string[]} runs */
  pick(runs) {
    if (runs.length > this.most) return this.say(`At most ${this.most} runs can be compared.`, true), this.draw();
    const loss = this.loss.value === "" ? null : Number(this.loss.value);
    this.asked = runs;
    this.model.send({ type: "pick", runs, loss });
  }

  /** @param {string} text @param {boolean} bad */
  say(text, bad) {
    setText(this.note, text);
    setAttribute(this.note, "data-tone", bad ? "bad" : "note");
  }

  draw() {
    const rows = withNames(this.model.get("rows") ?? []);
    const picked = this.model.get("picked") ?? [];
    const { found = 0, of = 0, where = "", sort = "" } = this.model.get("listed") ?? {};
    if (focusedElement() !== this.where) this.where.value = where;
    const shown = rows.length < found ? `the first ${count(rows.length)} of ${count(found)}` : count(found);
    setText(this.counts, of === 0 ? NO_RUNS : `${shown} of ${count(of)} runs, ${picked.length} ticked`);
    this.heads.forEach((head, index) => {
      const way = sort === COLUMNS[index].field ? "ascending" : sort === `-${COLUMNS[index].field}` ? "descending" : "none";
      setAttribute(head, "aria-sort", way);
    });
    const focused = /** @type {HTMLElement|null} */ (this.body.contains(focusedElement()) ? focusedElement() : null);
    const key = focused?.dataset.key;
    this.body.replaceChildren(...rows.map((/** @type {any} */ row) => this.line(row, picked)));
    if (key) /** @type {HTMLElement|null} */ (this.body.querySelector(`[data-key="${CSS.escape(key)}"]`))?.focus();
    this.editor.show(rows.find((/** @type {any} */ row) => row.run === this.editing));
  }

  /** @param {any} row @param {string[]} picked */
  line(row, picked) {
    const check = /** @type {HTMLInputElement} */ (
      element("input", { type: "checkbox", "aria-label": `Compare ${row.called}`, "data-key": `tick ${row.run}` })
    );
    check.checked = picked.includes(row.run);
    check.addEventListener("change", () => {
      const others = (this.asked ?? this.model.get("picked") ?? []).filter((/** @type {string} */ run) => run !== row.run);
      this.pick(check.checked ? [...others, row.run] : others);
    });
    const { state, text } = badge({ phase: row.outcome ? "ended" : row.state, outcome: row.outcome ?? null, rehearsal: row.rehearsal });
    const edit = element("button", { type: "button", class: "wb-button", "aria-label": `Edit ${row.called}`, "data-key": `edit ${row.run}` }, "Edit");
    edit.addEventListener("click", () => {
      this.editing = this.editing === row.run ? "" : row.run;
      this.draw();
    });
    const tags = row.tags.map((/** @type {string} */ tag) => element("span", { class: "wbx-tag" }, tag));
    const cells = [
      element("td", { title: row.note ? `${row.run}: ${row.note}` : row.run }, row.called),
      element("td", {}, element("span", { class: "wb-badge", "data-state": state }, text)),
      element("td", {}, row.strategy ?? "n/a"),
      element("td", {}, count(row.steps)),
      element("td", { title: lossTitle(row) }, lossText(row)),
      element("td", {}, usd(row.usd)),
      element("td", {}, ...tags),
      element("td", {}, moment(row.created_at)),
    ];
    const attributes = { "data-archived": String(row.archived), "aria-current": String(row.run === this.editing) };
    return element("tr", attributes, element("td", { class: "wb-check" }, check), ...cells, element("td", {}, edit));
  }

  drawBeside() {
    const comparison = this.model.get("comparison") ?? {};
    if (comparison.problem) this.say(comparison.problem, true);
    const runs = comparison.runs ?? [];
    this.differences.hidden = runs.length === 0;
    const { logged = [], shown = "loss" } = comparison;
    if (JSON.stringify(logged) !== this.shown.dataset.names) {
      this.shown.dataset.names = JSON.stringify(logged);
      this.shown.replaceChildren(...logged.map((/** @type {string} */ name) => element("option", { value: name }, name === "loss" ? "training loss" : name)));
    }
    this.shown.disabled = logged.length === 0;
    this.shown.value = shown;
    this.overlay.draw(runs.map((/** @type {string} */ run) => ({ run, name: comparison.names[run], ...comparison.curves[run] })), shown);
    if (runs.length === 0) return;
    this.loss.placeholder = comparison.reach.chosen === "given" ? "" : String(comparison.reach.loss ?? "");
    this.beside.replaceChildren(besideTable(comparison, readTheme(this.shell).series));
  }

  open() {
    addCompareStyle();
    this.root.append(this.shell);
    for (const name of ["rows", "picked", "listed"]) this.model.on(`change:${name}`, this.redraw);
    this.model.on("change:picked", this.answered);
    this.model.on("change:comparison", this.besides);
    this.model.on("msg:custom", this.onMessage);
    this.endTheme = watchTheme(this.besides);
    this.draw();
    this.drawBeside();
  }

  close() {
    for (const name of ["rows", "picked", "listed"]) this.model.off(`change:${name}`, this.redraw);
    this.model.off("change:picked", this.answered);
    this.model.off("change:comparison", this.besides);
    this.model.off("msg:custom", this.onMessage);
    this.endTheme?.();
    this.overlay.close();
    this.shell.remove();
  }
}

export const mount = mounted(Face);
