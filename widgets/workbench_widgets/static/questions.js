// @ts-check
/** What the page asks of the store's files beside the live view: other runs, and a part of a curve in full. */

import { readWindow } from "./metric_window.js";

const QUESTION_MS = 15_000; // a kernel may be busy; a long window takes some seconds

/** @param {string} url @param {RequestInit} [options] */
export async function get(url, options = {}) {
  const response = await fetch(url, { cache: "no-store", credentials: "same-origin", ...options });
  if (!response.ok || LOGIN.test(response.url)) throw Object.assign(new Error(`HTTP ${response.status}`), { response });
  return response;
}

const LOGIN = /\/login($|\?)/; // where Jupyter sends a page whose session has ended

/** Why a server does not answer a question that it got, in a sentence.
 * @param {Response} response @param {string} server */
export async function refusal(response, server) {
  const told = await response.json().catch(() => ({}));
  if (typeof told.error === "string") return told.error;
  if ([401, 403].includes(response.status) || LOGIN.test(response.url)) return `${server} no longer knows this page. Log in again. Training is not affected.`;
  return `${server} answers with HTTP ${response.status}; retrying. Training is not affected.`;
}

/** @param {string|null} store path below Jupyter's root @returns {Promise<string[]>} newest first */
async function listRuns(store) {
  if (store === null) return [];
  const base = JSON.parse(document.getElementById("jupyter-config-data")?.textContent || "{}").baseUrl ?? "/";
  const folder = store.split("/").map(encodeURIComponent).join("/");
  const listed = await (await get(`${base}api/contents/${folder}?content=1`)).json();
  const runs = listed.content.filter((/** @type {any} */ entry) => entry.type === "directory" && !entry.name.startsWith("_"));
  runs.sort((/** @type {any} */ run, /** @type {any} */ two) => (run.last_modified < two.last_modified ? 1 : -1));
  return runs.map((/** @type {any} */ run) => run.name);
}

export class Questions {
  /** @param {import("./source.js").RunSource} source */
  constructor(source) {
    this.source = source;
    /** Who waits for which answer. @type {Map<string, (value: any) => void>} */
    this.waiting = new Map();
  }

  /** @param {string} id @param {any} value of the kernel */
  answered(id, value) {
    this.waiting.get(id)?.(value ?? null);
  }

  /** Asks the kernel something of the run's files; null where it does not answer.
   * @param {string} type @param {object} [more] @returns {Promise<any>} */
  question(type, more = {}) {
    if (!this.source.context.model || this.source.kernelLink() === "gone") return Promise.resolve(null);
    const id = Math.random().toString(36).slice(2);
    return new Promise((resolve) => {
      const done = (/** @type {any} */ value) => {
        this.waiting.delete(id);
        resolve(value);
      };
      this.waiting.set(id, done);
      setTimeout(() => done(null), QUESTION_MS);
      this.source.context.model?.send({ type, id, ...more });
    });
  }

  /** The curves between two steps in full, from the kernel, else from the files themselves.
   * @param {number} first @param {number} last */
  async window(first, last) {
    const url = this.source.transport === "http" ? this.source.url("metrics/rank-0.jsonl") : null;
    const busy = url && this.source.kernelLink() !== "answers";
    const asked = busy ? null : await this.question("window", { first, last });
    return asked ?? (url ? readWindow(url, first, last).catch(() => null) : null);
  }

  /** Where a picture of the run can be had, or null. @param {string} name @returns {Promise<string|null>} */
  async picture(name) {
    const url = this.source.transport === "http" ? this.source.url(name) : null;
    if (url) return url;
    const data = await this.question("picture", { name });
    return data && `data:image/png;base64,${data}`;
  }

  /** Ids of the store's runs, newest first. @returns {Promise<string[]>} */
  async runs() {
    return (await this.question("runs")) ?? (await listRuns(this.source.context.config.store_path).catch(() => []));
  }

  /** The view of another run of the store. @param {string} run */
  async viewOf(run) {
    const store = this.source.context.config.store_path;
    const url = this.source.transport === "http" && store !== null ? this.source.context.url(`${store}/${run}/view.json`.replace(/^\//, "")) : null;
    const read = url ? await get(url).then((response) => response.json(), () => null) : null;
    return read ?? this.question("view", { run });
  }
}
