// @ts-check
/** The figures that Python made of a sweep, in the page's own type and colours. */

import { element } from "./dom.js";
import { Panel } from "./panel.js";
import { fade, readTheme } from "./theme.js";

/** @typedef {import("./loader.js").Context} Context @typedef {import("./theme.js").Theme} Theme */

const OWN = ["font", "template", "title", "paper_bgcolor", "plot_bgcolor", "showlegend", "legend"];
const SHOWN = ["Best so far", "Importance", "Parallel coordinates", "Looks"]; // in their order
const COLOURS = { "#1668c7": 0, "#b4540a": 1, "#1a7f5a": 2 }; // of Python -> number of the theme's
const WIDE = ["Parallel coordinates", "Looks"];

/** A colour with what it stands for, once each. @param {any[]} traces */
function chips(traces) {
  /** @type {Map<string, string>} */
  const found = new Map();
  for (const { name, line, marker } of traces) {
    const text = name?.replace(/^trial \d+, /, "");
    if (text && !found.has(text)) found.set(text, line?.color ?? marker?.color);
  }
  return [...found].map(([text, color]) => ({ text, color }));
}

/** @param {string} title @param {any} figure @param {Theme} theme */
export function drawing(title, figure, theme) {
  let text = JSON.stringify(figure);
  for (const [colour, at] of Object.entries(COLOURS)) text = text.replaceAll(colour, theme.series[at]);
  const { data: traces, layout: given } = JSON.parse(text);
  const layout = Object.fromEntries(Object.entries(given).filter(([name]) => !OWN.includes(name)));
  for (const annotation of layout.annotations ?? []) Object.assign(annotation, { font: { ...annotation.font, color: theme.ink }, bgcolor: fade(theme.surface, 0.8), borderpad: 0 });
  if (!layout.annotations) delete layout.margin;
  for (const axis of [layout.xaxis, layout.yaxis]) {
    for (const name of ["gridcolor", "linecolor"]) if (axis) delete axis[name];
  }
  return {
    value: "",
    label: title,
    chips: ["Best so far", "Looks"].includes(title) ? chips(traces) : [],
    traces,
    layout: { hovermode: "closest", ...layout },
  };
}

export class Figures {
  /** @param {Context} context @param {HTMLElement} root whose theme counts @param {(text: string) => void} say */
  constructor(context, root, say) {
    this.context = context;
    this.root = root;
    this.say = say;
    this.Plotly = null;
    this.node = element("div", { class: "wbw-figures" });
    /** @type {Map<string, Panel>} */
    this.panels = new Map();
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.node);
    /** @type {Record<string, any>} */
    this.figures = {};
  }

  /** @param {Record<string, any>} figures title -> data and layout */
  show(figures) {
    this.figures = figures;
    this.draw();
  }

  draw() {
    const titles = SHOWN.filter((title) => this.figures[title]);
    if (titles.length && !this.Plotly) {
      this.context.plotly().then((Plotly) => {
        this.Plotly = Plotly;
        this.draw();
      }, (error) => this.say(String(error)));
    }
    for (const [title, panel] of this.panels) if (!titles.includes(title)) this.drop(title, panel);
    for (const title of titles) {
      const theme = readTheme(this.root);
      this.panel(title).draw(drawing(title, this.figures[title], theme), theme, this.Plotly);
    }
  }

  /** @param {string} title */
  panel(title) {
    const known = this.panels.get(title);
    if (known) return known;
    const made = new Panel(title);
    if (WIDE.includes(title)) made.node.classList.add("wbw-wide");
    made.node.style.order = String(SHOWN.indexOf(title));
    this.panels.set(title, made);
    this.node.append(made.node);
    return made;
  }

  /** @param {string} title @param {Panel} panel */
  drop(title, panel) {
    panel.close(this.Plotly);
    panel.node.remove();
    this.panels.delete(title);
  }

  close() {
    this.watcher.disconnect();
    for (const [title, panel] of this.panels) this.drop(title, panel);
  }
}
