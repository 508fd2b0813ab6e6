// @ts-check
/** The lessons, each a link that JupyterLab and Notebook 7 open as a document (their command linker). */

import { element } from "./dom.js";

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
  const { hint, lessons } = /** @type {any} */ (context.model).get("config");
  const list = element("ol", { class: "wb-lessons", start: "0" }, ...lessons.map(entry));
  const shell = element("div", { class: "wb-root" }, hint ? element("p", {}, hint) : "", list);
  root.append(shell);
  return () => shell.remove();
}
