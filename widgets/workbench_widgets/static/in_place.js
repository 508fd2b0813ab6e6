// @ts-check
/** A run's dashboard below the table that opened it: in the kernel's face, or from the run's files. */

import { element } from "./dom.js";

/** @typedef {import("./loader.js").Context} Context */

export class InPlace {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.node = element("div");
    /** @type {(() => void)|null|undefined} */
    this.closeOpened = null;
  }

  /** Path of a run below Jupyter's root, if it is there. @param {string} run */
  path(run) {
    const store = this.context.config.store_path;
    return store === null || !this.context.url("") ? null : `${store}/${run}`.replace(/^\//, "");
  }

  /** What to say where it cannot be shown here; "" = it is shown. @param {string} run */
  async open(run) {
    const config = /** @type {any} */ (this.context.config);
    if (config.openable) {
      /** @type {any} */ (this.context.model).send({ type: "open", run });
      return "";
    }
    this.close();
    const path = this.path(run);
    if (!path || !config.opens) return `Open it with RunDashboard(wb.attach(${JSON.stringify(run)}))`;
    const opened = { face: "run_dashboard.js", bundle: config.opens, run, run_path: path, transport: "auto", smoothing: 0.6, refresh_ms: 1000 };
    const place = element("div");
    this.node.replaceChildren(place); // one that is still loading goes with its place
    const close = await this.context.mount?.(place, { ...config, ...opened }, null);
    if (place.isConnected) this.closeOpened = close;
    else close?.();
    return "";
  }

  close() {
    this.closeOpened?.();
    this.closeOpened = null;
  }
}
