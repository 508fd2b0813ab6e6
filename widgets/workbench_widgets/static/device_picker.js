// @ts-check
/** Boxes of devices: tick those that a run is to have; none = the launch chooses. */

import { element, focusedElement, setText } from "./dom.js";
import { bytes, known } from "./format.js";
import { holders, title } from "./queue.js";

/** @typedef {import("./loader.js").Context} Context */

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  const list = element("ul", { class: "wb-chips", "aria-label": "Devices" });
  const heading = element("p", { class: "wb-note" });
  const shell = element("div", { class: "wb-root wb-lab-look wb-devices" }, heading, list);
  shell.addEventListener("pointerenter", () => model.send({ type: "refresh" }));
  let drawn = "";
  const names = () => [...list.querySelectorAll("input")].filter((one) => one.checked).map((one) => one.value);
  const draw = () => {
    const value = model.get("value") ?? [];
    const key = JSON.stringify([value, model.get("devices")]);
    if (key === drawn) return;
    drawn = key;
    setText(heading, `Devices: ${value.length ? `${value.length} ticked` : "none ticked, so the launch takes free ones"}`);
    const focus = list.contains(focusedElement()) ? /** @type {HTMLInputElement} */ (focusedElement()).value : null;
    list.replaceChildren(...model.get("devices").map((/** @type {any} */ one) => {
      const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", value: one.name }));
      box.checked = value.includes(one.name);
      box.addEventListener("change", () => model.send({ type: "pick", names: names() }));
      const free = known(one.free_bytes) ? `, ${bytes(one.free_bytes)} free` : "";
      return element("li", {}, element("label", { title: one.label }, box, ` ${title(one)}: ${holders(one)}${free}`));
    }));
    if (focus !== null) list.querySelectorAll("input").forEach((one) => one.value === focus && one.focus());
  };
  model.on("change", draw);
  root.append(shell);
  draw();
  return () => {
    model.off("change", draw);
    shell.remove();
  };
}
