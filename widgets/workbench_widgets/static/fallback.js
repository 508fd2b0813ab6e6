// @ts-check
/**
 * Draws a run without any kernel when its widget has not come back.
 *
 * After a page reload JupyterLab can restore a widget only once the kernel answers: never while
 * it is busy with another cell, and not at all after a restart. The run's files are there all the
 * time. So this output, next to the widget's own, draws the same dashboard from them until the
 * widget appears, and then steps aside.
 */

/** @typedef {import("./loader.js").Context} Context */

const PATIENCE_MS = 1500;

/** @param {HTMLElement} root @param {Context} context
 * @param {(element: HTMLElement, config: any, model: null) => Promise<() => void>} mountFace */
export function keep(root, context, mountFace) {
  const area = root.closest(".jp-OutputArea") ?? root.parentElement ?? document.body;
  /** @type {HTMLElement|null} */
  const row = root.closest(".jp-OutputArea-child");
  const live = () => area.querySelector("[data-workbench-live] > *");
  /** @type {(() => void)|null} */
  let close = null;
  let drawing = false;

  const hideFailedWidget = (/** @type {boolean} */ hidden) => {
    for (const node of area.querySelectorAll(".jp-OutputArea-child")) {
      if (node === row || node.contains(root)) continue;
      const text = node.querySelector(".jp-OutputArea-output")?.textContent ?? "";
      const failed = /^(Loading widget|Error displaying widget)/.test(text.trim());
      /** @type {HTMLElement} */ (node).style.display = hidden && failed ? "none" : "";
    }
  };

  const settle = () => {
    if (!root.isConnected && !drawing) return;
    if (live()) {
      close?.();
      close = null;
      drawing = false;
      hideFailedWidget(false);
      if (row) row.style.display = "none";
    }
  };

  const draw = async () => {
    if (live() || drawing) return;
    drawing = true;
    if (row) row.style.display = "";
    const config = await followed(context);
    if (!config || live()) return void (drawing = false);
    hideFailedWidget(true);
    // Jupyter's typography for HTML outputs (margins, striped tables) is not meant for a face.
    root.closest(".jp-RenderedHTMLCommon")?.classList.remove("jp-RenderedHTMLCommon");
    close = await mountFace(root, config, null);
    settle();
  };

  new MutationObserver(settle).observe(area, { childList: true, subtree: true });
  if (row && !live()) row.style.display = "none";
  settle();
  setTimeout(draw, PATIENCE_MS);
}

/** The configuration of the run to draw: a fixed one, or the one that is open in a Workbench.
 * @param {Context} context */
async function followed({ config, url }) {
  if (config.run) return { ...config, face: "run_dashboard.js" };
  const address = url(config.open_file ?? null);
  if (!address) return null;
  try {
    const open = await (await fetch(address, { cache: "no-store" })).json();
    const path = `${config.store_path}/${open.run}`.replace(/^\//, "");
    return { ...config, face: "run_dashboard.js", run: open.run, run_path: path };
  } catch {
    return null;
  }
}
