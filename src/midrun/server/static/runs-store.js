// @ts-check
/** The runs of one server as a list knows them: one feed for all elements of a page that show it. */
import { Api, Problem } from "./api.js";
import { follow } from "./feed.js";

/** @typedef {import("./shapes.js").Offer} Offer */
/** @typedef {import("./shapes.js").Sign} Sign */
/** @typedef {{elapsed: number, working: boolean, cost_usd: number, place: string,
 *   plan_held: boolean, yours: boolean, sign: Sign, quick: Offer}} Work */
/** @typedef {{run_id: string, phase: string, agent: string, task: string, parent: string, labels: string[],
 *   attention: string, asks: number, step: number, driven: boolean, seq: number,
 *   started_at: string, changed_at: string, work: Work}} Line */
/** @typedef {{scope: string, by: string, reason: string, at: string}} Halt */
/** @typedef {{name: string, tools: string[], stop: string}} Agent */
/** @typedef {{name: string, role: string}} Who */

const RANKS = ["viewer", "user", "operator"];
const ALIVE = "queued,running,pausing,paused,waiting,cancelling,failed,halted";
const LIVING = new Set(ALIVE.split(","));
const AT_ONCE = 8; // controls under way when many runs are asked the same
const LOOK_MS = 10_000; // between two looks at what is not over: a lost worker tells nobody

/** @type {Map<string, RunsStore>} */
const stores = new Map();

/** Emits "change" when there is something new to show, and "returned" when the server is there again. */
export class RunsStore extends EventTarget {
  /** Return the store of a server, shared by all who show it. @param {string} server @param {string} token */
  static joined(server, token) {
    const key = `${server} ${token}`;
    let store = stores.get(key);
    if (!store) stores.set(key, (store = new RunsStore(key, new Api(server, token))));
    if (!store._members++) void store.#run();
    return store;
  }

  /** @param {string} key @param {Api} api */
  constructor(key, api) {
    super();
    this.api = api;
    this.loaded = false;
    this.signedOut = false;
    /** Since when nothing was heard; null while the feed is open. @type {Date | null} */
    this.lost = null;
    /** @type {Halt[]} */
    this.halts = [];
    /** @type {Who} */
    this.who = { name: "", role: "" };
    /** Where the list goes on, if it does. */
    this.older = "";
    this._key = key;
    this._members = 0;
    this._ending = new AbortController();
    /** With when each was heard. @type {Map<string, {line: Line, at: number}>} */
    this._lines = new Map();
  }

  /** Leave: with the last one the feed ends. */
  left() {
    if (--this._members) return;
    this._ending.abort();
    stores.delete(this._key);
  }

  get lines() {
    return [...this._lines.values()].map(({ line }) => line);
  }

  /** Tell whether the reader may do what is for this role. @param {string} role */
  may(role) {
    return RANKS.indexOf(this.who.role) >= RANKS.indexOf(role);
  }

  /** Return the seconds that a run has worked; where nobody knows, they stand still. @param {Line} line */
  elapsed({ run_id, work }) {
    const heard = this._lines.get(run_id)?.at ?? 0;
    return work.elapsed + (work.working && !this.lost ? (performance.now() - heard) / 1000 : 0);
  }

  /** Return the runs that a pause of all would reach; child runs are paused with their parents. */
  pausable() {
    return this.lines.filter(
      ({ parent, work: { quick } }) => !parent && quick.enabled && quick.command === "pause",
    );
  }

  /** Ask one run what its quick button offers. @param {Line} line @param {Offer} offer */
  async ask(line, offer) {
    const caps = Object.keys(offer.caps).length ? { caps: offer.caps } : {};
    await this.api.post(`/v1/runs/${line.run_id}/${offer.command}`, caps);
  }

