// @ts-check
/** One sentence for people, with its tone; only ever a text node. */

import { element, setAttribute, setText } from "./dom.js";
import { showFace } from "./face.js";

/** @typedef {import("./loader.js").Context} Context */

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  const banner = element("p", { class: "wb-banner", role: "status", "aria-live": "polite" });
  const shell = element("div", { class: "wb-root wb-lab-look" }, banner);
  const draw = () => {
    setAttribute(banner, "data-tone", model.get("tone"));
    setText(banner, model.get("text"));
  };
  const reveal = () => shell.scrollIntoView({ block: "center" });
  const end = showFace(root, shell, model, ["change"], draw);
  model.on("change:revealed", reveal);
  if (model.get("revealed")) requestAnimationFrame(reveal); // asked for before it was drawn
  return () => {
    model.off("change:revealed", reveal);
    end();
  };
}
