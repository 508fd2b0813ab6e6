// @ts-check
/** One run, live: header, charts, ranks and logs, redrawn from each snapshot. */

import { Checkpoints } from "./checkpoints.js";
import { Curves } from "./curves.js";
import { DeviceGrid } from "./device_grid.js";
import * as devices from "./device_traces.js";
import { element, focusedElement } from "./dom.js";
import { mounted } from "./face.js";
import { Findings } from "./findings.js";
import { Gap } from "./gap.js";
import { Header } from "./header.js";
import { Logs } from "./logs.js";
import { PageMark } from "./page_mark.js";
import { Panel } from "./panel.js";
import { RankMap } from "./rank_map.js";
import { Ranks } from "./ranks.js";
import { Samples } from "./samples.js";
import { RunSource } from "./source.js";
import { late, runState } from "./state.js";
import { readTheme, watchTheme } from "./theme.js";
import * as timeline from "./timeline.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {import("./source.js").Snapshot} Snapshot */

const HIDDEN_SECONDS = 16; // two pauses between the snapshots of a hidden page

function makePanels() {
  return [
    { panel: new Panel("Utilisation", { area: "device" }), draw: devices.utilisation },
    { panel: new Panel("Memory", { area: "device" }), draw: devices.memory },
    { panel: new Panel("Temperature", { area: "device" }), draw: devices.temperature },
    { panel: new Panel("Power", { area: "device" }), draw: devices.power },
    { panel: new Panel("Rank timeline", { area: "waits", empty: "Needs two ranks that report steps" }), draw: timeline.waiting },
  ];
}

class Dashboard {
  /** @param {HTMLElement} root @param {Context} context */
  constructor(root, context) {
    this.root = root;
    this.context = context;
    this.snapshot = /** @type {Snapshot|null} */ (null);
    this.receivedAt = 0;
    this.Plotly = /** @type {any} */ (null);
    this.source = new RunSource(context, (view) => this.receive(view), (lost) => this.lose(lost));
    this.findings = new Findings();
    this.header = new Header(context.config.run ?? "", {
      stop: (now) => this.source.requestStop(now),
      resume: () => this.resume(null),
      show: () => this.findings.show(),
      profile: () => this.source.act("profile"),
      steer: (wish) => this.source.act("steer", wish),
      adopt: () => this.adopt(),
      reuse: context.config.reusable ? () => this.source.act("reuse") : undefined,
      report: () => (this.source.transport === "http" && !context.server ? this.source.url("report.html") : null), // the other pages have it in their head
      openLog: (rank) => this.logs.open(rank),
      kernel: () => this.source.kernelLink() !== "none" && this.source.kernelLink() !== "gone",
    }, context.refusal);
    this.checkpoints = new Checkpoints((name) => this.resume(name), context.model !== null, context.refusal);
    this.source.onResumed = (text, bad) => {
      if (bad) this.header.stop.failed(text);
      this.sayResume(text, bad);
    };
    this.source.onSteered = (said) => this.header.steer.say(said);
    this.source.onProfiled = (text, busy) => {
      this.header.profileNote = { text, busy };
      this.guard(() => this.tick());
    };
    this.curves = new Curves(context.config, this.source, () => this.drawCharts());
    this.panels = makePanels();
    for (const { panel } of this.panels) this.curves.follow(panel);
    this.logs = new Logs(this.source);
    this.gap = new Gap();
    this.samples = new Samples((name) => this.source.questions.picture(name));
    this.ranks = new Ranks();
    this.devices = new DeviceGrid((name, bytes) => this.source.tail(name, bytes));
    this.devices.again = () => this.drawCharts();
    this.rankMap = new RankMap((rank) => this.logs.open(rank));
    this.mark = new PageMark();
    this.seen = () => document.hidden || this.drawAll(false);
    this.error = element("div", { class: "wb-banner", role: "alert", "data-tone": "bad", hidden: "" });
    const [waits, ...own] = [...this.panels].reverse().map(({ panel }) => panel.node);
    this.body = element("div", { class: "wb-grid" }, this.findings.node, ...this.curves.nodes, ...own.reverse(), this.devices.node, this.rankMap.node, waits, this.checkpoints.node, this.samples.node, this.gap.node, this.ranks.node, this.logs.node);
    this.shell = element("div", { class: "wb-root", role: "group", "aria-label": "Training run" }, this.header.node, this.error, this.body);
  }

  /** Somebody asked for this run: it comes into sight, and the keyboard goes on from its name. */
  reveal() {
    this.shell.scrollIntoView({ block: "start" });
    const focused = focusedElement();
    if (!focused || focused === document.body || focused.closest(".wb-tabs")) this.header.name.focus({ preventScroll: true });
  }

