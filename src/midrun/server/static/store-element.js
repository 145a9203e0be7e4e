// @ts-check
/** The base class of elements that show a run: they render again when the run's store changes. */
import { DEFAULT_BASE, Problem } from "./api.js";
import { formatTooLate, isTooLate } from "./ask-text.js";
import { FocusElement } from "./focus-element.js";
import { formatStatus, formatTimeOfDay } from "./format.js";
import { nothing } from "./lit.js";
import { RunStore } from "./run-store.js";
import { html } from "./template.js";

/**
 * Attributes: `run` (its id), `base` (URL of the server; by default the one that the script came
 * from) and `token` (by default the browser's session is used). A part of `<midrun-run>` gets the
 * `store` of its parent instead.
 *
 * An element with a `run` of its own emits `midrun-state` when the status of the run changes and
 * `midrun-signed-out` when the server requires a sign-in. Every element emits `midrun-sent` when
 * the server has accepted a control that was sent from it.
 */
export class StoreElement extends FocusElement {
  /** Whether it shows nothing that is live, so that deltas need no render. */
  static ignoresLive = false;

  static properties = {
    run: { type: String },
    base: { type: String },
    token: { type: String },
    store: { attribute: false },
    error: { state: true },
  };

  constructor() {
    super();
    this.run = "";
    this.base = DEFAULT_BASE;
    this.token = "";
    /** Why the last action failed; "" if it did not. */
    this.error = "";
    this._isUnanswered = false; // the last action failed because the server did not answer
    /** @type {RunStore | null} */
    this.store = null;
    /** @type {RunStore | null} */
    this._ownStore = null; // the store that we opened, and must release
    /** @type {RunStore | null} */
    this._listenedStore = null; // the store that we listen to
    this._renderedVersion = "";
    this._announcedState = "";
    this._isSignedOut = false;
    this._onChange = () => {
      this._announce();
      if (this._needsRender()) this.requestUpdate();
    };
    this._onReconnect = () => {
      if (this._isUnanswered) this.error = "";
    };
    /** @param {Event} event */
    this._onEvent = (event) => this.onFeedEvent(/** @type {CustomEvent} */ (event).detail);
  }

  /** The run as the server described it last; null before the first answer. */
  get view() {
    return this.store?.run ?? null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.requestUpdate();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this._releaseStore();
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    const isOtherRun = changed.has("run") || changed.has("base") || changed.has("token");
    if (isOtherRun && this._ownStore) this._releaseStore();
    if (this.run && !this.store && this.isConnected) {
      this.store = this._ownStore = RunStore.acquire(this.base, this.run, this.token);
    }
    this._listen(this.store);
  }

  /** Whether the page has placed this element itself; it is no part of another one of ours. */
  get isStandalone() {
    return this._ownStore !== null;
  }

  /** Show or hide this element; return `isShown`. @param {boolean} isShown */
  setShown(isShown) {
    this.toggleAttribute("hidden", !isShown);
    return isShown;
  }

  /**
   * Render what a standalone element shows while it has no content: why the run cannot be shown,
   * else the content that the page has put into the slot `empty`. A part of another element hides.
   */
  renderWithoutContent() {
    const problem = this.isStandalone ? this.store?.problem : null;
    const hasFallback = this.isStandalone && this.querySelector(':scope > [slot="empty"]') !== null;
    if (!this.setShown(Boolean(problem) || hasFallback)) return nothing;
    return problem ? html`<p data-tone="stop" role="alert">${problem.message}</p>` : html`<slot name="empty"></slot>`;
  }

  /** Render the loss of the connection, which the control bar shows where there is one. */
  renderConnection() {
    if (!this.isStandalone || this.store?.connection !== "lost") return nothing;
    return html`<p class="dim" role="status">
      Connection lost. This is the state at ${formatTimeOfDay(this.store.heardAt)}; the run may still be working. Reconnecting.
    </p>`;
  }

  /** Called with every new event of the run; for subclasses. @param {import("./types.js").FeedEvent} _event */
  onFeedEvent(_event) {}

