// @ts-check
/**
 * The runs store: the list of one server's runs, shared by all elements of a page that show it.
 *
 * It has one feed, which sends a row whenever it changes. When a worker is lost or a halt is set,
 * the status of runs changes without an entry; the feed says so, and their rows are loaded.
 */
import { Api, Problem } from "./api.js";
import { followFeed } from "./feed.js";

/** @typedef {import("./types.js").Button} Button */
/** @typedef {import("./types.js").RunListItem} RunRow */

/** In order of their rights. */
const ROLES = ["viewer", "user", "operator"];
const UNFINISHED = "queued,running,pausing,paused,waiting,cancelling,failed,halted";
const UNFINISHED_PHASES = new Set(UNFINISHED.split(","));
const IDS_MAX = 50; // ids in one request
const PAUSES_AT_ONCE = 8; // requests in flight while all runs are paused
/** A tab without a feed of its own opens one for moments; it loads old runs at this interval. */
const RELOAD_INTERVAL_MS = 10_000;

/** @type {Map<string, RunsStore>} */
const stores = new Map();

/** Emits "change" when there is something new to show, and "reconnected" after a lost connection. */
export class RunsStore extends EventTarget {
  /** Return the store of a server; call `release` when it is not needed. @param {string} server @param {string} token */
  static acquire(server, token) {
    const key = `${server} ${token}`;
    let store = stores.get(key);
    if (!store) stores.set(key, (store = new RunsStore(key, new Api(server, token))));
    if (!store._userCount++) void store.#follow();
    return store;
  }

  /** @param {string} key @param {Api} api */
  constructor(key, api) {
    super();
    this.api = api;
    this.isLoaded = false;
    this.isSignedOut = false;
    /** When the connection was lost; null while the feed is open. @type {Date | null} */
    this.lostAt = null;
    /** @type {import("./types.js").HaltRecord[]} */
    this.halts = [];
    /** @type {import("./types.js").SessionActor} */
    this.session = { name: "", role: "", tenant: "", teams: [] };
    /** The cursor of the next page of older runs; "" if there is none. */
    this.olderCursor = "";
    this._key = key;
    this._userCount = 0;
    this._reloadAt = 0;
    this._closing = new AbortController();
    /** With the time of receipt, in `performance.now()` terms. @type {Map<string, {row: RunRow, at: number}>} */
    this._rows = new Map();
  }

  /** Give the store back; the last user ends the feed. */
  release() {
    if (--this._userCount) return;
    this._closing.abort();
    stores.delete(this._key);
  }

  get rows() {
    return [...this._rows.values()].map(({ row }) => row);
  }

  /** Tell whether the viewer has this role or a higher one. @param {string} role */
  hasRole(role) {
    return ROLES.indexOf(this.session.role) >= ROLES.indexOf(role);
  }

  /** Return the seconds that a run has been at work; they stand still while the connection is lost. @param {RunRow} row */
  elapsed({ run_id, elapsed, working }) {
    const receivedAt = this._rows.get(run_id)?.at ?? 0;
    const isTicking = working && !this.lostAt;
    return elapsed + (isTicking ? (performance.now() - receivedAt) / 1000 : 0);
  }

  /** Return the runs that can be paused now; child runs are paused with their parents. */
  pausableRows() {
    return this.rows.filter(
      ({ parent, button }) => !parent && button.enabled && button.command === "pause",
    );
  }

  /** Send the command of a row's button. @param {RunRow} row @param {Button} button */
  async sendCommand(row, button) {
    const caps = Object.keys(button.caps).length ? { caps: button.caps } : {};
    await this.api.post(`/v1/runs/${row.run_id}/${button.command}`, caps);
  }

  /** Pause many runs; return how many refused. @param {RunRow[]} rows */
  async pauseAll(rows) {
    const queue = [...rows];
    let refusedCount = 0;
    const drainQueue = async () => {
      for (let row = queue.pop(); row; row = queue.pop()) {
        try {
          await this.api.post(`/v1/runs/${row.run_id}/pause`, { reason: "pause all" });
        } catch (error) {
          if (!(error instanceof Problem)) throw error;
          refusedCount++;
        }
      }
    };
    await Promise.all(Array.from({ length: PAUSES_AT_ONCE }, drainQueue));
    return refusedCount;
  }

