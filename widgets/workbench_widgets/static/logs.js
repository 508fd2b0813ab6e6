// @ts-check
/** The ranks' logs: one or all of them, followed or scrolled, searched, filtered by level. */

import { element, makeButton, setText } from "./dom.js";
import { bytes, count } from "./format.js";
import { ALL, LogChoice, MERGED_RANKS, logOf } from "./log_choice.js";
import { saveLines, saveLog } from "./log_file.js";
import { filtered, logLines } from "./log_lines.js";
import { addStyle } from "./log_style.js";
import { LogWindow } from "./log_window.js";
import { MergedLogs } from "./merged_logs.js";

/** @typedef {import("./source.js").RunSource} RunSource */

const REFRESH_MS = 1500;
const EDGE = 24; // pixels
const LEVELS = [["", "All lines"], ["warning", "Warnings and errors"], ["error", "Errors"]];

export class Logs {
  /** @param {RunSource} source */
  constructor(source) {
    addStyle();
    this.source = source;
    /** @type {import("./log_window.js").ReadPart} */
    this.read = (...asked) => this.source.part(...asked);
    this.choice = new LogChoice(() => this.changed());
    this.level = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": "Level" }, ...LEVELS.map(([value, text]) => element("option", { value }, text))));
    this.search = /** @type {HTMLInputElement} */ (element("input", { type: "search", class: "wb-log-search", placeholder: "Search", "aria-label": "Search the log" }));
    this.older = makeButton("Find older", () => this.findOlder(), { title: "Look for the text in the lines before these" });
    this.start = makeButton("Start", () => this.jump(0), { title: "The beginning of the log" });
    this.followButton = makeButton("Follow", () => this.follow(!this.following), { title: "Keep the newest lines in sight" });
    this.download = makeButton("Download", () => this.save());
    this.where = element("p", { class: "wb-note wb-log-where", role: "status" });
    this.text = element("div", { class: "wb-log", tabindex: "0", role: "log", "aria-live": "off", "aria-label": "Log" });
    this.node = element("section", { class: "wb-panel wb-area-logs", "aria-label": "Logs" },
      element("header", {}, element("h3", {}, "Log"), this.search, this.older, this.level, ...this.choice.nodes, this.start, this.followButton, this.download),
      this.text, this.where);
    this.view = /** @type {any} */ ({ ranks: [] });
    this.drawnAt = 0;
    this.following = true;
    /** The reading that is under way. @type {Promise<void>|null} */
    this.busy = null;
    /** @type {LogWindow|null} */
    this.window = null;
    this.merged = new MergedLogs(this.read, MERGED_RANKS);
    /** Of the log `shown`. @type {import("./log_lines.js").Line[]} */
    this.lines = [];
    this.shown = "";
    this.empty = "";
    this.level.addEventListener("change", () => this.show());
    this.search.addEventListener("input", () => this.show());
    this.text.addEventListener("scroll", () => this.scrolled());
    this.sayFollowing();
  }

  /** @param {any} view */
  draw(view) {
    this.view = view;
    this.choice.draw(view);
    if (this.shown && this.shown !== this.choice.name) this.changed();
    else if (this.following) void this.refresh(view.phase === "ended" && !this.lines.length);
  }

  /** The rank that failed is the one to read of, unless somebody chose another. @param {any} view */
  fail(view) {
    const rank = view.phase === "ended" ? view.failed_rank : null;
    if (typeof rank === "number" && !this.choice.chosen) this.choice.ask(rank);
  }

  /** Shows one rank's log and brings it into sight. @param {number} rank */
  open(rank) {
    this.choice.ask(rank);
    this.changed();
    this.node.scrollIntoView({ block: "center" });
    this.text.focus({ preventScroll: true });
  }

  /** Another log was chosen: nothing of the one before stays under its name. */
  changed() {
    if (this.shown !== this.choice.name) this.take([], "", "Reading …");
    this.follow(true);
  }

  /** The part that is shown of the chosen log; null where that is of several. */
  part() {
    const { name } = this.choice;
    if (!name || name === ALL) return null;
    if (this.window?.name !== name) this.window = new LogWindow(name, this.read);
    return this.window;
  }

  /** @param {boolean} following */
  follow(following) {
    this.following = following;
    this.sayFollowing();
    if (following) void this.refresh(true);
  }

  sayFollowing() {
    this.followButton.setAttribute("aria-pressed", String(this.following));
    setText(this.followButton, this.following ? "Following" : "Follow");
  }

  /** One reading at a time; what was chosen meanwhile is read next. @param {() => Promise<void>} work */
  async reading(work) {
    while (this.busy) await this.busy;
    const { name } = this.choice;
    const done = () => {
      this.busy = null;
      if (this.following && name !== this.choice.name) void this.refresh(true);
    };
    this.busy = work().then(done, (error) => (done(), console.error(error)));
    await this.busy;
  }

  /** @param {boolean} force */
  async refresh(force) {
    if (this.busy || (!force && Date.now() - this.drawnAt < REFRESH_MS)) return;
    this.drawnAt = Date.now();
    const { name, chosen } = this.choice;
    if (!name) return;
    const part = this.part();
    const inView = this.tailInView(name);
    // A file that is empty or not there yet is an error in the browser's console at each look.
    const early = part && !inView && !chosen && this.view.phase === "starting";
    if (early || inView?.length === 0) return this.take([], name);
    await this.reading(() => (part ? this.readEnd(part, inView) : this.merge()));
  }

