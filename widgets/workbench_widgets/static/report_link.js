// @ts-check
/** The link to an ended run's report.html, once the server has the file. */

import { element } from "./dom.js";

const AGAIN_MS = 3000; // a run that nobody watched gets its report a little later
const LOOKS = 5;

export class ReportLink {
  /** @param {() => string|null} address of the report; null where no server shows the run's files */
  constructor(address) {
    this.address = address;
    this.node = element("a", { class: "wb-button wb-report", target: "_blank", rel: "noopener", hidden: "" }, "Report");
    this.node.title = "The whole run on one page, in a new tab: results, prediction, findings, checkpoints";
    this.asked = 0; // attempt whose report was asked for
    this.timer = 0;
  }

  /** @param {boolean} ended @param {number} attempt of the run: each end writes the report again */
  draw(ended, attempt) {
    const address = ended ? this.address() : null;
    if (address === null) {
      this.close();
      this.node.hidden = true;
      this.asked = 0;
      return;
    }
    if (this.asked === attempt) return;
    this.close();
    this.asked = attempt;
    void this.look(address, attempt, LOOKS);
  }

  /** @param {string} address @param {number} attempt @param {number} left looks */
  async look(address, attempt, left) {
    const there = await fetch(address, { method: "HEAD", cache: "no-store", credentials: "same-origin" }).then(({ ok }) => ok, () => false);
    if (this.asked !== attempt) return;
    this.node.setAttribute("href", address);
    this.node.hidden = !there;
    if (!there && left > 1) this.timer = window.setTimeout(() => this.look(address, attempt, left - 1), AGAIN_MS);
  }

  close() {
    clearTimeout(this.timer);
  }
}
