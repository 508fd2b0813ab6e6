// @ts-check
/** Segments side by side in one bar; elements are kept, so that nothing blinks while a slider moves. */

import { element, setAttribute, setText } from "./dom.js";

/** @typedef {{share: number, style: string, shade: string, says: string, label: string}} Segment */

const LABELLED = 0.11; // share of the bar from which a segment carries its name

/** @param {HTMLElement} bar @param {Segment[]} segments */
export function fillBar(bar, segments) {
  while (bar.children.length > segments.length) bar.lastElementChild?.remove();
  segments.forEach(({ share, style, shade, says, label }, at) => {
    const node = /** @type {HTMLElement} */ (bar.children[at] ?? bar.appendChild(element("span", { class: "wbm-part" })));
    setAttribute(node, "style", `${style}; width: ${(100 * share).toFixed(3)}%`);
    setAttribute(node, "data-shade", shade);
    setAttribute(node, "title", says);
    setText(node, share > LABELLED ? label : "");
  });
  setAttribute(bar, "aria-label", segments.map(({ says }) => says).join(", "));
}
