// @ts-check
/** The turns of a run: what was said and done, read a page at a time and kept up to date. */

/** @typedef {import("./shapes.js").Turn} Turn */
/** @typedef {import("./shapes.js").CallLine} CallLine */

const PAGE = 200;
const UNSETTLED = new Set(["running", "queued", "held", "needs_you"]);

export class Turns {
  /** @type {Turn[]} oldest first, without gaps up to the newest */
  items = [];
  total = 0;
  /** Grows with everything that is read. */
  version = 0;
  #all = false;

  /** @param {import("./api.js").Api} api @param {string} id */
  constructor(api, id) {
    this.api = api;
    this.path = `/v1/runs/${encodeURIComponent(id)}/turns`;
  }

  /** How many there are before those that are known. */
  get before() {
    return this.items.length ? this.items[0].number - 1 : 0;
  }

  /** Read everything again at the next look: something old has changed. */
  forget() {
    this.#all = true;
  }

  /** Read what is new, and what was not settled. @param {number} total */
  async look(total) {
    const first = this.items[0]?.number;
    if (first === undefined) {
      if (total) this.#take(await this.api.get(this.path));
      return;
    }
    const open = this.items.find((turn) => turn.calls.some((call) => UNSETTLED.has(call.look)));
    const from = this.#all ? first : (open?.number ?? this.total + 1);
    if (from > total && total <= this.total) return;
    this.#all = false;
    for (let after = from - 1; after < total; after += PAGE) {
      this.#take(await this.api.get(`${this.path}?after=${after}&limit=${PAGE}`));
    }
  }

  /** Read some that come before. */
  async earlier() {
    const after = Math.max(0, this.before - 40);
    const page = await this.api.get(`${this.path}?after=${after}&limit=${this.before - after}`);
    this.items = [...page.items, ...this.items];
    this.version += 1;
  }

  /** Return a call of the turns that are known. @param {string} id @returns {CallLine | null} */
  call(id) {
    for (let at = this.items.length - 1; at >= 0; at--) {
      const found = this.items[at].calls.find((call) => call.id === id);
      if (found) return found;
    }
    return null;
  }

  /** @param {{items: Turn[], total: number}} page */
  #take(page) {
    const fresh = page.items[0]?.number ?? Infinity;
    this.items = [...this.items.filter((turn) => turn.number < fresh), ...page.items];
    this.total = page.total;
    this.version += 1;
  }
}
