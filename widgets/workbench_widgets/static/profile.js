// @ts-check
/** A run's profile: a bar per rank, the longest operators, the memory, and the trace files. */

import { element, makeButton, setAttribute, setText } from "./dom.js";
import { byteUnit, bytes, number, percent, shortSeconds } from "./format.js";
import { addRules, addStyle } from "./memory_style.js";
import { Panel } from "./panel.js";
import { fillBar } from "./stack.js";
import { readTheme, watchTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {Record<string, number>} Mean
 * @typedef {{rank: number, device: string, memory: [number, number][], mean: Mean, says: string}} Rank
 * @typedef {{steps: number[], folder: string, ranks: Rank[], sentences: string[], files: string[],
 *   place: string, operations: {name: string, calls: number, seconds: number}[]}} ProfileFigure */

const PARTS = [
  { key: "compute", name: "compute", series: 3, shade: "" },
  { key: "exposed", name: "exposed communication", series: 2, shade: "" },
  { key: "copies", name: "copies", series: 4, shade: "" },
  { key: "input", name: "input", series: 5, shade: "" },
  { key: "idle", name: "idle", series: 8, shade: "hatched" },
];
const RULES = `
.wb-root.wb-profile .wbf-rank { display: grid; grid-template-columns: 56px minmax(0, 1fr) 76px; gap: 8px; align-items: center; margin: 4px 0; }
.wb-root.wb-profile .wbm-bar { height: 26px; margin: 0; }
.wb-root.wb-profile .wbm-part { line-height: 26px; }
.wb-root.wb-profile .wbf-wall { text-align: right; font-variant-numeric: tabular-nums; }
.wb-root.wb-profile .wbf-legend i { width: 11px; height: 11px; padding: 0; border-radius: 2px; }
.wb-root.wb-profile .wb-panel + .wb-panel { margin-top: 10px; }
.wb-root.wb-profile td:first-child { overflow-wrap: anywhere; white-space: normal; text-align: left; }
.wb-root.wb-profile .wb-detail[data-tone="bad"] { color: var(--wb-bad); }
`;

/** @param {Mean} mean @param {number} longest */
export function segments(mean, longest) {
  return PARTS.filter(({ key }) => mean[key] > 0).map(({ key, name, series, shade }) => ({
    share: mean[key] / longest,
    style: `--part: var(--wb-series-${series})`,
    shade,
    says: `${name} ${shortSeconds(mean[key])} (${percent((100 * mean[key]) / mean.wall)})`,
    label: name,
  }));
}

class Face {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.context = context;
    this.Plotly = /** @type {any} */ (null);
    this.button = makeButton("", () => context.model?.send({ type: "profile" }));
    this.detail = element("p", { class: "wb-detail" });
    this.note = element("p", { class: "wb-detail", role: "status", "aria-live": "polite" });
    this.bars = element("div");
    this.legend = element("ul", { class: "wb-chips wbf-legend" }, ...PARTS.map(legend));
    this.waits = element("div");
    this.body = element("tbody");
    this.files = element("p", { class: "wb-detail" });
    this.memory = new Panel("Memory allocated", { empty: "Not traced: use memory=True" });
    this.time = section("Time of a step", this.bars, this.legend, this.waits, this.files);
    this.table = section("Longest operations", table(this.body));
    const title = element("div", { class: "wb-title" }, element("h2", {}, "Profile"), this.button);
    const header = element("div", { class: "wb-header" }, title, this.detail, this.note);
    this.shell = element("div", { class: "wb-root wb-profile", role: "group", "aria-label": "Profile of a run" }, header, this.time, this.table, this.memory.node);
    root.append(this.shell);
  }

  open() {
    addStyle();
    addRules("workbench-profile-style", RULES);
    this.redraw = () => this.draw();
    for (const name of ["profile", "status"]) this.context.model?.on(`change:${name}`, this.redraw);
    this.endTheme = watchTheme(this.redraw);
    this.resizing = new ResizeObserver(this.redraw);
    this.resizing.observe(this.shell);
    this.context.plotly().then((Plotly) => {
      this.Plotly = Plotly;
      this.draw();
    }, (error) => setText(this.note, String(error)));
  }

  draw() {
    const status = this.context.model?.get("status") ?? {};
    const profile = /** @type {ProfileFigure} */ (this.context.model?.get("profile") ?? {});
    setText(this.button, `Profile ${/** @type {any} */ (this.context.config).steps} steps`);
    this.button.hidden = !status.live;
    this.button.disabled = Boolean(status.busy);
    const none = status.live ? "No profile yet" : "No profile. Only a running run can be traced.";
    setText(this.note, status.text || (profile.ranks ? "" : none));
    setAttribute(this.note, "data-tone", status.bad ? "bad" : "note");
    for (const part of [this.time, this.table]) part.hidden = !profile.ranks?.length;
    this.memory.node.hidden = !profile.ranks?.some((rank) => rank.memory.length);
    setText(this.detail, [this.context.config.run, profile.steps && stepText(profile.steps)].filter(Boolean).join("  ·  "));
    if (!profile.ranks?.length) return;
    this.drawBars(profile);
    this.drawTable(profile);
    this.drawFiles(profile);
    if (!this.memory.node.hidden) this.memory.draw(memory(profile, readTheme(this.shell)), readTheme(this.shell), this.Plotly);
  }

  /** @param {ProfileFigure} profile */
  drawBars(profile) {
    const longest = Math.max(...profile.ranks.map((rank) => rank.mean.wall));
    this.bars.replaceChildren(
      ...profile.ranks.map((rank) => {
        const bar = element("div", { class: "wbm-bar", role: "img" });
        fillBar(bar, segments(rank.mean, longest));
        const wall = element("span", { class: "wbf-wall" }, shortSeconds(rank.mean.wall));
        wall.title = `All communication, hidden by computing or not: ${shortSeconds(rank.mean.communication)}`;
        return element("div", { class: "wbf-rank" }, element("span", {}, `Rank ${rank.rank}`), bar, wall);
      }),
    );
    const used = (/** @type {string} */ key) => profile.ranks.some((rank) => rank.mean[key] > 0);
    PARTS.forEach(({ key }, at) => (/** @type {HTMLElement} */ (this.legend.children[at]).hidden = !used(key)));
    this.waits.replaceChildren(...profile.sentences.map((text) => element("p", { class: "wb-detail" }, text)));
  }

  /** @param {ProfileFigure} profile */
  drawTable(profile) {
    const wall = profile.ranks.reduce((sum, rank) => sum + rank.mean.wall, 0) / profile.ranks.length;
    this.body.replaceChildren(
      ...profile.operations.map(({ name, calls, seconds }) => {
        const cells = [name, number(calls), shortSeconds(seconds), percent((100 * seconds) / wall)];
        return element("tr", {}, ...cells.map((text) => element("td", {}, text)));
      }),
    );
  }

  /** @param {ProfileFigure} profile */
  drawFiles(profile) {
    const path = this.context.config.run_path;
    const links = profile.files.map((name) => {
      const url = this.context.url(path && `${path}/profiles/${profile.folder}/${name}`);
      return url ? element("a", { href: url, download: name }, name) : name;
    });
    const spaced = links.flatMap((link) => [link, "  "]);
    this.files.replaceChildren("Open in ui.perfetto.dev: ", ...spaced);
    this.files.title = profile.place;
  }

  close() {
    for (const name of ["profile", "status"]) this.context.model?.off(`change:${name}`, this.redraw);
    this.endTheme?.();
    this.resizing?.disconnect();
    this.memory.close(this.Plotly);
    this.shell.remove();
  }
}

