// @ts-check
/** Rules of the device grid and the rank heat map, beside workbench.css. */

import { addRules } from "./memory_style.js";

const ID = "workbench-grid-style";

const CSS = `
.wb-root :is(.wb-area-grid, .wb-area-map) { grid-column: 1 / -1; }
.wb-root .wb-grid-missing { color: var(--wb-warn); font-size: 12px; overflow-wrap: anywhere; }
.wb-root .wb-grid-odd { display: flex; flex-wrap: wrap; gap: 4px 6px; list-style: none; margin-top: 4px; }
.wb-root .wb-grid-odd .wb-button { border-color: var(--wb-warn); text-align: left; }
.wb-nodes { display: flex; flex-wrap: wrap; gap: 8px 16px; margin-top: 6px; }
.wb-nodes { max-height: 480px; overflow-y: auto; padding: 2px; }
.wb-node { min-width: 0; }
.wb-nodes:not([data-size="small"]) .wb-node { flex: 1 1 100%; }
.wb-nodes[data-size="middle"][data-many="true"] .wb-node { flex: 1 1 700px; }
.wb-node-name { display: block; font-size: 11px; color: var(--wb-muted); white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.wb-tiles { display: grid; gap: 6px; grid-template-columns: repeat(auto-fit, minmax(146px, 1fr)); }
.wb-nodes[data-size="large"] .wb-tile { max-width: 320px; }
.wb-nodes[data-size="middle"] .wb-tiles { grid-template-columns: repeat(auto-fit, minmax(82px, 1fr)); gap: 4px; }
.wb-root .wb-nodes[data-size="middle"] .wb-tile { padding: 4px 5px 6px; gap: 0 4px; }
.wb-nodes[data-size="middle"][data-kind="core"] .wb-tiles { grid-template-columns: repeat(auto-fill, minmax(96px, 1fr)); }
.wb-nodes[data-size="middle"] .wb-tile-use { font-size: 12px; }
.wb-nodes[data-size="small"] .wb-tiles { grid-template-columns: repeat(8, 14px); gap: 2px; }
.wb-nodes[data-size="small"][data-many="true"] { gap: 5px 14px; }
.wb-nodes[data-size="small"][data-many="true"] .wb-node { display: flex; align-items: center; gap: 6px; }
.wb-nodes[data-size="small"][data-many="true"] .wb-node-name { width: 56px; }
.wb-nodes[data-size="small"][data-many="false"] .wb-tiles { grid-template-columns: repeat(auto-fill, 14px); }
.wb-nodes[data-size="small"][data-many="false"] .wb-node { flex: 1; }
.wb-root .wb-tile {
  --tone: var(--wb-accent); --shown: calc(var(--level, 0) * 26%);
  position: relative; display: grid; grid-template-columns: auto 1fr; align-content: start; gap: 0 8px; padding: 5px 8px 6px; min-width: 0; overflow: hidden;
  border: 1px solid color-mix(in srgb, var(--tone) 35%, var(--wb-border)); border-radius: 4px; color: var(--wb-ink); font: inherit; font-size: 11.5px;
  text-align: left; cursor: pointer; background: color-mix(in srgb, var(--tone) var(--shown), var(--wb-raised)); font-variant-numeric: tabular-nums;
}
.wb-root .wb-tile[data-tone="usual"] { --shown: 7%; }
.wb-root .wb-tile[data-tone="odd"] { --tone: var(--wb-warn); }
.wb-root .wb-tile[data-tone="bad"] { --tone: var(--wb-bad); }
.wb-root .wb-tile[data-tone="none"] { --tone: var(--wb-muted); background: repeating-linear-gradient(135deg, var(--wb-sunken) 0 4px, var(--wb-raised) 4px 8px); }
.wb-nodes[data-size="small"] .wb-tile { --shown: calc(18% + var(--level, 0) * 82%); width: 14px; height: 14px; padding: 0; border-radius: 2px; border-color: transparent; }
.wb-nodes[data-size="small"] .wb-tile[data-tone="usual"] { --shown: calc(var(--level, 0) * 55%); }
.wb-root .wb-tile[aria-pressed="true"] { outline: 2px solid var(--wb-ink); outline-offset: 0; }
.wb-tile > span { min-width: 0; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.wb-tile-name { color: var(--wb-ink); }
.wb-tile-use { font-weight: 600; font-size: 13px; text-align: right; }
.wb-tile :is(.wb-tile-memory, .wb-tile-more) { grid-column: 1 / -1; font-size: 11px; }
.wb-tile-slow { grid-column: 1 / -1; color: var(--wb-bad); font-weight: 600; }
.wb-tile > span:empty { display: none; }
.wb-tile-memory::after { content: ""; position: absolute; left: 0; bottom: 0; height: 3px; width: var(--full, 0); background: var(--tone); }
.wb-root .wb-grid-hint { margin-top: 5px; min-height: 18px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.wb-own { margin-top: 10px; padding-top: 8px; border-top: 1px solid var(--wb-grid); }
.wb-own > header { display: flex; align-items: center; gap: 10px; }
.wb-root .wb-own h4 { margin: 0 auto 0 0; font-size: 12.5px; font-weight: 600; min-width: 0; overflow-wrap: anywhere; }
.wb-own-charts { display: grid; gap: 8px; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); margin-top: 6px; }
.wb-processes { overflow: auto; max-height: 180px; margin-top: 8px; }
.wb-root .wb-processes :is(th, td):first-child { width: 40%; }

.wb-map-box { position: relative; margin-top: 6px; max-height: 480px; overflow-x: hidden; overflow-y: auto; }
.wb-map { display: block; width: 100%; cursor: pointer; border-radius: 3px; }
.wb-map-scale { display: inline-flex; align-items: center; gap: 6px; font-size: 11px; color: var(--wb-muted); white-space: nowrap; }
.wb-map-scale i { width: 90px; height: 8px; border-radius: 2px; background: linear-gradient(to right, var(--wb-map-low), var(--wb-map-high)); }
.wb-root { --wb-map-low: color-mix(in srgb, var(--wb-accent) 7%, var(--wb-raised)); --wb-map-high: var(--wb-bad); }
`;

export const addStyle = () => addRules(ID, CSS);
