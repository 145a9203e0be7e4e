// @ts-check
/**
 * The runs store: the list of one server's runs, shared by all elements of a page that show it.
 *
 * It has one feed, which sends a row whenever it changes. Runs that are not finished are also
 * loaded at intervals, because a lost worker changes the status of its runs without an entry.
 */
import { Api, Problem } from "./api.js";
import { followFeed } from "./feed.js";

/** @typedef {import("./types.js").Button} Button */
/** @typedef {import("./types.js").StatusLine} StatusLine */
/** @typedef {{elapsed: number, working: boolean, cost_usd: number, place: string,
 *   plan_held: boolean, yours: boolean, sign: StatusLine, quick: Button}} Work */
/** @typedef {{run_id: string, phase: string, agent: string, task: string, parent: string, labels: string[],
 *   attention: string, asks: number, step: number, driven: boolean, seq: number,
 *   started_at: string, changed_at: string, work: Work}} RunRow */
/** @typedef {{scope: string, by: string, reason: string, at: string}} Halt */
/** @typedef {{name: string, tools: string[], stop: string}} Agent */
/** @typedef {{name: string, role: string}} Session */

/** In order of their rights. */
const ROLES = ["viewer", "user", "operator"];
const UNFINISHED = "queued,running,pausing,paused,waiting,cancelling,failed,halted";
const UNFINISHED_PHASES = new Set(UNFINISHED.split(","));
const PAUSES_AT_ONCE = 8; // requests in flight while all runs are paused
const POLL_INTERVAL_MS = 10_000;

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
    /** @type {Halt[]} */
    this.halts = [];
    /** @type {Session} */
    this.session = { name: "", role: "" };
    /** The cursor of the next page of older runs; "" if there is none. */
    this.olderCursor = "";
    this._key = key;
    this._userCount = 0;
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
  elapsed({ run_id, work }) {
    const receivedAt = this._rows.get(run_id)?.at ?? 0;
    const isTicking = work.working && !this.lostAt;
    return work.elapsed + (isTicking ? (performance.now() - receivedAt) / 1000 : 0);
  }

  /** Return the runs that can be paused now; child runs are paused with their parents. */
  pausableRows() {
    return this.rows.filter(
      ({ parent, work: { quick } }) => !parent && quick.enabled && quick.command === "pause",
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

  /** Return the agents whose runs can be started. @returns {Promise<Agent[]>} */
  async loadAgents() {
    return (await this.api.get("/v1/agents")).items;
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

  async #follow() {
    const { signal } = this._closing;
    const polling = setInterval(() => this.#poll(), POLL_INTERVAL_MS);
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
    } finally {
      clearInterval(polling);
    }
  }

  #onOpen() {
    const isPoll = this.isLoaded && !this.lostAt; // reopened without having been lost
    if (this.lostAt) this.dispatchEvent(new Event("reconnected"));
    this.lostAt = null;
    this.loadHalts().catch(ignore);
    if (isPoll) return; // the feed's snapshot has the changed rows
    this.#loadSession().catch(ignore);
    this.#loadUnfinished().catch(ignore);
  }

  #onLost() {
    this.lostAt ??= new Date();
    this.#notifyChange();
  }

  #poll() {
    if (!this.lostAt && !document.hidden) this.#loadUnfinished().catch(ignore);
  }

  /** Load all runs that are not finished, however long ago they started. */
  async #loadUnfinished() {
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
    for (const row of finished) this.#store([await this.#loadRow(row)]);
    this.#notifyChange();
  }

  /** Return a row with the current view of its run. @param {RunRow} row @returns {Promise<RunRow>} */
  async #loadRow(row) {
    /** @type {import("./types.js").Run} */
    const run = await this.api.get(`/v1/runs/${row.run_id}/seen`);
    const { phase, seq, changed_at, elapsed, working, place, plan_held, sign, asks } = run;
    const residue = run.controls.pause.command === "retry_undo" ? "residue" : "";
    const isUnfinished = UNFINISHED_PHASES.has(phase);
    const attention = isUnfinished ? row.attention : residue;
    const yours = isUnfinished ? row.work.yours : residue !== "" && run.role !== "viewer";
    const quick = run.controls.pause;
    const cost_usd = run.usage.cost_usd;
    const work = { elapsed, working, cost_usd, place, plan_held, yours, sign, quick };
    return { ...row, phase, seq, changed_at, attention, asks: asks.length, work };
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
      this.#poll(); // the status of runs without a worker changes without an entry
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