  /** Ask many runs to pause; return how many would not. @param {Line[]} lines */
  async pauseAll(lines) {
    const left = [...lines];
    let refused = 0;
    const work = async () => {
      for (let line = left.pop(); line; line = left.pop()) {
        try {
          await this.api.post(`/v1/runs/${line.run_id}/pause`, { reason: "pause all" });
        } catch (error) {
          if (!(error instanceof Problem)) throw error;
          refused++;
        }
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    return refused;
  }

  /** Return the agents whose runs can be started. @returns {Promise<Agent[]>} */
  async agents() {
    return (await this.api.get("/v1/agents")).items;
  }

  async #loadWho() {
    this.who = await this.api.get("/v1/session");
    this.#changed();
  }

  async loadHalts() {
    this.halts = (await this.api.get("/v1/halts")).items;
    this.#changed();
  }

  /** Add what comes before the oldest that is shown. */
  async loadOlder() {
    const page = await this.api.get(`/v1/runs?cursor=${encodeURIComponent(this.older)}`);
    this.older = page.next_cursor;
    this.#take(page.items);
  }

  async #run() {
    const { signal } = this._ending;
    const looking = setInterval(() => this.#look(), LOOK_MS);
    try {
      await follow(this.api, "/v1/events", {
        heard: (event) => this.#heard(event),
        opened: () => this.#opened(),
        lost: () => this.#lose(),
        signal,
      });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.signedOut = error.status === 401;
      this.#lose();
    } finally {
      clearInterval(looking);
    }
  }

  #opened() {
    const again = this.loaded && !this.lost;
    if (this.lost) this.dispatchEvent(new Event("returned"));
    this.lost = null;
    this.loadHalts().catch(ignore);
    if (again) return; // the snapshot says the rest
    this.#loadWho().catch(ignore);
    this.#loadAlive().catch(ignore);
  }

  #lose() {
    this.lost ??= new Date();
    this.#changed();
  }

  #look() {
    if (!this.lost && !document.hidden) this.#loadAlive().catch(ignore);
  }

  /** Runs that are not over come first, however long ago they started. */
  async #loadAlive() {
    let cursor = "";
    const alive = new Set();
    do {
      const page = await this.api.get(`/v1/runs?phase=${ALIVE}&limit=200&cursor=${encodeURIComponent(cursor)}`);
      this.#take(page.items);
      for (const line of page.items) alive.add(line.run_id);
      cursor = page.next_cursor;
    } while (cursor);
    if (!this.older) this.older = (await this.api.get("/v1/runs?limit=50")).next_cursor;
    const ended = this.lines.filter(({ run_id, phase }) => LIVING.has(phase) && !alive.has(run_id));
    for (const line of ended) this.#take([await this.#seen(line)]);
    this.#changed();
  }

  /** Return a line as it is by now: it may have ended while nobody told us. @param {Line} line @returns {Promise<Line>} */
  async #seen(line) {
    /** @type {import("./shapes.js").Run} */
    const run = await this.api.get(`/v1/runs/${line.run_id}/seen`);
    const { phase, seq, changed_at, elapsed, working, place, plan_held, sign, asks } = run;
    const residue = run.controls.pause.command === "retry_undo" ? "residue" : "";
    const attention = LIVING.has(phase) ? line.attention : residue;
    const yours = LIVING.has(phase) ? line.work.yours : residue !== "" && run.role !== "viewer";
    const told = { elapsed, working, cost_usd: run.usage.cost_usd, place, plan_held, yours, sign };
    const work = { ...told, quick: run.controls.pause };
    return { ...line, phase, seq, changed_at, attention, asks: asks.length, work };
  }

  /** @param {import("./feed.js").Heard} event */
  #heard({ type, data }) {
    if (type === "stream.snapshot") {
      this.loaded = true;
      this.#take(data);
    } else if (type === "run.changed") {
      this.#take([data]);
    } else if (type === "halts.changed") {
      this.loadHalts().catch(ignore);
      this.#look(); // a run that nobody drives cannot tell that it is under one
    }
  }

  /** Take what is newer than what we have. @param {Line[]} lines */
  #take(lines) {
    const at = performance.now();
    for (const line of lines) {
      const known = this._lines.get(line.run_id)?.line.seq ?? 0;
      if (known <= line.seq) this._lines.set(line.run_id, { line, at });
    }
    this.#changed();
  }

  #changed() {
    this.dispatchEvent(new Event("change"));
  }
}

/** What could not be loaded now comes with the next connection. */
const ignore = () => undefined;
