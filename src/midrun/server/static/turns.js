// @ts-check
/** The turns of a run (messages, replies and their calls), loaded in pages and kept up to date. */

/** @typedef {import("./types.js").Turn} Turn */

const PAGE_SIZE = 200;
const EARLIER_PAGE_SIZE = 40;
/** Looks of calls that can still change. */
const OPEN_LOOKS = new Set(["running", "queued", "held", "needs_you"]);

export class Turns {
  /** @type {Turn[]} oldest first, without gaps up to the newest one */
  items = [];
  total = 0;
  /** Grows with every load. */
  version = 0;
  #isInvalid = false; // old turns may have changed

  /** @param {import("./api.js").Api} api @param {string} id */
  constructor(api, id) {
    this.api = api;
    this.path = `/v1/runs/${encodeURIComponent(id)}/turns`;
  }

  /** The number of turns before the known ones. */
  get earlierCount() {
    return this.items.length ? this.items[0].number - 1 : 0;
  }

  /** Load all known turns again with the next update. */
  invalidate() {
    this.#isInvalid = true;
  }

  /**
   * Load the turns from the first one that can have changed: after `invalidate` the first known
   * one, else the first with an open call, else the first new one.
   * @param {number} total of the run now
   */
  async update(total) {
    const first = this.items[0]?.number;
    if (first === undefined) {
      if (total) this.#replaceFrom(await this.api.get(this.path));
      return;
    }
    const open = this.items.find((turn) => turn.calls.some((call) => OPEN_LOOKS.has(call.look)));
    const from = this.#isInvalid ? first : (open?.number ?? this.total + 1);
    if (from > total && total <= this.total) return;
    const wasInvalid = this.#isInvalid;
    this.#isInvalid = false; // `invalidate` may be called again during the load
    try {
      for (let after = from - 1; after < total; after += PAGE_SIZE) {
        this.#replaceFrom(await this.api.get(`${this.path}?after=${after}&limit=${PAGE_SIZE}`));
      }
    } catch (error) {
      this.#isInvalid ||= wasInvalid;
      throw error;
    }
  }

  /** Load the page of turns before the known ones. */
  async loadEarlier() {
    const after = Math.max(0, this.earlierCount - EARLIER_PAGE_SIZE);
    const page = await this.api.get(`${this.path}?after=${after}&limit=${this.earlierCount - after}`);
    this.items = [...page.items, ...this.items];
    this.version += 1;
  }

  /** Replace all known turns from the first one of `page` on. @param {{items: Turn[], total: number}} page */
  #replaceFrom(page) {
    const first = page.items[0]?.number ?? Infinity;
    this.items = [...this.items.filter((turn) => turn.number < first), ...page.items];
    this.total = page.total;
    this.version += 1;
  }
}
