// @ts-check
/** The calculator's own rules, beside workbench.css, in the colours that it defines. */

const ID = "workbench-memory-style";

const CSS = `
.wbm { display: grid; gap: 12px; grid-template-columns: minmax(0, 1fr); }
.wbm[data-size="large"] { grid-template-columns: minmax(270px, 320px) minmax(0, 1fr); align-items: start; }
.wbm-output, .wbm-figure { display: grid; gap: 10px; min-width: 0; grid-template-columns: minmax(0, 1fr); }
.wb-root .wbm-output > .wb-banner { margin: 0; }

/* controls */
.wbm-controls { display: grid; gap: 8px; min-width: 0; align-content: start; }
.wbm-group { border: 1px solid var(--wb-border); border-radius: 6px; background: var(--wb-raised); }
.wbm-group > summary, .wbm-fold > summary { padding: 5px 11px; font-size: 12.5px; font-weight: 600; cursor: pointer; border-radius: 6px; }
.wbm-fold > summary { padding: 0; }
.wbm summary:focus-visible { outline: 2px solid var(--wb-accent); outline-offset: -1px; }
.wbm-fields { display: grid; gap: 7px 10px; padding: 1px 11px 10px; grid-template-columns: repeat(6, minmax(0, 1fr)); align-items: end; }
.wbm[data-size="medium"] .wbm-controls { grid-template-columns: repeat(2, minmax(0, 1fr)); align-items: start; }
.wbm-field { min-width: 0; grid-column: span 3; }
.wbm-field:is([data-field="tp"], [data-field="pp"], [data-field="cp"]) { grid-column: span 2; }
.wbm-field:is(.wbm-search, .wbm-several, .wbm-slider, .wbm-limit, .wbm-check), .wbm-field:is([data-field="strategy"], [data-field="optimizer"], [data-field="kernels"], [data-field="offload"]) { grid-column: 1 / -1; }
.wbm-field > label { display: block; font-size: 11.5px; color: var(--wb-muted); line-height: 18px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.wbm-unit { opacity: 0.85; }
.wb-root .wbm :is(select, input[type="number"], input[type="text"]), .wb-root.wbm :is(select, input[type="number"], input[type="text"]) {
  width: 100%; height: 28px; padding: 0 7px; border: 1px solid var(--wb-border); border-radius: 4px;
  background: var(--wb-surface); color: var(--wb-ink); font: inherit; font-size: 12.5px; text-overflow: ellipsis;
}
.wb-root.wbm [aria-invalid="true"] { border-color: var(--wb-bad); }
.wb-root .wbm-problem { margin-top: 3px; font-size: 12px; color: var(--wb-bad); overflow-wrap: anywhere; }
.wbm-slider, .wbm-limit { display: grid; grid-template-columns: minmax(0, 1fr) 88px; gap: 0 10px; align-items: center; }
.wbm-field:is(.wbm-slider, .wbm-limit) > :is(label, .wbm-problem) { grid-column: 1 / -1; }
:is(.wbm-slider, .wbm-limit) input[type="range"] { width: 100%; height: 22px; margin: 0; accent-color: var(--wb-accent); cursor: pointer; }
:is(.wbm-slider, .wbm-limit) input[type="number"] { text-align: right; font-variant-numeric: tabular-nums; }
.wbm-check { display: flex; flex-wrap: wrap; align-items: center; gap: 7px; }
.wbm-check > label { order: 2; color: var(--wb-ink); font-size: 12.5px; }
.wbm-check input { margin: 0; accent-color: var(--wb-accent); }
.wbm-check .wbm-problem { order: 3; flex-basis: 100%; }
.wbm-search { position: relative; display: block; }
.wb-root .wbm-list {
  position: absolute; z-index: 20; left: 0; right: 0; top: 100%; margin-top: 2px; max-height: 252px; overflow: auto; list-style: none;
  border: 1px solid var(--wb-border); border-radius: 4px; background: var(--wb-raised); box-shadow: 0 4px 14px rgb(0 0 0 / 22%);
}
.wbm-list li { display: flex; justify-content: space-between; gap: 10px; padding: 3px 8px; cursor: pointer; font-size: 12.5px; }
.wbm-list li:is([aria-selected="true"], :hover) { background: color-mix(in srgb, var(--wb-accent) 18%, transparent); }
.wbm-list .wbm-none { color: var(--wb-muted); cursor: default; }
.wbm-detail { color: var(--wb-muted); white-space: nowrap; font-variant-numeric: tabular-nums; }
.wb-root .wbm-chips { display: flex; flex-wrap: wrap; gap: 4px; list-style: none; margin-bottom: 5px; }
.wbm-chips li { display: inline-flex; align-items: center; gap: 2px; padding: 1px 8px; border-radius: 999px; font-size: 12px; background: var(--wb-sunken); }
.wb-root .wbm-away { border: 0; background: none; color: var(--wb-muted); cursor: pointer; padding: 0 3px; font-size: 14px; line-height: 18px; }
.wb-root .wbm-away:hover { color: var(--wb-bad); }

/* figure */
.wb-root .wbm-headline { font-size: 17px; font-weight: 600; line-height: 1.35; padding-left: 11px; border-left: 4px solid var(--wb-muted); overflow-wrap: anywhere; }
.wbm-headline[data-fits="true"] { border-color: var(--wb-good); }
.wbm-headline[data-fits="false"] { border-color: var(--wb-bad); color: var(--wb-bad); }
.wb-root .wbm-head .wb-note { margin-top: 3px; padding-left: 15px; }
:is(.wbm-figure, .wbm-headline)[data-stale="true"] { opacity: 0.42; filter: grayscale(1); }
.wbm-exact[data-stale="true"] :is(table, .wbm-timeline) { opacity: 0.45; filter: grayscale(1); }
.wb-root .wbm-numbers { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 8px 18px; margin: 2px 0 12px; }
.wb-root .wbm-numbers :is(dt, dd) { float: none; display: block; width: auto; padding: 0; margin: 0; text-align: left; }
.wb-root .wbm-numbers dt { font-size: 12px; font-weight: 500; color: var(--wb-ink); }
.wb-root .wbm-numbers dd { font-size: 20px; font-weight: 600; font-variant-numeric: tabular-nums; line-height: 1.25; }
.wb-root .wbm-numbers .wbm-says { font-size: 11px; font-weight: 400; color: var(--wb-muted); overflow-wrap: anywhere; }
.wbm-chart { position: relative; }
.wbm-bar { display: flex; height: 42px; border-radius: 3px; background: var(--wb-sunken); overflow: hidden; }
.wbm-part {
  --part: var(--wb-series-8);
  display: block; flex: none; height: 100%; min-width: 0; padding: 0 7px; overflow: hidden; background: var(--part);
  color: var(--wb-raised); font-size: 11.5px; line-height: 42px; white-space: nowrap; text-overflow: ellipsis;
}
.wbm-part:empty { padding: 0; }
.wbm-part + .wbm-part { box-shadow: inset 1px 0 0 var(--wb-raised); }
.wbm-part[data-shade="pale"] { background: color-mix(in srgb, var(--part) 50%, var(--wb-raised)); color: var(--wb-ink); }
.wbm-part[data-shade="hatched"] {
  color: var(--wb-ink);
  background: repeating-linear-gradient(135deg, color-mix(in srgb, var(--part) 62%, var(--wb-raised)) 0 3px, color-mix(in srgb, var(--part) 22%, var(--wb-raised)) 3px 7px);
}
.wbm-lines { position: absolute; inset: -4px 0 0; pointer-events: none; z-index: 1; }
.wbm-lines span { position: absolute; top: 0; bottom: 0; width: 0; border-left: 2px dashed var(--wb-muted); margin-left: -1px; }
.wbm-lines span[data-fits="true"] { border-color: var(--wb-good); }
.wbm-lines span[data-fits="false"] { border-color: var(--wb-bad); }
.wbm-axis { position: relative; height: 19px; font-size: 10.5px; color: var(--wb-muted); }
.wbm-axis span { position: absolute; top: 3px; padding-left: 3px; border-left: 1px solid var(--wb-border); line-height: 13px; white-space: nowrap; background: var(--wb-raised); }
.wb-root .wbm-cards { list-style: none; display: grid; gap: 5px; margin-top: 2px; }
.wbm-cards li { position: relative; padding: 4px 0 3px; display: flex; flex-wrap: wrap; gap: 0 12px; font-size: 12.5px; }
.wbm-cards li > :not(.wbm-reach) { position: relative; z-index: 2; background: var(--wb-raised); padding: 0 3px; margin-left: -3px; }
.wbm-reach { position: absolute; left: 0; top: 0; height: 0; border-top: 2px solid var(--tone); }
.wbm-cards li { --tone: var(--wb-muted); }
.wbm-cards li[data-fits="true"] { --tone: var(--wb-good); }
.wbm-cards li[data-fits="false"] { --tone: var(--wb-bad); }
.wbm-verdict { color: var(--tone); font-weight: 600; }
.wbm-doubt { padding: 0 6px; border: 1px dashed var(--wb-warn); border-radius: 3px; color: color-mix(in srgb, var(--wb-warn) 75%, var(--wb-ink)); font-size: 11px; }
.wb-root .wbm-legend { width: auto; min-width: min(100%, 430px); margin-top: 12px; }
.wb-root .wbm-legend caption { text-align: left; color: var(--wb-muted); font-size: 11.5px; padding-bottom: 2px; caption-side: top; }
.wb-root .wbm-legend th { text-align: left; color: var(--wb-ink); font-weight: 400; white-space: normal; }
.wb-root .wbm-legend :is(td, th) { padding: 2px 8px 2px 0; }
.wb-root .wbm-legend td + td { color: var(--wb-muted); }
.wbm[data-size="large"] .wbm-main { display: grid; grid-template-columns: minmax(0, 1fr) minmax(290px, 380px); grid-template-rows: auto 1fr; column-gap: 26px; }
.wbm[data-size="large"] .wbm-legend { grid-column: 2; grid-row: 1 / span 2; margin-top: 0; width: 100%; align-self: start; }
.wbm-swatch { display: inline-block; width: 11px; height: 11px; margin-right: 7px; border-radius: 2px; vertical-align: -1px; }
.wbm-pair { display: grid; gap: 10px; grid-template-columns: minmax(0, 1fr); align-items: start; }
.wbm[data-size="large"] .wbm-pair { grid-template-columns: repeat(2, minmax(0, 1fr)); }
.wb-root :is(.wbm-rows, .wbm-switches) { list-style: none; margin: 5px 0 0; padding: 0; display: grid; gap: 5px; }
.wbm-rows li { display: grid; grid-template-columns: 112px minmax(0, 1fr) 122px; gap: 8px; align-items: center; font-size: 12px; }
.wbm-rows.wbm-stage-rows li { grid-template-columns: 200px minmax(0, 1fr) 72px; }
.wbm-value { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.wbm-track { display: block; height: 12px; background: var(--wb-sunken); border-radius: 2px; overflow: hidden; }
.wbm-small { display: block; height: 100%; background: color-mix(in srgb, var(--wb-muted) 55%, transparent); }
.wbm-small.wbm-stacked { display: flex; width: 100%; background: none; }
.wbm-small .wbm-part { line-height: 12px; }
li[data-wins="true"] :is(.wbm-name, .wbm-value) { font-weight: 600; }
li[data-wins="true"] .wbm-small:not(.wbm-stacked) { background: var(--wb-accent); }
.wbm-why { display: grid; gap: 4px; margin-top: 9px; font-size: 12.5px; }
.wbm-switches li { display: grid; grid-template-columns: 86px minmax(0, 1fr) auto; gap: 2px 8px; align-items: start; padding: 5px 0 4px; border-top: 1px solid var(--wb-grid); }
.wbm-switches li:first-child { border-top: 0; }
.wbm-saves { color: var(--wb-good); font-weight: 600; font-variant-numeric: tabular-nums; white-space: nowrap; }
.wbm-option { display: inline-block; max-width: 100%; font-family: var(--wb-mono); font-size: 11.5px; }
.wbm-how { display: block; font-family: var(--wb-mono); font-size: 11px; overflow-wrap: anywhere; }
.wbm-result { color: var(--wb-warn); }
.wbm-column { display: grid; gap: 10px; min-width: 0; }
.wb-root .wbm-facts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 6px 18px; margin: 0 0 8px; }
.wb-root .wbm-facts :is(dt, dd) { float: none; display: block; width: auto; padding: 0; margin: 0; text-align: left; }
.wb-root .wbm-facts dt { font-size: 11.5px; font-weight: 400; color: var(--wb-muted); }
.wb-root .wbm-facts dd { font-size: 15px; font-weight: 600; font-variant-numeric: tabular-nums; }
.wb-root .wbm-facts dd.wb-note { font-size: 11px; font-weight: 400; color: var(--wb-muted); }
:is(.wbm-why, .wb-panel)[data-stale="true"]:not(.wbm-exact) { opacity: 0.6; }
.wb-root .wbm-all { margin-top: 6px; align-self: start; }
.wbm-ways li { padding: 2px 0; align-items: center; }
.wbm-ways li > div { display: flex; flex-wrap: wrap; gap: 0 10px; align-items: baseline; }
.wbm-exact > header { margin-bottom: 2px; }
.wbm-exact progress { height: 8px; width: 130px; accent-color: var(--wb-accent); }
.wb-root .wbm-simulate { border-color: var(--wb-accent); color: var(--wb-accent); font-weight: 600; }
.wb-root .wbm-compared { width: auto; align-self: start; min-width: min(100%, 470px); margin-top: 8px; }
.wb-root .wbm-old { color: var(--wb-warn); }
.wb-root .wbm-timeline { margin-top: 10px; border: 0; padding: 0; }
.wb-root .wbm-assumptions { padding-left: 18px; margin-top: 7px; font-size: 12px; color: var(--wb-muted); display: grid; gap: 3px; }
.wbm[data-size="small"] .wbm-rows li { grid-template-columns: 98px minmax(0, 1fr) 118px; }
.wbm[data-size="small"] .wbm-rows.wbm-stage-rows li { grid-template-columns: minmax(0, 1fr) 72px; }
.wbm[data-size="small"] .wbm-stage-rows .wbm-track { grid-column: 1 / -1; grid-row: 2; }
.wb-root.wbm[data-size="small"] .wbm-numbers dd:not(.wbm-says) { font-size: 17px; }
`;

/** Adds rules to the page once. @param {string} id @param {string} css */
export function addRules(id, css) {
  const before = document.getElementById(id);
  if (before?.textContent === css) return;
  before?.remove();
  const style = document.createElement("style");
  style.id = id;
  style.textContent = css;
  document.head.append(style);
}

export const addStyle = () => addRules(ID, CSS);
