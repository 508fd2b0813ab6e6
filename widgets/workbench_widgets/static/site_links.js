// @ts-check
/** What stands for a notebook's model on the pages of `workbench ui` and of a Jupyter server: messages go by HTTP. */

/** What the server says of itself: base, server, store, version, plotly, refusal. */
export const SITE = JSON.parse(document.getElementById("workbench-site")?.textContent || "{}");
const ACTIONS = ["stop", "resume", "adopt", "profile", "steer"];

/** Jupyter's proof that a request comes from its own page; "" at other servers. */
const proof = () => /(?:^|; )_xsrf=([^;]+)/.exec(document.cookie)?.[1] ?? "";

/** @param {string} path below the site @param {RequestInit} [options] */
export async function request(path, options = {}) {
  const response = await fetch(SITE.base + path, { cache: "no-store", credentials: "same-origin", ...options });
  if (response.ok || response.status === 304) return response;
  const told = await response.json().catch(() => ({}));
  throw Object.assign(new Error(told.error ?? `HTTP ${response.status}`), { response });
}

/** @param {string} run @param {any} message @returns {Promise<any[]>} the answers */
async function post(run, message) {
  const where = ACTIONS.includes(message.type) ? "act" : "ask";
  const headers = { "Content-Type": "application/json", "X-XSRFToken": proof() };
  const path = `/api/runs/${encodeURIComponent(run)}/${where}`;
  return (await request(path, { method: "POST", headers, body: JSON.stringify(message) })).json();
}

class Link {
  constructor() {
    /** @type {Map<string, Set<Function>>} */
    this.listeners = new Map();
  }

  /** @param {string} event @param {Function} listener */
  on(event, listener) {
    this.listeners.set(event, (this.listeners.get(event) ?? new Set()).add(listener));
  }

  /** @param {string} event @param {Function} listener */
  off(event, listener) {
    this.listeners.get(event)?.delete(listener);
  }

  /** @param {string} event @param {any[]} given */
  emit(event, ...given) {
    for (const listener of [...(this.listeners.get(event) ?? [])]) listener(...given);
  }

  /** Sends a message of one run; its answers come as messages of a kernel would.
   * @param {string} run @param {any} message */
  async exchange(run, message) {
    try {
      for (const answer of await post(run, message)) this.emit("msg:custom", answer, []);
    } catch (error) {
      this.failed(run, message, /** @type {Error} */ (error));
    }
  }

  /** @param {string} run @param {any} message @param {Error} error */
  failed(run, message, error) {
    if (message.id !== undefined) this.emit("msg:custom", { type: "answer", id: message.id, value: null });
    else if (message.type === "profile") this.emit("msg:custom", { type: "profiled", text: `Not profiled: ${error.message}`, busy: false });
    else if (message.type === "steer") this.emit("msg:custom", { type: "steered", text: `Not done: ${error.message}`, bad: true });
    else if (ACTIONS.includes(message.type)) this.emit("msg:custom", { type: "resumed", bad: true, run, text: `Not done: ${error.message}` });
  }
}

/** The link of one run's dashboard. */
export class RunLink extends Link {
  /** @param {string} run */
  constructor(run) {
    super();
    this.run = run;
  }

  get() {
    return undefined;
  }

  /** @param {any} message */
  send(message) {
    if (message.type === "profile") this.emit("msg:custom", { type: "profiled", text: "Tracing 5 steps …", busy: true });
    void this.exchange(this.run, message);
  }
}

const ROWS_MS = 2000;

/** The link of the table: its rows are read again and again while somebody looks. */
export class StoreLink extends Link {
  /** @param {(run: string) => void} open @param {(text: string) => void} say "" = all is well */
  constructor(open, say) {
    super();
    this.open = open;
    this.say = say;
    this.connection = ""; // what is wrong with it
    /** Run and question -> why it was not answered. @type {Map<string, string>} */
    this.refusals = new Map();
    /** @type {{rows: any[]|null, of: number}} */
    this.table = { rows: null, of: 0 };
    this.tag = "";
    this.closed = false;
    this.timer = 0;
    this.seen = () => document.hidden || this.read();
    document.addEventListener("visibilitychange", this.seen);
  }

  /** @param {string} name */
  get(name) {
    return /** @type {any} */ (this.table)[name] ?? null;
  }

  /** @param {any} message */
  send(message) {
    if (message.type === "open") return this.open(message.run);
    if (ACTIONS.includes(message.type)) this.refusals.clear(); // those of earlier acts were read
    this.refusals.delete(`${message.run} ${message.type}`);
    void this.exchange(message.run, message);
  }

  tell() {
    this.say([this.connection, ...new Set(this.refusals.values())].filter(Boolean).join(" "));
  }

  /** @param {string} run @param {any} message @param {Error} error */
  failed(run, message, error) {
    this.refusals.set(`${run} ${message.type}`, `${run}: ${error.message}`);
    this.tell();
    if (message.type === "stop") this.emit("msg:custom", { type: "resumed", bad: true, run, text: error.message });
  }

  async read() {
    clearTimeout(this.timer);
    try {
      const response = await request("/api/runs", { headers: this.tag ? { "If-None-Match": this.tag } : {} });
      if (response.status !== 304) {
        this.tag = response.headers.get("ETag") ?? "";
        this.table = await response.json();
        if (!this.closed) this.emit("change:rows");
      }
      this.connection = "";
    } catch (error) {
      const { response, message } = /** @type {any} */ (error);
      this.connection = response ? message : `${SITE.server} does not respond; retrying. Training is not affected.`;
    }
    if (!this.closed) this.tell();
    clearTimeout(this.timer);
    if (!this.closed && !document.hidden) this.timer = window.setTimeout(() => this.read(), ROWS_MS);
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.seen);
  }
}
