// @ts-check
/**
 * The run store: the state of one run, shared by all elements of a page that show it.
 *
 * Each run has one store with one feed, which brings everything: the entries of the journal, the
 * view of the run with the viewer's overlay whenever one of them changes, and the turns that are
 * new or have changed. The reply to a control has the view, too. Nothing here computes the meaning
 * of a run, and nothing is fetched again: elements show the newest view that the server has sent.
 *
 * Between two entries the feed brings deltas of a streamed reply. They are collected in `live` and
 * dropped once the finished reply is among the turns.
 */
import { Api, DEFAULT_BASE, Problem, formatEtag } from "./api.js";
import { followFeed } from "./feed.js";
import { Turns } from "./turns.js";
import { FINISHED_PHASES } from "./format.js";

/** @typedef {import("./types.js").RunView} RunView */
/** @typedef {import("./types.js").RunOverlay} RunOverlay */
/** @typedef {import("./types.js").FeedEvent} FeedEvent */
/** @typedef {import("./types.js").Delta} Delta */
/** @typedef {import("./types.js").AskView & {ref: string, may_decide: boolean}} Ask */
/**
 * A run as the viewer sees it: the overlay is laid over the view.
 * @typedef {Omit<RunView, keyof RunOverlay | "asks"> & RunOverlay & {asks: Ask[]}} Run
 */
/** The reply to a control, with its name. @typedef {{control: string, command?: {receipt: import("./types.js").Receipt}, run_id?: string}} Sent */
/** @typedef {"connecting" | "live" | "lost" | "ended" | "refused"} Connection */
/**
 * The part of a reply that a model call has streamed so far. The call started at the entry
 * `since` or before. `isPartial`: the beginning is missing.
 * @typedef {{text: string, thinking: string, tool: string, isPartial: boolean, since: number}} LiveReply
 */

