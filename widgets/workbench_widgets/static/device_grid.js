// @ts-check
/** One tile per device of all machines; a pressed one shows its curves. */

import * as traces from "./device_traces.js";
import { MEASURES, SMALL_ABOVE, curvesOf, machines, memoryText, modelTexts, nameOf, placeOf, shade, usualMeasure, words } from "./devices.js";
import { element, makeButton, setAttribute, setText } from "./dom.js";
import { bytes, count, known, percent } from "./format.js";
import { addStyle } from "./grid_style.js";
import { Panel } from "./panel.js";

/** @typedef {import("./devices.js").Device} Device
 * @typedef {{button: HTMLElement, parts: HTMLElement[], key: string, device: Device}} Tile */

const TAIL_BYTES = 400_000; // of a machine's samples, for one device's curves
const CURVES_EVERY_MS = 5000;
const PROCESSES = 16; // rows
const DRAWN = /** @type {[string, Function][]} */ ([["Utilisation", traces.utilisation], ["Memory", traces.memory], ["Temperature", traces.temperature], ["Power", traces.power]]);

export class DeviceGrid {
  /** @param {(name: string, tailBytes: number) => Promise<string|null>} readTail of a file of the run */
  constructor(readTail) {
    addStyle();
    this.readTail = readTail;
    /** @type {Tile[]} */
    this.tiles = [];
    this.layout = "";
    this.chosenMeasure = "";
    this.open = -1; // the device whose curves are shown
    this.focused = 0;
    this.curves = /** @type {any} */ (null);
    this.askedAt = 0;
    this.title = element("h3", {}, "Devices");
    this.value = element("span", { class: "wb-panel-value" });
    this.select = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Colour of the tiles" }));
    this.select.addEventListener("change", () => {
      this.chosenMeasure = this.select.value;
      if (this.view) this.draw(this.view);
    });
    this.models = element("p", { class: "wb-note" });
    this.missing = element("p", { class: "wb-grid-missing", hidden: "" });
    this.odd = element("ul", { class: "wb-grid-odd", "aria-label": "Devices unlike their peers" });
    this.box = element("div", { class: "wb-nodes", role: "group", "aria-label": "Devices" });
    this.hint = element("p", { class: "wb-note wb-grid-hint" });
    this.panels = DRAWN.map(([name, draw]) => ({ panel: new Panel(name, { area: "own" }), draw }));
    this.ownTitle = element("h4", {}, "");
    this.ownClose = makeButton("Close", () => this.choose(-1));
    this.own = element("section", { class: "wb-own", "aria-label": "Curves of one device", hidden: "" },
      element("header", {}, this.ownTitle, this.ownClose),
      element("div", { class: "wb-own-charts" }, ...this.panels.map(({ panel }) => panel.node)));
    this.processes = element("div", { class: "wb-processes", hidden: "" });
    this.node = element("section", { class: "wb-panel wb-area-grid", "aria-label": "Devices", hidden: "" },
      element("header", {}, this.title, element("label", { class: "wb-slider" }, "Colour", this.select), this.value),
      this.models, this.missing, this.odd, this.box, this.hint, this.processes, this.own);
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.box.addEventListener("mouseover", (event) => this.hover(event.target));
    this.box.addEventListener("focusin", (event) => this.hover(event.target));
    this.box.addEventListener("click", (event) => {
      const at = this.placeIn(event.target);
      if (at >= 0) this.choose(at === this.open ? -1 : at);
    });
  }

  /** @param {any} view */
  draw(view) {
    this.view = view;
    const { grid } = view;
    this.node.hidden = !grid;
    if (!grid) return;
    const nodes = machines(grid);
    const all = nodes.flatMap(({ devices }) => devices);
    const cores = grid.kind === "core";
    setText(this.title, cores ? "Processor" : "GPUs");
    const where = nodes.length > 1 ? ` on ${count(nodes.length)} nodes` : "";
    const busy = all.map((device) => device.util).filter(known);
    const mean = busy.length ? busy.reduce((sum, util) => sum + util, 0) / busy.length : null;
    setText(this.value, `${percent(mean)} busy`);
    setText(this.models, modelTexts(grid).map((text) => text + where).join("; "));
    setText(this.missing, (grid.missing ?? []).join(" "));
    this.missing.hidden = !grid.missing?.length;
    this.drawMeasures(grid, cores);
    this.drawOdd(grid.outliers ?? []);
    this.drawTiles(nodes, all);
    this.drawProcesses(view);
    if (this.open >= all.length) this.choose(-1);
  }

