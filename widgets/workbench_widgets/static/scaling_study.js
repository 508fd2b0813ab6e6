// @ts-check
/** A scaling study: what to run, Start and Stop, each size as it is measured, and the curve. */

import { element, setAttribute, setText } from "./dom.js";
import { count, known } from "./format.js";
import { addRules } from "./memory_style.js";
import { Panel } from "./panel.js";
import { fade, readTheme, watchTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{ranks: number, measured: boolean, step: string, range: string, efficiency: number,
 *   least: number|null, most: number|null, lost: Record<string, number>}} Point
 * @typedef {{mode: string, points: Point[]}} Curve */

const ID = "workbench-scaling-style";
const STYLE = `
.wbs-fields { display: grid; grid-template-columns: repeat(auto-fit, minmax(132px, 1fr)); gap: 8px 12px; align-items: end; }
.wbs-fields label { display: flex; flex-direction: column; gap: 2px; font-size: 12px; color: var(--wb-muted); }
.wbs-fields .wbs-wide { grid-column: span 2; }
.wbs-fields :is(input, select) { width: 100%; height: 32px; padding: 0 8px; font: inherit; color: var(--wb-ink); background: var(--wb-surface); border: 1px solid var(--wb-border); border-radius: 4px; }
.wbs-buttons { display: flex; flex-wrap: wrap; gap: 8px; align-items: center; margin: 10px 0 2px; }
.wbs-buttons progress { flex: 1 1 120px; min-width: 80px; height: 8px; }
.wbs-area { display: grid; gap: 8px; margin: 8px 0; }
.wbs-area .wb-plot-box { min-height: 270px; }
.wbs-table td[data-kind="predicted"] { color: var(--wb-warn); }
@container (max-width: 520px) { .wbs-fields .wbs-wide { grid-column: span 1; } .wbs-hides { display: none; } }
`;
const FIELDS = [
  { name: "target", label: "Recipe or script", wide: true },
  { name: "arguments", label: "Arguments", wide: true },
  { name: "strategy", label: "Strategy" },
  { name: "sizes", label: "Ranks" },
  { name: "mode", label: "Scaling", listed: "modes" },
  { name: "to", label: "Extrapolate to" },
  { name: "steps", label: "Steps of each run" },
];
const CAUSES = ["compute", "exchange", "slowest rank", "data"];

/** @param {unknown} share */
const percent = (share) => (known(share) ? `${(100 * share).toFixed(0)} %` : "n/a");

/** @param {Curve} curve @param {import("./theme.js").Theme} theme @param {string} where */
export function drawing(curve, theme, where) {
  const x = curve.points.map((point) => count(point.ranks));
  const hovers = curve.points.map((point) => `${point.measured ? "measured" : "predicted"}: ${point.step} (${point.range})`);
  const bars = CAUSES.map((name, index) => ({
    type: "bar",
    name,
    x,
    y: curve.points.map((point) => 100 * (point.lost[name] ?? 0)),
    marker: { color: theme.series[index + 1], opacity: curve.points.map((point) => (point.measured ? 1 : 0.55)) },
    hovertemplate: `lost to ${name}: %{y:.1f} %<extra></extra>`,
  }));
  const kept = {
    type: "bar",
    name: "kept",
    x,
    y: curve.points.map((point) => 100 * point.efficiency),
    marker: { color: theme.series[0], opacity: curve.points.map((point) => (point.measured ? 1 : 0.55)) },
    error_y: {
      type: "data",
      symmetric: false,
      array: curve.points.map((point) => (point.measured ? 0 : 100 * ((point.most ?? point.efficiency) - point.efficiency))),
      arrayminus: curve.points.map((point) => (point.measured ? 0 : 100 * (point.efficiency - (point.least ?? point.efficiency)))),
      color: theme.ink,
      thickness: 1.4,
    },
    hovertext: hovers,
    hovertemplate: "kept: %{y:.1f} %<br>%{hovertext}<extra></extra>",
  };
  const last = curve.points[curve.points.length - 1];
  const names = ["kept", ...CAUSES];
  return {
    value: last ? `${percent(last.efficiency)} on ${count(last.ranks)} ${where}` : "",
    label: `Efficiency by ${where}: ${curve.points.map((point) => `${point.ranks}: ${percent(point.efficiency)}`).join(", ")}`,
    chips: names.map((text, index) => ({ text, color: theme.series[index] })),
    traces: [kept, ...bars],
    layout: {
      barmode: "relative",
      bargap: 0.35,
      xaxis: { type: "category", title: { text: `${where} (paler: predicted, with range)` } },
      yaxis: { ticksuffix: " %", gridcolor: fade(theme.muted, 0.2) },
    },
  };
}

