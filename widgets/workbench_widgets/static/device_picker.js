// @ts-check
/** Boxes of devices: tick those that a run is to have; none = the launch chooses. */

import { element, focusedElement, setText } from "./dom.js";
import { showFace } from "./face.js";
import { bytes, known } from "./format.js";
import { holders, title } from "./queue.js";

/** @typedef {import("./loader.js").Context} Context */

/** What the launch gets. On a CPU host the devices are slots of cores, which a run has only if it names them.
 * @param {number} ticked @param {any[]} devices */
export function headingOf(ticked, devices) {
  if (ticked) return `Devices: ${ticked} ticked`;
  const slots = devices.some((device) => device.kind === "slot");
  return `Devices: none ticked, so the launch ${slots ? "has all cores, beside the runs that have them" : "takes free ones"}`;
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  const list = element("ul", { class: "wb-chips", "aria-label": "Devices" });
  const heading = element("p", { class: "wb-note" });
  const shell = element("div", { class: "wb-root wb-lab-look wb-devices" }, heading, list);
  shell.addEventListener("pointerenter", () => model.send({ type: "refresh" }));
  let drawn = "";
  const names = () => [...list.querySelectorAll("input")].filter((input) => input.checked).map((input) => input.value);
  const draw = () => {
    const value = model.get("value") ?? [];
    const key = JSON.stringify([value, model.get("devices")]);
    if (key === drawn) return;
    drawn = key;
    setText(heading, headingOf(value.length, model.get("devices")));
    const focus = list.contains(focusedElement()) ? /** @type {HTMLInputElement} */ (focusedElement()).value : null;
    list.replaceChildren(...model.get("devices").map((/** @type {any} */ device) => {
      const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", value: device.name }));
      box.checked = value.includes(device.name);
      box.addEventListener("change", () => model.send({ type: "pick", names: names() }));
      const free = known(device.free_bytes) ? `, ${bytes(device.free_bytes)} free` : "";
      return element("li", {}, element("label", { title: device.label }, box, ` ${title(device)}: ${holders(device)}${free}`));
    }));
    if (focus !== null) list.querySelectorAll("input").forEach((input) => input.value === focus && input.focus());
  };
  return showFace(root, shell, model, ["change"], draw);
}
