// @ts-check
/**
 * The run store: what is known of one run, for every element of a page that shows it.
 *
 * There is one for each run, with one feed. It asks for the view, then follows the feed from
 * there; whatever happens, it asks for the view again. What a run means is never worked out
 * here: elements show what the server said last, and since when they have not heard from it.
 */
import { Api, HOME, Problem, etag } from "./api.js";
import { follow } from "./feed.js";
import { Turns } from "./turns.js";

/** @typedef {import("./shapes.js").Run} Run */
/** @typedef {import("./shapes.js").Happened} Happened */
/** @typedef {import("./shapes.js").Delta} Delta */
/** @typedef {"connecting" | "live" | "lost" | "over" | "refused"} Link */
/**
 * What a call has said since it started, at the entry `since` or before; `midway`: not from its
 * beginning.
 * @typedef {{text: string, thinking: string, tool: string, midway: boolean, since: number}} Saying
 */

/** How many events are kept; earlier ones are asked for when somebody wants them. */
export const EVENTS = 300;
/** Milliseconds between two looks at a run that is driven: a lost worker tells nobody. */
const LOOK = 5_000;
/** Of how many of these one is for a run that is at rest. */
const RARELY = 4;
/** Seconds that a clock may be ahead because the news of a stop was on its way. */
const AHEAD = 10;
const DRIVEN = new Set(["queued", "running", "pausing", "cancelling"]);

/** @type {Map<string, RunStore>} */
const stores = new Map();

/**
 * Emits "change" when there is something new to show, "happened" for every event, and "returned"
 * when the server is there again.
 */
export class RunStore extends EventTarget {
  /**
   * Return the store of a run; give it back with `release`.
   * @param {string} base @param {string} id @param {string} [token]
   */
  static for(base, id, token = "") {
    const key = `${base || HOME} ${id} ${token}`;
    let store = stores.get(key);
    if (!store) {
      store = new RunStore(key, new Api(base || HOME, token), id);
      stores.set(key, store);
      store.#begin();
    }
    store.#users += 1;
    return store;
  }

  /** @type {Run | null} */
  run = null;
  /** @type {Happened[]} oldest first */
  events = [];
  /** @type {Link} */
  link = "connecting";
  /** @type {Problem | null} why the run cannot be shown */
  problem = null;
  /** When the server was last heard of, by its own clock. */
  heardAt = Date.now();
  /** @type {Map<string, Saying>} by call: what is being said, between two entries */
  live = new Map();
  /** @type {Map<string, string>} by call: a tool's own line */
  notes = new Map();
  /** @type {Set<string>} calls that should have stopped by now */
  silent = new Set();
  /** @type {Set<string>} calls that are of the model */
  thoughts = new Set();
  /** Whether a look at the run is under way: something may be newer than what is known of it. */
  looking = false;

  #users = 0;
  #key;
  #seenAt = 0;
  #shown = 0; // what the clock said last
  #skew = 0;
  #closing = new AbortController();
  #stale = false;
  #told = false;
  #fresh = 0; // the seq from which on events are news
  /** @type {Set<string>} calls that have ended, and are in the turns once those are read */
  #ended = new Set();

  /** @param {string} key @param {Api} api @param {string} id */
  constructor(key, api, id) {
    super();
    this.#key = key;
    this.api = api;
    this.id = id;
    this.turns = new Turns(api, id);
  }

  get path() {
    return `/v1/runs/${encodeURIComponent(this.id)}`;
  }

  /** The server's time now, in milliseconds. */
  get now() {
    return Date.now() + this.#skew;
  }

