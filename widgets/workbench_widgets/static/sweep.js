// @ts-check
/** The sweeps of a store: one with its trials, its figures, what it takes; stop, resume, start. */

import { Confirmation } from "./confirm.js";
import { element, focusedElement, makeButton, setAttribute, setText } from "./dom.js";
import { mounted } from "./face.js";
import { compareKnown, count, hours, known, number, usd } from "./format.js";
import { InPlace } from "./in_place.js";
import { addRules } from "./memory_style.js";
import { Figures } from "./sweep_figures.js";
import { Form, predictedTexts } from "./sweep_form.js";
import { watchTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context */

const ID = "workbench-sweep-style";
const STYLE = `
.wbw { display: grid; gap: 10px; grid-template-columns: minmax(0, 1fr); }
.wbw-head { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 10px; }
.wb-root .wbw-head select { max-width: 260px; font-weight: 600; }
.wbw-head .wbw-push { margin-left: auto; }
.wbw-figures { display: grid; gap: 10px; grid-template-columns: repeat(2, minmax(0, 1fr)); }
.wbw-figures:empty { display: none; }
.wbw-figures .wb-plot-box { min-height: 230px; }
.wbw-figures .wbw-wide { grid-column: 1 / -1; }
.wb-root .wbw-trials { min-width: 420px; }
.wb-root .wbw-trials thead { position: sticky; top: 0; z-index: 1; background: var(--wb-raised); }
.wb-root .wbw-trials :is(th, td) { vertical-align: middle; }
.wb-root .wbw-trials :is(th, td).wb-text { text-align: left; }
.wb-root .wbw-trials td.wbw-why { white-space: normal; min-width: 130px; color: var(--wb-muted); }
.wb-root .wbw-trials tr[data-best="true"] td { font-weight: 600; }
.wb-root .wbw-trials tbody tr:hover { background: var(--wb-sunken); }
.wbw-new > summary, .wbw-more > summary { cursor: pointer; font-size: 12.5px; font-weight: 600; }
.wbw-more { margin-top: 8px; }
.wbw-more > summary { font-weight: 500; color: var(--wb-muted); }
.wbw-fields { display: grid; grid-template-columns: repeat(4, minmax(0, 1fr)); gap: 8px 12px; align-items: start; margin-top: 8px; }
.wbw-fields label { display: flex; flex-direction: column; gap: 2px; font-size: 12px; color: var(--wb-muted); min-width: 0; }
.wbw-fields .wbw-wide { grid-column: span 2; }
.wb-root .wbw-fields :is(input, select, textarea) { width: 100%; height: 30px; padding: 0 8px; font: inherit; font-size: 12.5px; color: var(--wb-ink); background: var(--wb-surface); border: 1px solid var(--wb-border); border-radius: 4px; }
.wb-root .wbw-fields textarea { height: auto; padding: 5px 8px; font-family: var(--wb-mono); font-size: 12px; resize: vertical; }
.wb-root .wbw-would { margin: 8px 0 0; padding-left: 18px; font-size: 12.5px; overflow-wrap: anywhere; }
.wb-root .wbw-would:empty { display: none; }
.wbw-buttons { display: flex; gap: 8px; margin-top: 10px; }
@container (max-width: 620px) {
  .wbw-figures, .wbw-fields { grid-template-columns: minmax(0, 1fr); }
  .wbw-fields .wbw-wide { grid-column: 1; }
}
`;
const TONES = { finished: "succeeded", pruned: "stopped", open: "queued" }; // colours of a run's badge
const LIVE = ["running", "stopping"];
const AGAIN = ["interrupted", "stopped", "failed"];

/** @param {string} state */
function badge(state) {
  const tone = /** @type {any} */ (TONES)[state] ?? state;
  return element("span", { class: "wb-badge", "data-state": tone }, state.charAt(0).toUpperCase() + state.slice(1));
}

/** A drawn number with the digits that people read. @param {string} text */
const short = (text) => (text.length > 7 && known(Number(text)) ? number(Number(text)) : text);

/** What the trials took, of what is predicted where that is known. @param {any} now @param {any} predicted
 * @returns {[string, string][]} names and texts */
export function spent(now, predicted) {
  /** @type {(name: string, key: string, text: (value: unknown) => string) => [string, string]} */
  const fact = (name, key, text) =>
    known(predicted[key]) ? [`${name}, of predicted`, `${text(now[key])} of ${text(predicted[key])}`] : [name, text(now[key])];
  const dollars = known(now.usd) || known(predicted.usd);
  return [fact("Time", "hours", hours), ...(dollars ? [fact("Dollars", "usd", usd)] : [])];
}

/** @param {any} trial */
const ending = (trial) => (known(trial.pruned_at) ? `at the look at step ${count(trial.pruned_at)}` : trial.state === "failed" ? trial.why : "");

class SweepPanel {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.root = root;
    this.context = context;
    this.model = /** @type {any} */ (context.model);
    this.sorted = { name: "", down: false }; // "" = as they were drawn
    this.drawnSweep = ""; // the sweep that the button is of
    addRules(ID, STYLE);
    this.pick = /** @type {HTMLSelectElement} */ (/** @type {unknown} */ (element("select", { "aria-label": "Sweep" })));
    this.pick.addEventListener("change", () => this.model.send({ type: "show", sweep: this.pick.value }));
    this.state = element("span");
    this.power = element("button", { type: "button", class: "wb-button wbw-push" });
    this.verb = "resume";
    this.question = new Confirmation(this.power, () => this.namePower());
    this.power.addEventListener("click", () => this.press());
    this.best = makeButton("Open the best run", () => this.openRun(this.model.get("shown").best.run));
    this.detail = element("p", { class: "wb-detail" });
    this.facts = element("dl", { class: "wb-facts" });
    this.bar = element("div", { class: "wb-bar" });
    this.progress = element("div", { class: "wb-progress", role: "progressbar", "aria-label": "Trials that have ended" }, this.bar);
    this.problem = element("p", { class: "wb-banner", role: "alert", "data-tone": "bad" });
    this.message = element("p", { class: "wb-banner", role: "status" });
    this.table = element("div");
    this.head = element("section", { class: "wb-panel", "aria-label": "Sweep" },
      element("div", { class: "wbw-head" }, this.pick, this.state, this.best, this.power, this.question.spoken),
      this.detail, this.progress, this.facts, this.message, this.table);
    this.empty = element("p", { class: "wb-note" }, "No sweeps in this store yet. Start one below.");
    this.form = new Form(context);
    this.inPlace = new InPlace(context);
    this.shell = element("div", { class: "wb-root" });
    this.figures = new Figures(context, this.shell, (text) => setText(this.problem, text));
    this.shell.append(element("div", { class: "wbw" }, this.problem, this.empty, this.head, this.figures.node, this.form.node, this.inPlace.node));
  }

  draw() {
    const shown = this.model.get("shown");
    const said = this.model.get("said");
    const elsewhere = ["check", "start"].includes(said.of);
    this.problem.hidden = !said.bad || elsewhere;
    setText(this.problem, elsewhere ? "" : said.text);
    this.form.draw();
    const there = Boolean(shown.sweep);
    this.head.hidden = !there;
    this.empty.hidden = there;
    if (!there) this.form.node.setAttribute("open", "");
    this.figures.show(this.model.get("figures"));
    const key = JSON.stringify([shown, this.model.get("names"), this.sorted]);
    if (!there || key === this.drawn) return;
    this.drawn = key;
    this.drawHead(shown);
    this.drawTable(shown);
  }

  /** A sweep that is stopped ends all its trials: that is asked twice. */
  press() {
    if (this.verb === "stop" && !this.question.press("Stop the sweep")) return;
    this.model.send({ type: this.verb, sweep: this.pick.value });
  }

  namePower() {
    setText(this.power, this.verb === "stop" ? this.question.label("Stop the sweep") : "Resume");
  }

  /** @param {any} shown */
  drawHead(shown) {
    const names = this.model.get("names");
    this.pick.replaceChildren(...names.map((/** @type {any} */ name) => element("option", { value: name.name, title: name.varied }, name.name)));
    this.pick.value = shown.sweep;
    this.state.replaceChildren(badge(shown.state));
    this.best.hidden = !shown.best?.run;
    const verb = LIVE.includes(shown.state) ? "stop" : "resume";
    if (verb !== this.verb || shown.sweep !== this.drawnSweep) this.question.cancel(); // asked of what is no longer shown
    [this.verb, this.drawnSweep] = [verb, shown.sweep];
    this.namePower();
    this.power.classList.toggle("wb-stop", this.verb === "stop");
    this.power.hidden = shown.state !== "running" && !AGAIN.includes(shown.state);
    const early = known(shown.first_look) ? `; ${shown.stop} looks first at step ${count(shown.first_look)}` : "";
    setText(this.detail, `${shown.parameters}; ${shown.metric_text}, ${shown.direction} is better${early}${[""].concat(shown.notes ?? []).join(" ")}`);
    const now = shown.so_far;
    const ended = now.finished + now.pruned + now.failed;
    this.bar.style.width = `${(100 * ended) / shown.planned}%`;
    setAttribute(this.progress, "aria-valuenow", String(Math.round((100 * ended) / shown.planned)));
    const predicted = shown.predicted ?? {};
    const best = shown.best && `${number(shown.best.value)} (trial ${shown.best.number})`;
    const facts = [
      [`Best ${shown.metric_text}`, best ?? "n/a"],
      ["Trials done", `${count(ended)} of ${count(shown.planned)}`],
      ...(now.pruned || known(shown.first_look) ? [["Pruned", count(now.pruned)]] : []),
      ...(now.failed ? [["Failed", count(now.failed)]] : []),
      ["Running", count(now.running)],
      ["Waiting", count(now.waiting)],
      ...spent(now, predicted),
    ];
    this.facts.title = predictedTexts(predicted).join("\n");
    this.facts.replaceChildren(...facts.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text))));
    this.message.hidden = !shown.message || shown.state === "finished";
    setAttribute(this.message, "data-tone", shown.state === "failed" ? "bad" : "warn");
    setText(this.message, shown.message);
  }

  /** @param {any} shown */
  drawTable(shown) {
    const columns = [
      { title: "Trial", key: (/** @type {any} */ trial) => trial.number, text: (/** @type {any} */ trial) => count(trial.number) },
      { title: "State", key: (/** @type {any} */ trial) => trial.state, node: (/** @type {any} */ trial) => badge(trial.state), words: true },
      ...shown.names.map((/** @type {string} */ name) => ({
        title: [shown.metric_text, "Trial", "State", "Steps", "Ended early"].includes(name) ? `${name} (option)` : name,
        key: (/** @type {any} */ trial) => (known(Number(trial.values[name])) ? Number(trial.values[name]) : trial.values[name]),
        text: (/** @type {any} */ trial) => short(String(trial.values[name] ?? "n/a")),
      })),
      { title: shown.metric_text, key: (/** @type {any} */ trial) => trial.value, text: (/** @type {any} */ trial) => number(trial.value) },
      { title: "Steps", key: (/** @type {any} */ trial) => trial.steps, text: (/** @type {any} */ trial) => count(trial.steps) },
      { title: "Ended early", key: (/** @type {any} */ trial) => trial.pruned_at, text: ending, words: true, class: "wbw-why" },
    ];
    const rows = [...shown.trials];
    const by = columns.find((column) => column.title === this.sorted.name);
    const sign = this.sorted.down ? -1 : 1;
    if (by) rows.sort((one, other) => compareKnown(by.key(one), by.key(other), sign));
    const focus = this.table.contains(focusedElement()) ? focusedElement()?.getAttribute("aria-label") : null;
    const scrolled = this.table.querySelector(".wb-table-box")?.scrollTop ?? 0;
    const heads = columns.map((column) => this.sorter(column.title, Boolean(column.words)));
    const lines = rows.map((row) => this.line(row, columns, shown));
    this.table.replaceChildren(element("div", { class: "wb-table-box wb-tall", tabindex: "0", role: "region", "aria-label": "Trials" },
      element("table", { class: "wbw-trials" }, element("thead", {}, element("tr", {}, ...heads, element("td"))), element("tbody", {}, ...lines))));
    /** @type {HTMLElement} */ (this.table.firstChild).scrollTop = scrolled;
    if (focus) /** @type {HTMLElement|null} */ (this.table.querySelector(`[aria-label=${JSON.stringify(focus)}]`))?.focus();
  }

  /** @param {string} title @param {boolean} words */
  sorter(title, words) {
    const button = element("button", { type: "button", class: "wb-sort", "aria-label": `Sort by ${title}` }, title);
    const mine = this.sorted.name === title;
    button.addEventListener("click", () => {
      this.sorted = { name: title, down: mine && !this.sorted.down };
      this.draw();
    });
    const sort = !mine ? "none" : this.sorted.down ? "descending" : "ascending";
    return element("th", { scope: "col", class: words ? "wb-text" : "", "aria-sort": sort }, button);
  }

  /** @param {any} trial a trial @param {any[]} columns @param {any} shown */
  line(trial, columns, shown) {
    const cells = columns.map((column) => element("td", { class: [column.words ? "wb-text" : "", column.class ?? ""].join(" ").trim() }, column.node ? column.node(trial) : column.text(trial)));
    const open = element("button", { type: "button", class: "wb-button", "aria-label": `Open the run of trial ${trial.number}`, title: trial.run ?? "" }, "Open");
    if (!trial.run) open.setAttribute("disabled", "");
    open.addEventListener("click", () => this.openRun(trial.run));
    const best = String(shown.best?.number === trial.number);
    return element("tr", { "data-best": best, title: trial.why }, ...cells, element("td", {}, open));
  }

  /** @param {string} run */
  async openRun(run) {
    const said = await this.inPlace.open(run);
    this.problem.hidden = !said;
    setText(this.problem, said);
  }

  open() {
    this.root.append(this.shell);
    this.changed = () => this.draw();
    this.model.on("change", this.changed);
    this.unwatch = watchTheme(() => this.figures.draw());
    this.draw();
  }

  close() {
    this.model.off("change", this.changed);
    this.unwatch?.();
    this.figures.close();
    this.inPlace.close();
    this.shell.remove();
  }
}

export const mount = mounted(SweepPanel);
