"""As much of a browser's page as the modules of the faces need: a tree, events, focus, menus."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.widgets.test_page_state import run

SMALL_DOM = """
class Node {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, dataset: {}, style: {}, heard: {}, own: "", kept: "" });
    Object.assign(this, { hidden: false, parentElement: null, scrollTop: 0, scrollHeight: 0, clientHeight: 0 });
  }
  append(...more) {
    for (const one of more) if (one instanceof Node) one.parentElement = this;
    this.children.push(...more);
  }
  replaceChildren(...more) {
    this.own = "";
    this.children.length = 0; // who holds the list sees the new ones, as on a page
    this.append(...more);
  }
  get firstChild() { return this.children[0] ?? null; }
  get lastChild() { return this.children.at(-1) ?? null; }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
    if (name === "hidden") this.hidden = true;
    if (name === "value") this.kept = String(value);
  }
  getAttribute(name) { return this.attributes[name] ?? null; }
  removeAttribute(name) { delete this.attributes[name]; }
  toggleAttribute() {}
  addEventListener(name, call) { (this.heard[name] ??= []).push(call); }
  removeEventListener(name, call) { this.heard[name] = (this.heard[name] ?? []).filter((one) => one !== call); }
  emit(name, event = {}) {
    let ended = false;
    const own = { target: this, preventDefault() {}, stopImmediatePropagation: () => (ended = true), ...event };
    for (const call of [...(this.heard[name] ?? [])]) if (!ended) call(own);
  }
  focus() { document.activeElement = this; }
  contains(other) { return this === other || this.children.some((one) => one instanceof Node && one.contains(other)); }
  scrollIntoView() {}
  click() {}
  getContext() { return null; }
  get options() { return this.children; }
  get selectedOptions() { return this.options.filter((one) => one.value === this.value); }
  get value() { return this.tag === "select" && !this.options.some((one) => one.value === this.kept) ? (this.options[0]?.value ?? "") : this.kept; }
  set value(value) { this.kept = this.tag === "select" && !this.options.some((one) => one.value === String(value)) ? "" : String(value); }
  get valueAsNumber() { return this.value === "" ? NaN : Number(this.value); }
  reportValidity() { return !(this.valueAsNumber < Number(this.attributes.min)) && !(this.valueAsNumber > Number(this.max)); }
  get classList() { return { add() {}, remove() {}, toggle() {}, contains: () => false }; }
  get textContent() { return this.own + this.children.map((one) => one.textContent ?? one).join(""); }
  set textContent(text) { [this.own, this.children] = [text, []]; }
  /** What a person does: goes to the field, types, leaves it again. */
  type(text) { this.focus(); this.value = text; }
  leave() { document.activeElement = null; this.emit("change"); this.emit("blur"); }
}
const page = new Node("page");
globalThis.addEventListener = (...given) => page.addEventListener(...given);
globalThis.removeEventListener = (...given) => page.removeEventListener(...given);
globalThis.Node = Node;
globalThis.document = Object.assign(new Node("document"), {
  activeElement: null, hidden: false, head: new Node("head"), getElementById: () => null,
  createElement: (tag) => new Node(tag),
});
/** Lets what was promised happen. */
const settled = () => new Promise((done) => setTimeout(done, 5));
"""


def on_page(folder: Path, script: str, **given: Any) -> Any:
    """What `script` calls `tell` with, beside the page's modules and a small page.

    `given`: constants of the script, as JSON.
    """
    constants = _constants(given)
    tell = "const tell = (found) => console.log(JSON.stringify(found));"
    return run(folder, f"{SMALL_DOM}{constants}{tell}\n{script}")


def _constants(given: Mapping[str, Any]) -> str:
    return "".join(f"const {name} = {json.dumps(value)};\n" for name, value in given.items())
