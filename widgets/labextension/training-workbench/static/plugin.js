// @ts-check
/** The plugin: two cards, two commands, and the live runs of this host in the status bar. */

import { endText, runsText, tooltip, worst } from "./status_text.js";

const ID = "training-workbench:plugin";
const OPEN_NOTEBOOK = "training-workbench:open-notebook";
const OPEN_RUNS = "training-workbench:open-runs";
const FILE = "Workbench.ipynb";
const CODE = "from workbench_widgets import Workbench\n\nWorkbench()";
const LIVE_MS = 3000; // between two looks while something trains
const IDLE_MS = 15000; // and while nothing does
const ICON =
  '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><path d="M2 3c2 7 4 9 12 9" fill="none" stroke="#1668c7" stroke-width="2.4"/></svg>';
const STYLE = `
.wb-status { border: 0; background: none; color: inherit; font: inherit; line-height: 24px; cursor: pointer; padding: 0 4px; white-space: nowrap; }
.wb-status:focus-visible { outline: 1px solid currentColor; }
.wb-status[data-tone="bad"] { font-weight: 700; }`;

/** @param {(name: string) => Promise<any>} load */
export async function makePlugin(load) {
  const names = ["@lumino/widgets", "@jupyterlab/apputils", "@jupyterlab/ui-components", "@jupyterlab/services", "@jupyterlab/coreutils", "@jupyterlab/statusbar", "@jupyterlab/launcher"];
  const [lumino, apputils, components, services, coreutils, statusbar, launcher] = await Promise.all(names.map(load));
  const lab = { lumino, apputils, components, services, coreutils };
  const tokens = [apputils.ICommandPalette, statusbar.IStatusBar, launcher.ILauncher];
  const present = tokens.filter(Boolean);
  return {
    id: ID,
    description: "Training workbench: cards, commands, and live runs in the status bar.",
    autoStart: true,
    optional: present,
    /** @param {any} app @param {any[]} services one per token that is present */
    activate: async (app, ...services) => {
      const [palette, bar, cards] = tokens.map((token) => (token ? services[present.indexOf(token)] : null));
      const workbench = new Workbench(app, lab);
      await workbench.watch(() => {
        workbench.addCommands(palette, cards);
        if (bar) workbench.addStatus(bar);
      });
    },
  };
}

class Workbench {
  /** @param {any} app @param {any} lab JupyterLab's packages */
  constructor(app, lab) {
    this.app = app;
    this.lab = lab;
    this.settings = lab.services.ServerConnection.makeSettings();
    this.live = { runs: /** @type {any[]} */ ([]), ended: /** @type {any[]} */ ([]), page: "" };
    this.missing = false; // whether the server has no such page
    this.timer = 0;
    /** @type {any} the end that the status bar still shows */
    this.end = null;
    /** @type {Map<string, any>} */
    this.tabs = new Map();
    this.made = 0; // tabs: each has an id of its own, also after one was closed
    this.node = document.createElement("button");
  }

  async read() {
    const url = this.lab.coreutils.URLExt.join(this.settings.baseUrl, "workbench/live");
    try {
      const response = await this.lab.services.ServerConnection.makeRequest(url, {}, this.settings);
      this.missing = response.status === 404;
      if (!response.ok) return; // it is asked again
      const before = this.live.runs;
      this.live = await response.json();
      for (const run of before) {
        const end = this.live.ended.find((one) => one.page === run.page && one.run === run.run);
        if (end) this.tell(end);
      }
    } catch {
      // the server went away: JupyterLab itself says so
    }
  }

  /** Looks again and again. @param {() => void} add what is called when the server has answered first */
  async watch(add) {
    let added = false;
    const look = async () => {
      clearTimeout(this.timer);
      if (document.hidden) return;
      await this.read();
      if (this.missing && !added) return; // this server lacks our pages: the workbench is not installed beside it
      if (this.live.page && !added) {
        added = true;
        add();
      }
      this.draw();
      clearTimeout(this.timer);
      this.timer = window.setTimeout(look, this.live.runs.length ? LIVE_MS : IDLE_MS);
    };
    document.addEventListener("visibilitychange", look);
    await look();
  }

  /** @param {any} palette @param {any} cards */
  addCommands(palette, cards) {
    this.icon = new this.lab.components.LabIcon({ name: "training-workbench:icon", svgstr: ICON });
    const { commands } = this.app;
    commands.addCommand(OPEN_NOTEBOOK, {
      label: "Training Workbench",
      caption: "Plan, launch and watch training, in a new notebook",
      icon: this.icon,
      execute: (/** @type {any} */ given) => this.openNotebook(given.cwd ?? ""),
    });
    commands.addCommand(OPEN_RUNS, {
      label: "Training Runs",
      caption: "The runs of this server and their dashboards, without a kernel",
      icon: this.icon,
      execute: (/** @type {any} */ given) => this.openPage(given.page ?? this.ownPage(), given.run ?? null),
    });
    for (const command of [OPEN_NOTEBOOK, OPEN_RUNS]) palette?.addItem({ command, category: "Training" });
    // Among the notebooks a card has the picture of its kernel, not the icon of its command.
    cards?.add({ command: OPEN_NOTEBOOK, category: "Notebook", rank: 100, kernelIconUrl: `data:image/svg+xml,${encodeURIComponent(ICON)}` });
    cards?.add({ command: OPEN_RUNS, category: "Other", rank: 100 });
  }

