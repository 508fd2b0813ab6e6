// @ts-check
/** The three numbers, the stacked bar of the fullest GPU with its capacities, and the legend. */

import { element, setAttribute, setText } from "./dom.js";
import { bytes, byteUnit } from "./format.js";
import { fillBar } from "./stack.js";

/** @typedef {{name: string, bytes: number}} Part */

/** What each part looks like: one hue per family, a paler or hatched one for its relatives. */
const LOOKS = new Map([
  ["parameters", ["1", ""]],
  ["master copy", ["1", "pale"]],
  ["optimizer states", ["4", ""]],
  ["optimizer step", ["4", "pale"]],
  ["gradients", ["2", ""]],
  ["activations: blocks", ["3", ""]],
  ["activations", ["3", ""]],
  ["activations: outside", ["3", "pale"]],
  ["logits and loss", ["5", ""]],
  ["communication buffers", ["6", ""]],
  ["unsharded parameters", ["6", ""]],
  ["dequantisation", ["7", ""]],
  ["temporaries", ["7", ""]],
  ["inputs", ["7", "pale"]],
  ["allocator slack", ["8", "hatched"]],
  ["framework context", ["8", "pale"]],
  ["communication library", ["8", ""]],
]);

const NUMBERS = [
  { key: "allocated", name: "Allocated", says: "PyTorch's tensors", title: "torch.cuda.max_memory_allocated()" },
  { key: "reserved", name: "Reserved", says: "with the allocator's cache", title: "torch.cuda.max_memory_reserved()" },
  { key: "on_card", name: "On the card", says: "as nvidia-smi shows it", title: "with CUDA context and NCCL" },
];

/** @param {string} name */
export function look(name) {
  const [series, shade] = LOOKS.get(name) ?? ["7", "pale"];
  return { style: `--part: var(--wb-series-${series})`, shade };
}

/** @param {number} value @param {number} whole */
const percent = (value, whole) => `${((100 * value) / whole).toFixed(3)}%`;

/** @param {HTMLElement} bar @param {Part[]} parts @param {number} whole @param {boolean} [labelled] */
export function stack(bar, parts, whole, labelled = false) {
  const segments = parts.map((part) => ({
    ...look(part.name),
    share: Math.max(0, part.bytes) / whole, // a calibration may take bytes away
    says: `${part.name} ${bytes(part.bytes)}`,
    label: labelled ? part.name : "",
  }));
  fillBar(bar, segments);
}

/** Round places on an axis from 0 to `whole`. @param {number} whole */
function ticks(whole) {
  const unit = byteUnit(whole);
  const top = whole / unit.bytes;
  const power = 10 ** Math.floor(Math.log10(top / 4));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((factor) => top / factor <= 6) ?? top;
  const places = [];
  for (let value = 0; value <= top * 0.93; value += step) places.push(value);
  return places.map((value) => ({ at: value * unit.bytes, text: `${Number(value.toPrecision(3))} ${unit.name}` }));
}

export class Bars {
  constructor() {
    this.values = NUMBERS.map(() => element("dd"));
    const numbers = NUMBERS.map(({ name, says: verdict, title }, at) =>
      element("div", { title }, element("dt", {}, name), this.values[at], element("dd", { class: "wbm-says" }, verdict)),
    );
    this.bar = element("div", { class: "wbm-bar", role: "img" });
    this.lines = element("div", { class: "wbm-lines", "aria-hidden": "true" });
    this.axis = element("div", { class: "wbm-axis", "aria-hidden": "true" });
    this.cards = element("ul", { class: "wbm-cards", "aria-label": "Whether it fits" });
    this.legend = element("tbody");
    const table = element(
      "table",
      { class: "wbm-legend" },
      element("caption", {}, "Parts at the peak; grey: outside PyTorch's tensors"),
      this.legend,
    );
    this.node = element(
      "section",
      { class: "wb-panel wbm-main", "aria-label": "Memory of the fullest GPU" },
      element("dl", { class: "wbm-numbers" }, ...numbers),
      element("div", { class: "wbm-chart" }, this.lines, this.bar, this.axis, this.cards),
      table,
    );
  }

  /** @param {any} figure */
  draw(figure) {
    NUMBERS.forEach(({ key }, at) => setText(this.values[at], bytes(figure[key])));
    const capacities = figure.cards.map((/** @type {any} */ card) => card.bytes);
    const whole = 1.02 * Math.max(figure.on_card, ...capacities);
    stack(this.bar, figure.parts, whole, true);
    this.drawAxis(whole);
    this.drawCards(figure.cards, whole);
    this.drawLegend(figure.parts, figure.on_card);
  }

  /** @param {number} whole */
  drawAxis(whole) {
    const nodes = ticks(whole).map(({ at, text }) => {
      const node = element("span", {}, text);
      node.style.left = percent(at, whole);
      return node;
    });
    this.axis.replaceChildren(...nodes);
  }

  /** @param {any[]} cards @param {number} whole */
  drawCards(cards, whole) {
    this.lines.replaceChildren(
      ...cards.map((card) => {
        const line = element("span", { "data-fits": String(card.fits) });
        line.style.left = percent(card.bytes, whole);
        return line;
      }),
    );
    this.cards.replaceChildren(
      ...cards.map((card) => {
        const filled = element("span", { class: "wbm-reach", "aria-hidden": "true" });
        filled.style.width = percent(card.bytes, whole);
        const doubt = card.unverified
          ? [element("span", { class: "wbm-doubt", title: "Not confirmed by a second source or a measurement" }, "unverified")]
          : [];
        const verdict = element("span", { class: "wbm-verdict" }, `${card.fits ? "✓" : "✗"} ${card.says}`);
        return element(
          "li",
          { "data-fits": String(card.fits) },
          filled,
          element("span", { class: "wbm-card" }, element("b", {}, card.name), ` ${bytes(card.bytes)} `, ...doubt),
          verdict,
        );
      }),
    );
  }

  /** @param {Part[]} parts @param {number} total */
  drawLegend(parts, total) {
    while (this.legend.children.length > parts.length) this.legend.lastElementChild?.remove();
    parts.forEach((part, at) => {
      let row = /** @type {HTMLElement} */ (this.legend.children[at]);
      if (!row) {
        const swatch = element("i", { class: "wbm-part wbm-swatch" });
        row = element("tr", {}, element("th", { scope: "row" }, swatch, element("span")), element("td"), element("td"));
        this.legend.append(row);
      }
      const { style, shade } = look(part.name);
      const [swatch, name] = /** @type {any} */ (row.firstElementChild).children;
      setAttribute(swatch, "style", style);
      setAttribute(swatch, "data-shade", shade);
      setText(name, part.name);
      setText(/** @type {HTMLElement} */ (row.children[1]), bytes(part.bytes));
      setText(/** @type {HTMLElement} */ (row.children[2]), `${((100 * part.bytes) / total).toFixed(part.bytes < 0.1 * total ? 1 : 0)} %`);
    });
  }
}