  /** Seconds at work; it stands still where nobody knows. */
  get elapsed() {
    const run = this.run;
    if (!run) return 0;
    const ticking = run.working && this.link === "live";
    const told = run.elapsed + (ticking ? (Date.now() - this.#seenAt) / 1000 : 0);
    const ahead = this.#shown - told;
    if (ahead <= 0 || ahead > AHEAD) this.#shown = told; // else it waits: no clock goes back
    return this.#shown;
  }

  release() {
    this.#users -= 1;
    if (this.#users > 0) return;
    this.#closing.abort();
    stores.delete(this.#key);
  }

  /**
   * Ask something of the run. What it led to comes with the next view.
   * @param {string} verb @param {object} [body] @param {{seen?: boolean}} [how] `seen`: only if
   *   nobody has asked anything of the run since the view that is shown
   */
  async send(verb, body = {}, { seen = false } = {}) {
    const ifMatch = seen && this.run ? etag(this.run) : undefined;
    try {
      return await this.api.post(`${this.path}/${verb}`, body, { ifMatch });
    } finally {
      this.refresh();
    }
  }

  /** Take back what waits for its boundary. @param {number} seq */
  async withdraw(seq) {
    try {
      return await this.api.delete(`${this.path}/commands/cmd_${seq}`);
    } finally {
      this.refresh();
    }
  }

  /** Ask for events before those that are known. */
  async earlier() {
    const first = this.events[0]?.seq ?? 1;
    const after = Math.max(0, first - 1 - 200);
    const page = await this.api.get(`${this.path}/events?after=${after}&limit=${first - 1 - after}`);
    this.events = [...page.items, ...this.events];
    this.#change();
  }

  // ── the view ────────────────────────────────────────────────────────────────

  /** Look again soon; many reasons to look are one look. */
  refresh() {
    this.#stale = true;
    if (this.looking || this.#closing.signal.aborted) return;
    this.looking = true;
    nextFrame(async () => {
      try {
        while (this.#stale && !this.#closing.signal.aborted) {
          this.#stale = false;
          const began = performance.now();
          await this.#look();
          await rest(performance.now() - began); // a long run costs the server some thought
        }
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        if (isRefusal(error)) this.#refuse(error);
      } finally {
        this.looking = false;
      }
    });
  }

  async #look() {
    const run = /** @type {Run} */ (await this.api.get(`${this.path}/seen`));
    const older = this.run && run.seq < this.run.seq;
    if (!older) {
      if (this.run && planned(run) !== planned(this.run)) this.turns.forget(); // each is for an item
      this.run = run;
      this.#seenAt = Date.now();
      this.#skew = Date.parse(run.now) - this.#seenAt;
      this.heardAt = this.now;
      this.#forgetEnded(run);
    }
    this.#followAgain();
    const ended = [...this.#ended];
    await this.turns.look(run.turns);
    for (const call of ended) {
      if (this.#ended.delete(call)) this.live.delete(call); // else it has begun again meanwhile
    }
    this.#change();
  }

  /** Drop what is said by calls of whose end no event will come. @param {Run} run */
  #forgetEnded(run) {
    const flying = new Set(run.in_flight.map((call) => call.id));
    for (const [call, saying] of this.live) {
      if (saying.since <= run.seq && !flying.has(call) && !this.#ended.has(call)) this.live.delete(call);
    }
  }

  /** @param {Problem} problem */
  #refuse(problem) {
    this.problem = problem;
    this.link = "refused";
    this.#change();
  }

  // ── the feed ────────────────────────────────────────────────────────────────

  async #begin() {
    const signal = this.#closing.signal;
    try {
      for (let tries = 0; !this.run && !signal.aborted; tries++) await this.#firstLook(tries);
      if (signal.aborted) return;
      this.#fresh = this.run?.seq ?? 0;
      this.#watch();
      await this.#follow(Math.max(0, this.#fresh - EVENTS));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#refuse(error);
    }
  }

  /** Follow the feed to its end. @param {number} last */
  async #follow(last) {
    const { signal } = this.#closing;
    await follow(this.api, `${this.path}/events`, {
      heard: (event) => this.#heard(event),
      opened: () => this.#live(),
      lost: () => this.#lose(),
      alive: () => (this.heardAt = this.now),
      signal,
      last,
    });
    if (!signal.aborted) this.#over();
  }

  /** A run that is over may be cleaned up again: then there is more to hear. */
  #followAgain() {
    const last = this.events.at(-1)?.seq ?? 0;
    if (this.link !== "over" || !this.run || this.run.seq <= last) return;
    this.link = "connecting";
    this.#follow(last).catch((error) => this.#refuse(error));
  }

  /** @param {number} tries */
  async #firstLook(tries) {
    try {
      await this.#look();
    } catch (error) {
      if (!(error instanceof Problem) || isRefusal(error)) throw error;
      this.#lose();
      await rest(Math.min(300 * 2 ** tries, 5000));
    }
  }

  /** @param {import("./feed.js").Heard} event */
  #heard({ type, seq, data }) {
    if (type === "stream.reset") this.events = [];
    else if (seq) this.#happened(data);
    else if (data) this.#said(type, data);
  }

