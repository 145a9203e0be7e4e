// @ts-check
/**
 * The run store: the state of one run, shared by all elements of a page that show it.
 *
 * Each run has one store with one feed. The store loads the run's view, then follows the feed from
 * there. An event is only a reason to load the view again: nothing here computes the meaning of a
 * run. Elements show the view that the server sent last, and how long ago that was.
 *
 * Between two entries the feed brings deltas of a streamed reply. They are collected in `live` and
 * dropped once the finished reply is among the turns.
 */
import { Api, DEFAULT_BASE, Problem, formatEtag } from "./api.js";
import { followFeed } from "./feed.js";
import { Turns } from "./turns.js";

/** @typedef {import("./types.js").Run} Run */
/** @typedef {import("./types.js").FeedEvent} FeedEvent */
/** @typedef {import("./types.js").Delta} Delta */
/** @typedef {"connecting" | "live" | "lost" | "ended" | "refused"} Connection */
/**
 * The part of a reply that a model call has streamed so far. The call started at the entry
 * `since` or before. `isPartial`: the beginning is missing.
 * @typedef {{text: string, thinking: string, tool: string, isPartial: boolean, since: number}} LiveReply
 */

/** How many events are loaded at first; earlier ones on request. */
export const EVENT_PAGE_SIZE = 300;
/** How often the view of a driven run is loaded without an event: a lost worker appends none. */
const POLL_INTERVAL_MS = 5_000;
/** A run at rest is polled at every fourth interval. */
const IDLE_POLL_DIVISOR = 4;
/** Delays before a failed load of the view is tried again; the last one repeats. */
const RETRY_DELAYS_MS = [300, 1000, 2000, 5000];
/** How far the clock may be ahead: it ran on while the news of a stop was on its way. */
const CLOCK_AHEAD_MAX_S = 10;
const DRIVEN_PHASES = new Set(["queued", "running", "pausing", "cancelling"]);
const FINISHED_PHASES = new Set(["cancelled", "completed"]);

/** @type {Map<string, RunStore>} */
const stores = new Map();

/**
 * Emits "change" when there is something new to show, "event" for every event that is newer than
 * the first view, and "reconnected" after a lost connection.
 */
export class RunStore extends EventTarget {
  /**
   * Return the store of a run, shared by all callers. Call `release` when it is not needed.
   * @param {string} base @param {string} id @param {string} [token]
   */
  static acquire(base, id, token = "") {
    const key = `${base || DEFAULT_BASE} ${id} ${token}`;
    let store = stores.get(key);
    if (!store) {
      store = new RunStore(key, new Api(base || DEFAULT_BASE, token), id);
      stores.set(key, store);
      store.#start();
    }
    store.#userCount += 1;
    return store;
  }

  /** @type {Run | null} */
  run = null;
  /** @type {import("./types.js").Report | null} the report of a finished run */
  report = null;
  /** The run's seq when `report` was requested. */
  reportSeq = -1;
  /** @type {FeedEvent[]} oldest first, without gaps */
  events = [];
  /** @type {Connection} */
  connection = "connecting";
  /** @type {Problem | null} why the run cannot be shown */
  problem = null;
  /** When the server last sent something, by its clock, in milliseconds. */
  heardAt = Date.now();
  /** @type {Map<string, LiveReply>} by call: replies that are being streamed */
  live = new Map();
  /** @type {Map<string, string>} by call: the last note of its tool */
  notes = new Map();
  /** @type {Set<string>} calls that were told to stop and have not responded */
  unresponsiveCalls = new Set();
  #userCount = 0;
  #key;
  #loadedAt = 0; // when the view was loaded, by our clock
  #shownElapsed = 0; // seconds that the clock has shown last
  #skew = 0; // milliseconds that the server's clock is ahead of ours
  #closing = new AbortController();
  #isLoading = false;
  #isStale = false; // the view must be loaded again after the load that is under way
  #failedLoads = 0; // since the last load that succeeded
  #isChangePending = false;
  #firstSeq = 0; // seq of the first view; later events are new to the page
  /** @type {Set<string>} calls that have ended; their turn may not be loaded yet */
  #endedCalls = new Set();

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

  /** The server's current time, in milliseconds. */
  get now() {
    return Date.now() + this.#skew;
  }

