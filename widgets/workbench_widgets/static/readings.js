// @ts-check
/** Every line's value under the pointer, below the chart: a label inside the chart has room for a few lines only. */

import { element } from "./dom.js";
import { known } from "./format.js";

/** @typedef {{name: string, color: string, value: any}} Reading */

const SHOWN_MAX = 16; // rows in the box; of more lines the extremes count

/** The rows of the box: all of a few lines in their order, else the lowest and the highest.
 * @param {Reading[]} all @returns {{rows: Reading[], left: number}} */
export function shown(all) {
  if (all.length <= SHOWN_MAX) return { rows: all, left: 0 };
  const sorted = all.filter((one) => known(one.value)).sort((one, other) => one.value - other.value);
  if (sorted.length <= SHOWN_MAX) return { rows: sorted, left: all.length - sorted.length };
  const half = SHOWN_MAX / 2;
  return { rows: [...sorted.slice(0, half), ...sorted.slice(-half)], left: all.length - SHOWN_MAX };
}

export class Readings {
  constructor() {
    this.node = element("div", { class: "wb-readings", hidden: "", "aria-hidden": "true" });
  }

  /** @param {string} title @param {Reading[]} all @param {(value: any) => string} say */
  show(title, all, say) {
    const { rows, left } = shown(all);
    const cells = rows.map(({ name, color, value }) => {
      const mark = element("i", { class: "wb-mark" });
      mark.style.borderColor = color;
      return element("li", {}, mark, `${name} ${say(value)}`);
    });
    const more = left ? [element("p", {}, `Lowest and highest; ${left} more.`)] : [];
    const longest = Math.max(...rows.map(({ name, value }) => `${name} ${say(value)}`.length));
    this.node.style.setProperty("--wb-reading", `${longest + 4}ch`);
    this.node.replaceChildren(element("strong", {}, title), element("ul", {}, ...cells), ...more);
    this.node.hidden = false;
  }

  hide() {
    this.node.hidden = true;
  }
}
