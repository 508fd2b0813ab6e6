// @ts-check
/**
 * The only module that travels over the comm: it fetches the faces' modules and plotly.js once.
 *
 * Everything comes through Jupyter's own `/files/` URL when the store lies below the server's
 * root (cached by the browser, reachable while the kernel is busy or gone), else gzip-compressed
 * over the comm. The modules are plain ES modules; they are linked here by blob URLs because a
 * module that imports from a blob sends no Referer, which Jupyter's `/files/` asks for.
 *
 * @typedef {{instance: string, face: string, run: string|null, run_path: string|null,
 *   store_path: string|null, assets_path: string|null, bundle: string, plotly: string,
 *   integrity: Record<string, string>, version: string, refresh_ms: number, smoothing: number, transport: string,
 *   fallback?: boolean, open_file?: string, openable?: boolean, reusable?: boolean}} Config
 * @typedef {{get: (name: string) => any, on: Function, off: Function, send: Function}} Model
 * @typedef {{config: Config, model: Model|null, connected?: () => boolean, plotly: () => Promise<any>,
 *   url: (path: string|null, version?: string) => string|null, refusal?: string, server?: string, changes?: boolean,
 *   mount?: (element: HTMLElement, config: any, model: Model|null) => Promise<() => void>}} Context
 */

/** @type {{bundles: Map<string, Promise<any>>, urls: Map<string, Record<string, string>>,
 *   plotly: Promise<any>|null, keeps: boolean}} */
// @ts-ignore: one cache per page, shared by all widgets
const shared = (globalThis.__trainingWorkbench ??= {});
shared.bundles ??= new Map();
shared.urls ??= new Map();
shared.plotly ??= null;

/** URL of a file below the Jupyter server's root, or null outside Jupyter's own pages.
 * @param {string|null} path @param {string} [version] */
export function filesUrl(path, version) {
  const node = document.getElementById("jupyter-config-data");
  if (path === null || !node) return null;
  const base = JSON.parse(node.textContent || "{}").baseUrl;
  if (typeof base !== "string") return null;
  const query = version ? `?v=${encodeURIComponent(version)}` : "";
  return `${base}files/${path.split("/").map(encodeURIComponent).join("/")}${query}`;
}

/** Asks Python for an asset; resolves with its text.
 * @param {Model|null} model @param {string} name @returns {Promise<string>} */
function overComm(model, name) {
  if (!model) return Promise.reject(new Error(`Jupyter does not serve ${name}`));
  return new Promise((resolve, reject) => {
    /** @param {any} message @param {DataView[]} buffers */
    const answer = (message, buffers) => {
      if (message?.type !== "asset" || message.name !== name) return;
      model.off("msg:custom", answer);
      const bytes = new Blob([/** @type {any} */ (buffers[0])]).stream();
      new Response(bytes.pipeThrough(new DecompressionStream("gzip"))).text().then(resolve, reject);
    };
    model.on("msg:custom", answer);
    model.send({ type: "asset", name });
  });
}

/** @param {string} assets @param {Config} config @param {Model|null} model */
async function assetText(assets, config, model) {
  const name = assets === "bundle" ? config.bundle : config.plotly;
  const url = filesUrl(config.assets_path && `${config.assets_path}/${name}`, config.version);
  const integrity = config.integrity[name]; // of our own text: the folder may be another user's
  if (url && integrity) {
    try {
      const response = await fetch(url, { integrity });
      if (response.ok) return await response.text();
    } catch {
      // not reachable, or another text: the comm is tried next
    }
  }
  return overComm(model, assets);
}

/** Turns module sources into importable URLs, leaves first; a module that faces share is one.
 * @param {Record<string, string>} modules @param {Record<string, string>} urls */
function link(modules, urls) {
  /** @param {string} name @returns {string} */
  const visit = (name) => {
    if (!(name in urls)) {
      const text = modules[name].replace(
        /from "\.\/([\w.]+)"/g,
        (_, dependency) => `from "${visit(dependency)}"`,
      );
      const parts = [text, `\n//# sourceURL=workbench_widgets/${name}`];
      urls[name] = URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
    }
    return urls[name];
  };
  Object.keys(modules).forEach(visit);
  return urls;
}

/** The linked modules of this version and face; adds the style sheet to the page.
 * @param {Config} config @param {Model|null} model @returns {Promise<Record<string, string>>} */