  /** Seconds that the run has been at work. It stands still while the connection is lost. */
  get elapsed() {
    const run = this.run;
    if (!run) return 0;
    const isTicking = run.working && this.connection === "live";
    const elapsed = run.elapsed + (isTicking ? (Date.now() - this.#loadedAt) / 1000 : 0);
    // When a run stops, our clock has run on until we hear of it. It must not visibly go back, so
    // it waits until the true value has caught up. A larger difference is a correction.
    const ahead = this.#shownElapsed - elapsed;
    if (ahead <= 0 || ahead > CLOCK_AHEAD_MAX_S) this.#shownElapsed = elapsed;
    return this.#shownElapsed;
  }

  release() {
    this.#userCount -= 1;
    if (this.#userCount > 0) return;
    this.#closing.abort();
    stores.delete(this.#key);
  }

  /**
   * Send a control. Its effect comes with the next view.
   * @param {string} verb @param {object} [body] @param {{ifSeen?: boolean}} [options] `ifSeen`:
   *   refuse it if another control was sent since the view that is shown
   */
  async send(verb, body = {}, { ifSeen = false } = {}) {
    const ifMatch = ifSeen && this.run ? formatEtag(this.run) : undefined;
    try {
      return await this.api.post(`${this.path}/${verb}`, body, { ifMatch });
    } finally {
      this.refresh();
    }
  }

  /** Withdraw a redirect or message that has not been applied. @param {number} seq */
  async withdraw(seq) {
    try {
      return await this.api.delete(`${this.path}/commands/cmd_${seq}`);
    } finally {
      this.refresh();
    }
  }

  /** Load the events before those that are known. */
  async loadEarlier() {
    const first = this.events[0]?.seq ?? 1;
    const after = Math.max(0, first - 1 - 200);
    const page = await this.api.get(`${this.path}/events?after=${after}&limit=${first - 1 - after}`);
    this.events = [...page.items, ...this.events];
    this.#notifyChange();
  }

  // ── the view ────────────────────────────────────────────────────────────────

  /** Load the view again soon. Requests that come meanwhile are answered by one more load. */
  refresh() {
    this.#isStale = true;
    if (this.#isLoading || this.#closing.signal.aborted) return;
    this.#isLoading = true;
    nextFrame(async () => {
      try {
        while (this.#isStale && !this.#closing.signal.aborted) {
          this.#isStale = false;
          const startedAt = performance.now();
          await this.#loadView();
          this.#failedLoads = 0;
          // The view of a long run costs the server time; load it at most half of the time.
          await sleep(performance.now() - startedAt);
        }
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        if (isRefusal(error)) this.#refuse(error);
        else this.#retryLoad();
      } finally {
        this.#isLoading = false;
      }
    });
  }

  /** Load the view again after a delay. The feed may have ended, so no event would cause it. */
  #retryLoad() {
    const delay = RETRY_DELAYS_MS[Math.min(this.#failedLoads++, RETRY_DELAYS_MS.length - 1)];
    setTimeout(() => this.refresh(), delay);
  }

  async #loadView() {
    const run = /** @type {Run} */ (await this.api.get(`${this.path}/seen`));
    const isOlder = this.run && run.seq < this.run.seq; // replies may overtake each other
    if (!isOlder) {
      // Each turn names its plan item, so a changed plan changes old turns as well.
      if (this.run && planTexts(run) !== planTexts(this.run)) this.turns.invalidate();
      this.run = run;
      this.#loadedAt = Date.now();
      this.#skew = Date.parse(run.now) - this.#loadedAt;
      this.heardAt = this.now;
      this.#dropStaleLive(run);
      this.#notifyChange(); // the requests below may fail or take long; the view is shown before
    }
    this.#followAgain();
    // A streamed reply stays until its turn is loaded: no text vanishes in between. Calls that end
    // during the load are not in `ended`; the next load removes them.
    const ended = [...this.#endedCalls];
    await this.turns.update(run.turns);
    for (const call of ended) {
      if (this.#endedCalls.delete(call)) this.live.delete(call); // else it was started again
    }
    if (FINISHED_PHASES.has(run.phase) && this.reportSeq < run.seq) {
      this.report = await this.api.get(`${this.path}/report`);
      this.reportSeq = run.seq;
    }
    this.#notifyChange();
  }

  /** Drop live replies of calls that are not in flight, and whose end no event reports. @param {Run} run */
  #dropStaleLive(run) {
    const inFlight = new Set(run.in_flight.map((call) => call.id));
    for (const [call, reply] of this.live) {
      if (reply.since <= run.seq && !inFlight.has(call) && !this.#endedCalls.has(call)) this.live.delete(call);
    }
  }

  /** @param {Problem} problem */
  #refuse(problem) {
    this.problem = problem;
    this.connection = "refused";
    this.#notifyChange();
  }

  // ── the feed ────────────────────────────────────────────────────────────────

  async #start() {
    const signal = this.#closing.signal;
    try {
      for (let tries = 0; !this.run && !signal.aborted; tries++) await this.#loadFirstView(tries);
      if (signal.aborted) return;
      this.#firstSeq = this.run?.seq ?? 0;
      this.#startPolling();
      await this.#follow(Math.max(0, this.#firstSeq - EVENT_PAGE_SIZE));
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#refuse(error);
    }
  }

  /** Follow the feed until the server ends it. @param {number} last seq of the last known entry */
  async #follow(last) {
    const { signal } = this.#closing;
    await followFeed(this.api, `${this.path}/events`, {
      onEvent: (event) => this.#onStreamEvent(event),
      onOpen: () => this.#onOpen(),
      onLost: () => this.#onLost(),
      onAlive: () => (this.heardAt = this.now),
      signal,
      last,
    });
    if (!signal.aborted) this.#onFeedEnd();
  }

  /** Follow the feed again where a finished run has new entries: its undo was retried. */
  #followAgain() {
    const last = this.events.at(-1)?.seq ?? 0;
    if (this.connection !== "ended" || !this.run || this.run.seq <= last) return;
    this.connection = "connecting";
    this.#follow(last).catch((error) => this.#refuse(error));
  }

  /** @param {number} tries */
  async #loadFirstView(tries) {
    try {
      await this.#loadView();
    } catch (error) {
      if (!(error instanceof Problem) || isRefusal(error)) throw error;
      this.#onLost();
      await sleep(Math.min(300 * 2 ** tries, 5000));
    }
  }

  /** @param {import("./feed.js").StreamEvent} event */
  #onStreamEvent({ type, seq, data }) {
    if (type === "stream.reset") this.events = [];
    else if (seq) this.#onEntry(data);
    else if (data) this.#onDelta(type, data);
  }

  #onOpen() {
    const wasLost = this.connection === "lost";
    this.connection = "live";
    this.problem = null;
    if (wasLost) {
      this.dispatchEvent(new Event("reconnected"));
      this.refresh();
    }
    this.#notifyChange();
  }

