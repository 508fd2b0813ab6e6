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
    command.replaceChildren(...parts(model.get("command")));
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
