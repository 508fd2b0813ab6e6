// @ts-check
/** The run's name, state, progress, figures and the Stop button. */

import { element, focusedElement, makeButton, setAttribute, setText } from "./dom.js";
import { Alarm } from "./findings.js";
import { count, grams, joules, known, number, percent, seconds, usd } from "./format.js";
import { ReportLink } from "./report_link.js";
import { lossTitle } from "./run_words.js";
import { ResumeButton, resumable, whyNot } from "./resume.js";
import { Steer } from "./steer.js";
import { StopButton } from "./stop_button.js";
import { rateText, rateUnit } from "./traces.js";

/** Which attempt this is, from where it went on and why. @param {any} view */
export function attemptText(view) {
  const starts = (view.attempts ?? []).filter((/** @type {any} */ attempt) => attempt.event === "start");
  const start = starts.at(-1);
  if (!((view.attempt ?? 1) > 1) || !start) return "";
  const from = start.first_step > 0 ? `resumed from step ${count(start.first_step)}` : "started again from the beginning";
  return `Attempt ${count(view.attempt)}, ${from}${start.why ? `: ${start.why}` : ""}`;
}

/** What an energy comes to, and what is not in it. @param {any} energy */
export function energyTitle(energy) {
  const rate = known(energy.tokens_per_joule) ? [`${number(energy.tokens_per_joule, 3)} tokens per joule.`] : [];
  const factor = `${number(energy.grid_gco2e_per_kwh, 4)} g/kWh: ${energy.grid_source ?? "n/a"}`;
  return [...rate, `${grams(energy.co2e_grams)} CO₂e at ${factor}.`, ...(energy.notes ?? [])].join("\n");
}

/** @typedef {import("./state.js").RunState} RunState */

/** @param {HTMLElement} node @param {string[]} fact name, text and what a pointer finds there */
function drawFact(node, [, text, title = ""]) {
  setText(node, text);
  if (node.title !== title) node.title = title;
}