  /** @param {any} grid @param {boolean} cores */
  drawMeasures(grid, cores) {
    const usual = usualMeasure(grid);
    const offered = MEASURES.filter(([name]) => (name === "deviation" ? usual === name : name === "util" || !cores));
    const key = offered.map(([name]) => name).join();
    if (this.select.dataset.key !== key) {
      this.select.dataset.key = key;
      this.select.replaceChildren(...offered.map(([value, text]) => element("option", { value }, text)));
    }
    this.measure = offered.some(([name]) => name === this.chosenMeasure) ? this.chosenMeasure : usual;
    this.select.value = this.measure;
    /** @type {HTMLElement} */ (this.select.parentElement).hidden = offered.length < 2;
  }

  /** @param {{at: number, text: string}[]} outliers */
  drawOdd(outliers) {
    const key = JSON.stringify(outliers);
    if (this.odd.dataset.key === key) return;
    this.odd.dataset.key = key;
    this.odd.hidden = outliers.length === 0;
    this.odd.replaceChildren(...outliers.map(({ at, text }) => {
      const button = makeButton(text, () => this.choose(at));
      return element("li", {}, button);
    }));
  }

  /** @param {import("./devices.js").Machine[]} nodes @param {Device[]} all */
  drawTiles(nodes, all) {
    const small = all.length > SMALL_ABOVE || (all[0]?.kind === "core" && all.length > 16);
    const size = small ? "small" : all.length > 16 || all[0]?.kind === "core" ? "middle" : "large";
    const layout = `${size} ${nodes.map(({ node, host, devices }) => `${node} ${host} ${devices.length}`).join()}`;
    if (layout !== this.layout) this.build(layout, size, nodes);
    for (const device of all) this.paint(this.tiles[device.at], device);
    const hinted = this.tiles[this.hinted ?? -1]?.device;
    setText(this.hint, hinted ? words(hinted) : size === "small" ? "Point at a device for its readings; press it for its curves." : "");
    this.hint.hidden = size !== "small" && !hinted;
  }

  /** @param {string} layout @param {string} size @param {import("./devices.js").Machine[]} nodes */
  build(layout, size, nodes) {
    this.layout = layout;
    this.box.dataset.size = size;
    this.box.dataset.kind = nodes[0]?.devices[0]?.kind ?? "";
    this.box.dataset.many = String(nodes.length > 1);
    this.tiles = [];
    this.focused = 0;
    this.box.replaceChildren(...nodes.map(({ node, host, devices }) => {
      const label = `Node ${node}${host ? `, ${host}` : ""}`;
      const tiles = devices.map((device) => this.tile(device, size));
      const title = element("span", { class: "wb-node-name", title: label }, size === "small" ? `node ${node}` : label);
      return element("div", { class: "wb-node", role: "group", "aria-label": label }, ...(nodes.length > 1 ? [title] : []), element("div", { class: "wb-tiles" }, ...tiles));
    }));
  }

  /** @param {Device} device @param {string} size */
  tile(device, size) {
    const parts = size === "small" ? [] : ["wb-tile-name", "wb-tile-use", "wb-tile-memory", "wb-tile-more", "wb-tile-slow"].map((name) => element("span", { class: name }));
    const button = element("button", { type: "button", class: "wb-tile", "data-at": String(device.at), tabindex: device.at === 0 ? "0" : "-1", "aria-pressed": "false" }, ...parts);
    this.tiles[device.at] = { button, parts, key: "", device: device };
    return button;
  }

  /** @param {Tile} tile @param {Device} device */
  paint(tile, device) {
    tile.device = device;
    const { tone, level } = shade(device, this.measure ?? "util");
    const said = words(device);
    const key = `${tone} ${level.toFixed(2)} ${said}`;
    if (tile.key === key) return;
    tile.key = key;
    setAttribute(tile.button, "data-tone", tone);
    tile.button.style.setProperty("--level", level.toFixed(2));
    setAttribute(tile.button, "aria-label", said);
    if (!tile.parts.length) return;
    const [name, use, memory, more, slow] = tile.parts;
    setText(name, nameOf(device));
    setText(use, percent(device.util));
    const large = this.box.dataset.size === "large";
    const core = device.kind === "core";
    setText(memory, core ? "" : large ? memoryText(device) : known(device.memory) ? bytes((device.memory / 100) * (device.model.memory_total_bytes ?? 0)) : "n/a");
    tile.button.style.setProperty("--full", `${known(device.memory) ? device.memory : 0}%`);
    const warm = known(device.temperature) ? `${Math.round(device.temperature)} °C` : "n/a";
    setText(more, core ? "" : large ? `${warm} · ${known(device.power) ? `${Math.round(device.power)} W` : "n/a W"}` : warm);
    setText(slow, device.throttle ?? "");
  }

