// @ts-check
/** The store as a table: sort, open, stop, and lay the loss curves of ticked runs over each other. */

import { Comparison } from "./compare.js";
import { dropFile } from "./contents.js";
import { element, setAttribute, setRows, setText } from "./dom.js";
import { mounted } from "./face.js";
import { compareKnown, count, known, moment, seconds } from "./format.js";
import { InPlace } from "./in_place.js";
import { lossKey, lossText, lossTitle, NO_RUNS, withNames } from "./run_words.js";
import { badge } from "./state.js";
import { StopButton } from "./stop_button.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{title: string, key: (row: any) => any, text: (row: any) => string, number?: boolean}} Column */

const MOST = 8; // one colour each
const DRAWN = ["rows", "of", "problem", "opened"]; // of the model
const [LOSS, CREATED] = [5, 6]; // the columns
const LIVE = ["queued", "starting", "running", "stopping", "unsupervised"];
const WATCHED = ["starting", "running", "stopping"];

/** Whether somebody reads a stop file in the run's directory. @param {any} row */
export const readsFiles = (row) => WATCHED.includes(row?.state);

/** Seconds at work, without the pauses between attempts; until the first view those since the start. @param {any} row */
function duration(row) {
  if (known(row.hours)) return 3600 * row.hours;
  return known(row.started_at) ? (row.ended_at ?? (isLive(row) ? Date.now() / 1000 : NaN)) - row.started_at : NaN;
}

/** @param {any} row */
const ranks = (row) => row.processes ?? row.world_size;

/** @param {any} row */
const isLive = (row) => LIVE.includes(row.state);

/** @type {Column[]} */
const COLUMNS = [
  { title: "Name", key: (row) => String(row.name).toLowerCase(), text: (row) => row.called },
  { title: "State", key: (row) => row.outcome ?? row.state, text: (row) => stateOf(row).text },
  { title: "Strategy", key: (row) => row.strategy ?? "", text: (row) => row.strategy ?? "n/a" },
  { title: "Processes", key: ranks, text: (row) => count(ranks(row)), number: true },
  { title: "Steps", key: (row) => row.steps, text: (row) => count(row.steps), number: true },
  { title: "Last loss", key: lossKey, text: lossText, number: true },
  { title: "Created", key: (row) => row.created_at, text: (row) => moment(row.created_at), number: true },
  { title: "Duration", key: duration, text: (row) => seconds(duration(row)), number: true },
];

/** @param {any} row */
function stateOf(row) {
  const phase = row.outcome ? "ended" : row.state;
  return badge({ phase, outcome: row.outcome ?? null, rehearsal: row.rehearsal });
}

/** What stands above the table. @param {number|null} shown null = not read yet
 * @param {number} of runs in the store @param {number} selected */
export function noteOf(shown, of, selected) {
  if (shown === null) return "Reading the store …";
  if (shown === 0) return NO_RUNS;
  if (shown < 2) return "";
  const part = of > shown ? `${count(shown)} of ${count(of)} runs; workbench runs lists all. ` : "";
  return part + (selected === 1 ? "Select another run to compare losses" : "Select runs to compare losses");
}

/** One line of the table; keeps its elements, so that an armed Stop or a focus outlives a redraw. */
class Line {
  /** @param {any} row @param {RunsTable} table */
  constructor(row, table) {
    this.check = /** @type {HTMLInputElement} */ (
      element("input", { type: "checkbox", "aria-label": `Compare ${row.called}` })
    );
    this.check.addEventListener("change", () => table.select(row.run, this.check.checked));
    this.cells = COLUMNS.map((column) => element("td", column.number ? {} : { class: "wb-text" }));
    this.badge = element("span", { class: "wb-badge" });
    this.cells[1].append(this.badge);
    const open = element("button", { type: "button", class: "wb-button", "aria-label": `Open ${row.called}` }, "Open");
    open.addEventListener("click", () => table.openRun(row.run));
    this.stop = new StopButton((now) => table.stop(row.run, now));
    this.stop.button.classList.add("wb-small");
    const actions = element("td", { class: "wb-actions" }, element("div", {}, open, this.stop.node));
    this.node = element("tr", {}, element("td", { class: "wb-check" }, this.check), ...this.cells, actions);
  }

  /** @param {any} row @param {boolean} selected @param {boolean} opened @param {boolean} trees
   * @param {string} [refusal] why this page may not stop it */
  draw(row, selected, opened, trees, refusal = "") {
    COLUMNS.forEach((column, index) => index === 1 || setText(this.cells[index], column.text(row)));
    const { state, text } = stateOf(row);
    setAttribute(this.badge, "data-state", state);
    setText(this.badge, text);
    setAttribute(this.badge, "title", row.outcome ? "" : row.message ?? "");
    const depth = trees ? row.depth : 0;
    if (depth) setText(this.cells[0], `↳ ${row.called}`);
    this.cells[0].style.paddingLeft = depth ? `${8 + 14 * depth}px` : "";
    this.cells[0].title = row.from ? `${row.run}: ${row.from}` : row.run;
    this.cells[LOSS].title = lossTitle(row);
    this.check.checked = selected;
    this.stop.phase(isLive(row) ? row.state : "ended", 0, refusal);
    setAttribute(this.node, "aria-current", String(opened));
  }
}

