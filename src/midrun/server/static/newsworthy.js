// @ts-check
/** What somebody who does not look wants to be told of: it needs them, or it is over. */

/** @typedef {{run: string, word: string, task: string}} News the detail of `midrun-news` */

const TOLD = new Set(["waiting", "failed", "completed"]);

/** Tells what has become news, once each; what was so at first sight is none. */
export class Newsworthy {
  /** @type {Map<string, string>} by run: what it was told for, or "" */
  #known = new Map();

  /**
   * Return what is news of a run, if anything.
   * @param {string} run @param {string} phase @param {boolean} capped
   */
  isNews(run, phase, capped) {
    const before = this.#known.get(run);
    const now = TOLD.has(phase) ? phase : phase === "paused" && capped ? "cap" : "";
    this.#known.set(run, now);
    return before !== undefined && now !== "" && now !== before;
  }
}
