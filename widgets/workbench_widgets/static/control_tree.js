// @ts-check
/** ipywidgets' own controls where the host draws none (marimo): from their models, the faces among them by `mount`. */

import { addControlStyle } from "./control_style.js";
import { element, setText } from "./dom.js";

/** @typedef {import("./loader.js").Context} Context
 * @typedef {{node: HTMLElement, close?: () => void}} View */

const REFERENCE = "IPY_MODEL_";

class ControlTree {
  /** @param {Context} context */
  constructor(context) {
    this.context = context;
    this.models = /** @type {any} */ (context.model).widget_manager;
  }

  /** The view of a widget, which follows its model. @param {string} reference @returns {Promise<View>} */
  async view(reference) {
    const model = await this.models.get_model(reference.replace(REFERENCE, ""));
    const kind = String(model.get("_model_name")).replace("Model", "");
    const draw = DRAW[kind];
    if (!draw) throw new Error(`the control ${kind} is not known here`);
    const stops = /** @type {(() => void)[]} */ ([]);
    const follow = (/** @type {any} */ followed, /** @type {string[]} */ names, /** @type {() => void} */ update) => {
      for (const name of names) {
        followed.on(`change:${name}`, update);
        stops.push(() => followed.off(`change:${name}`, update));
      }
      update();
    };
    const { node, close } = await draw(model, follow, this);
    const own = node.className;
    follow(model, ["_dom_classes"], () => (node.className = [own, ...(model.get("_dom_classes") ?? [])].join(" ")));
    const layout = await this.models.get_model(model.get("layout").replace(REFERENCE, ""));
    follow(layout, ["display", "grid_template_columns"], () => {
      node.style.display = layout.get("display") ?? "";
      node.style.gridTemplateColumns = layout.get("grid_template_columns") ?? "";
    });
    return {
      node,
      close: () => {
        stops.forEach((stop) => stop());
        close?.();
      },
    };
  }
}

/** Children in their order; those that stay keep their elements. @param {HTMLElement} node @param {ControlTree} tree */
function family(node, tree) {
  /** @type {Map<string, Promise<View>>} */
  const views = new Map();
  let latest = 0;
  const close = (/** @type {string} */ reference) => {
    views.get(reference)?.then((view) => view.close?.(), () => {});
    views.delete(reference);
  };
  const show = async (/** @type {string[]} */ references) => {
    const turn = ++latest;
    for (const reference of [...views.keys()].filter((key) => !references.includes(key))) close(reference);
    const drawn = references.map((reference) => {
      const view = views.get(reference) ?? tree.view(reference).catch(problem);
      views.set(reference, view);
      return view;
    });
    const nodes = (await Promise.all(drawn)).map((view) => view.node);
    if (turn === latest) node.replaceChildren(...nodes);
  };
  return { show, close: () => [...views.keys()].forEach(close) };
}

/** @param {unknown} error @returns {View} */
const problem = (error) => ({ node: element("pre", { role: "alert" }, `The workbench could not draw a control: ${error}`) });

/** @param {any} model @param {string} name @param {unknown} value */
function set(model, name, value) {
  model.set(name, value);
  model.save_changes();
}

/** A control below its name. @param {any} model @param {Function} follow @param {string} kind @param {HTMLElement} input */
function labelled(model, follow, kind, input) {
  const text = element("span", { class: "widget-label" });
  follow(model, ["description", "tooltip", "disabled"], () => {
    setText(text, model.get("description"));
    input.title = model.get("tooltip") ?? "";
    /** @type {HTMLInputElement} */ (input).disabled = model.get("disabled");
  });
  return { node: element("label", { class: `widget-inline-hbox ${kind}` }, text, input) };
}

/** @param {any} model @param {Function} follow @param {string} kind @param {string} type */
function typed(model, follow, kind, type) {
  const input = /** @type {HTMLInputElement} */ (element("input", { type }));
  const isNumber = type === "number";
  input.addEventListener("change", () => {
    if (isNumber && !Number.isInteger(input.valueAsNumber)) return void (input.value = model.get("value"));
    set(model, "value", isNumber ? input.valueAsNumber : input.value);
  });
  follow(model, ["value"], () => (input.value = model.get("value")));
  if (isNumber) follow(model, ["min", "max"], () => ((input.min = model.get("min")), (input.max = model.get("max"))));
  else follow(model, ["placeholder"], () => (input.placeholder = model.get("placeholder")));
  return labelled(model, follow, kind, input);
}

