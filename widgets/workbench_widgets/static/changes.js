// @ts-check
/** Applies what `workbench/pages/changes.py` made of two JSON values; the old value stays as it is.
 *
 * @typedef {{is?: any, in?: Record<string, Change>, gone?: string[], at?: Record<string, Change>,
 *   from?: number, keep?: number, add?: any[]}} Change */

/** @param {any} old @param {Change} change an empty one changes nothing @returns {any} */
export function changed(old, change) {
  if ("is" in change) return change.is;
  if (change.add) {
    const from = change.from ?? 0;
    return [...old.slice(from, from + (change.keep ?? 0)), ...change.add];
  }
  if (change.at) {
    const list = [...old];
    for (const [at, inner] of Object.entries(change.at)) list[Number(at)] = changed(list[Number(at)], inner);
    return list;
  }
  if (!change.in && !change.gone) return old;
  const next = { ...old };
  for (const [key, inner] of Object.entries(change.in ?? {})) next[key] = changed(old[key], inner);
  for (const key of change.gone ?? []) delete next[key];
  return next;
}

/** The view that a page keeps, brought up to date by messages that say what changed. */
export class KeptView {
  constructor() {
    this.view = /** @type {any} */ (null);
    this.version = /** @type {string|null} */ (null);
  }

  /** The view after a message; null where it needs a base that is not here: ask for a whole one.
   * @param {any} message */
  take(message) {
    const { base = null, version = null } = message;
    if (base !== null && base !== this.version) return null;
    this.view = base === null ? message.view : changed(this.view, message.changes);
    this.version = version;
    return this.view;
  }
}