  /** @param {EventTarget|null} target */
  placeIn(target) {
    const tile = target instanceof Element ? target.closest("[data-at]") : null;
    return tile instanceof HTMLElement ? Number(tile.dataset.at) : -1;
  }

  /** @param {EventTarget|null} target */
  hover(target) {
    const at = this.placeIn(target);
    if (at < 0) return;
    this.hinted = at;
    this.hint.hidden = false;
    setText(this.hint, words(this.tiles[at].device));
  }

  /** One stop of the Tab key; arrows move between tiles. @param {KeyboardEvent} event */
  key(event) {
    const at = this.placeIn(event.target);
    if (at < 0) return;
    const { node } = this.tiles[at].device;
    const row = this.tiles.filter((tile) => tile.device.node === node).length;
    const far = this.box.dataset.many === "true" ? row : 1;
    const moves = /** @type {Record<string, number>} */ ({ ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + far, ArrowUp: at - far, Home: 0, End: this.tiles.length - 1 });
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const place = Math.max(0, Math.min(this.tiles.length - 1, next));
    this.tiles[this.focused].button.tabIndex = -1;
    this.focused = place;
    this.tiles[place].button.tabIndex = 0;
    this.tiles[place].button.focus();
  }

  /** Shows the curves of one device. @param {number} at -1: of none */
  choose(at) {
    for (const tile of this.tiles) setAttribute(tile.button, "aria-pressed", String(tile.device.at === at));
    this.open = at;
    this.curves = null;
    this.askedAt = 0;
    this.own.hidden = at < 0 || this.view?.grid?.kind === "core";
    if (at >= 0 && this.again) this.again();
    if (at >= 0) this.own.scrollIntoView?.({ block: "nearest" });
  }

  /** @param {any} view @param {any} options @param {any} Plotly */
  drawCurves(view, options, Plotly) {
    const device = this.tiles[this.open]?.device;
    if (this.own.hidden || !device) return;
    const kept = (view.devices ?? []).find((/** @type {any} */ candidate) => (candidate.node ?? 0) === device.node && (candidate.index ?? -1) === device.index && (candidate.part ?? null) === device.part);
    const series = kept?.series ?? this.curves;
    if (!kept) this.ask(device);
    const whole = kept || !series ? "" : `, the last ${count(series.time.length)} samples`;
    setText(this.ownTitle, `${placeOf(device)}${device.model.name ? `, ${device.model.name}` : ""}${whole}`);
    const alone = { ...view, devices: series ? [{ id: nameOf(device), ...device.model, series }] : [], device_spread: {}, device: "cuda" };
    for (const { panel, draw } of this.panels) panel.draw(draw(alone, options), options.theme, Plotly);
  }

  /** Its machine's samples have what the view has no room for. @param {Device} device */
  async ask(device) {
    if (Date.now() - this.askedAt < CURVES_EVERY_MS) return;
    this.askedAt = Date.now();
    const name = device.node === 0 ? "system.jsonl" : `nodes/system-${device.node}.jsonl`;
    const text = await this.readTail(name, TAIL_BYTES);
    if (text === null || this.tiles[this.open]?.device.at !== device.at) return;
    this.curves = curvesOf(text, device.index, device.part);
    this.again?.();
  }

  /** The run's processes on a CPU run. @param {any} view */
  drawProcesses(view) {
    const all = view.host?.processes ?? [];
    this.processes.hidden = view.grid?.kind !== "core" || !all.length;
    if (this.processes.hidden) return;
    const rankOf = new Map((view.ranks ?? []).map((/** @type {any} */ rank) => [rank.pid, rank.rank]));
    const rows = all.slice(0, PROCESSES).map((/** @type {any} */ device) => [
      rankOf.has(device.pid) ? `rank ${rankOf.get(device.pid)}` : "helper process",
      String(device.pid),
      `${Math.round(device.cpu_percent)} % of a core`,
      bytes(device.rss_bytes),
    ]);
    if (all.length > PROCESSES) rows.push([`${count(all.length - PROCESSES)} more`, "", "", ""]);
    const key = JSON.stringify(rows);
    if (this.processes.dataset.key === key) return;
    this.processes.dataset.key = key;
    const heads = ["Process", "PID", "Processor", "Memory"].map((text) => element("th", { scope: "col" }, text));
    const body = rows.map((/** @type {string[]} */ row) => element("tr", {}, ...row.map((text) => element("td", {}, text))));
    this.processes.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body)));
  }

  /** @param {any} Plotly */
  close(Plotly) {
    for (const { panel } of this.panels) panel.close(Plotly);
  }
}
