// @ts-check
/**
 * What JupyterLab loads first of a prebuilt extension: a container as webpack's module federation
 * makes them, written by hand. It takes JupyterLab's own packages from the shared scope.
 */
(() => {
  const here = /** @type {HTMLScriptElement} */ (document.currentScript).src;
  const NAME = "training-workbench";
  /** @type {Record<string, Record<string, { get: () => Promise<() => any> }>>} */
  let shared = {};

  /** A package of JupyterLab's; {} where this page has none. @param {string} name */
  async function load(name) {
    const versions = Object.values(shared[name] ?? {});
    return versions.length ? (await versions[0].get())() : {};
  }

  /** @type {any} */ (window)._JUPYTERLAB ??= {};
  /** @type {any} */ (window)._JUPYTERLAB[NAME] = {
    /** @param {any} scope */
    init(scope) {
      shared = scope;
    },
    async get() {
      const { makePlugin } = await import(new URL("plugin.js", here).href);
      const plugin = await makePlugin(load);
      return () => ({ __esModule: true, default: plugin });
    },
  };
})();
