// @ts-check
/** "Refresh prices": progress, and one row for what each provider answered. */

import { element, setText } from "./dom.js";

const SIGNS = { waiting: "…", good: "✓", bad: "✗" };

export class Prices {
  /** @param {() => void} refresh */
  constructor(refresh) {
    this.button = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button" }, "Refresh prices"));
    this.button.addEventListener("click", () => {
      this.button.disabled = true; // until Python says that it is done
      refresh();
    });
    this.progress = /** @type {HTMLProgressElement} */ (element("progress", { max: "1", value: "0", "aria-label": "Providers that answered", hidden: "" }));
    this.says = element("span", { class: "wb-note", role: "status" }, "Live prices of providers that do not need a key.");
    this.list = element("ul", { class: "wbp-providers" });
    this.fold = element("details", { hidden: "" }, element("summary", { tabindex: "0" }, "Result per provider"), this.list);
    this.node = element("section", { class: "wb-panel wbp-prices", "aria-label": "Prices" }, element("header", {}, this.button, this.progress, this.says), this.fold);
  }

  /** @param {any} state */
  draw(state) {
    const rows = state.rows ?? [];
    const running = state.state === "running";
    this.button.disabled = running;
    this.progress.hidden = !running;
    this.progress.value = state.share ?? 0;
    this.fold.hidden = rows.length === 0;
    if (rows.length === 0) return;
    const good = rows.filter((/** @type {any} */ row) => row.state === "good").length;
    const bad = rows.filter((/** @type {any} */ row) => row.state === "bad").length;
    const summary = `${good} of ${rows.length} providers answered${bad ? `, ${bad} did not: their older prices stay` : ""}.`;
    setText(this.says, state.problem || (running ? `Asking ${rows.length} providers …` : summary));
    this.list.replaceChildren(
      ...rows.map((/** @type {any} */ row) =>
        element("li", { "data-state": row.state }, element("b", {}, `${SIGNS[/** @type {keyof typeof SIGNS} */ (row.state)]} ${row.provider}`), ` ${row.says}`),
      ),
    );
  }
}