/** @param {any} model @param {Function} follow @param {() => void} pressed */
function button(model, follow, pressed) {
  const node = /** @type {HTMLButtonElement} */ (element("button", { type: "button", class: "jupyter-button" }));
  node.addEventListener("click", pressed);
  follow(model, ["description", "tooltip", "disabled", "button_style"], () => {
    setText(node, model.get("description"));
    node.title = model.get("tooltip") ?? "";
    node.disabled = model.get("disabled");
    node.toggleAttribute("data-primary", model.get("button_style") === "primary");
  });
  return { node };
}

/** @param {any} model @param {Function} follow */
function dropdown(model, follow) {
  const select = /** @type {HTMLSelectElement} */ (element("select"));
  select.addEventListener("change", () => set(model, "index", select.selectedIndex));
  follow(model, ["_options_labels", "index"], () => {
    const labels = /** @type {string[]} */ (model.get("_options_labels"));
    if ([...select.options].map((option) => option.text).join("\n") !== labels.join("\n")) {
      select.replaceChildren(...labels.map((text) => element("option", {}, text)));
    }
    select.selectedIndex = model.get("index") ?? -1;
  });
  return labelled(model, follow, "widget-dropdown", select);
}

/** @param {any} model @param {Function} follow */
function checkbox(model, follow) {
  const input = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox" }));
  input.addEventListener("change", () => set(model, "value", input.checked));
  follow(model, ["value"], () => (input.checked = model.get("value")));
  return labelled(model, follow, "widget-checkbox", input);
}

/** @param {string} kind */
const box = (kind) => (/** @type {any} */ model, /** @type {Function} */ follow, /** @type {ControlTree} */ tree) => {
  const node = element("div", { class: kind });
  const children = family(node, tree);
  follow(model, ["children"], () => void children.show(model.get("children")));
  return { node, close: children.close };
};

/** @param {any} model @param {Function} follow @param {ControlTree} tree */
function tabs(model, follow, tree) {
  const bar = element("div", { class: "wb-tab-bar", role: "tablist" });
  const panel = element("div", { class: "widget-tab-contents", role: "tabpanel" });
  const children = family(panel, tree);
  const node = element("div", {}, bar, panel);
  const open = (/** @type {number} */ at) => set(model, "selected_index", at);
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const count = bar.children.length;
    open((model.get("selected_index") + step + count) % count);
    /** @type {HTMLElement} */ (bar.querySelector("[aria-selected=true]"))?.focus();
  });
  follow(model, ["titles"], () => bar.replaceChildren(...model.get("titles").map((/** @type {string} */ title, /** @type {number} */ at) => {
    const tab = element("button", { type: "button", role: "tab" }, title);
    tab.addEventListener("click", () => open(at));
    return tab;
  })));
  follow(model, ["selected_index", "children"], () => {
    const at = model.get("selected_index");
    [...bar.children].forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === at));
      tab.setAttribute("tabindex", index === at ? "0" : "-1");
    });
    panel.setAttribute("aria-label", model.get("titles")[at] ?? "");
    void children.show(at === null ? [] : [model.get("children")[at]]);
  });
  return { node, close: children.close };
}

/** One of our faces. @param {any} model @param {Function} _follow @param {ControlTree} tree */
async function face(model, _follow, tree) {
  const node = element("div");
  const close = await tree.context.mount?.(node, model.get("config"), model);
  return { node, close };
}

/** @type {Record<string, (model: any, follow: Function, tree: ControlTree) => View | Promise<View>>} */
const DRAW = {
  VBox: box("widget-vbox"),
  HBox: box("widget-hbox"),
  GridBox: box("widget-gridbox"),
  Tab: tabs,
  Any: face,
  Button: (model, follow) => button(model, follow, () => model.send({ event: "click" })),
  ToggleButton: (model, follow) => button(model, follow, () => set(model, "value", !model.get("value"))),
  Dropdown: dropdown,
  Checkbox: checkbox,
  Text: (model, follow) => typed(model, follow, "widget-text", "text"),
  BoundedIntText: (model, follow) => typed(model, follow, "widget-text", "number"),
  Label: (model, follow) => {
    const node = element("div", { class: "widget-label" });
    follow(model, ["value"], () => setText(node, model.get("value")));
    return { node };
  },
};

/** @param {HTMLElement} root @param {Context} context */
export async function mount(root, context) {
  addControlStyle();
  const shell = element("div", { class: "wb-controls" });
  root.append(shell);
  const view = await new ControlTree(context).view(/** @type {any} */ (context.model).get("root"));
  shell.append(view.node);
  return () => {
    view.close?.();
    shell.remove();
  };
}