function bundle(config, model) {
  const known = shared.bundles.get(config.bundle);
  if (known) return known;
  const loading = assetText("bundle", config, model).then((text) => {
    const { css, modules } = JSON.parse(text);
    let urls = shared.urls.get(config.version);
    if (!urls) {
      const style = document.createElement("style");
      style.dataset.workbench = config.version;
      style.textContent = css;
      document.head.append(style);
      shared.urls.set(config.version, (urls = {}));
    }
    return link(modules, urls);
  });
  loading.catch(() => shared.bundles.delete(config.bundle));
  shared.bundles.set(config.bundle, loading);
  return loading;
}

/** Runs plotly.js as a classic script and gives back a `window.Plotly` that was there before.
 * @param {string} url @param {string} [integrity] what its text must be @returns {Promise<any>} */
function runScript(url, integrity = "") {
  return new Promise((resolve, reject) => {
    const page = /** @type {any} */ (window);
    const before = page.Plotly;
    const script = document.createElement("script");
    script.onload = () => {
      const ours = page.Plotly;
      if (before) page.Plotly = before;
      resolve(ours);
    };
    script.onerror = () => reject(new Error("plotly.js could not be loaded"));
    script.integrity = integrity;
    script.src = url;
    document.head.append(script);
  });
}

/** @param {Config} config @param {Model|null} model @returns {Promise<any>} */
function plotly(config, model) {
  shared.plotly ??= (async () => {
    const path = config.assets_path && `${config.assets_path}/${config.plotly}`;
    const url = filesUrl(path, config.plotly);
    const integrity = config.integrity[config.plotly];
    if (url && integrity) {
      try {
        return await runScript(url, integrity);
      } catch {
        // not reachable, or another text: the comm is tried next
      }
    }
    const text = await overComm(model, "plotly");
    return runScript(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  })();
  shared.plotly.catch(() => (shared.plotly = null));
  return shared.plotly;
}

/** JupyterLab takes keys of ipywidgets' own controls as commands ("a" in a list adds a cell) unless the
 * focused element itself says no. Our own elements say so in dom.js. */
function keepKeys() {
  if (shared.keeps) return;
  shared.keeps = true;
  document.addEventListener("focusin", ({ target }) => {
    const node = target instanceof Element ? target : null;
    if (node?.closest(".wb-form, .wb-tabs")) node.setAttribute("data-lm-suppress-shortcuts", "true");
  });
}

/** Loads the modules and mounts one face into the element; errors are shown in the element.
 * @param {HTMLElement} element @param {Config} config @param {Model|null} model
 * @param {() => boolean} [connected] whether the model still reaches its kernel
 * @returns {Promise<() => void>} */
export async function mount(element, config, model, connected) {
  keepKeys();
  try {
    // the largest file first, beside the modules; who needs it sees its errors
    if (config.face === "run_dashboard.js") plotly(config, model).catch(() => {});
    const urls = await bundle(config, model);
    dress(element);
    const face = await import(urls[config.face]);
    return face.mount(element, {
      config,
      model,
      connected,
      plotly: () => plotly(config, model),
      url: filesUrl,
      mount,
    });
  } catch (error) {
    const box = document.createElement("pre");
    box.setAttribute("role", "alert");
    box.textContent = `The workbench could not draw ${config.face}: ${error}`;
    element.append(box);
    return () => box.remove();
  }
}

const DARK = "data-jp-theme-light"; // "false" in a dark theme

/* What JupyterLab and `workbench ui` give their pages: its names, in marimo's colours. */
const BARE = `
:host { --jp-layout-color0: #fff; --jp-layout-color1: #fff; --jp-layout-color2: #f1f3f5; --jp-ui-font-color1: #1f2328;
  --jp-ui-font-color2: #59636e; --jp-border-color2: #d8dce1; --jp-border-color3: #e8eaee; }
:host([data-jp-theme-light="false"]) { --jp-layout-color0: #0f1216; --jp-layout-color1: #14181d; --jp-layout-color2: #20262d;
  --jp-ui-font-color1: #e6edf3; --jp-ui-font-color2: #a0aab4; --jp-border-color2: #333b44; --jp-border-color3: #2a3139; }
`;

/** marimo draws each widget in a shadow tree, which no style sheet of the page reaches: ours and
 * plotly.js's are given to it once, and the page's theme. @param {HTMLElement} element of a face */
function dress(element) {
  const root = element.getRootNode();
  if (!(root instanceof ShadowRoot) || root.host.hasAttribute(DARK)) return;
  const host = root.host;
  const sheet = new CSSStyleSheet();
  root.adoptedStyleSheets = [...root.adoptedStyleSheets, sheet];
  const copy = () => {
    const ours = [...document.head.querySelectorAll('style[data-workbench], style[id^="workbench-"], style[id^="plotly.js"]')];
    const rules = ours.flatMap((style) => [...(/** @type {HTMLStyleElement} */ (style).sheet?.cssRules ?? [])]);
    const text = rules.map((rule) => rule.cssText.replaceAll(`[${DARK}="false"]`, `:host([${DARK}="false"])`));
    sheet.replaceSync([BARE, ...text].join("\n"));
  };
  const paint = () => host.setAttribute(DARK, String(document.body.dataset.theme !== "dark"));
  const follow = new MutationObserver(() => {
    if (!host.isConnected) return follow.disconnect();
    copy();
    paint();
  });
  follow.observe(document.head, { childList: true });
  follow.observe(document.body, { attributes: true, attributeFilter: ["data-theme"] });
  copy();
  paint();
}

const DISCONNECTED = "jupyter-widgets-disconnected"; // ipywidgets' mark of a view without a kernel
const HERE_MS = 5000; // between two signs of life
const LOST = "The kernel of this cell was restarted or shut down. Run the cell again to use its buttons. Runs continue without it.";

/** Says so once in the whole output, and switches off the buttons that would do nothing.
 * @param {HTMLElement} element of a face */
function sayLost(element) {
  let top = element;
  for (let node = element.parentElement; node; node = node.parentElement) {
    if (node.classList.contains("jupyter-widgets")) top = node;
  }
  if (top.dataset.workbenchLost) return;
  top.dataset.workbenchLost = "yes";
  const banner = document.createElement("p");
  banner.className = "wb-banner wb-lost";
  banner.setAttribute("role", "status");
  banner.dataset.tone = "warn";
  banner.textContent = LOST;
  const root = document.createElement("div");
  root.className = "wb-root wb-lab-look";
  root.append(banner);
  top.prepend(root);
  for (const button of top.querySelectorAll("button.jupyter-button")) {
    /** @type {HTMLButtonElement} */ (button).disabled = true;
    button.setAttribute("title", LOST);
  }
}

/** The model, whose messages may go nowhere after a restart of the kernel, and whether they do.
 * @param {Model} model @param {HTMLElement} el @returns {{model: Model, connected: () => boolean}} */
function guarded(model, el) {
  let refused = false;
  // ipywidgets marks its own views: anywidget draws into an element inside of one.
  const connected = () => !refused && !el.closest(`.${DISCONNECTED}`);
  const check = () => void setTimeout(() => connected() || sayLost(el)); // the mark comes with the event
  const send = (/** @type {any[]} */ ...message) => {
    try {
      return model.send(...message);
    } catch {
      refused = true; // "Cannot send": the comm is closed
      check();
    }
  };
  model.on("comm_live_update", check);
  let told = 0; // that somebody is here, which presence.py counts on
  const here = () => document.hidden || Date.now() - told < HERE_MS || send({ type: "here", at: (told = Date.now()) });
  model.on("change", here);
  here();
  return { model: Object.assign(Object.create(model), { send }), connected };
}

/** @param {{model: Model, el: HTMLElement}} given */
async function render({ model, el }) {
  el.dataset.workbenchLive = model.get("config").instance;
  const link = guarded(model, el);
  return mount(el, model.get("config"), link.model, link.connected);
}

export default { render };

/** Called by the fallback's inline script: see fallback.js.
 * @param {string} id of the element that holds the configuration */
export async function keep(id) {
  for (const root of document.querySelectorAll(`[data-workbench-fallback="${CSS.escape(id)}"]`)) {
    const node = /** @type {HTMLElement} */ (root);
    if (node.dataset.claimed) continue;
    node.dataset.claimed = "yes";
    const config = JSON.parse(node.querySelector("script")?.textContent || "{}");
    const { keep: keepRun } = await import((await bundle(config, null))["fallback.js"]);
    keepRun(node, { config, model: null, url: filesUrl }, mount);
  }
}
