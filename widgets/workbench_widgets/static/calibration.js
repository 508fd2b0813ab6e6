// @ts-check
/** Calibrate this host: the button, its progress, every figure beside the catalog's, what is slow. */

import { element, focusedElement, setAttribute, setText } from "./dom.js";
import { showFace } from "./face.js";
import { known } from "./format.js";
import { addRules } from "./memory_style.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{name: string, measured: string, catalog: string, ratio: string, share: number|null,
 *   compared: boolean, slow: boolean}} Row */

const CSS = `
.wb-calibration { gap: 8px; }
.wb-calibration progress { width: min(220px, 40%); accent-color: var(--wb-accent); }
.wb-root .wb-calibration .wb-table-box { overflow-x: auto; max-height: none; }
.wb-root .wb-calibrated { width: 100%; border-collapse: collapse; font-size: 12.5px; font-variant-numeric: tabular-nums; }
.wb-root .wb-calibrated :is(th, td) { padding: 3px 8px; text-align: right; white-space: nowrap; background: none; border: 0; border-bottom: 1px solid var(--wb-grid); }
.wb-root .wb-calibrated :is(th:first-child, td:nth-child(2)) { text-align: left; }
.wb-root .wb-calibrated tbody th { font-weight: 400; }
.wb-root .wb-calibrated thead th { color: var(--wb-muted); font-size: 11.5px; font-weight: 400; }
.wb-root .wb-calibrated td:nth-child(2) { width: 42%; min-width: 90px; }
.wb-calibrated-track { position: relative; height: 10px; border-radius: 2px; background: var(--wb-sunken); }
.wb-calibrated-bar { height: 100%; border-radius: 2px; background: var(--wb-accent); }
.wb-calibrated-usual { position: absolute; top: -2px; bottom: -2px; border-left: 2px solid var(--wb-ink); }
.wb-calibrated tr[data-slow="true"] .wb-calibrated-bar { background: var(--wb-bad); }
.wb-root .wb-calibrated tr[data-slow="true"] td:last-child { color: var(--wb-bad); font-weight: 600; }
.wb-root .wb-troubles { list-style: none; display: grid; gap: 6px; }
.wb-troubles li { padding: 6px 10px; border-left: 3px solid var(--wb-warn); border-radius: 4px; background: color-mix(in srgb, var(--wb-warn) 8%, transparent); overflow-wrap: anywhere; }
.wb-troubles strong { display: block; font-weight: 600; }
@container (max-width: 520px) {
  .wb-root .wb-calibrated :is(th, td):nth-child(2) { display: none; }
  .wb-root .wb-calibrated :is(th, td) { padding: 3px 4px; }
  .wb-root .wb-calibrated th:first-child { white-space: normal; }
}
`;
const COLUMNS = ["", "", "Measured", "Catalog", "Ratio"];
const LONGEST = 1.25; // of the catalog's figure: what the track shows at most

/** The bar of one figure; a line marks the catalog's. @param {Row} row */
function bar(row) {
  if (!known(row.share)) return "";
  const scale = row.compared ? LONGEST : 1;
  const fill = element("div", { class: "wb-calibrated-bar" });
  fill.style.width = `${Math.max(0.5, Math.min(100, (100 * row.share) / scale))}%`;
  const track = element("div", { class: "wb-calibrated-track", "aria-hidden": "true" }, fill);
  if (row.compared) {
    const usual = element("div", { class: "wb-calibrated-usual" });
    usual.style.left = `${100 / scale}%`;
    track.append(usual);
  }
  return track;
}

class Calibration {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.button = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button" }, "Calibrate this host"));
    this.cancel = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button", hidden: "" }, "Cancel"));
    this.button.addEventListener("click", () => model.send({ type: "calibrate" }));
    this.cancel.addEventListener("click", () => model.send({ type: "cancel" }));
    this.progress = /** @type {HTMLProgressElement} */ (element("progress", { max: "1", "aria-label": "Progress of the calibration", hidden: "" }));
    this.title = element("h3");
    this.when = element("p", { class: "wb-note" });
    this.says = element("p", { class: "wb-note", role: "status", "aria-live": "polite" });
    this.troubles = element("ul", { class: "wb-troubles", "aria-label": "What is slow" });
    this.stacks = element("ul", { class: "wb-note", "aria-label": "Measured runs that correct the next estimates" });
    this.body = element("tbody");
    const heads = COLUMNS.map((text) => element("th", { scope: "col" }, text));
    this.table = element("table", { class: "wb-calibrated" }, element("thead", {}, element("tr", {}, ...heads)), this.body);
    this.key = element("p", { class: "wb-note" });
    this.box = element("div", { class: "wb-table-box", tabindex: "0", role: "region", "aria-label": "Table of measurements" }, this.table);
    this.node = element(
      "section",
      { class: "wb-panel wb-calibration", "aria-label": "Calibration of this host" },
      element("header", {}, this.title, this.progress, this.cancel, this.button),
      this.when,
      this.says,
      this.troubles,
      this.box,
      this.key,
      this.stacks,
    );
  }

  draw() {
    const shown = this.model.get("shown");
    const running = shown.state === "running";
    const focused = [this.button, this.cancel].includes(/** @type {any} */ (focusedElement()));
    this.button.disabled = running;
    this.cancel.hidden = this.progress.hidden = !running;
    if (focused) (running ? this.cancel : this.button).focus();
    this.progress.value = shown.share;
    setText(this.title, shown.title);
    setText(this.when, shown.when);
    setText(this.says, running ? `Measuring: ${shown.says} …` : shown.says);
    setAttribute(this.says, "data-tone", shown.state === "failed" ? "bad" : "note");
    this.says.hidden = !shown.says;
    const stacks = /** @type {string[]} */ (this.model.get("stacks"));
    this.stacks.hidden = stacks.length === 0;
    const same = JSON.stringify([shown.rows, shown.troubles, stacks]);
    if (same === this.drawn) return;
    this.drawn = same;
    this.stacks.replaceChildren(...stacks.map((text) => element("li", {}, text)));
    this.drawResult(shown);
  }

  /** @param {{rows: Row[], troubles: {what: string, next: string}[], compared: boolean}} shown */
  drawResult(shown) {
    this.box.hidden = this.key.hidden = shown.rows.length === 0;
    this.body.replaceChildren(...shown.rows.map((row) => this.row(row)));
    this.troubles.hidden = shown.troubles.length === 0;
    this.troubles.replaceChildren(
      ...shown.troubles.map(({ what, next }) => element("li", {}, element("strong", {}, what), next)),
    );
    const usual = "Bars: measured; line: typical of the catalog's part.";
    const relative = "Bars: each figure over the best of its kind. The catalog has no CPUs to compare with.";
    setText(this.key, shown.compared ? usual : relative);
  }

  /** @param {Row} row */
  row(row) {
    return element(
      "tr",
      { "data-slow": String(row.slow) },
      element("th", { scope: "row" }, row.name),
      element("td", {}, bar(row)),
      element("td", {}, row.measured),
      element("td", {}, row.catalog),
      element("td", {}, row.slow ? `${row.ratio} slow` : row.ratio),
    );
  }
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  addRules("workbench-calibration-style", CSS);
  const face = new Calibration(context.model);
  const shell = element("div", { class: "wb-root", role: "group", "aria-label": "Calibration" }, face.node);
  return showFace(root, shell, context.model, ["change:shown", "change:stacks"], () => face.draw());
}
