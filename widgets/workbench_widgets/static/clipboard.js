// @ts-check
/** A button that copies text, and says whether it could. */

import { element } from "./dom.js";

/** The clipboard API exists on https and localhost only; a pod behind plain http has the old way.
 * @param {string} text */
async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = /** @type {HTMLTextAreaElement} */ (element("textarea"));
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** @param {() => string} text @param {string} [label] for screen readers */
export function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", class: "wb-button wb-copy", "aria-label": label }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await copy(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => (button.textContent = "Copy"), 1800);
  });
  return button;
}
