// @ts-check
/** Talk: a prompt, the base's and the trained answer side by side as they come, sampling, stop. */

import { element, setAttribute, setText } from "./dom.js";
import { showFace } from "./face.js";
import { addRules } from "./memory_style.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{side: string, title: string, text: string, says: string}} Answer */

const CSS = `
.wb-talk { gap: 8px; }
.wb-root .wb-talk textarea { width: 100%; min-height: 56px; resize: vertical; padding: 6px 8px; border: 1px solid var(--wb-border); border-radius: 4px; background: var(--wb-surface); color: var(--wb-ink); font: inherit; }
.wb-talk-settings { display: flex; flex-wrap: wrap; align-items: end; gap: 6px 12px; }
.wb-talk-settings label { display: grid; gap: 2px; color: var(--wb-muted); font-size: 11.5px; }
.wb-root .wb-talk-settings input[type="number"] { width: 88px; padding: 3px 6px; border: 1px solid var(--wb-border); border-radius: 4px; background: var(--wb-surface); color: var(--wb-ink); }
.wb-talk-settings .wb-talk-buttons { margin-left: auto; display: flex; gap: 6px; }
.wb-talk-answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(260px, 100%), 1fr)); gap: 8px; }
.wb-talk-answer { min-width: 0; padding: 8px 10px; border: 1px solid var(--wb-border); border-radius: 4px; background: var(--wb-surface); }
.wb-talk-answer[data-side="trained"] { border-color: var(--wb-accent); }
.wb-root .wb-talk-answer h4 { margin: 0 0 4px; display: flex; justify-content: space-between; gap: 8px; font-size: 12px; font-weight: 600; }
.wb-talk-answer h4 span:last-child { color: var(--wb-muted); font-weight: 400; font-variant-numeric: tabular-nums; }
.wb-root .wb-talk-answer pre { margin: 0; min-height: 60px; max-height: 360px; overflow: auto; white-space: pre-wrap; overflow-wrap: anywhere; background: none; font: 12.5px/1.45 var(--wb-mono); color: var(--wb-ink); }
`;
const NUMBERS = [
  { name: "max_tokens", label: "Longest answer", min: "1", step: "1" },
  { name: "temperature", label: "Temperature", min: "0", step: "0.1" },
  { name: "top_k", label: "Top k", min: "0", step: "1" },
  { name: "seed", label: "Seed", min: "0", step: "1" },
];

class Talk {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    const shown = model.get("shown");
    this.title = element("h3");
    this.prompt = /** @type {HTMLTextAreaElement} */ (element("textarea", { "aria-label": "Prompt", placeholder: "Prompt" }));
    this.prompt.value = shown.prompt;
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        event.stopPropagation();
        this.ask();
      }
    });
    /** @type {Map<string, HTMLInputElement>} */
    this.inputs = new Map();
    const fields = NUMBERS.map(({ name, label, min, step }) => {
      const input = /** @type {HTMLInputElement} */ (element("input", { type: "number", min, step }));
      input.value = String(shown.settings[name]);
      this.inputs.set(name, input);
      return element("label", {}, label, input);
    });
    this.send = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button", title: "Ctrl+Enter" }, "Ask"));
    this.stop = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button" }, "Stop"));
    this.send.addEventListener("click", () => this.ask());
    this.stop.addEventListener("click", () => model.send({ type: "stop" }));
    const buttons = element("span", { class: "wb-talk-buttons" }, this.stop, this.send);
    this.says = element("p", { class: "wb-note", role: "status", "aria-live": "polite" });
    this.answers = element("div", { class: "wb-talk-answers" });
    this.node = element(
      "section",
      { class: "wb-panel wb-talk", "aria-label": "Talk to the trained model" },
      element("header", {}, this.title),
      this.prompt,
      element("div", { class: "wb-talk-settings" }, ...fields, buttons),
      this.says,
      this.answers,
    );
  }

  ask() {
    if (this.send.disabled || !this.prompt.value.trim()) return;
    /** @type {Record<string, number>} */
    const settings = {};
    for (const [name, input] of this.inputs) {
      if (input.value !== "") settings[name] = Number(input.value);
    }
    this.model.send({ type: "ask", prompt: this.prompt.value, settings });
  }

  draw() {
    const shown = this.model.get("shown");
    const running = shown.state === "running";
    setText(this.title, `Talk to ${shown.title}`);
    this.send.disabled = running;
    this.stop.disabled = !running;
    setText(this.says, shown.says);
    setAttribute(this.says, "class", shown.state === "failed" ? "wb-banner" : "wb-note");
    setAttribute(this.says, "data-tone", shown.state === "failed" ? "bad" : "note");
    this.says.hidden = !shown.says;
    const answers = /** @type {Answer[]} */ (shown.answers);
    while (this.answers.children.length < answers.length) {
      const head = element("h4", {}, element("span"), element("span"));
      this.answers.append(element("article", { class: "wb-talk-answer" }, head, element("pre", { tabindex: "0", role: "region" })));
    }
    answers.forEach((answer, number) => {
      const box = /** @type {HTMLElement} */ (this.answers.children[number]);
      const [title, says] = /** @type {HTMLElement[]} */ ([...box.querySelectorAll("h4 span")]);
      const text = /** @type {HTMLElement} */ (box.querySelector("pre"));
      setAttribute(box, "data-side", answer.side);
      setAttribute(text, "aria-label", `Answer: ${answer.title}`);
      setText(title, answer.title);
      setText(says, answer.says);
      setText(text, answer.text);
    });
  }
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  addRules("workbench-talk-style", CSS);
  const face = new Talk(context.model);
  const shell = element("div", { class: "wb-root", role: "group", "aria-label": "Talk" }, face.node);
  return showFace(root, shell, context.model, ["change:shown"], () => face.draw());
}
