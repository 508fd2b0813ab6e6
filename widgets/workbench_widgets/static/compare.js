// @ts-check
/** The loss curves of ticked runs, read from their views: it works while the kernel is busy or gone. */

import { element } from "./dom.js";
import { Overlay } from "./overlay.js";
import { withNames } from "./run_words.js";
import { secondsOf, tokensOf, usdOf } from "./scales.js";

/** @typedef {import("./loader.js").Context} Context */

const REFRESH_MS = 3000;

/** The curve of a view. @param {any} view @returns {import("./overlay.js").Curve} */
export function curveOf(view) {
  const { step = [], loss = [] } = view.series ?? {};
  const seconds = secondsOf(view);
  const tokens = tokensOf(view).map((sum) => (sum === null ? null : Math.round(sum)));
  const usd = seconds.map((/** @type {any} */ at) => usdOf(view, at));
  return { run: view.run, name: view.name || view.run, step, tokens, seconds, usd, loss };
}

/** Curves under what their runs are called. @param {import("./overlay.js").Curve[]} curves */
export const toldApart = (curves) => withNames(curves).map(({ called, ...curve }) => ({ ...curve, name: called }));

export class Comparison {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.overlay = new Overlay(context, { title: "Loss of the selected runs", empty: "No loss recorded yet" });
    this.node = element("div", { class: "wb-comparison", hidden: "" }, this.overlay.node);
    /** @type {any[]} */
    this.rows = [];
    /** @type {Map<string, any>} */
    this.views = new Map();
    /** @type {Set<string>} */
    this.unserved = new Set();
    this.onMessage = (/** @type {any} */ message) => {
      if (message?.type !== "series") return;
      this.views.set(message.view.run, message.view);
      this.draw();
    };
    context.model?.on("msg:custom", this.onMessage);
  }

  /** @param {any[]} rows two or more rows of the table, or fewer to hide the chart */
  async show(rows) {
    this.rows = rows;
    this.node.hidden = rows.length < 2;
    clearTimeout(this.timer);
    if (!this.node.hidden) await this.refresh();
  }

  async refresh() {
    await Promise.all(this.rows.map((row) => this.load(row.run)));
    this.draw();
    clearTimeout(this.timer);
    if (this.rows.length >= 2 && this.rows.some((row) => !row.outcome)) {
      this.timer = window.setTimeout(() => this.refresh(), REFRESH_MS);
    }
  }

  /** @param {string} run */
  async load(run) {
    const store = this.context.config.store_path;
    const url = store === null ? null : this.context.url(`${store}/${run}/view.json`.replace(/^\//, ""));
    try {
      if (!url || this.unserved.has(run)) throw new Error("not served");
      const response = await fetch(url, { cache: "no-store" });
      if (!response.ok) {
        this.unserved.add(run); // asked for once: each time is a red line in the browser's console
        throw new Error(`HTTP ${response.status}`);
      }
      this.views.set(run, await response.json());
    } catch {
      this.context.model?.send({ type: "series", run });
    }
  }

  draw() {
    if (this.node.hidden) return;
    this.overlay.draw(toldApart(this.rows.map((row) => this.views.get(row.run)).filter(Boolean).map(curveOf)));
  }

  close() {
    this.rows = []; // a look that is under way is the last one
    clearTimeout(this.timer);
    this.context.model?.off("msg:custom", this.onMessage);
    this.overlay.close();
  }
}