  #onLost() {
    if (this.connection === "ended" || this.connection === "refused") return;
    this.connection = "lost";
    this.#notifyChange();
  }

  #onFeedEnd() {
    this.connection = "ended";
    this.refresh();
  }

  /** @param {FeedEvent} event */
  #onEntry(event) {
    if (event.seq <= (this.events.at(-1)?.seq ?? 0)) return; // a duplicate
    this.events.push(event);
    if (event.seq <= this.#firstSeq) return this.#notifyChange(); // the first view includes it
    const call = event.data.call ?? "";
    if (event.type === "call.started") {
      // Another attempt of a call has the same id; nothing of the last one counts any more.
      this.live.delete(call);
      this.#endedCalls.delete(call);
      this.notes.delete(call);
      this.unresponsiveCalls.delete(call);
      if (event.data.call_kind === "model") {
        this.live.set(call, { text: "", thinking: "", tool: "", isPartial: false, since: event.seq });
      }
    } else if (/^call\.(done|failed|aborted|unknown)$/.test(event.type)) {
      this.#endedCalls.add(call);
      this.notes.delete(call);
      this.unresponsiveCalls.delete(call);
    } else if (/^(undo|call\.settled|call\.late|run\.cancel)/.test(event.type)) {
      this.turns.invalidate(); // these change the look of calls in old turns
    }
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
    this.refresh();
    this.#notifyChange();
  }

  /** @param {string} type @param {Delta} delta */
  #onDelta(type, delta) {
    if (type === "call.note") this.notes.set(delta.call, delta.text);
    else if (type === "call.not_responding") this.unresponsiveCalls.add(delta.call);
    else if (type === "model.delta") {
      let reply = this.live.get(delta.call);
      if (!reply) {
        // The page was opened in the middle of this reply.
        reply = { text: "", thinking: "", tool: "", isPartial: true, since: this.run?.seq ?? 0 };
        this.live.set(delta.call, reply);
      }
      if (delta.opening) reply.isPartial = false; // an opening has the whole text so far
      if (delta.kind === "args") reply.tool = delta.tool;
      else if (delta.kind === "text" || delta.kind === "thinking") {
        reply[delta.kind] = (delta.opening ? "" : reply[delta.kind]) + delta.text;
      }
    }
    this.#notifyChange();
  }

  /** Load the view at intervals, for changes that append no entry: a lost worker, a halt. */
  #startPolling() {
    let count = 0;
    const timer = setInterval(() => {
      const { run, connection } = this;
      const isDriven = connection === "live" && run && DRIVEN_PHASES.has(run.phase);
      const isIdleTurn = connection === "live" && ++count % IDLE_POLL_DIVISOR === 0;
      // The feed of a cancelled run has ended, but its undo may be retried from elsewhere.
      const hasResidue = connection === "ended" && run?.controls.pause.command === "retry_undo";
      if ((isDriven || isIdleTurn || hasResidue) && !document.hidden) this.refresh();
    }, POLL_INTERVAL_MS);
    this.#closing.signal.addEventListener("abort", () => clearInterval(timer));
  }

  /** Emit "change", at most once per frame. */
  #notifyChange() {
    if (this.#isChangePending) return;
    this.#isChangePending = true;
    nextFrame(() => {
      this.#isChangePending = false;
      this.dispatchEvent(new Event("change"));
    });
  }
}

/** Return the texts of a plan's items in a comparable form, without their progress. @param {Run} run */
const planTexts = ({ rows }) => JSON.stringify(rows.map(({ text }) => text));

/** Call back before the next paint; hidden tabs do not paint, so after 100 ms there. @param {() => void} callback */
function nextFrame(callback) {
  if (document.hidden) setTimeout(callback, 100);
  else requestAnimationFrame(() => callback());
}

/** @param {number} ms */
function sleep(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Tell whether the server refuses the request for good; 429 asks to come back later. @param {Problem} problem */
function isRefusal(problem) {
  return problem.status >= 400 && problem.status < 500 && problem.status !== 429;
}