/** @param {{name: string, series: number, shade: string}} part */
function legend({ name, series, shade }) {
  const mark = element("i", { class: "wbm-part", style: `--part: var(--wb-series-${series})`, "data-shade": shade });
  return element("li", {}, mark, name);
}

/** @param {number[]} steps */
const stepText = (steps) => `steps ${steps[0]} to ${steps.at(-1)}, mean of a step`;

/** @param {string} title @param {HTMLElement[]} children */
function section(title, ...children) {
  return element("section", { class: "wb-panel", "aria-label": title }, element("header", {}, element("h3", {}, title)), ...children);
}

/** @param {HTMLElement} body */
function table(body) {
  const heads = ["Kernel or operator", "Calls a step", "Self time per step", "Share"].map((text) => element("th", { scope: "col" }, text));
  const all = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body);
  return element("div", { class: "wb-table-box wb-tall", tabindex: "0", role: "region", "aria-label": "Table of longest operations" }, all);
}

/** @param {ProfileFigure} profile @param {import("./theme.js").Theme} theme */
function memory(profile, theme) {
  const largest = Math.max(1, ...profile.ranks.flatMap((rank) => rank.memory.map(([, size]) => size)));
  const unit = byteUnit(largest);
  const color = (/** @type {number} */ at) => theme.series[at % theme.series.length];
  const host = profile.ranks.every((rank) => rank.device === "cpu");
  return {
    traces: profile.ranks.map((rank, at) => ({
      type: "scatter",
      mode: "lines",
      x: rank.memory.map(([time]) => time * 1000),
      y: rank.memory.map(([, size]) => size / unit.bytes),
      line: { color: color(at), width: 1.4, shape: "hv" },
      hovertemplate: `rank ${rank.rank} %{y:.4~g} ${unit.name}<extra></extra>`,
    })),
    chips: profile.ranks.map((rank, at) => ({ text: `rank ${rank.rank}`, color: color(at) })),
    value: `peak ${bytes(largest)}${host ? ", counted from the first traced step" : ""}`,
    label: `Memory allocated during the traced steps, at most ${bytes(largest)}`,
    layout: { xaxis: { ticksuffix: " ms" }, yaxis: { ticksuffix: ` ${unit.name}`, rangemode: "tozero" } },
  };
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const face = new Face(root, context);
  face.open();
  face.draw();
  return () => face.close();
}