  /** @param {LogWindow} part @param {string[]|undefined} inView the last lines, where the view has them */
  async readEnd(part, inView) {
    const news = await part.follow();
    if (part !== this.part()) return;
    const unread = inView ? "" : "This log cannot be read at the moment";
    if (!part.loaded) this.take(logLines((inView ?? []).join("\n")), part.name, unread);
    else if (news || this.shown !== part.name) this.take(logLines(part.text()), part.name);
  }

  async merge() {
    if (this.shown !== ALL) this.merged = new MergedLogs(this.read, MERGED_RANKS);
    const { merged } = this;
    const news = await merged.follow(this.choice.ranks.filter((rank) => this.tailInView(logOf(rank))?.length !== 0));
    if (this.choice.name === ALL && (news || this.shown !== ALL)) this.take(merged.lines, ALL);
  }

  /** @param {string} name @returns {string[]|undefined} */
  tailInView(name) {
    return this.view.ranks?.find((/** @type {any} */ { rank }) => logOf(rank) === name)?.log_tail;
  }

  /** @param {import("./log_lines.js").Line[]} lines @param {string} name @param {string} [empty] said where there are none */
  take(lines, name, empty = "") {
    this.lines = lines;
    this.shown = name;
    this.empty = empty;
    this.show();
  }

  /** Said of a log that is empty. */
  get nothing() {
    return this.view?.phase === "ended" ? "No output" : "No output yet";
  }

  show() {
    const query = this.search.value ?? "";
    const shown = filtered(this.lines, { level: this.level.value ?? "", query });
    const before = this.text.scrollTop;
    const part = this.part();
    const empty = this.lines.length ? "No such line in what is shown" : this.empty || this.nothing;
    this.text.replaceChildren(...(shown.length ? shown.map((line) => lineNode(line, query)) : [empty]));
    this.older.hidden = !query || !part || part.start === 0;
    this.start.hidden = !part || part.size < 2 * this.text.clientHeight;
    this.download.title = part ? "The whole log as a file" : "These lines as a file";
    this.text.scrollTop = this.following ? this.text.scrollHeight : before;
    this.placed = this.text.scrollTop; // by us: no wish of the reader
    this.say(part, shown.length, query);
  }

  /** @param {LogWindow|null} part @param {number} lines @param {string} query */
  say(part, lines, query) {
    const matching = query || this.level.value ? `${count(lines)} of ${count(this.lines.length)} lines` : "";
    const whole = part?.loaded && part.size > part.bytes.length ? `${bytes(part.start)} to ${bytes(part.end)} of ${bytes(part.size)}` : "";
    setText(this.where, [matching, whole].filter(Boolean).join(" · "));
  }

  /** At an edge the lines beyond are read; who scrolls up wants to read, who is at the end to follow. */
  async scrolled() {
    if (this.text.scrollTop === this.placed) return;
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    const below = scrollHeight - scrollTop - clientHeight;
    if (this.following && below > EDGE) this.follow(false);
    const part = this.part();
    if (this.busy || !part) return;
    if (scrollTop < EDGE && part.start > 0) await this.more(part, "older");
    else if (below < EDGE && !part.atEnd) await this.more(part, "newer");
    else if (below < EDGE && !this.following) this.follow(true);
  }

  /** @param {LogWindow} part @param {"older"|"newer"} which */
  async more(part, which) {
    this.follow(false);
    const height = this.text.scrollHeight;
    await this.elsewhere(part, () => part[which](), () => {
      if (which === "older") this.text.scrollTop += this.text.scrollHeight - height;
    });
  }

  /** @param {number} at byte of the log */
  async jump(at) {
    const part = this.part();
    if (!part) return;
    this.follow(false);
    await this.elsewhere(part, () => part.jump(at), () => (this.text.scrollTop = 0));
  }

  async findOlder() {
    const part = this.part();
    if (!part) return;
    this.follow(false);
    setText(this.where, "Searching …");
    await this.elsewhere(part, async () => {
      const found = await part.find(this.search.value, () => part === this.part());
      if (part === this.part()) setText(this.where, SAID[found](part.searched));
      return found === "found";
    });
  }

  /** Shows another part of a log, unless another log was chosen meanwhile.
   * @param {LogWindow} part @param {() => Promise<boolean>} move whether there is another now @param {() => void} [then] */
  async elsewhere(part, move, then = () => {}) {
    await this.reading(async () => {
      if (part !== this.part() || !(await move()) || part !== this.part()) return;
      this.take(logLines(part.text()), part.name);
      then();
    });
  }

  async save() {
    if (this.part()) await saveLog(this.source, this.choice.name, (text) => setText(this.where, text));
    else saveLines(this.lines, "all-ranks.log");
  }
}

/** What a search comes to. @type {Record<import("./log_window.js").Found, (searched: {from: number, to: number}) => string>} */
const SAID = {
  found: () => "",
  nowhere: () => "Not found in the lines before these",
  further: ({ from, to }) => `Not found in the ${bytes(to - from)} before these; press again to look further`,
  unread: () => "The lines before these could not be read",
};

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
