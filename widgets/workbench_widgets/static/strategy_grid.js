// @ts-check
/** One cell per rank: what it holds and reads; hover or focus shows whom it talks to, by axis. */

import { element, focusedElement, setAttribute, setText } from "./dom.js";

/** @typedef {{name: string, word: string, degree: number, stride: number, says: string}} Axis */
/** @typedef {{ranks: number, axes: Axis[], summary: string, colours: string, cells: string[],
 *   hues: number[], texts: string[]}} Ranks  see strategy_figure.py */

const HUES = 8; // series colours of the style sheet; beyond them they repeat, paler
const COLOURS = {
  stage: "Colour: pipeline stage.",
  shard: "Colour: shard of the states.",
  slice: "Colour: slice of each matrix.",
  copy: "Every rank holds a full copy.",
};

/** @param {Axis} axis @param {number} rank */
const place = ({ degree, stride }, rank) => Math.floor(rank / stride) % degree;

/** Ranks that differ from `rank` along the axis alone, itself among them.
 * @param {Axis} axis @param {number} rank */
const groupOf = (axis, rank) =>
  Array.from({ length: axis.degree }, (_, index) => rank + (index - place(axis, rank)) * axis.stride);

export class Grid {
  constructor() {
    this.stages = element("div", { class: "wbs-stages", role: "group", "aria-label": "Ranks" });
    this.legend = element("p", { class: "wb-note" });
    this.holds = element("p", { class: "wbs-holds" });
    this.reads = element("p", { class: "wb-note" });
    this.talks = element("ul", { class: "wbs-talks" });
    this.says = element("div", { class: "wbs-says", role: "status" }, this.holds, this.reads, this.talks);
    this.title = element("h3", {}, "Which rank holds what");
    this.node = element("section", { class: "wb-panel wbs-ranks", "aria-label": "Which rank holds what" }, element("header", {}, this.title, this.legend), element("div", { class: "wbs-pair" }, this.stages, this.says));
    this.cells = /** @type {HTMLElement[]} */ ([]);
    this.at = 0;
    this.drawn = "";
    this.stages.addEventListener("keydown", (event) => this.key(event));
    this.stages.addEventListener("mouseleave", () => this.show(this.at));
  }

  /** @param {Ranks} ranks */
  draw(ranks) {
    this.node.hidden = ranks.ranks === 0;
    const key = JSON.stringify(ranks);
    if (key === this.drawn || ranks.ranks === 0) return;
    this.drawn = key;
    this.ranks = ranks;
    this.at = Math.min(this.at, Math.max(0, ranks.cells.length - 1));
    const focused = this.cells.includes(/** @type {any} */ (focusedElement()));
    setText(this.legend, ranks.summary || COLOURS[/** @type {keyof typeof COLOURS} */ (ranks.colours)]);
    this.cells = ranks.cells.map((_, rank) => this.cell(rank));
    this.stages.hidden = ranks.cells.length === 0;
    this.stages.replaceChildren(...this.boxes());
    this.show(this.at);
    if (focused) this.cells[this.at]?.focus();
  }

  /** Ranks of one stage in a box; as wide as a replica where the model is split. */
  boxes() {
    const { cells, axes } = /** @type {Ranks} */ (this.ranks);
    const degree = (/** @type {string} */ word) => axes.find((axis) => axis.word === word)?.degree ?? 1;
    const [stages, inner] = [degree("pp"), degree("cp") * degree("tp")];
    const each = cells.length / stages;
    const columns = inner > 1 && inner <= 8 ? inner : Math.min(each, degree("fsdp") > 1 && degree("fsdp") <= 8 ? degree("fsdp") : 8);
    return Array.from({ length: cells.length ? stages : 0 }, (_, stage) => {
      const mine = this.cells.slice(stage * each, (stage + 1) * each);
      const title = stages > 1 ? `Stage ${stage + 1}: ${this.words(stage * each).holds[0]}` : "This host";
      const grid = element("div", { class: "wbs-cells", style: `--columns: ${columns}` }, ...mine);
      return element("div", { class: "wbs-stage", role: "group", "aria-label": title }, element("h4", {}, title), grid);
    });
  }

  /** @param {number} rank */
  cell(rank) {
    const { axes, hues } = /** @type {Ranks} */ (this.ranks);
    const at = axes.filter(({ word }) => word !== "pp").map((axis) => `${axis.word}\u00a0${place(axis, rank)}`);
    const shade = hues[rank] % (2 * HUES) >= HUES ? { "data-shade": "pale" } : {};
    const { holds, reads } = this.words(rank);
    const node = element(
      "button",
      {
        type: "button",
        class: "wbs-cell",
        style: `--part: var(--wb-series-${(hues[rank] % HUES) + 1})`,
        tabindex: rank === this.at ? "0" : "-1",
        "aria-label": `Rank ${rank} holds ${holds.join(" · ")}; reads ${reads.join(", ")}`,
        ...shade,
      },
      element("b", {}, String(rank)),
      element("span", {}, at.join(" ")),
    );
    node.addEventListener("mouseenter", () => this.show(rank));
    node.addEventListener("focus", () => this.choose(rank));
    return node;
  }

  /** What a rank holds and reads. @param {number} rank */
  words(rank) {
    const { cells, texts } = /** @type {Ranks} */ (this.ranks);
    const [holds, reads] = cells[rank].split("|").map((half) =>
      half.split(" ").map((part) => {
        const [at, number] = part.split(".");
        return texts[Number(at)].replace("#", number);
      }),
    );
    return { holds, reads };
  }

  /** @param {number} rank */
  choose(rank) {
    setAttribute(this.cells[this.at], "tabindex", "-1");
    setAttribute(this.cells[rank], "tabindex", "0");
    this.at = rank;
    this.show(rank);
  }

  /** What a rank holds, and whom it talks to. @param {number} rank */
  show(rank) {
    const { cells, axes } = /** @type {Ranks} */ (this.ranks);
    const drawn = rank < cells.length;
    const { holds, reads } = drawn ? this.words(rank) : { holds: [], reads: [] };
    setText(this.holds, drawn ? `Rank ${rank} holds ${holds.join(" · ")}.` : "");
    setText(this.reads, drawn ? `It reads ${reads.join(", ")}.` : "");
    const rows = axes.map((axis, at) => {
      const others = groupOf(axis, rank).filter((other) => other !== rank);
      const whom = drawn ? `${axis.name} with ${others.join(", ")}: ` : `${axis.name}: `;
      return element("li", { "data-axis": String(at) }, element("b", {}, whom), axis.says);
    });
    this.talks.replaceChildren(...rows);
    this.cells.forEach((node, other) => {
      const along = axes.findIndex((axis) => other !== rank && groupOf(axis, rank).includes(other));
      setAttribute(node, "data-axis", along < 0 ? "" : String(along));
      setAttribute(node, "data-shown", String(other === rank));
    });
  }

  /** Arrows go through the cells as they lie; Home and End to the first and the last.
   * @param {KeyboardEvent} event */
  key(event) {
    const columns = Number(getComputedStyle(this.cells[this.at].parentElement ?? this.stages).getPropertyValue("--columns")) || 1;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (step === undefined) return;
    event.preventDefault();
    this.cells[Math.max(0, Math.min(this.cells.length - 1, this.at + step))].focus();
  }
}