  #live() {
    const returned = this.link === "lost";
    this.link = "live";
    this.problem = null;
    if (returned) {
      this.dispatchEvent(new Event("returned"));
      this.refresh();
    }
    this.#change();
  }

  #lose() {
    if (this.link === "over" || this.link === "refused") return;
    this.link = "lost";
    this.#change();
  }

  #over() {
    this.link = "over";
    this.refresh();
  }

  /** @param {Happened} event */
  #happened(event) {
    if (event.seq <= (this.events.at(-1)?.seq ?? 0)) return;
    this.events.push(event);
    if (event.data.call_kind === "model") this.thoughts.add(event.data.call);
    if (event.seq <= this.#fresh) return this.#change(); // the view knows it
    const call = event.data.call ?? "";
    if (event.type === "call.started") {
      this.live.delete(call);
      this.#ended.delete(call);
      this.notes.delete(call);
      this.silent.delete(call);
      if (event.data.call_kind === "model") {
        this.live.set(call, { text: "", thinking: "", tool: "", midway: false, since: event.seq });
      }
    } else if (/^call\.(done|failed|aborted|unknown)$/.test(event.type)) {
      this.#ended.add(call);
      this.notes.delete(call);
      this.silent.delete(call);
    } else if (/^(undo|call\.settled|call\.late|run\.cancel)/.test(event.type)) {
      this.turns.forget();
    }
    this.dispatchEvent(new CustomEvent("happened", { detail: event }));
    this.refresh();
    this.#change();
  }

  /** @param {string} type @param {Delta} delta */
  #said(type, delta) {
    if (type === "call.note") this.notes.set(delta.call, delta.text);
    else if (type === "call.not_responding") this.silent.add(delta.call);
    else if (type === "model.delta") {
      let saying = this.live.get(delta.call);
      if (!saying) {
        saying = { text: "", thinking: "", tool: "", midway: true, since: this.run?.seq ?? 0 };
        this.live.set(delta.call, saying);
      }
      if (delta.opening) saying.midway = false; // it is everything so far
      if (delta.kind === "args") saying.tool = delta.tool;
      else if (delta.kind === "text" || delta.kind === "thinking") {
        saying[delta.kind] = (delta.opening ? "" : saying[delta.kind]) + delta.text;
      }
    }
    this.#change();
  }

  #watch() {
    let looks = 0;
    const timer = setInterval(() => {
      const { run, link } = this;
      const driven = link === "live" && run && DRIVEN.has(run.phase);
      const resting = link === "live" && ++looks % RARELY === 0; // a halt tells nobody, either
      const unclean = link === "over" && run?.controls.pause.command === "retry_undo";
      if ((driven || resting || unclean) && !document.hidden) this.refresh();
    }, LOOK);
    this.#closing.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Tell the elements, once per frame. */
  #change() {
    if (this.#told) return;
    this.#told = true;
    nextFrame(() => {
      this.#told = false;
      this.dispatchEvent(new Event("change"));
    });
  }
}

/** The items of a plan, however far it is. @param {Run} run */
const planned = ({ rows }) => JSON.stringify(rows.map(({ text }) => text));

/** Call back before the next paint, or soon where nothing is painted. @param {() => void} back */
function nextFrame(back) {
  if (document.hidden) setTimeout(back, 100);
  else requestAnimationFrame(() => back());
}

/** @param {number} ms */
function rest(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Tell whether the server answers, and will not have us. @param {Problem} problem */
function isRefusal(problem) {
  return problem.status >= 400 && problem.status < 500 && problem.status !== 429;
}
