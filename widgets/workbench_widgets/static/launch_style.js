// @ts-check
/** The launch form's own rules, beside workbench.css and the calculators'. */

import { addRules, addStyle } from "./memory_style.js";

const CSS = `
.wb-root.wbf { gap: 8px; padding: 0 0 8px; }
.wb-root.wbf-path { padding: 0 0 8px; gap: 4px; }
.wbf-row { display: flex; gap: 8px; align-items: center; flex-wrap: wrap; }
.wbf-row > input[type="text"] { flex: 1 1 60px; min-width: 0; }
.wbf-tools > input[type="text"] { flex: 0 1 260px; }
.wb-root.wbm .wbf-row .wb-button { flex: none; min-height: 28px; }
.wb-root .wbf-note { font-size: 12px; color: var(--wb-muted); flex: 1 1 240px; }
.wbf-tools > label { display: inline-flex; gap: 6px; align-items: center; font-size: 12px; color: var(--wb-muted); }
.wbf-groups { display: grid; gap: 6px; }
.wbf .wbm-fields { grid-template-columns: repeat(auto-fill, minmax(190px, 1fr)); align-items: start; }
.wbf .wbm-field, .wbf .wbm-field:is(.wbm-check) { grid-column: auto; }
.wbf .wbm-field .wbf-row { flex-wrap: nowrap; }
.wbf .wbm-field:has(.wbf-browser:not([hidden])) { grid-column: 1 / -1; }
.wbf .wbm-check { padding-top: 20px; }
.wbf-groups .wbm-field > label { font-family: var(--wb-mono); }
.wbf .wbm-field > label .wbm-unit { font-family: var(--jp-ui-font-family, system-ui, sans-serif); }
.wbf .wbm-field[data-changed="true"] > label { color: var(--wb-accent); font-weight: 600; }
.wbf summary .wbf-count { font-weight: 400; color: var(--wb-muted); margin-left: 8px; font-size: 11.5px; }
.wb-root .wbf-summary { font-size: 12px; color: var(--wb-muted); overflow-wrap: anywhere; }
.wb-root .wbf-forecast { font-size: 13px; font-weight: 600; font-variant-numeric: tabular-nums; }
.wbf-browser { border: 1px solid var(--wb-border); border-radius: 4px; background: var(--wb-raised); padding: 6px 8px; margin-top: 4px; }
.wbf-place { font-family: var(--wb-mono); overflow-wrap: anywhere; }
.wb-root .wbf-files { list-style: none; max-height: 190px; overflow: auto; margin: 4px 0 0; }
.wb-root .wbf-files button {
  display: block; width: 100%; padding: 2px 6px; border: 0; border-radius: 3px; background: none; color: var(--wb-ink);
  font-family: var(--wb-mono); font-size: 12px; text-align: left; cursor: pointer;
}
.wb-root .wbf-files button:hover { background: color-mix(in srgb, var(--wb-accent) 18%, transparent); }
`;

export function addFormStyle() {
  addStyle();
  addRules("workbench-launch-style", CSS);
}
