// @ts-check
/** Rank heat map: every rank in the latest steps, coloured by lateness, step time or loss. */

import { decode } from "./coded.js";
import { element, focusedElement, setAttribute, setText } from "./dom.js";
import { count, known, number, shortSeconds } from "./format.js";
import { addStyle } from "./grid_style.js";

/** @typedef {{ranks: number, each: number, steps: number[], across: boolean, bands: number, perBand: number,
 *   width: number, height: number, cellWidth: number, cellHeight: number}} Plan
 * @typedef {{rank: number, step: number}} Cell both are places, not numbers */

const MEASURES = /** @type {[string, string][]} */ ([["late", "Lateness"], ["seconds", "Step time"], ["loss", "Loss"]]);
const ROWS_MAX = 16; // up to so many ranks each has a row; of more the ranks run across, in bands
const CELL_MIN = 9; // pixels a rank takes in a band, so that it can be pressed
const LEFT = 46; // for labels
const BAND_GAP = 14;
const IN_SIGHT = 430; // pixels that all bands take together, where cells of 4 pixels allow it

/** Where each cell lies. @param {any} map the view's rank_grid @param {number} width in pixels @returns {Plan} */
export function plan(map, width) {
  const steps = map.step ?? [];
  const ranks = Math.ceil(map.ranks / map.each);
  const room = Math.max(60, width - LEFT);
  const across = ranks > ROWS_MAX;
  if (!across) {
    const cellHeight = ranks <= 4 ? 26 : 18;
    return { ranks, each: map.each, steps, across, bands: 1, perBand: ranks, width, cellWidth: room / Math.max(1, steps.length), cellHeight, height: ranks * cellHeight + BAND_GAP };
  }
  const fit = Math.max(8, Math.floor(room / CELL_MIN));
  const bands = Math.ceil(ranks / fit);
  const perBand = Math.ceil(ranks / bands);
  const cellHeight = Math.max(4, Math.min(12, Math.floor(96 / steps.length), Math.floor((IN_SIGHT / bands - BAND_GAP) / steps.length)));
  return { ranks, each: map.each, steps, across, bands, perBand, width, cellWidth: room / perBand, cellHeight, height: bands * (steps.length * cellHeight + BAND_GAP) };
}

/** Left and upper edge of a cell. @param {Plan} on @param {Cell} cell */
export function corner(on, { rank, step }) {
  if (!on.across) return { x: LEFT + step * on.cellWidth, y: rank * on.cellHeight };
  const band = Math.floor(rank / on.perBand);
  return { x: LEFT + (rank % on.perBand) * on.cellWidth, y: band * (on.steps.length * on.cellHeight + BAND_GAP) + step * on.cellHeight };
}

/** The cell at a point, or null beside them. @param {Plan} on @param {number} x @param {number} y @returns {Cell|null} */
export function cellAt(on, x, y) {
  const column = Math.floor((x - LEFT) / on.cellWidth);
  if (column < 0) return null;
  if (!on.across) {
    const rank = Math.floor(y / on.cellHeight);
    return rank < on.ranks && column < on.steps.length ? { rank, step: column } : null;
  }
  const tall = on.steps.length * on.cellHeight + BAND_GAP;
  const [rank, step] = [Math.floor(y / tall) * on.perBand + column, Math.floor((y % tall) / on.cellHeight)];
  return column < on.perBand && rank < on.ranks && step < on.steps.length ? { rank, step } : null;
}

/** A cell's numbers in words. @param {any} map @param {Cell} cell */
export function words(map, { rank, step }) {
  const first = rank * map.each;
  const last = Math.min(map.ranks, first + map.each) - 1;
  const who = map.each === 1 ? `rank ${first}` : `ranks ${first} to ${last}, the highest`;
  const [late, seconds, loss] = ["late", "seconds", "loss"].map((name) => decode(map.measures?.[name], rank, step));
  const begun = step >= map.step.length - (map.pending ?? 0) ? ", under way" : "";
  const head = `Step ${count(map.step[step])}${begun}, ${who}`;
  if (late === null && seconds === null && loss === null) return `${head}: has not reported it`;
  const about = (map.measures?.late?.digits ?? 2) === 1 ? "about " : "";
  const lossText = loss !== null && Number.isNaN(loss) ? "NaN or infinite" : number(loss);
  return `${head}: ${known(late) ? `${about}${shortSeconds(Math.max(0, late))} late` : "lateness n/a"}, step time ${shortSeconds(seconds)}, loss ${lossText}`;
}

