// @ts-check
/** Rules of the strategy picker, beside memory_style.js. A control that is wrong is marked; the
 * sentence stands in the banner, where there is room for it (and describes the control). */

import { addRules } from "./memory_style.js";

const ID = "workbench-strategy-style";

const CSS = `
.wbs .wbm-group:not(:has(.wbm-field:not([hidden]))) { display: none; }
.wbs .wbm-field:is([data-field="pp"], [data-field="dp"], [data-field="fsdp"], [data-field="cp"], [data-field="tp"]) { grid-column: span 2; }
.wbs .wbm-field:is([data-field="goal"], [data-field="family"], [data-field="engine"], [data-field="offload"], .wbm-select) { grid-column: 1 / -1; }
.wb-root.wbs .wbm-problem { display: none; }
.wbs[data-size="small"] .wbm-fields { padding-bottom: 8px; }
.wb-form .wb-root.wbs { padding: 2px 0 8px; }
.wb-root.wbs .wbm-bar.wbc-bar { height: 26px; margin: 0 0 5px; }
.wb-root .wbs .wbm-part, .wb-root.wbs .wbm-part { line-height: 26px; }
.wb-root.wbs .wbs-step { margin: 0; }
.wb-root :is(.wbs-why, .wbs-warnings, .wbs-talks) { margin: 6px 0 0; padding: 0; list-style: none; display: grid; gap: 3px; font-size: 12.5px; overflow-wrap: anywhere; }
.wbs-why li { color: var(--wb-muted); padding-left: 12px; text-indent: -12px; }
.wbs-why li:first-child { color: var(--wb-ink); font-weight: 500; }
.wbs-warnings li { padding: 4px 9px; border-left: 3px solid var(--wb-warn); border-radius: 3px; background: color-mix(in srgb, var(--wb-warn) 8%, transparent); }
.wb-root .wbs-ranks > header .wb-note { margin: 0; }
.wbs-pair { display: grid; gap: 8px 18px; grid-template-columns: minmax(0, 1fr); margin: 6px 0 4px; }
.wbs .wbm-fields { align-items: start; }
.wbs[data-size="large"] .wbs-pair { grid-template-columns: minmax(0, 1fr) minmax(250px, 340px); align-items: start; }
.wbs-stages { display: flex; flex-wrap: wrap; gap: 8px; min-width: 0; }
.wbs-stage { padding: 5px 7px 7px; border: 1px solid var(--wb-border); border-radius: 5px; min-width: 0; max-width: 100%; flex: 0 1 auto; }
.wb-root .wbs-stage h4 { margin: 0 0 4px; font-size: 11.5px; font-weight: 500; color: var(--wb-muted); overflow-wrap: anywhere; }
.wbs-cells { display: grid; gap: 4px; grid-template-columns: repeat(var(--columns), minmax(0, 67px)); }
.wbs[data-size="small"] .wbs-cells { grid-template-columns: repeat(var(--columns), minmax(0, 58px)); }
.wb-root .wbs-cell {
  display: flex; flex-direction: column; align-items: flex-start; gap: 0; min-width: 0; min-height: 38px; width: 100%; padding: 2px 5px; margin: 0; text-align: left;
  border: 1px solid color-mix(in srgb, var(--part) 55%, transparent); border-left: 4px solid var(--part); border-radius: 4px; cursor: default;
  background: color-mix(in srgb, var(--part) 15%, var(--wb-raised)); color: var(--wb-ink); font: inherit; font-size: 10px; line-height: 1.2; overflow: hidden;
}
.wb-root .wbs-cell[data-shade="pale"] { border-left-style: dashed; }
.wbs-cell b { font-size: 13px; line-height: 1.35; font-variant-numeric: tabular-nums; }
.wbs-cell span { color: var(--wb-muted); overflow-wrap: normal; }
.wb-root .wbs-cell[data-shown="true"] { box-shadow: 0 0 0 2px var(--wb-ink); }
.wb-root :is(.wbs-cell, .wbs-talks li)[data-axis="0"] { --axis: var(--wb-accent); --line: solid; }
.wb-root :is(.wbs-cell, .wbs-talks li)[data-axis="1"] { --axis: var(--wb-warn); --line: dashed; }
.wb-root :is(.wbs-cell, .wbs-talks li)[data-axis="2"] { --axis: var(--wb-good); --line: dotted; }
.wb-root :is(.wbs-cell, .wbs-talks li)[data-axis="3"] { --axis: var(--wb-bad); --line: double; }
.wb-root :is(.wbs-cell, .wbs-talks li)[data-axis="4"] { --axis: var(--wb-muted); --line: solid; }
.wb-root .wbs-cell:not([data-axis=""]) { outline: 2px var(--line) var(--axis); outline-offset: 0; }
.wbs-talks li { border-left: 3px var(--line) var(--axis); padding-left: 8px; }
.wbs-says { position: sticky; bottom: 0; background: var(--wb-raised); min-width: 0; font-size: 12.5px; overflow-wrap: anywhere; }
.wb-root .wbs-holds { font-weight: 500; }
.wbs[data-size="large"] .wbs-says { top: 8px; bottom: auto; }
`;

/** Adds the rules to the page once. */
export const addStrategyStyle = () => addRules(ID, CSS);
