// @ts-check
/** The browser's tab tells of a finding or an end that came while it was hidden: title and icon, until somebody looks. */

import { element } from "./dom.js";
import { kindText, severityOf, standing } from "./findings.js";

const MARKS = { good: "✓", warn: "!", bad: "✕" };
const COLOURS = { good: "#1a7f37", warn: "#b4690e", bad: "#c62828" };

/** The latest news of a run, in a few words; "" while it simply runs.
 * @param {any} view @param {import("./state.js").RunState} now @returns {{text: string, tone: "good"|"warn"|"bad"}} */
export function newsOf(view, now) {
  const name = view.name || view.run;
  if (now.ended) {
    const tone = now.outcome === "succeeded" ? "good" : now.outcome === "stopped" ? "warn" : "bad";
    return { text: `${now.badge.text}: ${name}`, tone };
  }
  const worst = standing(view).find((finding) => severityOf(finding) !== "note");
  if (worst) return { text: `${kindText(worst.kind)}: ${name}`, tone: severityOf(worst) === "error" ? "bad" : "warn" };
  return { text: now.unwatched ? `${now.badge.text}: ${name}` : "", tone: "warn" };
}

/** The page's own title while a dashboard of it marks it. @type {string|null} */
let own = null;

export class PageMark {
  constructor() {
    this.told = /** @type {string|null} */ (null);
    this.marked = false;
    this.icon = element("link", { rel: "icon", type: "image/svg+xml" });
    this.looked = () => document.hidden || this.restore();
    document.addEventListener("visibilitychange", this.looked);
  }

  /** @param {any} view @param {import("./state.js").RunState} now */
  draw(view, now) {
    const news = newsOf(view, now);
    if (this.told !== null && news.text && news.text !== this.told && document.hidden) this.show(news);
    this.told = news.text;
  }

  /** @param {{text: string, tone: "good"|"warn"|"bad"}} news */
  show({ text, tone }) {
    own ??= document.title;
    this.marked = true;
    document.title = `${MARKS[tone]} ${text}`;
    const disc = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="7" fill="${COLOURS[tone]}"/></svg>`;
    this.icon.setAttribute("href", `data:image/svg+xml,${encodeURIComponent(disc)}`);
    document.head.append(this.icon); // the last one counts
  }

  restore() {
    if (!this.marked) return;
    if (own !== null) document.title = own; // null: another dashboard has given it back
    own = null;
    this.marked = false;
    this.icon.remove();
  }

  close() {
    document.removeEventListener("visibilitychange", this.looked);
    this.restore();
  }
}
