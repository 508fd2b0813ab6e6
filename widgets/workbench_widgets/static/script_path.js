// @ts-check
/** The path of a script: typed, or picked from the notebook's folders. */

import { element } from "./dom.js";
import { showFace } from "./face.js";
import { FilePicker } from "./file_picker.js";
import { addFormStyle } from "./launch_style.js";

/** @typedef {import("./loader.js").Context} Context */

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  addFormStyle();
  const id = `wbf-path-${context.config.instance}`;
  const input = /** @type {HTMLInputElement} */ (
    element("input", { id, type: "text", placeholder: "train.py", autocomplete: "off", spellcheck: "false" })
  );
  const send = (/** @type {string} */ value) => model.send({ type: "path", value });
  const picker = new FilePicker(model, { label: "the script" }, (path) => {
    input.value = path;
    send(path);
  });
  input.addEventListener("change", () => send(input.value));
  input.addEventListener("keydown", (event) => event.key === "Enter" && send(input.value));
  const draw = () => {
    if (!input.matches(":focus")) input.value = model.get("value");
  };
  const label = element("label", { for: id }, "Path of the script");
  const shell = element("div", { class: "wb-root wbm wbf-path" }, element("div", { class: "wbm-field" }, label, element("div", { class: "wbf-row" }, input, picker.button)), picker.panel);
  const end = showFace(root, shell, model, ["change:value"], draw);
  return () => {
    picker.close();
    end();
  };
}