  async #loadSession() {
    this.session = await this.api.get("/v1/session");
    this.#notifyChange();
  }

  async loadHalts() {
    this.halts = (await this.api.get("/v1/halts")).items;
    this.#notifyChange();
  }

  /** Load the next page of older runs. */
  async loadOlder() {
    const page = await this.api.get(`/v1/runs?cursor=${encodeURIComponent(this.olderCursor)}`);
    this.olderCursor = page.next_cursor;
    this.#store(page.items);
  }

  /** Find runs by words; return their ids, of the newest ones. @param {string} text */
  async search(text) {
    const page = await this.api.get(`/v1/runs?limit=200&search=${encodeURIComponent(text)}`);
    this.#store(page.items);
    return new Set(page.items.map((/** @type {RunRow} */ row) => row.run_id));
  }

  async #follow() {
    const { signal } = this._closing;
    try {
      await followFeed(this.api, "/v1/events", {
        onEvent: (event) => this.#onStreamEvent(event),
        onOpen: () => this.#onOpen(),
        onLost: () => this.#onLost(),
        signal,
      });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.isSignedOut = error.status === 401;
      this.#onLost();
    }
  }

  #onOpen() {
    const isPoll = this.isLoaded && !this.lostAt; // reopened without having been lost
    if (this.lostAt) this.dispatchEvent(new Event("reconnected"));
    this.lostAt = null;
    this.loadHalts().catch(ignore);
    if (isPoll && performance.now() < this._reloadAt) return; // the feed's snapshot has the newest rows
    if (!isPoll) this.#loadSession().catch(ignore);
    this.#loadUnfinished().catch(ignore);
  }

  #onLost() {
    this.lostAt ??= new Date();
    this.#notifyChange();
  }

  /** Load all runs that are not finished, however long ago they started. */
  async #loadUnfinished() {
    this._reloadAt = performance.now() + RELOAD_INTERVAL_MS;
    let cursor = "";
    const unfinished = new Set();
    do {
      const page = await this.api.get(`/v1/runs?phase=${UNFINISHED}&limit=200&cursor=${encodeURIComponent(cursor)}`);
      this.#store(page.items);
      for (const row of page.items) unfinished.add(row.run_id);
      cursor = page.next_cursor;
    } while (cursor);
    if (!this.olderCursor) this.olderCursor = (await this.api.get("/v1/runs?limit=50")).next_cursor;
    // A row that we show as unfinished and the server does not list has finished meanwhile.
    const finished = this.rows.filter(
      ({ run_id, phase }) => UNFINISHED_PHASES.has(phase) && !unfinished.has(run_id),
    );
    for (let at = 0; at < finished.length; at += IDS_MAX) {
      const ids = finished.slice(at, at + IDS_MAX).map(({ run_id }) => run_id);
      this.#store((await this.api.get(`/v1/runs?run=${ids.join(",")}`)).items);
    }
    this.#notifyChange();
  }

  /** @param {import("./feed.js").StreamEvent} event */
  #onStreamEvent({ type, data }) {
    if (type === "stream.snapshot") {
      this.isLoaded = true;
      this.#store(data);
    } else if (type === "run.changed") {
      this.#store([data]);
    } else if (type === "halts.changed") {
      this.loadHalts().catch(ignore);
      this.#loadUnfinished().catch(ignore);
    } else if (type === "run.deleted") {
      this._rows.delete(data.run_id);
      this.#notifyChange();
    } else if (type === "workers.changed") {
      this.#loadUnfinished().catch(ignore);
    }
  }

  /** Store rows, except those that are older than ours: replies may overtake the feed. @param {RunRow[]} rows */
  #store(rows) {
    const at = performance.now();
    for (const row of rows) {
      const known = this._rows.get(row.run_id)?.row.seq ?? 0;
      if (known <= row.seq) this._rows.set(row.run_id, { row, at });
    }
    this.#notifyChange();
  }

  #notifyChange() {
    this.dispatchEvent(new Event("change"));
  }
}

/** A failed load is not shown: it is repeated with the next poll or connection. */
const ignore = () => undefined;
