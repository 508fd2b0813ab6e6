// @ts-check
/** What Launch would start, exactly. */

import { copyButton } from "./clipboard.js";
import { element, setText } from "./dom.js";
import { showFace } from "./face.js";

/** @typedef {import("./loader.js").Context} Context */

/** A command wraps between its words, not after a hyphen in one. @param {string} text */
const words = (text) => text.split(" ").flatMap((word) => [element("span", {}, word), " "]);

/** The files that the command reads fold away, each under its name; the command stays in sight.
 * @param {string} text  shell text: `cat > FILE <<'END'` … `END` for each file, then the command */
function parts(text) {
  /** @type {HTMLElement[]} */
  const drawn = [];
  const files = /^mkdir [^\n]*cat > (\S+) <<'END'\n([^]*?)^END\n/gm;
  const command = text.replaceAll(files, (_whole, path, lines) => {
    const name = path.replaceAll("'", "").split("/").pop();
    const count = lines.split("\n").length - 1;
    const summary = element("summary", {}, `${name}: the file it reads, ${count} lines`);
    drawn.push(element("details", { class: "wb-command-file" }, summary, lines));
    return "";
  });
  return [...drawn, ...words(command)];
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const model = /** @type {any} */ (context.model);
  const command = element("pre", { class: "wb-command", tabindex: "0", role: "region", "aria-label": "The exact command" });
  const note = element("p", { class: "wb-note" });
  const box = element("div", { class: "wb-command-box" }, command, copyButton(() => full()));
  const shell = element("div", { class: "wb-root" }, box, note);
  const { mark, text: shim } = /** @type {any} */ (context.config).shim;
  const full = () => model.get("text").replace(mark, () => shim);
  const draw = () => {
    command.replaceChildren(...parts(full()));
    setText(note, model.get("note"));
    box.hidden = !model.get("text");
    note.hidden = !model.get("note");
  };
  return showFace(root, shell, model, ["change"], draw);
}