class Study {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.context = context;
    this.model = /** @type {any} */ (context.model);
    this.form = this.makeForm();
    this.go = element("button", { type: "button", class: "wb-button" }, "Start");
    this.halt = element("button", { type: "button", class: "wb-button wb-stop" }, "Stop");
    this.bar = /** @type {HTMLProgressElement} */ (element("progress", { "aria-label": "Completed runs" }));
    this.note = element("p", { class: "wb-note", role: "status", "aria-live": "polite" });
    this.body = element("tbody");
    this.more = element("ul", { class: "wb-note" });
    this.table = this.makeTable();
    /** @type {Map<string, Panel>} */
    this.panels = new Map();
    this.figures = element("div", { class: "wbs-area" });
    const buttons = element("div", { class: "wbs-buttons" }, this.go, this.halt, this.bar);
    addRules(ID, STYLE);
    const head = element("header", {}, element("h3", {}, "Scaling study"));
    const ask = element("section", { class: "wb-panel", "aria-label": "Study settings" }, head, this.form, buttons, this.note);
    this.shell = element("div", { class: "wb-root", role: "group", "aria-label": "Scaling study" }, ask, this.figures, this.table, this.more);
    root.append(this.shell);
    this.go.addEventListener("click", () => this.model.send({ type: "start", fields: this.values() }));
    this.halt.addEventListener("click", () => this.model.send({ type: "stop" }));
    this.changed = () => this.draw();
    this.model.on("change:state", this.changed);
    this.unwatch = watchTheme(() => this.draw());
    this.watcher = new ResizeObserver(() => this.drawFigures());
    this.watcher.observe(this.shell);
    this.Plotly = null;
    this.draw();
  }

  makeForm() {
    const values = this.model.get("fields");
    /** @type {Record<string, HTMLInputElement|HTMLSelectElement>} */
    this.inputs = {};
    const config = /** @type {any} */ (this.context.config);
    const labels = FIELDS.map(({ name, label, wide, listed }) => {
      const choices = listed ? config[listed] : null;
      const tag = choices ? "select" : "input";
      const input = /** @type {HTMLInputElement} */ (element(tag, { "data-field": name }));
      for (const choice of choices ?? []) input.append(element("option", { value: choice }, choice));
      input.value = String(values[name] ?? "");
      this.inputs[name] = input;
      return element("label", wide ? { class: "wbs-wide" } : {}, label, input);
    });
    const list = element("datalist", { id: `wbs-${config.instance}` });
    for (const name of config.recipes ?? []) list.append(element("option", { value: name }));
    this.inputs.target.setAttribute("list", list.id);
    return element("div", { class: "wbs-fields" }, ...labels, list);
  }

  makeTable() {
    const heads = ["Scaling", "Ranks", "Step", "Range", "Kept", ...CAUSES.map((cause) => `Lost: ${cause}`), ""];
    const row = heads.map((text, at) => element("th", { scope: "col", ...(at === 3 && { class: "wbs-hides" }) }, text));
    const table = element("table", { class: "wb-runs wbs-table" }, element("thead", {}, element("tr", {}, ...row)), this.body);
    const box = { class: "wb-table-box wb-tall", tabindex: "0", role: "region", "aria-label": "Table of sizes" };
    return element("section", { class: "wb-panel", "aria-label": "Sizes" }, element("div", box, table));
  }

  values() {
    return Object.fromEntries(Object.entries(this.inputs ?? {}).map(([name, input]) => [name, input.value]));
  }

  draw() {
    const state = this.model.get("state");
    /** @type {HTMLButtonElement} */ (this.go).disabled = state.busy;
    this.halt.hidden = this.bar.hidden = !state.busy;
    if (known(state.of)) {
      this.bar.max = state.of;
      this.bar.value = state.done;
    } else this.bar.removeAttribute("value");
    setAttribute(this.note, "data-tone", state.bad ? "bad" : "note");
    setText(this.note, state.now || state.note);
    this.drawTable(state.curves);
    this.more.replaceChildren(...state.notes.map((/** @type {string} */ note) => element("li", {}, note)));
    this.drawFigures();
  }

  /** @param {Curve[]} curves */
  drawTable(curves) {
    this.table.hidden = curves.length === 0;
    const rows = curves.flatMap(({ mode, points }) =>
      points.map((point) => {
        const kind = point.measured ? "measured" : "predicted";
        const cells = [mode, count(point.ranks), point.step, point.range, percent(point.efficiency)];
        const lost = CAUSES.map((name) => percent(point.lost[name]));
        const made = [...cells, ...lost].map((text, at) => element("td", at === 3 ? { class: "wbs-hides" } : {}, text));
        return element("tr", {}, ...made, element("td", { "data-kind": kind }, kind));
      }),
    );
    this.body.replaceChildren(...rows);
  }

  drawFigures() {
    const { curves, where } = this.model.get("state");
    if (curves.length && !this.Plotly) {
      this.context.plotly().then((Plotly) => {
        this.Plotly = Plotly;
        this.drawFigures();
      }, (error) => setText(this.note, String(error)));
    }
    const modes = curves.map((/** @type {Curve} */ curve) => curve.mode);
    for (const [mode, panel] of this.panels) if (!modes.includes(mode)) this.drop(mode, panel);
    for (const curve of curves) {
      const panel = this.panels.get(curve.mode) ?? this.add(curve.mode);
      panel.draw(drawing(curve, readTheme(this.shell), where ?? "ranks"), readTheme(this.shell), this.Plotly);
    }
  }

  /** @param {string} mode */
  add(mode) {
    const panel = new Panel(mode === "weak" ? "Weak scaling: the same work per rank" : "Strong scaling: the same work in all");
    this.panels.set(mode, panel);
    this.figures.append(panel.node);
    return panel;
  }

  /** @param {string} mode @param {Panel} panel */
  drop(mode, panel) {
    panel.close(this.Plotly);
    panel.node.remove();
    this.panels.delete(mode);
  }

  close() {
    this.model.off("change:state", this.changed);
    this.unwatch();
    this.watcher.disconnect();
    for (const [mode, panel] of this.panels) this.drop(mode, panel);
    this.shell.remove();
  }
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const study = new Study(root, context);
  return () => study.close();
}
