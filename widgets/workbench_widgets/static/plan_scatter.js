// @ts-check
/** Dollars against hours of every plan; the Pareto front stands out, a click selects a plan. */

import { plotText } from "./format.js";
import { Panel } from "./panel.js";
import { fade, readTheme, watchTheme } from "./theme.js";

/** @typedef {import("./theme.js").Theme} Theme */
/** @typedef {{rows: any[], figure: any, values: any, selected: number}} Shown */

const DAY = 24;
const HOURS = [0.1, 0.25, 0.5, 1, 2, 4, 8, ...[1, 2, 4, 7, 14, 30, 60, 120, 240, 365, 730, 1825, 3650, 18250, 36500].map((days) => days * DAY)];
const DOLLARS = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) => [1, 1.5, 2, 3, 5, 7].map((factor) => factor * 10 ** power));
const TICKS = 8; // on one axis

export class Scatter {
  /** @param {import("./loader.js").Context} context @param {(at: number) => void} pick */
  constructor(context, pick) {
    this.context = context;
    this.pick = pick;
    this.panel = new Panel("Dollars against hours of the finished run", { area: "pareto", empty: "No plan yet" });
    this.node = this.panel.node;
    /** @type {Shown|null} */
    this.shown = null;
    this.resizing = new ResizeObserver(() => this.soon());
    this.resizing.observe(this.panel.plot);
    this.endTheme = watchTheme(() => this.soon());
    this.soon();
  }

  /** @param {Shown} shown */
  draw(shown) {
    this.shown = shown;
    this.soon();
  }

  /** Once per frame, however often it is asked. */
  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.paint();
    });
  }

  async paint() {
    if (!this.shown || !this.node.isConnected) return;
    this.Plotly ??= await this.context.plotly();
    const theme = readTheme(/** @type {HTMLElement} */ (this.node.closest(".wb-root") ?? this.node));
    this.panel.draw(drawing(this.shown, theme), theme, this.Plotly);
    const plot = /** @type {any} */ (this.panel.plot);
    if (this.panel.drawn && !this.listens) {
      this.listens = true;
      plot.on("plotly_click", (/** @type {any} */ event) => {
        const at = event.points?.[0]?.customdata?.[0];
        if (Number.isInteger(at)) this.pick(at);
      });
    }
  }

  close() {
    this.endTheme();
    this.resizing.disconnect();
    if (this.frame) cancelAnimationFrame(this.frame);
    this.panel.close(this.Plotly);
  }
}

/** @param {Shown} shown @param {Theme} theme @returns {import("./traces.js").Drawing} */
export function drawing({ rows, figure, values, selected }, theme) {
  const known = rows.map((row, at) => ({ ...row, at })).filter((row) => row.usd !== null);
  const front = new Set(figure.front);
  const kept = new Set(figure.kept);
  const grey = theme.series[7];
  const groups = {
    out: known.filter(({ at }) => !kept.has(at)),
    beaten: known.filter(({ at }) => kept.has(at) && !front.has(at)),
    front: known.filter(({ at }) => front.has(at)).sort((one, other) => one.usd - other.usd),
  };
  const traces = [
    trace("outside the limits", groups.out, { color: fade(grey, 0.28), size: 8 }),
    trace("beaten by another", groups.beaten, { color: fade(grey, 0.75), size: 9 }),
    { ...trace("cheapest for its time", groups.front, { color: theme.accent, size: 12 }), mode: "lines+markers", line: { color: theme.accent, width: 1.5, shape: "hv" } },
    ring(known.find(({ at }) => at === selected), theme),
  ];
  const many = `${figure.kept.length} of ${rows.length} plans meet the limits, ${figure.front.length} of them on the Pareto front`;
  return {
    traces: traces.filter(({ x }) => x.length > 0),
    value: "",
    label: `${many}. The table below has the same plans.`,
    empty: figure.exact ? "No plan has a known price" : "No plan yet",
    hidden: figure.own, // there dollars are hours times a price
    chips: [
      { text: "no other plan is cheaper and faster", color: theme.accent },
      { text: "beaten by another plan", color: fade(grey, 0.75) },
      { text: "outside the limits", color: fade(grey, 0.28) },
      ...(known.some(({ spot }) => spot) ? [{ text: "◆ spot, ● on demand", color: "transparent" }] : []),
    ],
    layout: { hovermode: "closest", uirevision: String(figure.set), ...axes(known, values, theme) },
  };
}

