// @ts-check
/** Rules of the export, beside memory_style.js, in the colours of workbench.css. */

import { addRules } from "./memory_style.js";

const CSS = `
.wbx .wbm-field:is([data-field="what"], [data-field="arguments"], [data-field="engine"], [data-field="checkpoints"], [data-field="image"], [data-field="address"], [data-field="strategy"], [data-field="provider"]) { grid-column: 1 / -1; }
.wb-root .wbx-reasons { list-style: none; display: grid; gap: 6px; margin: 0; padding: 0; }
.wbx-reasons li { padding: 7px 11px; border-left: 4px solid var(--wb-bad); border-radius: 4px; background: color-mix(in srgb, var(--wb-bad) 8%, transparent); overflow-wrap: anywhere; }
.wbx-reasons p { margin: 0; }
.wbx-reasons p + p { color: var(--wb-muted); margin-top: 2px; }
.wb-root .wbx-notes { list-style: none; display: grid; gap: 4px; margin: 0; padding: 0; font-size: 12.5px; }
.wbx-notes li { padding: 4px 9px; border-left: 3px solid var(--wb-warn); border-radius: 3px; background: color-mix(in srgb, var(--wb-warn) 8%, transparent); overflow-wrap: anywhere; }
.wbx-tabs { display: flex; flex-wrap: wrap; gap: 4px; margin-bottom: 6px; }
.wb-root .wbx-tabs button { font-size: 12px; }
.wb-root .wbx-tabs [aria-selected="true"] { border-color: var(--wb-accent); color: var(--wb-accent); font-weight: 600; }
.wb-root .wbx-text { white-space: pre; overflow: auto; max-height: 420px; tab-size: 2; font-size: 12px; line-height: 1.5; }
.wb-root .wbx-text.wb-command { white-space: pre-wrap; overflow-wrap: anywhere; }
.wb-root .wbx-next { max-height: none; }
.wbx-engines { width: 100%; table-layout: fixed; border-collapse: collapse; font-size: 12.5px; }
.wb-root .wbx-engines :is(th, td) { text-align: left; padding: 4px 8px 4px 0; white-space: normal; border-top: 1px solid var(--wb-border); vertical-align: top; overflow-wrap: anywhere; }
.wb-root .wbx-engines th { font-weight: 500; width: 26%; }
.wb-root .wbx-engines td:last-child { width: 74px; padding-right: 0; text-align: right; }
.wbx-engines tr[data-able="true"] td:nth-child(2) { color: var(--wb-good); }
.wbx-engines tr[data-able="false"] td:nth-child(2) { color: var(--wb-muted); }
.wbx-save { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin-top: 6px; }
`;

/** Adds the rules to the page once. */
export const addExportStyle = () => addRules("workbench-export-style", CSS);
