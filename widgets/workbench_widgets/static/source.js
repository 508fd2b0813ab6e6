// @ts-check
/**
 * Where a run's snapshots come from: its files through Jupyter (`/files/`), else the comm.
 * Both carry the same `view.json`, so the transport may change at any moment without a seam.
 *
 * @typedef {import("./loader.js").Context} Context
 * @typedef {{view: any, ageSeconds: number|null}} Snapshot
 */

import { KeptView } from "./changes.js";
import { dropFile } from "./contents.js";
import { get, Questions, refusal } from "./questions.js";

const GIVE_UP_AFTER = 3; // failed polls before the connection is called lost
const ANSWER_MS = 5000; // a kernel that is busy with another cell may answer no sooner
const ASK_MS = 3000; // between two questions to the kernel
const FRESH_MS = 10_000; // how long its answer holds
const BYTES_PER_MS = 20; // a page reads no more: a large view is read less often
const ENDED_MS = 15_000; // between two looks at a run that has ended: somebody may resume it

export class RunSource {
  /** @param {Context} context @param {(snapshot: Snapshot) => void} onSnapshot
   * @param {(lost: string|null) => void} onLost */
  constructor(context, onSnapshot, onLost) {
    this.context = context;
    this.onSnapshot = onSnapshot;
    this.onLost = onLost;
    /** @type {"probing"|"http"|"comm"|"none"} */
    this.transport = "probing";
    this.server = context.server ?? "Jupyter";
    this.failures = 0;
    this.bytes = 0;
    this.closed = false;
    this.ended = false;
    this.timer = 0;
    /** What came of asking to resume. @type {(text: string, bad: boolean) => void} */
    this.onResumed = () => {};
    /** What came of asking for a profile. @type {(text: string, busy: boolean) => void} */
    this.onProfiled = () => {};
    /** What came of asking the training for something. @type {(said: import("./steer.js").Said) => void} */
    this.onSteered = () => {};
    /** What the kernel read from the run's files, and when it was asked.
     * @type {{answer: import("./state.js").Answer, at: number}|null} */
    this.lastStatus = null;
    this.askedAt = 0;
    this.answeredAt = 0;
    /** The latest look at a view: when, and how old it was then.
     * @type {{written: string, age: number|null, at: number}|null} */
    this.heard = null;
    this.questions = new Questions(this);
    this.kept = new KeptView();
    this.onMessage = this.onMessage.bind(this);
    this.context.model?.on("msg:custom", this.onMessage);
    this.wake = () => this.seen();
    document.addEventListener("visibilitychange", this.wake);
  }

  /** URL of a file of the run, or null. @param {string} name */
  url(name) {
    const path = this.context.config.run_path;
    return this.context.url(path && `${path}/${name}`);
  }

  /** Chooses the transport once, then polls. */
  async start() {
    const wanted = this.context.config.transport;
    if (wanted === "http") this.transport = "http";
    else if (wanted !== "comm" && (await this.reachable())) this.transport = "http";
    else if (this.context.model) this.transport = "comm";
    else this.transport = "none";
    if (this.closed) return;
    if (this.transport === "comm") this.context.model?.send({ type: "subscribe" });
    if (this.transport === "none") this.onLost("Jupyter does not serve the files of this run.");
    if (this.transport === "http") this.poll();
  }

  /** Is the directory behind `/files/` really this run? */
  async reachable() {
    const url = this.url("run.json");
    if (!url) return false;
    try {
      return (await (await get(url)).json()).run === this.context.config.run;
    } catch {
      return false;
    }
  }

  /** Somebody looks at the page again, or has turned away: then its kernel pushes less often. */
  seen() {
    if (!document.hidden) this.schedule(0);
    if (this.transport === "comm" && this.kernelLink() !== "gone") this.context.model?.send({ type: document.hidden ? "rest" : "wake" });
  }

  /** @param {number} delay */
  schedule(delay) {
    clearTimeout(this.timer);
    if (this.closed || this.transport !== "http") return;
    this.timer = window.setTimeout(() => this.poll(), delay);
  }

