// @ts-check
/** Rules of the logs, beside workbench.css. */

import { addRules } from "./memory_style.js";

const ID = "workbench-log-style";

const CSS = `
.wb-root .wb-log-search { height: 24px; flex: 0 1 90px; min-width: 70px; padding: 0 7px; border: 1px solid var(--wb-border); border-radius: 4px; background: var(--wb-raised); color: var(--wb-ink); font: inherit; font-size: 12px; }
.wb-area-logs > header select { max-width: 112px; }
.wb-area-logs > header { gap: 4px 5px; }
.wb-area-logs > header .wb-button { padding: 2px 7px; }
.wb-root div.wb-log { overflow-anchor: none; }
.wb-line[data-level="error"] { color: var(--wb-bad); }
.wb-line[data-level="warning"] { color: var(--wb-warn); }
.wb-line-from { color: var(--wb-muted); margin-right: 8px; }
.wb-line-folded { color: var(--wb-muted); }
.wb-line mark { background: color-mix(in srgb, var(--wb-warn) 35%, transparent); color: inherit; }
.wb-line .wb-b { font-weight: 700; }
.wb-c-red { color: var(--wb-bad); } .wb-c-green { color: var(--wb-good); } .wb-c-yellow { color: var(--wb-warn); }
.wb-c-blue { color: var(--wb-accent); } .wb-c-magenta { color: var(--wb-series-4); } .wb-c-cyan { color: var(--wb-series-6); }
.wb-c-black, .wb-c-white { color: var(--wb-muted); }
.wb-log-where:empty { display: none; }
`;

export const addStyle = () => {
  if (typeof document.getElementById === "function") addRules(ID, CSS);
};