  /**
   * Send a request; if it fails, put the reason into `error` and return null.
   * @template T @param {() => Promise<T>} act @param {string} [label] of the button that was
   *   pressed, for the message @returns {Promise<T | null>}
   */
  async attempt(act, label = "This") {
    const wasLost = this.store?.connection === "lost";
    this.error = "";
    try {
      const reply = await act();
      this._announceSent(reply);
      return reply;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this._isUnanswered = error.status === 0;
      this.error = this._isUnanswered
        ? formatUnanswered(label, wasLost)
        : formatProblem(error, this.view?.you ?? "");
      return null;
    }
  }

  /**
   * Tell whether a change of the store is visible here. While a model streams, the store changes
   * with every delta; elements that ignore those compare everything else that they can show.
   */
  _needsRender() {
    const { store } = this;
    if (!store || !(/** @type {typeof StoreElement} */ (this.constructor).ignoresLive)) return true;
    const first = store.events[0]?.seq;
    const { run, connection, turns, events, reportSeq } = store;
    const version = `${run?.now} ${connection} ${first} ${events.length} ${turns.version} ${reportSeq}`;
    const isNew = version !== this._renderedVersion;
    this._renderedVersion = version;
    return isNew;
  }

  /** Announce a run that was started here; `<midrun-run>` then shows it, unless the page does. @param {string} id */
  openRun(id) {
    this.emit("midrun-started", id);
  }

  /** Emit the changes of a run that the page has named. */
  _announce() {
    const { _ownStore: store } = this;
    if (!store) return;
    const isSignedOut = store.problem?.status === 401;
    if (isSignedOut && !this._isSignedOut) this.emit("midrun-signed-out", null);
    this._isSignedOut = isSignedOut;
    const { run } = store;
    if (!run) return;
    const needsYou = run.asks.some((ask) => ask.may_decide);
    const state = { run: run.run_id, phase: run.phase, word: run.status.word, needsYou };
    const key = JSON.stringify(state);
    if (key === this._announcedState) return;
    this._announcedState = key;
    this.emit("midrun-state", state);
  }

  /** Emit that the server has accepted a control. @param {unknown} reply as `RunStore` returns it */
  _announceSent(reply) {
    const { control, command } = /** @type {Partial<import("./run-store.js").Sent>} */ (reply ?? {});
    if (control) this.emit("midrun-sent", { run: this.store?.id ?? "", control, applied: command?.receipt.applied ?? true });
  }

  _releaseStore() {
    this._listen(null);
    if (!this._ownStore) return;
    this._ownStore.release();
    this._ownStore = null;
    this.store = null;
  }

  /** @param {RunStore | null} store */
  _listen(store) {
    const before = this._listenedStore;
    if (store === before) return;
    before?.removeEventListener("change", this._onChange);
    before?.removeEventListener("event", this._onEvent);
    before?.removeEventListener("reconnected", this._onReconnect);
    store?.addEventListener("change", this._onChange);
    store?.addEventListener("event", this._onEvent);
    store?.addEventListener("reconnected", this._onReconnect);
    this._listenedStore = store;
    // Another element may have loaded the run already; then no change follows.
    if (store?.run) queueMicrotask(() => this._announce());
  }
}

/** Return the message of a refused request. @param {Problem} problem @param {string} you */
function formatProblem(problem, you) {
  if (problem.status === 412) {
    const { status } = problem.run ?? {};
    const now = status ? ` It is now: ${formatStatus(status, you)}.` : "";
    return `This was not applied: the run changed meanwhile.${now} Check it, then press the button again.`;
  }
  if (isTooLate(problem)) return formatTooLate(problem, "answer", you);
  if (problem.reason === "bad_arguments" && problem.refusal) return capitalize(problem.refusal);
  return problem.message;
}

/**
 * Say that the server did not answer. If the connection was lost before, the request was not
 * sent; otherwise it may have arrived and only the reply is missing.
 * @param {string} label @param {boolean} wasLost
 */
function formatUnanswered(label, wasLost) {
  if (wasLost) return `${label} was not sent; press it again.`;
  return `The server did not answer: ${label} may not have arrived. Check the run, then press it again.`;
}

/** Put text on the clipboard; return false if the browser does not allow it. @param {string} text */
export async function copyToClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} text */
const capitalize = (text) => text.charAt(0).toUpperCase() + text.slice(1);
