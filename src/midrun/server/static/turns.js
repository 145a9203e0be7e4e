// @ts-check
/** The turns of a run: messages, replies and their calls. The feed brings new and changed ones. */

/** @typedef {import("./types.js").TurnView} Turn */

const EARLIER_PAGE_SIZE = 40;

export class Turns {
  /** @type {Turn[]} oldest first, without gaps up to the newest one */
  items = [];
  /** The number of turns of the run. */
  total = 0;
  /** Grows with every change. */
  version = 0;

  /** @param {import("./api.js").Api} api @param {string} id */
  constructor(api, id) {
    this.api = api;
    this.path = `/v1/runs/${encodeURIComponent(id)}/turns`;
  }

  /** The number of turns before the known ones. */
  get earlierCount() {
    return this.items.length ? this.items[0].number - 1 : 0;
  }

  clear() {
    this.items = [];
    this.version += 1;
  }

  /** Add new turns and replace changed ones; earlier ones than ours are ignored. @param {Turn[]} turns @param {number} total */
  update(turns, total) {
    if (!turns.length && total === this.total) return;
    const first = (this.items[0] ?? turns[0])?.number ?? 0;
    const known = new Map(this.items.map((turn) => [turn.number, turn]));
    for (const turn of turns) if (turn.number >= first) known.set(turn.number, turn);
    this.items = [...known.values()].sort((a, b) => a.number - b.number);
    this.total = total;
    this.version += 1;
  }

  /** Load the page of turns before the known ones. */
  async loadEarlier() {
    const after = Math.max(0, this.earlierCount - EARLIER_PAGE_SIZE);
    const page = await this.api.get(`${this.path}?after=${after}&limit=${this.earlierCount - after}`);
    this.items = [...page.items, ...this.items];
    this.version += 1;
  }
}
