// @ts-check
/** The queue of a store: devices with who holds them, runs that wait; move, drop, pause, start. */

import { element, focusedElement, makeButton, setText } from "./dom.js";
import { showFace } from "./face.js";
import { bytes, known, seconds, usd } from "./format.js";

/** @typedef {import("./loader.js").Context} Context */

const SAID = {
  empty: 'Nothing waits. To file a run here, tick "File in the queue" in the launch form',
  serving: "The next run starts when its devices are free",
  paused: "Paused: nothing is started",
  waiting: "Runs wait and nothing starts them",
};

const DEVICES = ["Device", "What", "Free memory", "Held by"];
const JOBS = ["Place", "Run", "Priority", "Devices", "Starts", "Takes", "Costs"];
const LESS = ["What", "Priority", "Takes", "Costs"]; // not where there is little room

/** @param {string} column */
const style = (column) => (LESS.includes(column) ? "wb-text wb-less" : "wb-text");

/** @param {string[]} titles @param {Node[]} rows @param {string} label */
const table = (titles, rows, label) =>
  element("div", { class: "wb-table-box", tabindex: "0", role: "region", "aria-label": label },
    element("table", { class: "wb-queue" },
      element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col", class: style(title) }, title)))),
      element("tbody", {}, ...rows)));

/** @param {string} text @param {string} [column] */
const cell = (text, column = "") => element("td", { class: style(column) }, text);

/** @param {any} device @returns {string} */
export const title = (device) => `${device.kind === "gpu" ? "GPU" : "Slot"} ${device.name}`;

/** @param {any} device @returns {string} */
export const holders = (device) => device.holders.map((/** @type {any} */ held) => held.text).join(", ") || "free";

/** @param {any} device */
function deviceRow(device) {
  const memory = known(device.free_bytes) ? `${bytes(device.free_bytes)} of ${bytes(device.memory_bytes)}` : "n/a";
  return element("tr", {}, ...[title(device), device.label, memory, holders(device)].map((text, at) => cell(text, DEVICES[at])));
}

/** @param {any} job */
function startText(job) {
  if (job.problem) return "never: too few devices";
  if (job.starting) return "now";
  if (!known(job.predicted_start)) return "n/a";
  const left = job.predicted_start - Date.now() / 1000;
  return left <= 1 ? "next" : `in ${seconds(left)}`;
}

class QueueTable {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.note = element("p", { class: "wb-note", role: "status" });
    this.problem = element("p", { class: "wb-banner", role: "alert", "data-tone": "bad" });
    this.power = makeButton("", () => this.model.send({ type: this.verb }));
    this.devices = element("div");
    this.jobs = element("div");
    this.shell = element("div", { class: "wb-root" },
      element("section", { class: "wb-panel", "aria-label": "Queue" },
        element("header", {}, element("h3", {}, "Queue"), this.note, this.power),
        this.problem, this.devices, this.jobs));
  }

  /** @param {any} job @param {number} number of those that wait @param {number} last */
  job(job, number, last) {
    const button = (/** @type {string} */ text, /** @type {string} */ label, /** @type {any} */ message, off = false) => {
      const made = element("button", { type: "button", class: "wb-button", "aria-label": `${label} ${job.run}`, title: label }, text);
      if (off || job.starting) made.setAttribute("disabled", "");
      // The second of a double click would meet the run that has moved here meanwhile.
      made.addEventListener("click", (event) => event.detail > 1 || this.model.send({ run: job.run, ...message }));
      return made;
    };
    const actions = element("td", { class: "wb-actions" }, element("div", {},
      button("↑", "Move up", { type: "move", position: number - 1 }, number === 1),
      button("↓", "Move down", { type: "move", position: number + 1 }, number === last),
      button("Drop", "Take out of the queue:", { type: "drop" })));
    const wanted = job.devices.join(", ") || `any ${job.devices_wanted}`;
    const takes = known(job.predicted_seconds) ? seconds(job.predicted_seconds) : "n/a";
    const costs = known(job.predicted_usd) ? usd(job.predicted_usd) : "n/a";
    const cells = [String(job.position), job.run, String(job.priority), wanted, startText(job), takes, costs];
    return element("tr", {}, ...cells.map((text, at) => cell(text, JOBS[at])), actions);
  }

  draw() {
    const shown = this.model.get("shown");
    const problem = this.model.get("problem");
    setText(this.note, /** @type {any} */ (SAID)[shown.state] ?? "");
    setText(this.problem, problem);
    this.problem.hidden = !problem;
    this.verb = shown.state === "paused" || shown.state === "waiting" ? "start" : "pause";
    setText(this.power, this.verb === "start" ? "Start" : "Pause");
    const last = JSON.stringify([shown.devices, shown.jobs]);
    if (last === this.last && !shown.jobs.some((/** @type {any} */ job) => known(job.predicted_start))) return;
    this.last = last;
    const focus = this.shell.contains(focusedElement()) ? focusedElement()?.getAttribute("aria-label") : null;
    this.devices.replaceChildren(table(DEVICES, shown.devices.map(deviceRow), "Devices"));
    const waiting = shown.jobs.filter((/** @type {any} */ job) => !job.starting);
    const rows = shown.jobs.map((/** @type {any} */ job) => this.job(job, waiting.indexOf(job) + 1, waiting.length));
    this.jobs.replaceChildren(...(rows.length ? [table([...JOBS, ""], rows, "Runs that wait")] : []));
    if (focus) /** @type {HTMLElement|null} */ (this.shell.querySelector(`[aria-label=${JSON.stringify(focus)}]`))?.focus();
  }
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const table = new QueueTable(context.model);
  return showFace(root, table.shell, context.model, ["change"], () => table.draw());
}
