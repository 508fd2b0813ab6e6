// @ts-check
/** How a face comes onto the page, and what ends it. */

/** @typedef {import("./loader.js").Context} Context */

/** The `mount` of a face that is a class.
 * @param {new (root: HTMLElement, context: Context) => {open: () => void, close: () => void}} Face
 * @returns {(root: HTMLElement, context: Context) => () => void} */
export const mounted = (Face) => (root, context) => {
  const face = new Face(root, context);
  face.open();
  return () => face.close();
};

/** Puts a face on the page and draws it, now and at every such event of its model; returns what ends it.
 * @param {HTMLElement} root @param {HTMLElement} shell @param {any} model @param {string[]} events
 * @param {() => void} draw */
export function showFace(root, shell, model, events, draw) {
  for (const event of events) model.on(event, draw);
  root.append(shell);
  draw();
  return () => {
    for (const event of events) model.off(event, draw);
    shell.remove();
  };
}
