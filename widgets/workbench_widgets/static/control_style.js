// @ts-check
/** What ipywidgets' style sheet gives its controls, where the host has none. */

import { addRules } from "./memory_style.js";

const CSS = `
.wb-controls { --wb-accent: #1668c7; font: 13px/1.4 var(--jp-ui-font-family, system-ui, sans-serif); color: var(--jp-ui-font-color1, #1f2328); min-width: 0; }
.wb-controls :is(.widget-vbox, .widget-hbox, .widget-gridbox) { display: flex; min-width: 0; }
.wb-controls .widget-vbox { flex-direction: column; }
.wb-controls .widget-hbox { flex-wrap: wrap; }
.wb-controls .widget-gridbox { display: grid; }
.wb-controls :is(.widget-vbox, .widget-hbox, .widget-gridbox) > * { min-width: 0; }
.wb-controls .widget-inline-hbox { display: flex; }
.wb-controls .widget-inline-hbox :is(input, select) { font: inherit; min-width: 0; }
.wb-controls .widget-text input { padding: 0 8px; }
.wb-controls .widget-inline-hbox.widget-checkbox { flex-direction: row-reverse; justify-content: flex-end; align-items: center; gap: 6px; }
.wb-controls .jupyter-button { padding: 0 12px; border: 1px solid var(--jp-border-color2, #d8dce1); background: var(--jp-layout-color2, #f1f3f5); color: inherit; font-family: inherit; cursor: pointer; }
.wb-controls .jupyter-button[data-primary] { background: #1668c7; border-color: #1668c7; color: #fff; }
.wb-controls .jupyter-button:disabled { opacity: 0.5; cursor: default; }
.wb-controls .wb-tab-bar { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--jp-border-color2, #d8dce1); }
.wb-controls .wb-tab-bar button { padding: 6px 14px; border: 0; border-bottom: 2px solid transparent; background: none; color: inherit; font: inherit; cursor: pointer; }
.wb-controls .wb-tab-bar button[aria-selected="true"] { border-color: #1668c7; font-weight: 600; }
.wb-controls .wb-tab-bar button:focus-visible { outline: 2px solid #1668c7; outline-offset: -2px; }
`;

export const addControlStyle = () => addRules("workbench-control-style", CSS);