/** The rank that is late most over the steps shown. @param {any} map */
export function latest(map) {
  const late = map.measures?.late;
  let worst = { rank: 0, seconds: -1 };
  for (let rank = 0; rank < Math.ceil(map.ranks / map.each); rank += 1) {
    const all = map.step.map((/** @type {any} */ _, /** @type {number} */ at) => decode(late, rank, at)).filter(known).sort((/** @type {number} */ one, /** @type {number} */ two) => one - two);
    const middle = all[Math.floor(all.length / 2)];
    if (known(middle) && middle > worst.seconds) worst = { rank: rank * map.each, seconds: middle };
  }
  return worst.seconds >= 0 ? worst : null;
}

export class RankMap {
  /** @param {(rank: number) => void} openLog */
  constructor(openLog) {
    addStyle();
    this.openLog = openLog;
    this.cell = /** @type {Cell} */ ({ rank: 0, step: 0 });
    this.select = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "What the rank heat map shows" }, ...MEASURES.map(([value, text]) => element("option", { value }, text))));
    this.select.addEventListener("change", () => this.paint());
    this.value = element("span", { class: "wb-panel-value" });
    this.canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "wb-map", tabindex: "0", role: "application", "aria-label": "Rank heat map" }));
    this.said = element("p", { class: "wb-note wb-grid-hint", role: "status" }, "Point at a cell for its numbers; press it for that rank's log.");
    this.low = element("span", {});
    this.high = element("span", {});
    this.scale = element("span", { class: "wb-map-scale" }, this.low, element("i"), this.high);
    this.node = element("section", { class: "wb-panel wb-area-map", "aria-label": "Rank heat map", hidden: "" },
      element("header", {}, element("h3", {}, "Rank heat map"), this.scale, this.select, this.value),
      element("div", { class: "wb-map-box" }, this.canvas), this.said);
    this.canvas.addEventListener("mousemove", (event) => this.point(cellAt(this.planned(), event.offsetX, event.offsetY)));
    this.canvas.addEventListener("click", (event) => {
      const cell = cellAt(this.planned(), event.offsetX, event.offsetY);
      if (cell) this.openLog(cell.rank * this.map.each);
    });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.point(this.cell));
    this.canvas.addEventListener("blur", () => this.paint());
  }

  planned() {
    return plan(this.map, this.canvas.clientWidth || 600);
  }

  /** @param {any} view @param {import("./theme.js").Theme} theme */
  draw(view, theme) {
    this.map = view.rank_grid;
    this.node.hidden = !this.map;
    if (!this.map) return;
    this.theme = theme;
    const worst = latest(this.map);
    setText(this.value, worst ? (worst.seconds > 0.003 ? `rank ${worst.rank}: ${shortSeconds(worst.seconds)} late (median)` : "all within 3 ms (median)") : "");
    const first = this.map.step.at(0);
    setAttribute(this.canvas, "aria-label", `Rank heat map, ${count(this.map.ranks)} ranks, steps ${count(first)} to ${count(this.map.step.at(-1))}. ${worst ? `Latest by the median: rank ${worst.rank}, ${shortSeconds(worst.seconds)}. ` : ""}Arrow keys move, Enter opens the rank's log.`);
    this.paint();
  }

  paint() {
    const { map, canvas, theme } = this;
    if (!map || !theme || !canvas.clientWidth) return;
    const coded = map.measures[this.select.value];
    const on = this.planned();
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${on.height}px`;
    const [width, height] = [Math.round(on.width * scale), Math.round(on.height * scale)];
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    if (!context) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, on.width, on.height);
    const say = this.select.value === "loss" ? number : shortSeconds;
    const known_ = coded?.rows?.length;
    setText(this.low, known_ ? say(this.select.value === "late" ? 0 : coded.low) : "");
    setText(this.high, known_ ? say(coded.high) : "n/a");
    for (let rank = 0; rank < on.ranks; rank += 1) {
      for (let step = 0; step < on.steps.length; step += 1) {
        const { x, y } = corner(on, { rank, step });
        context.fillStyle = this.colour(decode(coded, rank, step), coded);
        context.fillRect(x, y, Math.max(1, on.cellWidth - 1), Math.max(1, on.cellHeight - 1));
      }
    }
    this.label(context, on);
    if (focusedElement() === canvas) this.mark(context, on);
  }

  /** From the surface to the alarming colour, the low end drawn out: 30 ms count beside 10 s.
   * @param {number|null} value @param {import("./coded.js").Coded} coded */
  colour(value, coded) {
    const theme = /** @type {import("./theme.js").Theme} */ (this.theme);
    if (value === null) return theme.grid;
    if (Number.isNaN(value)) return theme.ink;
    const low = this.select.value === "late" ? 0 : coded.low;
    const share = coded.high > low ? Math.sqrt(Math.max(0, (value - low) / (coded.high - low))) : 0;
    // Lateness below 3 ms is noise, whatever the highest is.
    const quiet = this.select.value === "late" && coded.high < 0.003 ? 0.25 : 1;
    return mix(theme.accent, theme.bad, share * quiet);
  }

  /** @param {CanvasRenderingContext2D} context @param {Plan} on */
  label(context, on) {
    const theme = /** @type {import("./theme.js").Theme} */ (this.theme);
    context.fillStyle = theme.muted;
    context.font = `10.5px ${theme.font}`;
    context.textBaseline = "middle";
    if (!on.across) {
      for (let rank = 0; rank < on.ranks; rank += 1) context.fillText(`rank ${rank}`, 0, (rank + 0.5) * on.cellHeight);
      const every = Math.max(1, Math.ceil(40 / on.cellWidth));
      on.steps.forEach((step, at) => {
        if ((on.steps.length - 1 - at) % every === 0) context.fillText(String(step), Math.min(LEFT + at * on.cellWidth, on.width - 8 * String(step).length), on.ranks * on.cellHeight + 7);
      });
      return;
    }
    for (let band = 0; band < on.bands; band += 1) {
      const { y } = corner(on, { rank: band * on.perBand, step: 0 });
      context.fillText(String(on.steps[0]), 0, y + Math.max(6, on.cellHeight / 2));
      if (on.steps.length > 1) context.fillText(String(on.steps.at(-1)), 0, y + on.steps.length * on.cellHeight - 5);
      const below = y + on.steps.length * on.cellHeight + 6;
      const every = Math.max(1, Math.ceil(44 / on.cellWidth / 8) * 8);
      for (let place = 0; place < on.perBand && band * on.perBand + place < on.ranks; place += every) {
        context.fillText(String((band * on.perBand + place) * on.each), LEFT + place * on.cellWidth, below);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} context @param {Plan} on */
  mark(context, on) {
    const { x, y } = corner(on, this.cell);
    context.strokeStyle = /** @type {import("./theme.js").Theme} */ (this.theme).ink;
    context.lineWidth = 2;
    context.strokeRect(x, y, Math.max(3, on.cellWidth - 1), Math.max(3, on.cellHeight - 1));
  }

  /** @param {Cell|null} cell */
  point(cell) {
    if (!cell || !this.map) return;
    this.cell = cell;
    setText(this.said, `${words(this.map, cell)}. Press for its log.`);
    if (focusedElement() === this.canvas) this.paint();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (!this.map) return;
    const on = this.planned();
    const { rank, step } = this.cell;
    const along = on.across ? { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] } : { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (event.key === "Enter" || event.key === " ") this.openLog(rank * this.map.each);
    const move = /** @type {any} */ (along)[event.key];
    if (!move && event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    const clamp = (/** @type {number} */ value, /** @type {number} */ top) => Math.max(0, Math.min(top - 1, value));
    if (move) this.point({ rank: clamp(rank + move[0], on.ranks), step: clamp(step + move[1], on.steps.length) });
  }
}

/** Between two colours, the first one faint where there is little. @param {string} low @param {string} high @param {number} share 0 to 1 */
function mix(low, high, share) {
  const [from, to] = [low, high].map((text) => (text.match(/[\d.]+/g) ?? ["128", "128", "128"]).map(Number));
  const near = Math.min(1, Math.max(0, share));
  const rgb = [0, 1, 2].map((at) => Math.round(from[at] + (to[at] - from[at]) * near));
  return `rgba(${rgb.join(", ")}, ${(0.16 + 0.84 * near).toFixed(3)})`;
}