  async poll() {
    const url = this.url("view.json");
    if (!url || this.closed) return;
    try {
      const response = await get(this.context.changes ? `${url}?since=${encodeURIComponent(this.kept.version ?? "")}` : url);
      const now = Date.parse(response.headers.get("Date") ?? "") / 1000;
      const text = await response.text();
      const answer = JSON.parse(text);
      const view = this.context.changes ? this.kept.take(answer) : answer;
      this.bytes = text.length;
      this.answered();
      if (view === null) {
        this.kept = new KeptView(); // a run that has just begun, or a server that has
        return this.schedule(this.context.config.refresh_ms);
      }
      const end = view.phase === "ended" && view.processes_left === undefined ? await this.readEnd() : null;
      this.deliver({ ...view, ...end }, Number.isFinite(now) && view.written_at ? now - view.written_at : null);
    } catch (error) {
      // A run that has just been launched has no view yet: that is waiting, not failing.
      const { response } = /** @type {any} */ (error);
      if (response?.status === 404) this.answered();
      else this.failed(response ? await refusal(response, this.server) : `${this.server} does not respond; retrying. Training is not affected.`);
    }
    const slow = document.hidden ? 8 : 1;
    const backOff = 2 ** Math.min(this.failures, 4);
    const pause = Math.max(this.context.config.refresh_ms, this.bytes / BYTES_PER_MS);
    this.schedule((this.ended ? ENDED_MS : pause) * slow * backOff);
  }

  answered() {
    if (this.failures >= GIVE_UP_AFTER) this.onLost(null);
    this.failures = 0;
  }

  /** @param {string} why */
  failed(why) {
    this.failures += 1;
    if (this.failures >= GIVE_UP_AFTER) this.onLost(why);
  }

  /** How a run of an earlier version ended: its last view does not say it all. */
  async readEnd() {
    const url = this.url("exit.json");
    return url ? (await get(url)).json().catch(() => null) : null;
  }

  /** @param {any} view @param {number|null} ageSeconds */
  deliver(view, ageSeconds) {
    if (this.closed) return;
    this.ended = view.phase === "ended";
    this.onSnapshot({ view, ageSeconds: this.silence(view, ageSeconds) });
  }

  /** Seconds since the view was written: clocks of two machines differ, so from the second look on by this page's
   * own clock. @param {any} view @param {number|null} told by the clocks of whoever wrote it and whoever sent it */
  silence(view, told) {
    const { heard } = this;
    const now = Date.now() / 1000; // it goes on while this machine sleeps
    const written = `${view.seq} ${view.written_at}`;
    const elapsed = heard ? now - heard.at : Infinity;
    const age = heard?.written === written && heard.age !== null ? heard.age + elapsed : told && Math.min(Math.max(told, 0), elapsed);
    this.heard = { written, age, at: now };
    return age;
  }

  /** @param {any} message @param {DataView[]} [buffers] */
  onMessage(message, buffers) {
    if (message?.type === "resumed") this.resumed(message);
    if (message?.type === "profiled") this.onProfiled(String(message.text ?? ""), Boolean(message.busy));
    if (message?.type === "steered") this.onSteered(message);
    if (message) this.answeredAt = Date.now();
    if (message?.type === "status") this.readStatus(message);
    if (message?.type === "answer") this.questions.answered(message.id, message.value);
    if (message?.type === "part") this.questions.answered(message.id, partOf(message, buffers));
    if (message?.type !== "snapshot" || this.transport === "http") return;
    const view = this.kept.take(message);
    if (view === null) this.context.model?.send({ type: "subscribe" });
    else this.deliver(view, message.age_seconds);
    if (message.slow && !document.hidden) this.context.model?.send({ type: "wake" });
  }

  /** Whether the kernel can be asked: it may be another one than the cell's by now.
   * @returns {"none"|"gone"|"silent"|"answers"} */
  kernelLink() {
    const { model, connected } = this.context;
    if (!model) return "none";
    if (connected && !connected()) return "gone";
    return this.askedAt > this.answeredAt && Date.now() - this.askedAt > ANSWER_MS ? "silent" : "answers";
  }

  /** @returns {import("./state.js").Link} */
  link() {
    return { transport: this.transport, kernel: this.kernelLink() };
  }

  /** The kernel's answer while it is fresh. @returns {import("./state.js").Status|null} */
  status() {
    const age = this.lastStatus ? Date.now() - this.lastStatus.at : FRESH_MS;
    return this.lastStatus && age < FRESH_MS ? { ...this.lastStatus.answer, ageSeconds: age / 1000 } : null;
  }