export class Header {
  /** @param {string} name
   * @param {{stop: (now: boolean) => Promise<void>, resume: () => void, show: () => void, profile: () => void, steer: (wish: import("./steer.js").Wish) => void, adopt?: () => void, reuse?: () => void, report?: () => string|null, openLog?: (rank: number) => void, kernel: () => boolean}} actions
   * @param {string} [refusal] why this page may not act */
  constructor(name, actions, refusal = "") {
    this.refusal = refusal;
    this.kernel = actions.kernel;
    this.resume = new ResumeButton("Resume", actions.resume);
    this.resume.node.hidden = true; // until the run's state is known
    this.resumeNote = { text: "", bad: false };
    this.profile = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button", hidden: "" }, "Profile 5 steps"));
    this.profile.title = "Trace the next steps on every rank: where their time goes";
    this.profile.addEventListener("click", actions.profile);
    this.profileNote = { text: "", busy: false };
    this.steer = new Steer(actions.steer);
    this.reuse = element("button", { type: "button", class: "wb-button", hidden: "" }, "Reuse settings");
    this.reuse.title = "Set the launch form to what this run was launched with: change it, then launch or resume";
    this.reuse.addEventListener("click", () => actions.reuse?.());
    this.reusable = Boolean(actions.reuse) && refusal === "";
    this.watch = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "wb-button wb-watch", hidden: "" }, "Watch again"));
    this.watch.title = "Start a supervisor for the run: restarts, alarms and a recorded end again";
    this.watch.addEventListener("click", () => actions.adopt?.());
    this.report = new ReportLink(actions.report ?? (() => null));
    this.toLog = makeButton("", () => actions.openLog?.(this.failedRank ?? 0), { hidden: "" });
    this.alarm = new Alarm(actions.show);
    this.attempt = element("p", { class: "wb-detail wb-attempt", hidden: "" });
    this.name = element("h2", { tabindex: "-1" }, name);
    this.badge = element("span", { class: "wb-badge", role: "status", "aria-live": "polite" }, "Connecting");
    this.detail = element("p", { class: "wb-detail" });
    this.stop = new StopButton(actions.stop);
    this.bar = element("div", { class: "wb-bar" });
    this.progress = element(
      "div",
      { class: "wb-progress", role: "progressbar", "aria-label": "Progress", "aria-valuemin": "0" },
      this.bar,
    );
    this.facts = element("dl", { class: "wb-facts" });
    this.banner = element("div", { class: "wb-banner", role: "status", "aria-live": "polite", hidden: "" });
    this.trace = element("pre", { class: "wb-log" });
    this.traceOf = element("summary", {});
    this.traceback = element("details", { class: "wb-traceback", hidden: "" }, this.traceOf, this.trace);
    this.lost = /** @type {string|null} */ (null);
    this.drawnAttempt = 0;
    this.node = element(
      "div",
      { class: "wb-header" },
      element("div", { class: "wb-title" }, this.name, this.badge, this.stop.node),
      this.detail,
      this.attempt,
      this.progress,
      this.facts,
      this.steer.node,
      this.banner,
      this.traceback,
      this.alarm.node,
      this.alarm.spoken,
    );
    this.stop.node.append(this.resume.node);
    this.stop.node.before(this.watch, this.profile, this.reuse, this.report.node);
    this.traceback.before(this.toLog);
  }

  /** @param {any} given @param {number|null} ageSeconds since the last heartbeat
   * @param {RunState} now */
  draw(given, ageSeconds, now) {
    const view = { ...given, phase: now.phase, outcome: now.outcome };
    setText(this.name, view.name || view.run);
    setAttribute(this.badge, "data-state", now.badge.state);
    setText(this.badge, now.badge.text);
    const world = view.world_size ?? view.processes;
    const processes = `${count(world)} ${world === 1 ? "process" : "processes"}`;
    const where = [view.strategy, processes, view.device === "cuda" ? "GPU" : "CPU", view.run === view.name ? "" : view.run];
    setText(this.detail, where.filter(Boolean).join("  ·  "));
    if ((view.attempt ?? 0) !== this.drawnAttempt) this.profileNote = { text: "", busy: false };
    this.drawnAttempt = view.attempt ?? 0;
    const held = focusedElement() === this.stop.button;
    this.stop.phase(view.phase, this.drawnAttempt, this.unreachable(now, view.run));
    if (held && this.stop.button.hidden) this.name.focus({ preventScroll: true }); // not lost with the button
    this.resume.node.hidden = !resumable(view);
    this.resume.refuse(this.refusal || whyNot(view, false, this.kernel()));
    this.watch.hidden = !now.unwatched;
    this.watch.disabled = this.refusal !== "" || !this.kernel();
    if (this.watch.disabled) this.watch.title = this.refusal || "It needs the notebook's kernel. Run the cell again.";
    const profiled = !view.rehearsal && now.followed && view.phase === "running";
    this.profile.hidden = this.refusal !== "" || !this.kernel() || !profiled;
    this.profile.disabled = this.profileNote.busy;
    this.steer.show(!this.profile.hidden);
    this.reuse.hidden = !this.reusable || !this.kernel();
    this.report.draw(now.ended, this.drawnAttempt);
    if (view.phase !== "ended" && !now.unwatched && now.followed) this.resumeNote = { text: "", bad: false };
    const attempt = attemptText(view);
    setText(this.attempt, attempt);
    this.attempt.hidden = attempt === "";
    this.drawProgress(view);
    this.drawFacts(view, ageSeconds, now);
    this.drawBanner(view, now);
  }

  /** Why Stop would reach nobody from here; "" when it can. @param {RunState} now @param {string} run */
  unreachable(now, run) {
    if (this.refusal) return this.refusal;
    if (now.followed || now.ended || this.kernel()) return "";
    return `No kernel is connected to stop this run. Run the cell again, or use "workbench stop ${run}" in a terminal.`;
  }

  /** @param {any} view */
  drawProgress(view) {
    const { steps, steps_total: total, elapsed_seconds: elapsed, eta_seconds: left } = view;
    let share = known(total) && total > 0 ? (100 * steps) / total : null;
    let of = `step ${steps} of ${total}`;
    if (share === null && known(left) && elapsed + left > 0) {
      share = (100 * elapsed) / (elapsed + left); // a run with a time limit
      of = `${seconds(left)} left`;
    }
    if (share === null && view.phase === "ended" && view.outcome === "succeeded") share = 100;
    this.progress.hidden = share === null;
    if (share === null) return;
    share = Math.min(100, share);
    setAttribute(this.progress, "aria-valuemax", "100");
    setAttribute(this.progress, "aria-valuenow", String(Math.round(share)));
    setAttribute(this.progress, "aria-valuetext", `${of}, ${percent(share)}`);
    this.bar.style.width = `${share}%`;
  }

  /** @param {any} view @param {number|null} ageSeconds @param {RunState} now */
  drawFacts(view, ageSeconds, now) {
    const running = now.followed;
    const late = running && known(ageSeconds) ? Math.max(0, ageSeconds) : 0;
    const of = known(view.steps_total) ? ` / ${count(view.steps_total)}` : "";
    const facts = [
      ["Step", `${count(view.steps)}${of}`],
      [known(view.nonfinite_step) ? "Last finite loss" : "Loss, last step", number(view.loss_last), lossTitle(view)],
      [`${rateUnit(view) === "samples" ? "Samples" : "Tokens"}/s, recent median`, rateText(view)],
      ["Elapsed", seconds(known(view.elapsed_seconds) ? view.elapsed_seconds + late : null)],
    ];
    if (running) facts.push(["Time left", seconds(view.eta_seconds)]);
    if (known(view.usd_per_hour)) facts.push(["Cost so far", usd(view.usd_so_far)]);
    if (known(view.energy?.joules)) facts.push(["Energy so far", joules(view.energy.joules), energyTitle(view.energy)]);
    if (view.steps_redone > 0) facts.push(["Steps repeated", count(view.steps_redone)]);
    const terms = this.facts.querySelectorAll("dt");
    if ([...terms].map((term) => term.textContent).join() === facts.map(([name]) => name).join()) {
      this.facts.querySelectorAll("dd").forEach((node, index) => drawFact(node, facts[index]));
      return;
    }
    const shown = this.facts.children;
    if (facts.length !== shown.length) {
      this.facts.replaceChildren(...facts.map(() => element("div", {}, element("dt"), element("dd"))));
    }
    facts.forEach((fact, at) => {
      setText(/** @type {HTMLElement} */ (shown[at].firstChild), fact[0]);
      drawFact(/** @type {HTMLElement} */ (shown[at].lastChild), fact);
    });
  }

  /** @param {any} view @param {RunState} now */
  drawBanner(view, now) {
    const sentences = [];
    let tone = "note";
    if (this.lost) {
      sentences.push(this.lost);
      tone = "warn";
    } else if (now.sentence) {
      sentences.push(now.sentence);
      tone = "warn";
    }
    const message = now.ended && now.silent ? "" : view.message;
    if (message) sentences.push(message);
    if (["failed", "interrupted", "no-steps", "preempted"].includes(view.outcome)) tone = "bad";
    if (known(view.processes_left) && !/process/.test(message ?? "")) {
      const left = view.processes_left;
      sentences.push(left ? `Remaining processes of the run: ${count(left)}.` : "No process of the run remains.");
    }
    if (this.resumeNote.text) sentences.push(this.resumeNote.text);
    if (this.profileNote.text) sentences.push(this.profileNote.text);
    if (this.resumeNote.bad) tone = "bad";
    this.alarm.draw(view, message ?? "");
    this.failedRank = now.ended && known(view.failed_rank) ? view.failed_rank : null;
    this.toLog.hidden = this.failedRank === null;
    setText(this.toLog, `Log of rank ${this.failedRank}`);
    if (view.traceback && this.traceback.hidden) /** @type {HTMLDetailsElement} */ (this.traceback).open = true;
    this.traceback.hidden = !view.traceback;
    setText(this.traceOf, `Traceback of rank ${view.failed_rank ?? "n/a"}`);
    setText(this.trace, view.traceback ?? "");
    setAttribute(this.banner, "data-tone", tone);
    setText(this.banner, sentences.join("\n"));
    this.banner.hidden = sentences.length === 0;
  }
}