/** How often the feed of a cancelled run is opened again: its undo may be retried from elsewhere. */
const RESIDUE_POLL_MS = 5_000;
/** How often a visible page asks whether a finished run was deleted. */
const DELETION_POLL_MS = 30_000;
/** The statuses of a run that does not exist, and of one that was deleted. */
const GONE_STATUSES = new Set([404, 410]);
/** The delay before a failed load of the report is tried again. */
const REPORT_RETRY_MS = 2_000;
/** How far the clock may be ahead: it ran on while the news of a stop was on its way. */
const CLOCK_AHEAD_MAX_S = 10;

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
  /** @type {import("./asks.js").Asks[]} panels that the page has placed; a control bar needs none then */
  askPanels = [];
  #userCount = 0;
  #key;
  #shownAt = 0; // when the view was received, by our clock
  #shownElapsed = 0; // seconds that the clock has shown last
  #skew = 0; // milliseconds that the server's clock is ahead of ours
  #closing = new AbortController();
  /** @type {RunView | null} the view as the feed has sent it; replies may bring newer ones */
  #fedView = null;
  #isChangePending = false;
  #requestedReportSeq = -1;
  #isFollowing = false;
  #firstSeq = Infinity; // seq of the first view; later events are new to the page
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
    const elapsed = run.elapsed + (isTicking ? (Date.now() - this.#shownAt) / 1000 : 0);
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
   * Send a control to the run.
   * @param {string} verb @param {object} [body] @param {{ifSeen?: boolean}} [options] `ifSeen`:
   *   refuse it if another control was sent since the view that is shown
   */
  send(verb, body = {}, { ifSeen = false } = {}) {
    const request = this.api.post(`${this.path}/${verb}`, body, { ifMatch: ifSeen ? this.etag : undefined });
    return this.showReply(request, verb === "messages" ? "say" : verb);
  }

  /** Decide an ask. @param {Ask} ask @param {{decision: string, [field: string]: unknown}} body @param {{ifSeen?: boolean}} [options] as `send` */
  decide(ask, body, { ifSeen = false } = {}) {
    const request = this.api.post(`/v1/asks/${ask.ref}`, body, { ifMatch: ifSeen ? this.etag : undefined });
    return this.showReply(request, body.decision);
  }

  /** Withdraw a redirect or message that has not been applied. @param {number} seq */
  withdraw(seq) {
    return this.showReply(this.api.delete(`${this.path}/commands/cmd_${seq}`), "withdraw");
  }

  /**
   * Show the run of a control's reply, and return the reply.
   * @param {Promise<any>} request @param {string} control its name @returns {Promise<any>}
   */
  async showReply(request, control) {
    const reply = await request.catch((error) => {
      // The session has ended: the feed does not notice it before its next connection.
      // A run that was deleted has no feed any more.
      if (error instanceof Problem && (error.status === 401 || error.erasure)) this.#refuse(error);
      throw error;
    });
    if (reply?.overlay && reply.run.run_id === this.id) {
      this.#show(reply.run, reply.overlay);
      this.#followAgain();
    }
    return { ...reply, control };
  }

  /** Replace the list of ask panels. @param {import("./asks.js").Asks[]} panels */
  setAskPanels(panels) {
    this.askPanels = panels;
    this.#notifyChange();
  }

  /** Return the agent of the run with its tools; undefined if this server does not have it. @returns {Promise<import("./types.js").AgentLine | undefined>} */
  async loadAgent() {
    const { items } = await this.api.loadAgents();
    return items.find(({ name }) => name === (this.run?.speaker || this.run?.agent));
  }

  /** The entity tag of the view that is shown. */
  get etag() {
    return this.run ? formatEtag(this.run) : undefined;
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

  /** Show a view, unless a newer one is shown: a reply and the feed may overtake each other. @param {RunView} view @param {RunOverlay} overlay */
  #show(view, overlay) {
    const { run } = this;
    const isOlder = run && (view.seq < run.seq || (view.seq === run.seq && overlay.now < run.now));
    if (isOlder) return;
    this.run = layOver(view, overlay);
    this.#shownAt = Date.now();
    this.#skew = Date.parse(overlay.now) - this.#shownAt;
    this.heardAt = this.now;
    if (FINISHED_PHASES.has(view.phase) && this.reportSeq < view.seq) void this.#loadReport(view.seq);
    this.#notifyChange();
  }

  /** @param {import("./types.js").RunUpdate} update */
  #onUpdate({ seq, run, overlay, turns }) {
    const view = { .../** @type {RunView} */ (this.#fedView), ...run };
    if (!this.#fedView) this.#firstSeq = Math.min(this.#firstSeq, seq);
    this.#fedView = view;
    this.turns.update(turns, view.turns);
    // The update has the turns of all calls that have ended, so nothing vanishes in between.
    for (const call of this.#endedCalls) this.live.delete(call);
    this.#endedCalls.clear();
    this.#dropStaleLive(view);
    this.#show(view, overlay);
  }

  /** @param {number} seq of the run */
  async #loadReport(seq) {
    if (this.#requestedReportSeq >= seq) return;
    this.#requestedReportSeq = seq;
    try {
      this.report = await this.api.get(`${this.path}/report`);
      this.reportSeq = seq;
      this.#notifyChange();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this.#requestedReportSeq = -1;
      if (!isRefusal(error)) setTimeout(() => void this.#loadReport(seq), REPORT_RETRY_MS);
    }
  }

  /** Drop live replies of calls that are not in flight, and whose end no event reports. @param {RunView} run */
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
    if (GONE_STATUSES.has(problem.status)) this.#reset(); // no button of it would work
    this.#notifyChange();
  }

  // ── the feed ────────────────────────────────────────────────────────────────

  #start() {
    void this.#follow();
    const poll = () => {
      if (this.connection === "ended" && !document.hidden) void this.#follow();
    };
    const timer = setInterval(() => {
      if (this.run?.controls.pause.command === "retry_undo") poll();
    }, RESIDUE_POLL_MS);
    const deletionTimer = setInterval(poll, DELETION_POLL_MS);
    document.addEventListener("visibilitychange", poll, { signal: this.#closing.signal });
    this.#closing.signal.addEventListener("abort", () => [timer, deletionTimer].forEach(clearInterval));
  }

  /** Follow the feed until the server ends it, unless it is followed already. */
  async #follow() {
    const { signal } = this.#closing;
    if (this.#isFollowing) return;
    this.#isFollowing = true;
    try {
      await followFeed(this.api, `${this.path}/events?view=true`, {
        onEvent: (event) => this.#onStreamEvent(event),
        onOpen: () => this.#onOpen(),
        onLost: () => this.#onLost(),
        onAlive: () => (this.heardAt = this.now),
        resumeAfter: () => this.#fedView?.seq ?? 0,
        signal,
      });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      return this.#refuse(error);
    } finally {
      this.#isFollowing = false;
    }
    if (signal.aborted) return;
    this.connection = "ended";
    this.#notifyChange();
  }

  /** Follow the feed again where a finished run has new entries: its undo was retried. */
  #followAgain() {
    if (this.connection !== "ended" || !this.run || this.run.seq <= (this.#fedView?.seq ?? 0)) return;
    this.connection = "connecting";
    void this.#follow();
  }

  /** @param {import("./feed.js").StreamEvent} event */
  #onStreamEvent({ type, seq, data }) {
    if (type === "stream.reset") this.#reset();
    else if (type === "run.updated") this.#onUpdate(data);
    else if (seq) this.#onEntry(data);
    else if (data) this.#onDelta(type, data);
  }

  #onOpen() {
    const wasLost = this.connection === "lost";
    this.connection = "live";
    this.problem = null;
    if (wasLost) this.dispatchEvent(new Event("reconnected"));
    this.#notifyChange();
  }

  #onLost() {
    if (this.connection === "ended" || this.connection === "refused") return;
    this.connection = "lost";
    this.#notifyChange();
  }

  /** Forget everything: the journal is shorter than the part of it that we have. */
  #reset() {
    this.events = [];
    this.turns.clear();
    this.live.clear();
    this.#fedView = this.run = null;
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
      // A call that a pause has stopped keeps its note: it says how far the call has come.
      if (event.type !== "call.aborted") this.notes.delete(call);
      this.unresponsiveCalls.delete(call);
    }
    this.dispatchEvent(new CustomEvent("event", { detail: event }));
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

/** Return a run as the viewer sees it. @param {RunView} view @param {RunOverlay} overlay @returns {Run} */
function layOver(view, overlay) {
  const asks = view.asks.map((ask) => ({
    ...ask,
    ref: `${view.run_id}-${ask.id}`,
    may_decide: overlay.decidable_asks.includes(ask.id),
  }));
  return { ...view, ...overlay, asks };
}

/** Call back before the next paint; hidden tabs do not paint, so after 100 ms there. @param {() => void} callback */
function nextFrame(callback) {
  if (document.hidden) setTimeout(callback, 100);
  else requestAnimationFrame(() => callback());
}

/** Tell whether the server refuses the request for good; 429 asks to come back later. @param {Problem} problem */
function isRefusal(problem) {
  return problem.status >= 400 && problem.status < 500 && problem.status !== 429;
}
