// @ts-check
/** Moves of controls on their way to Python: at most one at a time, the last ones sent together. */

import { element } from "./dom.js";

const SILENT_MS = 1500; // then a move counts as waiting for the kernel

export class Moves {
  /** @param {any} model @param {() => void} sync lets the controls follow Python */
  constructor(model, sync) {
    this.model = model;
    this.sync = sync;
    this.page = `${Date.now().toString(36)}${Math.random().toString(36).slice(2, 7)}`;
    this.sent = 0;
    this.waiting = "";
    /** @type {Record<string, any>} changes made while an answer is on its way */
    this.next = {};
    this.slow = element("p", { class: "wb-banner", role: "status", hidden: "" }, "Waiting for the kernel: it is busy with another cell, or it was restarted.");
  }

  open() {
    this.onAnswer = () => this.answer();
    this.model.on("change:answered", this.onAnswer);
    this.model.on("change:controls", this.onAnswer);
    this.sync();
  }

  /** A control was moved. @param {Record<string, any>} changes */
  move(changes) {
    Object.assign(this.next, changes);
    if (!this.waiting) this.send();
  }

  send() {
    this.sent += 1;
    this.waiting = `${this.page}:${this.sent}`;
    const changes = this.next;
    this.next = {};
    this.model.send({ type: "change", changes, token: this.waiting });
    clearTimeout(this.silence);
    this.silence = window.setTimeout(() => (this.slow.hidden = false), SILENT_MS);
  }

  answer() {
    if (this.waiting && this.model.get("answered") !== this.waiting) return;
    this.waiting = "";
    clearTimeout(this.silence);
    this.slow.hidden = true;
    if (Object.keys(this.next).length > 0) this.send();
    else this.sync();
  }

  close() {
    this.model.off("change:answered", this.onAnswer);
    this.model.off("change:controls", this.onAnswer);
    clearTimeout(this.silence);
  }
}
