// @ts-check
/** The loss curves of two runs in one chart, over steps or over time. */

import { element } from "./dom.js";
import { number, plotText } from "./format.js";
import { Panel } from "./panel.js";
import { readTheme, watchTheme } from "./theme.js";
import { smooth } from "./traces.js";

/** @typedef {import("./loader.js").Context} Context */

const SMOOTHING = 0.6;
const REFRESH_MS = 3000;

export class Comparison {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.overTime = false;
    this.toggle = element("button", { type: "button", class: "wb-button", "aria-pressed": "false" }, "Over time");
    this.toggle.addEventListener("click", () => {
      this.overTime = !this.overTime;
      this.toggle.setAttribute("aria-pressed", String(this.overTime));
      this.draw();
    });
    this.panel = new Panel("Loss of two runs", { area: "loss", controls: [this.toggle], empty: "No loss recorded yet" });
    this.node = element("div", { class: "wb-comparison", hidden: "" }, this.panel.node);
    /** @type {any[]} */
    this.rows = [];
    /** @type {Map<string, any>} */
    this.views = new Map();
    this.endTheme = watchTheme(() => this.draw());
    this.resizing = new ResizeObserver(() => this.draw());
    this.resizing.observe(this.node);
    this.onMessage = (/** @type {any} */ message) => {
      if (message?.type !== "series") return;
      this.views.set(message.view.run, message.view);
      this.draw();
    };
    context.model?.on("msg:custom", this.onMessage);
  }

  /** @param {any[]} rows two rows of the table, or fewer to hide the chart */
  async show(rows) {
    this.rows = rows;
    this.node.hidden = rows.length !== 2;
    clearTimeout(this.timer);
    if (this.node.hidden) return;
    this.Plotly ??= await this.context.plotly();
    await this.refresh();
  }

  async refresh() {
    await Promise.all(this.rows.map((row) => this.load(row.run)));
    this.draw();
    clearTimeout(this.timer);
    if (this.rows.length === 2 && this.rows.some((row) => !row.outcome)) {
      this.timer = window.setTimeout(() => this.refresh(), REFRESH_MS);
    }
  }

  /** @param {string} run */
  async load(run) {
    const store = this.context.config.store_path;
    const url = store === null ? null : this.context.url(`${store}/${run}/view.json`.replace(/^\//, ""));
    try {
      if (!url) throw new Error("not served");
      const response = await fetch(url, { cache: "no-store" });
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
      this.views.set(run, await response.json());
    } catch {
      this.context.model?.send({ type: "series", run });
    }
  }

  draw() {
    if (this.node.hidden || !this.Plotly) return;
    const theme = readTheme(this.node);
    const views = this.rows.map((row) => this.views.get(row.run)).filter(Boolean);
    const traces = views.map((view, index) => this.trace(view, theme.series[index], theme.font));
    this.panel.draw(
      {
        traces,
        value: "",
        label: `Loss: ${views.map((view) => `${view.name} ${number(view.loss_last)}`).join(", ")}`,
        chips: views.map((view, index) => ({
          text: `${view.name}  ${number(view.loss_last)}`,
          color: theme.series[index],
        })),
        layout: { xaxis: { title: { text: this.overTime ? "seconds since the start" : "optimizer step" } } },
      },
      theme,
      this.Plotly,
    );
  }

  /** @param {any} view @param {string} color @param {string} family */
  trace(view, color, family) {
    const { step = [], time = [], loss = [] } = view.series ?? {};
    const x = this.overTime ? time.map((/** @type {number} */ at) => at - view.started_at) : step;
    const hovertemplate = `${plotText(view.name)} %{y:.4~g}<extra></extra>`;
    const line = { color, width: 2 };
    return { type: "scatter", mode: "lines", x, y: smooth(loss, SMOOTHING), line, hovertemplate, hoverlabel: { font: { family } } };
  }

  close() {
    clearTimeout(this.timer);
    this.endTheme();
    this.resizing.disconnect();
    this.context.model?.off("msg:custom", this.onMessage);
    this.panel.close(this.Plotly);
  }
}