class RunsTable {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.root = root;
    this.context = context;
    this.model = /** @type {any} */ (context.model);
    this.sorted = { column: CREATED, down: true };
    /** @type {Map<string, Line>} */
    this.lines = new Map();
    /** @type {string[]} */
    this.selected = [];
    this.heads = COLUMNS.map((column, index) => this.head(column, index));
    this.body = element("tbody");
    this.note = element("p", { class: "wb-note", role: "status" });
    this.table = element(
      "table",
      { class: "wb-runs" },
      element("thead", {}, element("tr", {}, element("td"), ...this.heads, element("td"))),
      this.body,
    );
    this.comparison = new Comparison(context);
    this.inPlace = new InPlace(context);
    this.shell = element(
      "div",
      { class: "wb-root" },
      element(
        "section",
        { class: "wb-panel", "aria-label": "Runs" },
        element("header", {}, element("h3", {}, "Runs"), this.note),
        element("div", { class: "wb-table-box wb-tall", tabindex: "0", role: "region", "aria-label": "Table of runs" }, this.table),
      ),
      this.comparison.node,
      this.inPlace.node,
    );
  }

  /** @param {Column} column @param {number} index */
  head(column, index) {
    const button = element("button", { type: "button", class: "wb-sort" }, column.title);
    button.addEventListener("click", () => {
      const again = this.sorted.column === index;
      this.sorted = { column: index, down: again ? !this.sorted.down : Boolean(column.number) };
      this.draw();
    });
    return element("th", { scope: "col", class: column.number ? "" : "wb-text" }, button);
  }

  draw() {
    const rows = withNames(this.model.get("rows") ?? []);
    const { column, down } = this.sorted;
    const { key } = COLUMNS[column];
    const trees = column === CREATED && down; // as they come: newest tree first, each run below its parent
    if (!trees) rows.sort((left, right) => compareKnown(key(left), key(right), down ? -1 : 1));
    this.heads.forEach((head, index) =>
      setAttribute(head, "aria-sort", index === column ? (down ? "descending" : "ascending") : "none"));
    const present = new Set(rows.map((row) => row.run));
    for (const run of [...this.lines.keys()].filter((key) => !present.has(key))) this.lines.delete(run);
    this.selected = this.selected.filter((run) => present.has(run));
    this.compare();
    const opened = this.model.get("opened");
    const nodes = rows.map((row) => {
      const line = this.lines.get(row.run) ?? new Line(row, this);
      this.lines.set(row.run, line);
      line.draw(row, this.selected.includes(row.run), row.run === opened, trees, this.context.refusal);
      return line.node;
    });
    setRows(this.body, nodes);
    this.table.hidden = rows.length === 0;
    const shown = this.model.get("rows") ? rows.length : null;
    setText(this.note, this.model.get("problem") || noteOf(shown, this.model.get("of"), this.selected.length));
  }

  /** @param {string} run @param {boolean} on */
  select(run, on) {
    this.selected = this.selected.filter((other) => other !== run);
    if (on) this.selected = [...this.selected, run].slice(-MOST);
    this.draw();
  }

  /** The curves are of the ticked rows as they stand now: a run may have ended, or be deleted. */
  compare() {
    const chosen = (this.model.get("rows") ?? []).filter((/** @type {any} */ row) => this.selected.includes(row.run));
    const names = (/** @type {any[]} */ rows) => rows.map(({ run }) => run).join("\n");
    const before = this.comparison.rows;
    if (names(chosen) !== names(before)) return void this.comparison.show(chosen);
    this.comparison.rows = chosen;
    const resumed = chosen.some((/** @type {any} */ row, /** @type {number} */ at) => !row.outcome && before[at].outcome);
    if (resumed && !this.comparison.node.hidden) void this.comparison.refresh();
  }

  /** @param {string} run */
  async openRun(run) {
    const said = await this.inPlace.open(run);
    if (said) setText(this.note, said);
  }

  /** @param {string} run @param {boolean} now */
  async stop(run, now) {
    const path = this.inPlace.path(run);
    const row = (this.model.get("rows") ?? []).find((/** @type {any} */ one) => one.run === run);
    try {
      if (!path || !readsFiles(row)) throw new Error("not served, or not watched");
      await dropFile(`${path}/control`, now ? "stop-now" : "stop");
    } catch {
      this.model.send({ type: "stop", run, now });
    }
  }

  open() {
    this.root.append(this.shell);
    this.changed = () => this.draw();
    for (const name of DRAWN) this.model.on(`change:${name}`, this.changed);
    this.heard = (/** @type {any} */ said) => {
      if (said?.type === "resumed" && said.bad) this.lines.get(said.run)?.stop.failed(String(said.text ?? ""));
    };
    this.model.on("msg:custom", this.heard);
    this.ticking = window.setInterval(this.changed, 1000); // durations of live runs
    this.draw();
  }

  close() {
    for (const name of DRAWN) this.model.off(`change:${name}`, this.changed);
    this.model.off("msg:custom", this.heard);
    clearInterval(this.ticking);
    this.inPlace.close();
    this.comparison.close();
    this.shell.remove();
  }
}

export const mount = mounted(RunsTable);
