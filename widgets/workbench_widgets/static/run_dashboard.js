// @ts-check
/** One run, live: header, charts, ranks and logs, redrawn from each snapshot. */

import { Checkpoints } from "./checkpoints.js";
import * as devices from "./device_traces.js";
import { element } from "./dom.js";
import { Findings } from "./findings.js";
import { Gap } from "./gap.js";
import { Header } from "./header.js";
import { Logs } from "./logs.js";
import { Panel } from "./panel.js";
import { Ranks } from "./ranks.js";
import { RunSource } from "./source.js";
import { late, runState } from "./state.js";
import { readTheme, watchTheme } from "./theme.js";
import * as timeline from "./timeline.js";
import * as traces from "./traces.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {import("./source.js").Snapshot} Snapshot */

/** @param {{logLoss: boolean, smoothing: number}} options @param {() => void} changed */
export function lossControls(options, changed) {
  const slider = /** @type {HTMLInputElement} */ (
    element("input", { type: "range", min: "0", max: "0.98", step: "0.01", "aria-label": "Smoothing of the loss" })
  );
  slider.value = String(options.smoothing);
  slider.addEventListener("input", () => {
    options.smoothing = Number(slider.value);
    changed();
  });
  const toggle = element("button", { type: "button", class: "wb-button", "aria-pressed": String(options.logLoss) }, "Log scale");
  toggle.addEventListener("click", () => {
    options.logLoss = !options.logLoss;
    toggle.setAttribute("aria-pressed", String(options.logLoss));
    changed();
  });
  return [element("label", { class: "wb-slider" }, "Smoothing", slider), toggle];
}

/** @param {HTMLElement[]} lossOptions */
function makePanels(lossOptions) {
  return [
    { panel: new Panel("Loss", { area: "loss", controls: lossOptions, empty: traces.WAITING }), draw: traces.loss },
    { panel: new Panel("Learning rate", { empty: "Not reported by the script" }), draw: traces.learningRate },
    { panel: new Panel("Gradient norm", { empty: "Not reported by the script" }), draw: traces.gradNorm },
    { panel: new Panel("Throughput", { empty: "Unknown for this script" }), draw: traces.throughput },
    { panel: new Panel("Step time", { empty: traces.WAITING }), draw: traces.stepTime },
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
    this.options = { logLoss: false, smoothing: context.config.smoothing };
    this.snapshot = /** @type {Snapshot|null} */ (null);
    this.receivedAt = 0;
    this.Plotly = /** @type {any} */ (null);
    this.source = new RunSource(context, (one) => this.receive(one), (lost) => this.lose(lost));
    this.findings = new Findings();
    this.header = new Header(context.config.run ?? "", {
      stop: (now) => this.source.requestStop(now),
      resume: () => this.resume(null),
      show: () => this.findings.show(),
      profile: () => this.source.profile(),
      kernel: () => this.source.kernelLink() !== "none" && this.source.kernelLink() !== "gone",
    });
    this.checkpoints = new Checkpoints((name) => this.resume(name), context.model !== null);
    this.source.onResumed = (text, bad) => this.sayResume(text, bad);
    this.source.onProfiled = (text, busy) => {
      this.header.profileNote = { text, busy };
      this.guard(() => this.tick());
    };
    this.panels = makePanels(lossControls(this.options, () => this.drawCharts()));
    this.logs = new Logs(this.source);
    this.gap = new Gap();
    this.ranks = new Ranks();
    this.error = element("div", { class: "wb-banner", role: "alert", "data-tone": "bad", hidden: "" });
    this.body = element("div", { class: "wb-grid" }, this.findings.node, ...this.panels.map(({ panel }) => panel.node), this.checkpoints.node, this.gap.node, this.ranks.node, this.logs.node);
    this.shell = element("div", { class: "wb-root", role: "group", "aria-label": "Training run" }, this.header.node, this.error, this.body);
  }

  open() {
    this.root.append(this.shell);
    this.resizing = new ResizeObserver(() => this.resize());
    this.resizing.observe(this.shell);
    this.endTheme = watchTheme(() => this.drawCharts());
    this.ticking = window.setInterval(() => this.guard(() => this.tick()), 1000);
    this.drawCharts();
    this.source.start().catch((error) => this.fail(error));
    this.context.plotly().then((Plotly) => {
      this.Plotly = Plotly;
      this.drawCharts();
    }, (error) => this.fail(error));
  }

  /** @param {Snapshot} snapshot */
  receive(snapshot) {
    this.snapshot = snapshot;
    this.receivedAt = performance.now();
    this.guard(() => {
      this.tick();
      this.findings.draw(snapshot.view);
      this.gap.draw(snapshot.view);
      this.ranks.draw(snapshot.view);
      this.logs.draw(snapshot.view);
    });
    this.drawCharts();
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
    if (this.source.needsStatus(late(view, age))) this.source.askStatus();
    this.header.draw(view, age, now);
    this.checkpoints.draw(view, now.silent);
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
    this.shell.dataset.size = width >= 1150 ? "large" : width >= 620 ? "medium" : "small";
    if (width !== this.width) {
      this.width = width;
      cancelAnimationFrame(this.frame ?? 0);
      this.frame = requestAnimationFrame(() => this.drawCharts());
    }
  }

  drawCharts() {
    this.guard(() => {
      const view = this.snapshot?.view ?? this.expected();
      const options = { theme: readTheme(this.shell), ...this.options };
      for (const { panel, draw } of this.panels) panel.draw(draw(view, options), options.theme, this.Plotly);
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
    this.resizing?.disconnect();
    this.endTheme?.();
    clearInterval(this.ticking);
    for (const { panel } of this.panels) panel.close(this.Plotly);
    this.shell.remove();
  }
}

/** @param {HTMLElement} root @param {Context} context */
export function mount(root, context) {
  const dashboard = new Dashboard(root, context);
  dashboard.open();
  return () => dashboard.close();
}
