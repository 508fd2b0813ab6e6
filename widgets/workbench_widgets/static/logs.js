// @ts-check
/** The ranks' logs: one or all of them, followed or scrolled, searched, filtered by level. */

import { element, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { filtered, logLines } from "./log_lines.js";
import { addStyle } from "./log_style.js";
import { LogWindow } from "./log_window.js";

/** @typedef {import("./source.js").RunSource} RunSource */

const REFRESH_MS = 1500;
const ALL = "all";
const MERGED_RANKS = 16;
const MERGED_BYTES = 8_000; // of each rank's end
const MERGED_LINES = 2000;
const EDGE = 24; // pixels
const DOWNLOAD_MAX = 64e6; // over the comm
const LEVELS = [["", "All lines"], ["warning", "Warnings and errors"], ["error", "Errors"]];

/** @param {string} text @param {() => void} press @param {string} title */
function button(text, press, title) {
  const node = element("button", { type: "button", class: "wb-button", title }, text);
  node.addEventListener("click", press);
  return /** @type {HTMLButtonElement} */ (node);
}

export class Logs {
  /** @param {RunSource} source */
  constructor(source) {
    addStyle();
    this.source = source;
    this.select = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Log" }));
    this.level = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Level" }, ...LEVELS.map(([value, text]) => element("option", { value }, text))));
    this.search = /** @type {HTMLInputElement} */ (element("input", { type: "search", class: "wb-log-search", placeholder: "Search", "aria-label": "Search the log" }));
    this.older = button("Find older", () => this.findOlder(), "Look for the text in the lines before these");
    this.start = button("Start", () => this.jump(0), "The beginning of the log");
    this.followButton = button("Follow", () => this.follow(!this.following), "Keep the newest lines in sight");
    this.download = button("Download", () => this.save(), "The whole log as a file");
    this.where = element("p", { class: "wb-note wb-log-where", role: "status" });
    this.text = element("div", { class: "wb-log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
    this.node = element("section", { class: "wb-panel wb-area-logs", "aria-label": "Logs" },
      element("header", {}, element("h3", {}, "Log"), this.search, this.older, this.level, this.select, this.start, this.followButton, this.download),
      this.text, this.where);
    this.view = /** @type {any} */ ({ ranks: [] });
    this.drawnAt = 0;
    this.chosen = ""; // by the user: what was shown before any rank had told is no choice
    this.following = true;
    this.busy = false;
    /** @type {LogWindow|null} */
    this.window = null;
    /** @type {Map<string, LogWindow>} */
    this.ends = new Map();
    /** @type {import("./log_lines.js").Line[]} */
    this.lines = [];
    this.select.addEventListener("change", () => {
      this.chosen = this.select.value;
      this.follow(true);
    });
    this.level.addEventListener("change", () => this.show());
    this.search.addEventListener("input", () => this.show());
    this.text.addEventListener("scroll", () => this.scrolled());
    this.sayFollowing();
  }

  /** @param {any} view */
  draw(view) {
    this.view = view;
    this.drawOptions(this.ranksOf(view));
    if (this.following) this.refresh(view.phase === "ended" && !this.lines.length);
  }

  /** The rank that failed is the one to read of, unless somebody chose another. @param {any} view */
  fail(view) {
    const rank = view.phase === "ended" ? view.failed_rank : null;
    if (typeof rank !== "number" || this.chosen) return;
    this.wanted = rank;
    this.chosen = `rank-${rank}.log`;
  }

  /** Shows one rank's log and brings it into sight. @param {number} rank */
  open(rank) {
    this.wanted = rank;
    this.drawOptions(this.ranksOf(this.view));
    this.chosen = this.select.value = `rank-${rank}.log`;
    this.follow(true);
    this.node.scrollIntoView({ block: "center" });
    this.text.focus({ preventScroll: true });
  }

  /** All that a view tells of, and one that was asked for. @param {any} view @returns {number[]} */
  ranksOf(view) {
    const shown = (view.ranks ?? []).map((/** @type {any} */ rank) => rank.rank);
    return this.wanted === undefined || shown.includes(this.wanted) ? shown : [...shown, this.wanted].sort((one, two) => one - two);
  }

  /** @param {number[]} ranks */
  drawOptions(ranks) {
    const names = ranks.map((rank) => [`rank-${rank}.log`, `Rank ${rank}`]);
    if (ranks.length > 1) names.push([ALL, ranks.length > MERGED_RANKS ? `First ${MERGED_RANKS} ranks` : "All ranks"]);
    names.push(["launcher.log", "Launcher"], ["supervisor.log", "Supervisor"]);
    const key = names.join();
    if (this.select.dataset.key === key) return;
    this.select.dataset.key = key;
    this.select.replaceChildren(...names.map(([value, text]) => element("option", { value }, text)));
    if (names.some(([value]) => value === this.chosen)) this.select.value = this.chosen;
  }

  /** @param {boolean} following */
  follow(following) {
    this.following = following;
    this.sayFollowing();
    if (following) this.refresh(true);
  }

  sayFollowing() {
    this.followButton.setAttribute("aria-pressed", String(this.following));
    setText(this.followButton, this.following ? "Following" : "Follow");
  }

  /** @param {boolean} force */
  async refresh(force) {
    if (this.busy || (!force && Date.now() - this.drawnAt < REFRESH_MS)) return;
    this.drawnAt = Date.now();
    const name = this.select.value;
    if (!name) return;
    const inView = this.tailInView(name);
    // A file that is empty or not there yet is an error in the browser's console at each look.
    const early = name !== ALL && !name.startsWith("rank-") && !this.chosen && this.view.phase === "starting";
    if (early || inView?.length === 0) return this.take([], name);
    this.busy = true;
    try {
      if (name === ALL) return void (await this.merge());
      if (this.window?.name !== name) this.window = new LogWindow(name, (...asked) => this.source.part(...asked));
      const news = await this.window.follow();
      if (name !== this.select.value) return;
      if (!this.window.loaded) this.take(logLines((inView ?? []).join("\n")), name); // no link to the file
      else if (news || this.shown !== name) this.take(logLines(this.window.text()), name);
    } finally {
      this.busy = false;
      if (this.following && name !== this.select.value) void this.refresh(true); // another was chosen meanwhile
    }
  }

  /** The ends of all ranks' logs, then what each writes, in the order in which it comes. */
  async merge() {
    const ranks = this.ranksOf(this.view).slice(0, MERGED_RANKS);
    let fresh = this.shown !== ALL;
    const lines = fresh ? [] : this.lines;
    if (fresh) this.ends.clear();
    for (const rank of ranks) {
      const name = `rank-${rank}.log`;
      if (this.tailInView(name)?.length === 0) continue;
      const end = this.ends.get(name) ?? new LogWindow(name, (...asked) => this.source.part(...asked));
      this.ends.set(name, end);
      const before = end.loaded ? end.end : -1;
      if (!(await end.follow(MERGED_BYTES))) continue;
      const text = before < 0 ? end.text() : new TextDecoder().decode(end.bytes.subarray(Math.max(0, before - end.start)));
      lines.push(...logLines(text, `rank ${rank}`));
      fresh = true;
    }
    if (fresh && this.select.value === ALL) this.take(lines.slice(-MERGED_LINES), ALL);
  }

  /** @param {string} name @returns {string[]|undefined} */
  tailInView(name) {
    const rank = Number(/^rank-(\d+)/.exec(name)?.[1] ?? -1);
    return this.view.ranks?.find((/** @type {any} */ candidate) => candidate.rank === rank)?.log_tail;
  }

  /** @param {import("./log_lines.js").Line[]} lines @param {string} name */
  take(lines, name) {
    this.lines = lines;
    this.shown = name;
    this.show();
  }

  show() {
    const query = this.search.value ?? "";
    const shown = filtered(this.lines, { level: this.level.value ?? "", query });
    const before = this.text.scrollTop;
    const empty = this.lines.length ? "No such line in what is shown" : "No output yet";
    this.text.replaceChildren(...(shown.length ? shown.map((line) => lineNode(line, query)) : [empty]));
    this.older.hidden = !query || !this.window || this.shown === ALL || this.window.start === 0;
    this.start.hidden = this.shown === ALL || !this.window || this.window.size < 2 * this.text.clientHeight;
    this.text.scrollTop = this.following ? this.text.scrollHeight : before;
    this.placed = this.text.scrollTop; // by us: no wish of the reader
    this.say(shown.length, query);
  }

  /** @param {number} lines @param {string} query */
  say(lines, query) {
    const { window: part } = this;
    const matching = query || this.level.value ? `${count(lines)} of ${count(this.lines.length)} lines` : "";
    const whole = part?.loaded && this.shown !== ALL && part.size > part.bytes.length
      ? `${bytes(part.start)} to ${bytes(part.end)} of ${bytes(part.size)}` : "";
    setText(this.where, [matching, whole].filter(Boolean).join(" · "));
  }

  /** At an edge the lines beyond are read; who scrolls up wants to read, who is at the end to follow. */
  async scrolled() {
    if (this.text.scrollTop === this.placed) return;
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    const below = scrollHeight - scrollTop - clientHeight;
    if (this.following && below > EDGE) this.follow(false);
    if (this.shown === ALL || this.busy || !this.window) return;
    if (scrollTop < EDGE && this.window.start > 0) await this.more("older");
    else if (below < EDGE && !this.window.atEnd) await this.more("newer");
    else if (below < EDGE && !this.following) this.follow(true);
  }

  /** @param {"older"|"newer"} which */
  async more(which) {
    const part = this.window;
    if (!part) return;
    this.busy = true;
    this.following = false;
    const height = this.text.scrollHeight;
    try {
      if (!(await part[which]())) return;
      this.take(logLines(part.text()), part.name);
      if (which === "older") this.text.scrollTop += this.text.scrollHeight - height;
    } finally {
      this.busy = false;
      this.sayFollowing();
    }
  }

  /** @param {number} at byte of the log */
  async jump(at) {
    if (!this.window) return;
    this.follow(false);
    if (await this.window.jump(at)) this.take(logLines(this.window.text()), this.window.name);
    this.text.scrollTop = 0;
  }

  async findOlder() {
    if (!this.window || this.busy) return;
    this.follow(false);
    this.busy = true;
    setText(this.where, "Searching …");
    try {
      const found = await this.window.find(this.search.value);
      if (found) this.take(logLines(this.window.text()), this.window.name);
      else setText(this.where, "Not found in the lines before these");
    } finally {
      this.busy = false;
    }
  }

  /** The log as a file: by the server where it can, else in parts over the comm. */
  async save() {
    const name = this.select.value === ALL ? "rank-0.log" : this.select.value;
    const link = /** @type {HTMLAnchorElement} */ (element("a", { download: name }));
    const served = this.source.transport === "http" ? this.source.url(`logs/${name}`) : null;
    link.href = served ?? URL.createObjectURL(await this.gathered(name));
    link.click();
    if (!served) setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  /** @param {string} name */
  async gathered(name) {
    const parts = [];
    let [at, size] = [0, 0];
    while (at < DOWNLOAD_MAX) {
      const part = await this.source.part(`logs/${name}`, at, at + 1_000_000);
      if (!part?.bytes.length) break;
      parts.push(part.bytes);
      at += part.bytes.length;
      size = part.size;
    }
    if (at < size) setText(this.where, `The file has the first ${bytes(at)} of ${bytes(size)}. The whole log: ${this.source.context.config.run}/logs/${name}`);
    return new Blob(/** @type {any} */ (parts), { type: "text/plain" });
  }
}

/** @param {import("./log_lines.js").Line} line @param {string} query */
function lineNode(line, query) {
  const node = element("div", { class: "wb-line", "data-level": line.level });
  if (line.from) node.append(element("span", { class: "wb-line-from" }, line.from));
  for (const { text, style } of line.pieces) node.append(...marked(text, style, query));
  if (line.folded) node.append(element("span", { class: "wb-line-folded", title: "Earlier states of this progress bar" }, ` (${count(line.folded)} earlier)`));
  if (!line.text) node.append("\u200b");
  return node;
}

/** @param {string} text @param {string} style @param {string} query @returns {(Node|string)[]} */
function marked(text, style, query) {
  const at = query ? text.toLowerCase().indexOf(query.toLowerCase()) : -1;
  const inside = at < 0 ? [text] : [text.slice(0, at), element("mark", {}, text.slice(at, at + query.length)), text.slice(at + query.length)];
  return style ? [element("span", { class: style }, ...inside)] : inside;
}
