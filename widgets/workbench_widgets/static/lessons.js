// @ts-check
/** The lessons, each a link that JupyterLab and Notebook 7 open as a document (their command linker). */

import { element, makeButton } from "./dom.js";
import { showFace } from "./face.js";

/** @typedef {import("./loader.js").Context} Context */

/** @param {{path: string | null, name: string, title: string}} lesson */
function entry({ path, name, title }) {
  if (path === null) return element("li", {}, `${title} (${name})`);
  const link = element("a", { href: "#" }, title);
  link.dataset.commandlinkerCommand = "docmanager:open";
  link.dataset.commandlinkerArgs = JSON.stringify({ path });
  return element("li", {}, link);
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  const shell = element("div", { class: "wb-root" });
  const draw = () => {
    const { hint, lessons, copy } = model.get("config");
    const button = makeButton(copy, () => model.send({ type: "copy" }));
    const said = element("p", { role: "status" }, hint);
    shell.replaceChildren(
      ...(hint ? [said] : []),
      ...(copy ? [button] : []),
      element("ol", { class: "wb-lessons", start: "0" }, ...lessons.map(entry)),
    );
  };
  return showFace(root, shell, model, ["change:config"], draw);
}