  /** Asks the kernel what the run's files say now; at most one question is on its way. */
  askStatus() {
    const waiting = this.askedAt > this.answeredAt && Date.now() - this.askedAt < FRESH_MS;
    const pause = this.ended ? ENDED_MS : ASK_MS;
    const fresh = this.lastStatus && Date.now() - this.lastStatus.at < pause;
    if (waiting || fresh || ["none", "gone"].includes(this.kernelLink())) return;
    this.askedAt = Date.now();
    this.context.model?.send({ type: "status" });
  }

  /** @param {import("./state.js").Answer} answer */
  readStatus(answer) {
    this.lastStatus = { answer, at: this.askedAt };
    const resumed = this.ended && answer.state !== "ended" && answer.state !== "interrupted";
    if (resumed && this.transport === "comm") this.context.model?.send({ type: "subscribe" });
  }

  /** Whether the kernel has to be asked for the run's state: nothing else tells of it.
   * @param {boolean} late nothing was written for too long */
  needsStatus(late) {
    return late || (this.ended && this.transport === "comm");
  }

  /** Asks the kernel for a trace of the next steps ("profile"), for a supervisor of a run that has lost
   * its own ("adopt"), for its settings in the launch form ("reuse"), or for something after a step ("steer").
   * @param {"profile"|"adopt"|"reuse"|"steer"} type @param {import("./steer.js").Wish} [wish] */
  act(type, wish) {
    this.context.model?.send({ type, ...wish });
  }

  /** Asks the kernel to resume the run. @param {string|null} checkpoint null: the newest whole one */
  resume(checkpoint) {
    this.context.model?.send({ type: "resume", checkpoint });
  }

  /** The run goes on in the same directory, or an error says why not. @param {any} message */
  resumed(message) {
    this.onResumed(String(message.text ?? ""), Boolean(message.bad));
    if (message.bad || message.run !== this.context.config.run) return;
    this.schedule(0);
  }

  /** The end of a file of the run, its first line perhaps cut; null where it cannot be read.
   * @param {string} name @param {number} bytes @returns {Promise<string|null>} */
  async tail(name, bytes) {
    const part = await this.part(name, -bytes, null);
    return part && new TextDecoder().decode(part.bytes);
  }

  /** Bytes of a file of the run, over whichever link there is; null where there is none.
   * @param {string} name such as `logs/rank-0.log` @param {number} start negative: so many before its end
   * @param {number|null} end null: its end
   * @returns {Promise<{bytes: Uint8Array, start: number, size: number}|null>} */
  async part(name, start, end) {
    const url = this.transport === "http" ? this.url(name) : null;
    if (!url) return this.questions.question("part", { name, start, end });
    try {
      const range = start < 0 ? `bytes=${start}` : `bytes=${start}-${end === null ? "" : end - 1}`;
      const response = await get(url, { headers: { Range: range } });
      const bytes = new Uint8Array(await response.arrayBuffer());
      const told = /bytes (\d+)-\d+\/(\d+)/.exec(response.headers.get("Content-Range") ?? "");
      return { bytes, start: Number(told?.[1] ?? 0), size: Number(told?.[2] ?? bytes.length) };
    } catch (error) {
      const status = /** @type {any} */ (error).response?.status;
      return status === 416 || status === 404 ? { bytes: new Uint8Array(), start: Math.max(0, start), size: Math.max(0, start) } : null;
    }
  }

  /** Asks the run to stop: through Jupyter's contents API (works while the kernel is busy),
   * else through the comm. @param {boolean} now */
  async requestStop(now) {
    const path = this.context.config.run_path;
    if (this.transport === "http" && path) {
      try {
        await dropFile(`${path}/control`, now ? "stop-now" : "stop");
        if (!this.status()) return; // else nobody reads that file: the kernel has to see to it
      } catch (error) {
        if (!this.context.model) throw error;
      }
    }
    if (!this.context.model) throw new Error("the run cannot be reached from this page");
    this.context.model.send({ type: "stop", now });
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.context.model?.off("msg:custom", this.onMessage);
    document.removeEventListener("visibilitychange", this.wake);
  }
}

/** @param {any} message @param {DataView[]} [buffers] */
function partOf({ start, size }, buffers) {
  const { buffer, byteOffset, byteLength } = buffers?.[0] ?? new DataView(new ArrayBuffer(0));
  return size === null ? null : { bytes: new Uint8Array(buffer, byteOffset, byteLength), start, size };
}
