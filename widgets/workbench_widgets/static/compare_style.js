// @ts-check
/** Rules of the Compare face. */

import { addRules } from "./memory_style.js";

const ID = "workbench-compare-style";

const CSS = `
.wb-root.wbx { display: grid; gap: 10px; grid-template-columns: minmax(0, 1fr); }
.wbx-filter { display: flex; flex-wrap: wrap; gap: 6px 10px; align-items: center; margin-top: 4px; }
.wbx input[type="text"], .wbx input[type="number"] {
  height: 26px; padding: 0 8px; border: 1px solid var(--wb-border); border-radius: 4px; min-width: 0;
  background: var(--wb-raised); color: var(--wb-ink); font: inherit; font-size: 12px;
}
.wbx-filter input[type="text"] { flex: 1 1 220px; }
.wbx label { display: inline-flex; align-items: center; gap: 6px; font-size: 12px; color: var(--wb-muted); }
.wbx-tag { display: inline-block; padding: 0 7px; margin-right: 4px; border-radius: 999px; font-size: 11px; background: var(--wb-sunken); color: var(--wb-ink); }
.wb-root.wbx .wb-note[data-tone="bad"] { color: var(--wb-bad); }
.wb-root.wbx .wb-note:empty { display: none; }
.wb-root .wbx-runs :is(th, td):is(:nth-child(2), :nth-child(3), :nth-child(4), :nth-child(8)) { text-align: left; }
.wb-root .wbx-runs td:nth-child(2) { max-width: 260px; overflow: hidden; text-overflow: ellipsis; font-weight: 500; }
.wb-root .wbx-runs tr[data-archived="true"] td { opacity: 0.65; }
.wbx-edit { display: flex; flex-wrap: wrap; gap: 8px 12px; align-items: center; margin-top: 8px; padding-top: 8px; border-top: 1px solid var(--wb-grid); }
.wbx-edit strong { font-weight: 600; font-size: 12.5px; overflow-wrap: anywhere; }
.wbx-edit label { flex: 1 1 190px; }
.wbx-edit label input { flex: 1; }
.wb-root .wbx-beside { min-width: 0; }
.wb-root .wbx-beside :is(th, td) { text-align: left; white-space: normal; overflow-wrap: anywhere; vertical-align: top; min-width: 84px; }
.wb-root .wbx-beside thead { position: sticky; top: 0; background: var(--wb-raised); }
.wb-root .wbx-beside tbody th { color: var(--wb-muted); font-weight: 400; white-space: nowrap; }
.wb-root .wbx-beside .wbx-head th { padding-top: 10px; color: var(--wb-ink); font-weight: 600; font-size: 12.5px; }
.wb-root .wbx-beside thead i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.wbx .wb-table-box.wbx-all { max-height: 900px; }
.wbx-loss input { width: 84px; }
@container (max-width: 620px) {
  .wb-root .wbx-runs :is(th, td):is(:nth-child(4), :nth-child(5), :nth-child(7)) { display: none; }
}
@container (max-width: 460px) {
  .wb-root .wbx-runs :is(th, td):is(:nth-child(8), :nth-child(9)) { display: none; }
  .wb-root .wbx-runs td:nth-child(2) { max-width: 130px; }
}
`;

export function addCompareStyle() {
  addRules(ID, CSS);
}