/** @param {string} name @param {any[]} rows @param {{color: string, size: number}} look */
function trace(name, rows, { color, size }) {
  return {
    type: "scatter",
    mode: "markers",
    name,
    x: rows.map(({ usd }) => usd),
    y: rows.map(({ hours }) => hours),
    customdata: rows.map((row) => [row.at, hover(row)]),
    hovertemplate: "%{customdata[1]}<extra></extra>",
    marker: { color, size, symbol: rows.map(({ spot }) => (spot ? "diamond" : "circle")) },
  };
}

/** @param {any} row @param {Theme} theme */
function ring(row, theme) {
  const rows = row ? [row] : [];
  const base = trace("selected", rows, { color: "rgba(0,0,0,0)", size: 19 });
  return { ...base, marker: { ...base.marker, line: { color: theme.ink, width: 2 } } };
}

/** @param {any} row */
function hover(row) {
  const doubt = row.marks.length ? ` (${row.marks.join(", ")})` : "";
  const lines = [row.layout, `${row.cost} (${row.range})`, row.time, row.speed, `price of ${row.date}${doubt}`];
  return [`<b>${plotText(row.where)}</b>`, ...lines.map(plotText)].join("<br>");
}

/** @param {any[]} rows @param {any} values @param {Theme} theme */
function axes(rows, values, theme) {
  const usd = rows.map((row) => row.usd);
  const hours = rows.map((row) => row.hours);
  const lines = [
    { value: values.budget_usd, axis: "x", text: "budget" },
    { value: values.deadline_hours, axis: "y", text: "deadline" },
  ].filter(({ value }) => value > 0);
  const [x, y] = [span([...usd, ...lines.filter(({ axis }) => axis === "x").map(({ value }) => value)]), span([...hours, ...lines.filter(({ axis }) => axis === "y").map(({ value }) => value)])];
  const [dollars, hour] = [thin(DOLLARS, x), thin(HOURS, y)];
  const style = { color: theme.bad, width: 1.5, dash: "dash" };
  return {
    xaxis: { type: "log", range: x, showgrid: true, tickvals: dollars, ticktext: dollars.map(money) },
    yaxis: { type: "log", range: y, tickvals: hour, ticktext: hour.map(duration) },
    shapes: lines.map(({ value, axis }) =>
      axis === "x"
        ? { type: "line", xref: "x", yref: "paper", x0: value, x1: value, y0: 0, y1: 1, line: style }
        : { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: value, y1: value, line: style },
    ),
    annotations: lines.map(({ value, axis, text }) => ({
      text,
      showarrow: false,
      font: { size: 11, color: style.color },
      ...(axis === "x"
        ? { xref: "x", yref: "paper", x: Math.log10(value), y: 1, xanchor: "right", yanchor: "top" }
        : { xref: "paper", yref: "y", x: 1, y: Math.log10(value), xanchor: "right", yanchor: "bottom" }),
    })),
  };
}

/** Exponents of both ends, with room around the points. @param {number[]} values */
function span(values) {
  const logs = values.filter((value) => value > 0).map(Math.log10);
  if (logs.length === 0) return [0, 1];
  const [low, high] = [Math.min(...logs), Math.max(...logs)];
  const room = Math.max(0.12, 0.06 * (high - low));
  return [low - room, high + room];
}

/** Ticks within the range that leave each other room. @param {number[]} values @param {number[]} range */
function thin(values, [low, high]) {
  const least = (high - low) / TICKS;
  /** @type {number[]} */
  const ticks = [];
  for (const value of values) {
    const at = Math.log10(value);
    if (at < low || at > high) continue;
    if (ticks.length === 0 || at - Math.log10(ticks[ticks.length - 1]) >= least) ticks.push(value);
  }
  return ticks;
}

/** @param {number} usd */
const money = (usd) => (usd >= 1e6 ? `$${usd / 1e6} M` : usd >= 1e3 ? `$${usd / 1e3} k` : `$${usd}`);

/** @param {number} hours */
function duration(hours) {
  if (hours < 1) return `${Math.round(hours * 60)} min`;
  return hours < DAY ? `${hours} h` : hours < 730 * DAY ? `${hours / DAY} d` : `${Math.round(hours / 8760)} y`;
}
