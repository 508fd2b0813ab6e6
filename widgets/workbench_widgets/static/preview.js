// @ts-check
/** What Launch would start, exactly; or the sentence that says why it cannot. */

import { element, setText } from "./dom.js";

/** @typedef {import("./loader.js").Context} Context */

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

/** A command wraps between its words, not after a hyphen in one. @param {string} text */
const words = (text) => text.split(" ").flatMap((word) => [element("span", {}, word), " "]);

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  const command = element("pre", { class: "wb-command", tabindex: "0", role: "region", "aria-label": "The exact command" });
  const button = element("button", { type: "button", class: "wb-button wb-copy" }, "Copy");
  const problem = element("p", { class: "wb-banner", role: "alert", "data-tone": "bad" });
  const note = element("p", { class: "wb-note" });
  button.addEventListener("click", async () => {
    try {
      await copy(model.get("command"));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy by hand";
    }
    setTimeout(() => (button.textContent = "Copy"), 1800);
  });
  const box = element("div", { class: "wb-command-box" }, command, button);
  const shell = element("div", { class: "wb-root" }, box, problem, note);
  const draw = () => {
    command.replaceChildren(...words(model.get("command")));
    setText(problem, model.get("problem"));
    setText(note, model.get("note"));
    box.hidden = !model.get("command");
    problem.hidden = !model.get("problem");
    note.hidden = !model.get("note");
  };
  model.on("change", draw);
  root.append(shell);
  draw();
  return () => {
    model.off("change", draw);
    shell.remove();
  };
}