  /** @param {any} bar */
  addStatus(bar) {
    document.head.append(Object.assign(document.createElement("style"), { textContent: STYLE }));
    this.node.type = "button";
    this.node.className = "wb-status";
    this.node.addEventListener("click", () => this.openShown());
    const item = new this.lab.lumino.Widget();
    item.node.append(this.node);
    this.item = item;
    bar.registerStatusItem(ID, { item, align: "left", rank: 100 });
    this.draw();
  }

  draw() {
    if (!this.item) return;
    const { runs } = this.live;
    if (runs.length) this.end = null;
    const shown = runs.length ? runsText(runs) : this.end ? endText(this.end) : "";
    this.item.setHidden(!shown);
    this.node.textContent = shown;
    this.node.title = runs.length ? tooltip(runs) : this.end?.message ?? "";
    this.node.dataset.tone = runs.length ? worst(runs) : this.end?.outcome === "failed" ? "bad" : "";
  }

  openShown() {
    const shown = this.live.runs.length === 1 ? this.live.runs[0] : this.live.runs.length ? { page: this.live.runs[0].page, run: "" } : this.end;
    this.end = null;
    this.draw();
    if (shown) void this.app.commands.execute(OPEN_RUNS, { page: shown.page, run: shown.run });
  }

  /** Once, of a run below this server's folder that this page has seen live. @param {any} end */
  tell(end) {
    if (!end.own || end.is_trial) return; // others have their own page; a sweep has many trials
    this.end = end;
    const { Notification } = this.lab.apputils;
    const open = { label: "Open", callback: () => this.openPage(end.page, end.run) };
    if (end.outcome === "failed" || end.outcome === "interrupted") Notification?.error(endText(end), { autoClose: false, actions: [open] });
    else Notification?.info(endText(end), { autoClose: 8000, actions: [open] });
  }

  /** The store of a live run of this server: a host may have other servers. */
  ownPage() {
    return this.live.runs.find((run) => run.own)?.page ?? this.live.page;
  }

  /** A store's page in a tab; its dashboard of `run`, all runs for "", or what the tab shows for null.
   * @param {string} page @param {string|null} run */
  openPage(page, run) {
    let tab = this.tabs.get(page);
    const hash = run ? `#/run/${encodeURIComponent(run)}` : "#";
    if (!tab || tab.isDisposed) {
      tab = this.makeTab(page, hash);
      this.tabs.set(page, tab);
      this.app.shell.add(tab, "main");
    } else if (run !== null) tab.node.querySelector("iframe").contentWindow.location.hash = hash;
    this.app.shell.activateById(tab.id);
  }

  /** @param {string} page @param {string} hash */
  makeTab(page, hash) {
    const content = new this.lab.components.IFrame({ sandbox: ["allow-same-origin", "allow-scripts", "allow-popups", "allow-downloads"] });
    content.url = `${page}/${hash}`;
    const tab = new this.lab.apputils.MainAreaWidget({ content });
    tab.id = `training-workbench-runs-${(this.made += 1)}`;
    tab.title.label = "Training runs";
    tab.title.caption = "The runs of a store and their dashboards";
    tab.title.icon = this.icon;
    tab.title.closable = true;
    tab.toolbar.hide();
    return tab;
  }

  /** @param {string} cwd folder of the file browser */
  async openNotebook(cwd) {
    const { contents, kernelspecs } = this.app.serviceManager;
    await kernelspecs.ready;
    const name = kernelspecs.specs?.default ?? "python3";
    const kernelspec = { name, display_name: kernelspecs.specs?.kernelspecs?.[name]?.display_name ?? name };
    const cell = { cell_type: "code", id: "workbench", source: CODE, metadata: {}, outputs: [], execution_count: null };
    const content = { cells: [cell], metadata: { kernelspec }, nbformat: 4, nbformat_minor: 5 };
    let { path } = await contents.newUntitled({ type: "notebook", path: cwd });
    const wanted = cwd ? `${cwd}/${FILE}` : FILE;
    const named = await contents.rename(path, wanted).catch(() => null); // there is one: the new one keeps its name
    path = named?.path ?? path;
    await contents.save(path, { type: "notebook", format: "json", content });
    const panel = await this.app.commands.execute("docmanager:open", { path, factory: "Notebook" });
    await panel.context.ready;
    await panel.sessionContext.ready;
    await this.app.commands.execute("notebook:run-all-cells");
    return panel;
  }
}
