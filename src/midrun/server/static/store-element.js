// @ts-check
/** The base of every element that shows a run: it draws again when the run's store has news. */
import { HOME, Problem } from "./api.js";
import { isLost, notUsed } from "./ask-words.js";
import { FocusElement } from "./focus-element.js";
import { RunStore } from "./run-store.js";
import { signed } from "./words.js";

/**
 * Attributes: `run` (its id), `base` (the server; where the script came from unless given) and
 * `token` (unless a cookie does). An element inside another is given its `store` instead.
 */
export class StoreElement extends FocusElement {
  /** Whether it shows nothing of what is said between two entries. */
  static quiet = false;

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
    this.base = HOME;
    this.token = "";
    /** What went wrong with what was pressed last. */
    this.error = "";
    this._unanswered = false; // what went wrong is that the server was away
    /** @type {RunStore | null} */
    this.store = null;
    /** @type {RunStore | null} */
    this._joined = null; // the store that is ours to give back
    /** @type {RunStore | null} */
    this._heard = null; // the store that we listen to
    this._seen = "";
    this._changed = () => {
      if (this._isNew()) this.requestUpdate();
    };
    this._returned = () => {
      if (this._unanswered) this.error = "";
    };
    /** @param {Event} event */
    this._happened = (event) => this.happened(/** @type {CustomEvent} */ (event).detail);
  }

  /** What is known of the run. */
  get view() {
    return this.store?.run ?? null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.requestUpdate();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this._leave();
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    const moved = changed.has("run") || changed.has("base") || changed.has("token");
    if (moved && this._joined) this._leave();
    if (this.run && !this.store && this.isConnected) {
      this.store = this._joined = RunStore.for(this.base, this.run, this.token);
    }
    this._listen(this.store);
  }

  /** Take no room where there is nothing to show. @param {boolean} shown */
  shown(shown) {
    this.toggleAttribute("hidden", !shown);
    return shown;
  }

  /** Something happened to the run. @param {import("./shapes.js").Happened} _event */
  happened(_event) {}

  /**
   * Do something that the server may refuse, and say so if it does.
   * @template T @param {() => Promise<T>} act @param {string} [what] what it is called where it
   *   is pressed @returns {Promise<T | null>}
   */
  async attempt(act, what = "This") {
    const away = this.store?.link === "lost";
    this.error = "";
    try {
      return await act();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this._unanswered = error.status === 0;
      this.error = this._unanswered ? unanswered(what, away) : told(error, this.view?.you ?? "");
      return null;
    }
  }

  _isNew() {
    const { store } = this;
    if (!store || !(/** @type {typeof StoreElement} */ (this.constructor).quiet)) return true;
    const first = store.events[0]?.seq;
    const { run, link, turns, events } = store;
    const seen = `${run?.now} ${link} ${first} ${events.length} ${turns.version}`;
    const isNew = seen !== this._seen;
    this._seen = seen;
    return isNew;
  }

  /** Show another run in this one's place, unless the page does. @param {string} id */
  open(id) {
    const options = { detail: id, bubbles: true, composed: true, cancelable: true };
    this.dispatchEvent(new CustomEvent("midrun-started", options));
  }

  _leave() {
    this._listen(null);
    if (!this._joined) return;
    this._joined.release();
    this._joined = null;
    this.store = null;
  }

  /** @param {RunStore | null} store */
  _listen(store) {
    if (store === this._heard) return;
    this._heard?.removeEventListener("change", this._changed);
    this._heard?.removeEventListener("happened", this._happened);
    this._heard?.removeEventListener("returned", this._returned);
    store?.addEventListener("change", this._changed);
    store?.addEventListener("happened", this._happened);
    store?.addEventListener("returned", this._returned);
    this._heard = store;
  }
}

/** Return a refusal in words. @param {Problem} problem @param {string} you */
function told(problem, you) {
  if (problem.status === 412) {
    const { sign } = problem.run ?? {};
    const now = sign ? ` It is now: ${signed(sign.word, sign.by, you)}.` : "";
    return `This was not used: the run changed meanwhile.${now} Check it, then press the button again.`;
  }
  if (isLost(problem)) return notUsed(problem, "answer", you);
  if (problem.reason === "bad_arguments" && problem.why) return sentence(problem.why);
  return problem.message;
}

/** @param {string} what @param {boolean} away whether the server was, before it was pressed */
function unanswered(what, away) {
  if (away) return `${what} was not sent; press it again.`;
  return `The server did not answer: ${what} may not have arrived. Look, then press it again.`;
}

/** @param {string} text */
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
