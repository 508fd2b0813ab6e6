// @ts-check
/** Rules of the cost calculator and the planner, beside memory_style.js. */

import { addRules } from "./memory_style.js";

const ID = "workbench-plan-style";

const CSS = `
.wb-root.wbm .wbc-numbers { grid-template-columns: repeat(6, minmax(0, auto)); justify-content: space-between; margin: 2px 0 8px; }
.wb-root.wbm:not([data-size="large"]) .wbc-numbers { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.wb-root.wbm[data-size="small"] .wbc-numbers { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.wb-root .wbc-numbers dd:not(.wbm-says) { font-size: 18px; white-space: nowrap; }
.wbc-where { font-size: 12.5px; overflow-wrap: anywhere; }
.wbc-where .wbm-doubt, .wbc-offers .wbm-doubt { white-space: nowrap; margin-right: 3px; }
.wb-root .wbm-bar.wbc-bar { height: 30px; margin: 6px 0 8px; }
.wb-root .wbc-bar .wbm-part { line-height: 30px; }
.wb-root .wbc-bill :is(th, td) { vertical-align: top; }
.wb-root .wbc-bill tbody th { text-align: left; font-weight: 400; color: var(--wb-ink); white-space: nowrap; }
.wb-root .wbc-bill :is(th, td):nth-child(3) { text-align: left; white-space: normal; overflow-wrap: break-word; width: 100%; color: var(--wb-muted); }
.wb-root.wbm[data-size="small"] .wbc-bill tbody th { white-space: normal; }
.wb-root .wbc-sources { margin: 6px 0 0; padding-left: 22px; font-size: 11.5px; color: var(--wb-muted); overflow-wrap: anywhere; }
.wb-root .wbc-sources li::marker { content: "[" counter(list-item) "] "; }
.wb-root .wbm-rows.wbc-rows li { grid-template-columns: minmax(0, 240px) minmax(40px, 1fr) 104px; }
.wb-root.wbm .wbc-spot li { grid-template-columns: 84px minmax(40px, 1fr) 148px; }
.wbc-verdict { font-size: 12.5px; margin-top: 7px; }
.wb-root.wbm .wbc-verdict { margin-top: 7px; }
.wbc-scroll { overflow: auto; max-height: 330px; margin-top: 4px; }
.wb-root .wbc-offers :is(th, td) { text-align: left; }
.wb-root .wbc-offers tbody th { color: var(--wb-ink); }
.wb-root .wbc-offers td:nth-child(2) { max-width: 260px; overflow: hidden; text-overflow: ellipsis; }
.wb-root .wbc-offers td:nth-child(3) { max-width: 150px; overflow: hidden; text-overflow: ellipsis; color: var(--wb-muted); }
.wb-root .wbc-offers :is(th, td):nth-child(4) { text-align: right; }
.wb-root :is(.wbc-offers, .wbp-table) tr[data-chosen="true"] { background: color-mix(in srgb, var(--wb-accent) 10%, transparent); }
.wb-root.wbm[data-size="medium"] .wbc-offers :is(th, td):nth-child(3) { display: none; }
.wb-root.wbm[data-size="small"] .wbc-offers :is(th, td):is(:nth-child(2), :nth-child(3)) { display: none; }
.wb-root.wbm[data-size="small"] .wbc-rows li { grid-template-columns: minmax(0, 1fr) auto; }
.wb-root.wbm[data-size="small"] .wbc-rows .wbm-track { grid-column: 1 / -1; grid-row: 2; }

/* planner */
.wbp-pair { display: grid; gap: 10px; grid-template-columns: minmax(0, 1fr); align-items: start; }
.wbm[data-size="large"] .wbp-pair { grid-template-columns: minmax(0, 1.35fr) minmax(0, 1fr); }
.wbm:not([data-size="large"]) .wbp-left { display: contents; }
.wbm:not([data-size="large"]) .wbp-left > :nth-child(n + 3) { order: 2; }
.wbm:not([data-size="large"]) .wbp-detail { order: 1; }
.wb-area-pareto .wb-plot-box { min-height: 330px; }
.wbm[data-size="small"] .wb-area-pareto .wb-plot-box { min-height: 270px; }
.wb-root .wbp-searching { display: flex; align-items: center; gap: 8px; color: var(--wb-muted); font-size: 12.5px; }
.wbp-searching progress { width: 90px; height: 8px; accent-color: var(--wb-accent); }
.wb-root .wbp-scroll { max-height: none; }
.wb-root .wbp-scroll[data-open="true"] { max-height: 560px; }
.wb-root .wbp-table :is(th, td) { text-align: right; }
.wb-root .wbp-table :is(th, td):nth-child(2) { text-align: left; }
.wb-root .wbp-table tbody th { color: var(--wb-ink); white-space: normal; width: 100%; }
.wb-root .wbp-table td { vertical-align: top; }
.wbp-layout { color: var(--wb-muted); font-weight: 400; font-size: 11.5px; line-height: 1.35; }
.wb-root.wbm[data-size="small"] .wbp-table :is(th, td):nth-child(5) { display: none; }
.wb-root .wbp-table tbody tr { cursor: pointer; }
.wb-root .wbp-table tbody tr:hover { background: var(--wb-sunken); }
.wb-root .wbp-table td:first-child { white-space: nowrap; color: var(--wb-muted); }
.wb-root .wbp-table tr[data-front="true"] td:first-child { color: var(--wb-accent); font-weight: 600; }
.wb-root .wbp-pick { border: 0; background: none; padding: 0; color: inherit; font: inherit; cursor: pointer; text-align: left; }
.wb-root .wbp-table tr[data-chosen="true"] .wbp-pick { font-weight: 600; color: var(--wb-accent); }
.wb-root .wb-panel .wbp-title { font-size: 13.5px; overflow-wrap: anywhere; }
.wb-root .wbp-detail > p { margin-top: 4px; }
.wbp-why { font-size: 12.5px; overflow-wrap: anywhere; }
.wb-root.wbm .wbp-detail .wbc-numbers { grid-template-columns: repeat(3, minmax(0, auto)); margin: 9px 0 3px; }
.wb-root .wbp-detail .wbc-numbers dd:not(.wbm-says) { font-size: 16px; }
.wbp-part { margin-top: 11px; }
.wb-root .wbp-part h4 { margin: 0 0 3px; font-size: 12.5px; font-weight: 600; color: var(--wb-ink); }
.wb-root .wbp-part h4 .wb-note { font-weight: 400; }
.wb-root .wbp-detail .wbc-rows li { grid-template-columns: minmax(0, 1.3fr) minmax(30px, 1fr) 92px; }
.wb-root .wbp-detail > section { margin-top: 11px; }
.wb-root .wbp-detail > section header { display: flex; gap: 10px; }
.wb-root .wbp-detail .wbc-bill tbody th { white-space: normal; min-width: 112px; padding-left: 18px; text-indent: -18px; }
.wb-root .wbp-settings { padding: 8px 10px; max-height: none; }
.wb-root :is(.wbp-worse, .wbp-examples, .wbp-providers) { margin: 5px 0 0; padding-left: 18px; display: grid; gap: 4px; font-size: 12.5px; overflow-wrap: anywhere; }
.wbp-worse li[data-changes="true"]::marker { color: var(--wb-warn); }
.wbp-groups { display: grid; gap: 3px; margin-top: 4px; }
.wbp-group > summary { cursor: pointer; font-size: 12.5px; padding: 1px 3px; border-radius: 4px; }
.wbp-count { display: inline-block; min-width: 62px; font-weight: 600; }
.wb-root .wbp-examples { font-size: 12px; margin-bottom: 6px; }
.wb-root .wbp-prices > header { gap: 10px; }
.wbp-prices progress { height: 8px; width: 130px; accent-color: var(--wb-accent); }
.wbp-prices details { margin-top: 5px; }
.wbp-prices summary { cursor: pointer; font-size: 12.5px; }
.wb-root .wbp-providers { column-gap: 16px; list-style: none; padding-left: 2px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); font-size: 12px; }
.wbp-providers li[data-state="good"] b { color: var(--wb-good); }
.wbp-providers li[data-state="bad"] b { color: var(--wb-bad); }
.wb-panel[data-stale="true"] { opacity: 0.6; }
`;

/** Adds the rules to the page once. */
export const addPlanStyle = () => addRules(ID, CSS);
