// @ts-check
/** Elements without markup strings: foreign text only ever becomes a text node. */

// With one of these in focus JupyterLab would still take keys as its own: "d d" deletes the cell.
// It looks for the attribute on the focused element itself first, so one on the root is too late.
const FOCUSABLE = ["button", "input", "select", "textarea"];

/**
 * @param {string} tag
 * @param {Record<string, string>} [attributes] `class`, `role`, `aria-*`, `data-*`, …
 * @param {(Node|string)[]} children strings become text nodes
 * @returns {HTMLElement}
 */
export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (FOCUSABLE.includes(tag) || "tabindex" in attributes) {
    node.setAttribute("data-lm-suppress-shortcuts", "true");
  }
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** A button that does something when it is pressed.
 * @param {string} text @param {() => void} press @param {Record<string, string>} [attributes] */
export function makeButton(text, press, attributes = {}) {
  const node = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button", ...attributes }, text));
  node.addEventListener("click", press);
  return node;
}

/** Sets the text only when it differs, so that screen readers and selections are left alone.
 * @param {HTMLElement} node @param {string} text */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** @param {HTMLElement} node @param {string} name @param {string} value */
export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

/** The element that has the focus, also inside a shadow tree (marimo draws each widget in one). */
export function focusedElement() {
  let node = document.activeElement;
  while (node?.shadowRoot?.activeElement) node = node.shadowRoot.activeElement;
  return node;
}

/** Shows these rows unless they are shown; what has the focus in one of them keeps it.
 * @param {HTMLElement} body @param {HTMLElement[]} rows */
export function setRows(body, rows) {
  if (rows.length === body.children.length && rows.every((row, at) => row === body.children[at])) return;
  const focused = /** @type {HTMLElement|null} */ (focusedElement());
  body.replaceChildren(...rows);
  if (focused !== focusedElement() && body.contains(focused)) focused?.focus({ preventScroll: true });
}