  open() {
    this.root.append(this.shell);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.shell);
    this.endTheme = watchTheme(() => this.drawCharts());
    document.addEventListener("visibilitychange", this.seen);
    this.ticking = window.setInterval(() => this.guard(() => this.tick()), 1000);
    this.drawCharts();
    if (/** @type {any} */ (this.context.config).reveal) this.reveal();
    this.source.start().catch((error) => this.fail(error));
    this.context.plotly().then((Plotly) => {
      this.Plotly = Plotly;
      this.drawCharts();
    }, (error) => this.fail(error));
  }

  /** @param {Snapshot} snapshot */
  receive(snapshot) {
    const before = this.snapshot?.view;
    this.snapshot = snapshot;
    this.receivedAt = performance.now();
    const { view } = snapshot;
    this.drawAll(before?.phase === view.phase && before?.findings?.length === view.findings?.length);
  }

  /** @param {boolean} lazy a snapshot like the one before: charts may wait until they have moved */
  drawAll(lazy) {
    const { snapshot } = this;
    if (!snapshot) return;
    this.guard(() => this.tick());
    if (document.hidden) return; // all but the state waits until somebody looks
    this.guard(() => {
      this.logs.fail(snapshot.view);
      this.findings.draw(snapshot.view);
      this.samples.draw(snapshot.view);
      this.gap.draw(snapshot.view);
      this.ranks.draw(snapshot.view);
      this.devices.draw(snapshot.view);
      this.logs.draw(snapshot.view);
    });
    this.drawCharts(lazy);
  }

  /** @param {string|null} lost */
  lose(lost) {
    this.header.lost = lost;
    this.guard(() => this.tick());
  }

  tick() {
    const { view, ageSeconds } = this.snapshot ?? { view: this.expected(), ageSeconds: null };
    const since = (performance.now() - this.receivedAt) / 1000;
    const age = ageSeconds === null ? null : ageSeconds + since;
    const now = runState(view, age, this.source.link(), this.source.status());
    // A hidden page hears less often, which is no reason to ask.
    const unheard = age !== null && document.hidden ? Math.max(0, age - HIDDEN_SECONDS) : age;
    if (this.source.needsStatus(late(view, unheard))) this.source.askStatus();
    this.mark.draw(view, now);
    if (document.hidden) return;
    this.header.draw(view, age, now);
    this.checkpoints.draw(view, now.silent);
  }

  /** Has the run watched again. */
  adopt() {
    this.sayResume("Starting a supervisor …", false);
    this.source.act("adopt");
  }

  /** @param {string|null} checkpoint null: the newest whole one */
  resume(checkpoint) {
    this.sayResume("Resuming …", false);
    this.source.resume(checkpoint);
  }

  /** @param {string} text @param {boolean} bad */
  sayResume(text, bad) {
    this.checkpoints.say(text, bad);
    this.header.resumeNote = { text, bad };
    this.guard(() => this.tick());
  }

  /** What is known before the first snapshot. */
  expected() {
    const { config } = this.context;
    const about = /** @type {any} */ (config).about ?? {};
    return { run: config.run, phase: "starting", steps: null, series: {}, ranks: [], ...about };
  }

  resize() {
    const width = this.shell.clientWidth;
    this.shell.dataset.size = width >= 1150 ? "large" : width >= 540 ? "medium" : "small";
    if (width !== this.width) {
      this.width = width;
      cancelAnimationFrame(this.frame ?? 0);
      this.frame = requestAnimationFrame(() => this.drawCharts());
    }
  }

  drawCharts(lazy = false) {
    if (document.hidden) return;
    this.guard(() => {
      const view = this.snapshot?.view ?? this.expected();
      const theme = readTheme(this.shell);
      const options = { theme, logLoss: false, smoothing: 0 };
      this.curves.draw(view, theme, this.Plotly, lazy);
      for (const { panel, draw } of this.panels) panel.draw(draw(view, options), options.theme, this.Plotly, lazy);
      this.devices.drawCurves(view, options, this.Plotly);
      this.rankMap.draw(view, options.theme);
    });
  }

  /** Draws; an error is shown in the dashboard itself instead of the browser's console alone.
   * @param {() => void} draw */
  guard(draw) {
    try {
      draw();
    } catch (error) {
      this.fail(error);
    }
  }

  /** @param {unknown} error */
  fail(error) {
    console.error(error);
    this.error.hidden = false;
    this.error.textContent = `The dashboard could not draw this: ${error}`;
  }

  close() {
    this.source.close();
    this.header.report.close();
    this.resizing?.disconnect();
    this.endTheme?.();
    clearInterval(this.ticking);
    document.removeEventListener("visibilitychange", this.seen);
    this.mark.close();
    this.curves.close(this.Plotly);
    for (const { panel } of this.panels) panel.close(this.Plotly);
    this.devices.close(this.Plotly);
    this.shell.remove();
  }
}

export const mount = mounted(Dashboard);
