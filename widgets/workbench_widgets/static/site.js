// @ts-check
/** The page of `workbench ui`, also as a tab of JupyterLab: the table of runs, and each run's dashboard, without a kernel. */

import { element, makeButton, setText } from "./dom.js";
import { mount as mountDashboard } from "./run_dashboard.js";
import { mount as mountRuns } from "./runs.js";
import { request, RunLink, SITE, StoreLink } from "./site_links.js";

const TITLE = "Training workbench";
const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "workbench-theme";
const REPORT_MS = 5000; // between two looks whether the run has one by now

/** @type {Promise<any>|null} */
let loading = null;

function plotly() {
  if (!SITE.plotly) return Promise.reject(new Error(`plotly.js is not installed beside ${SITE.server}: pip install 'plotly>=6.1'`));
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.onload = () => resolve(/** @type {any} */ (window).Plotly);
    script.onerror = () => reject(new Error("plotly.js could not be loaded"));
    script.src = `${SITE.base}/static/${SITE.version}/${SITE.plotly}`;
    document.head.append(script);
  });
  return loading;
}

/** Address of a file below the store. @param {string|null} path */
const url = (path) => (path === null ? null : `${SITE.base}/files/${path.split("/").map(encodeURIComponent).join("/")}`);

/** What a face is given here. @param {any} config @param {any} model */
function contextOf(config, model) {
  const all = { store_path: "", assets_path: null, run: null, run_path: null, smoothing: 0.6, refresh_ms: 1000, transport: "http", ...config };
  return /** @type {any} */ ({ config: all, model, plotly, url, changes: true, server: SITE.server, refusal: SITE.refusal });
}

/** The body of the JupyterLab that shows this page in a tab; null in a window of its own. */
function aroundUs() {
  try {
    return window.parent === window ? null : window.parent.document.body;
  } catch {
    return null; // another origin's
  }
}

class Site {
  constructor() {
    this.around = aroundUs();
    if (this.around) new MutationObserver(() => this.paint()).observe(this.around, { attributeFilter: ["data-jp-theme-light"] });
    this.back = element("a", { href: "#", class: "wb-site-back" }, "All runs");
    this.report = element("a", { class: "wb-site-report", target: "_blank", rel: "noopener", hidden: "" }, "Report");
    this.theme = makeButton("", () => this.turnTheme());
    const mode = SITE.refusal ? element("span", { class: "wb-site-mode", title: SITE.refusal }, "Read only") : "";
    this.note = element("p", { class: "wb-banner", role: "status", "data-tone": "warn", hidden: "" });
    this.place = element("div", { class: "wb-site-main" });
    const bar = element("header", { class: "wb-root wb-site-bar" },
      element("h1", {}, TITLE), this.back, element("span", { class: "wb-site-store", title: SITE.store }, SITE.store), mode, this.report, this.theme);
    document.body.append(bar, element("main", {}, element("div", { class: "wb-root wb-site-note" }, this.note), this.place));
    this.close = () => {};
    this.dark = window.matchMedia("(prefers-color-scheme: dark)");
    this.dark.addEventListener("change", () => this.paint());
    window.addEventListener("hashchange", () => this.route());
  }

  start() {
    this.paint();
    void this.route();
  }

  /** @param {string} text "" = all is well */
  say(text) {
    this.note.hidden = !text;
    setText(this.note, text);
  }

  async route() {
    this.close();
    this.close = () => {};
    this.say("");
    this.report.hidden = true;
    document.title = TITLE;
    const run = decodeURIComponent(/^#\/run\/(.+)$/.exec(location.hash)?.[1] ?? "");
    this.back.hidden = !run;
    const root = element("div");
    this.place.replaceChildren(root);
    if (run) await this.showRun(root, run);
    else this.showRuns(root);
    window.scrollTo(0, 0);
  }

  /** @param {HTMLElement} root */
  showRuns(root) {
    this.place.prepend(element("h2", { class: "wb-spoken" }, "Runs of the store")); // between h1 and the table's h3
    const link = new StoreLink((run) => (location.hash = `#/run/${encodeURIComponent(run)}`), (text) => this.say(text));
    const end = mountRuns(root, contextOf({ face: "runs.js", openable: true }, link));
    void link.read();
    this.close = () => {
      link.close();
      end();
    };
  }

  /** @param {HTMLElement} root @param {string} run */
  async showRun(root, run) {
    const about = await this.about(root, run);
    if (!about || !root.isConnected) return;
    document.title = `${about.name} · ${TITLE}`;
    const config = { face: "run_dashboard.js", run, run_path: run, about };
    const end = mountDashboard(root, contextOf(config, new RunLink(run)));
    this.offerReport(run, about);
    const timer = window.setInterval(async () => {
      if (document.hidden || !this.report.hidden) return;
      const now = await request(`/api/runs/${encodeURIComponent(run)}`).then((response) => response.json(), () => null);
      if (now && root.isConnected) this.offerReport(run, now);
    }, REPORT_MS);
    this.close = () => {
      clearInterval(timer);
      end();
    };
  }

  /** @param {HTMLElement} root where it is to be shown @param {string} run */
  async about(root, run) {
    try {
      return await (await request(`/api/runs/${encodeURIComponent(run)}`)).json();
    } catch (error) {
      if (root.isConnected) this.say(/** @type {Error} */ (error).message);
      return null;
    }
  }

  /** @param {string} run @param {any} about */
  offerReport(run, about) {
    this.report.hidden = !about.report;
    this.report.setAttribute("href", url(`${run}/report.html`) ?? "");
  }

  chosen() {
    const kept = localStorage.getItem(THEME_KEY) ?? "";
    return THEMES.includes(kept) ? kept : THEMES[0];
  }

  turnTheme() {
    localStorage.setItem(THEME_KEY, THEMES[(THEMES.indexOf(this.chosen()) + 1) % THEMES.length]);
    this.paint();
  }

  paint() {
    const chosen = this.chosen();
    const auto = this.around?.dataset.jpThemeLight ? this.around.dataset.jpThemeLight === "false" : this.dark.matches;
    const dark = chosen === "dark" || (chosen === "auto" && auto);
    document.body.dataset.jpThemeLight = String(!dark);
    setText(this.theme, `Theme: ${chosen}`);
  }
}

new Site().start();
