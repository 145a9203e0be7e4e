// @ts-check
/**
 * `<midrun-controls>`: the control bar of a run.
 *
 * Attributes: `run`, `base`, `token`, and `global-keys`, with which P, R and C work wherever the
 * focus is; otherwise only inside the element, or the `<midrun-run>` that it is part of.
 * What the buttons say, and whether they are live, is the server's word.
 */
import { nothing } from "./lit.js";
import {
  askLine,
  diffLines,
  haltLine,
  holdLine,
  isOver,
  lostLine,
  pausingLine,
  pendingLines,
  returnedLines,
  top,
  unsureLines,
  wayTo,
} from "./bar-lines.js";
import { style } from "./bar-style.js";
import { wasOpen } from "./cancel-sheet.js";
import { kept } from "./drafts.js";
import { emphatic } from "./emphasis.js";
import { endButtons } from "./ended.js";
import { keepKeys, keysEverywhere } from "./keys.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { overtaken } from "./words.js";
import "./composer.js";
import { html } from "./template.js";

/** @typedef {import("./shapes.js").Offer} Offer */
/** @typedef {import("./shapes.js").Pending} Pending */
/** @typedef {import("./shapes.js").Run} Run */

/** Milliseconds for which a button that has just changed its meaning is not pressed. */
const SETTLE = 400;
const TICK = 500;
/** Letters of a label that fit into a third of a phone. */
const LONG = 8;
const TAKEN_UP = /^(message\.(taken|closed)|frame\.)/;
const TYPING = new Set(["INPUT", "TEXTAREA", "SELECT"]);
const LOOKS = /** @type {Record<string, [string, string]>} */ ({
  pause: ["hold", "paused"],
  resume: ["ok", "running"],
  hand_back: ["ok", "running"],
  retry_undo: ["hold", "undo"],
  redirect: ["run", "redirect"],
  cancel: ["stop", "cancelled"],
});

export class MidrunControls extends StoreElement {
  static properties = {
    ...StoreElement.properties,
    globalKeys: { type: Boolean, attribute: "global-keys" },
    sheet: { state: true },
    notice: { state: true },
    help: { state: true },
  };

  static styles = [theme, style];

  constructor() {
    super();
    this.globalKeys = false;
    /** @type {"" | "redirect" | "fork" | "cancel"} */
    this.sheet = "";
    this.notice = "";
    this.help = false;
    this._everywhere = keysEverywhere();
    this._of = ""; // the run whose draft was looked for
    this._unasked = false; // something is open because it was before a reload
    this._label = "";
    this._flippedAt = -Infinity;
    this._sheetAt = -Infinity; // when the cancel sheet was opened
    /** @param {KeyboardEvent} event */
    this._keys = (event) => this._key(event);
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    document.addEventListener("keydown", this._keys);
    this._timer = setInterval(() => this.requestUpdate(), TICK);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    document.removeEventListener("keydown", this._keys);
    clearInterval(this._timer);
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    const run = this.view;
    if (!run) return;
    const { label } = run.controls.pause;
    if (this._label && label !== this._label) this._flippedAt = performance.now();
    this._label = label;
    if (run.run_id !== this._of) this._reopen(run);
    if (this.sheet === "redirect" && isOver(run)) this.sheet = "fork";
  }

  /** Show what somebody had begun when the page went away. @param {Run} run */
  _reopen(run) {
    this._of = run.run_id;
    const may = run.role !== "viewer" && (run.controls.redirect.enabled || isOver(run));
    if (wasOpen(run)) this.sheet = "cancel";
    else if (may && kept(run.run_id)) this.sheet = "redirect";
    this._unasked = this.sheet !== "";
  }

  /** What was said to somebody's words is over once the run has taken them up. */
  happened(/** @type {import("./shapes.js").Happened} */ { type }) {
    if (TAKEN_UP.test(type)) this.notice = "";
  }

  // ── what is pressed ─────────────────────────────────────────────────────────

  /** @param {KeyboardEvent} event */
  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.isComposing) return;
    if (event.defaultPrevented || !this.view || isOver(this.view)) return;
    const path = event.composedPath();
    const target = /** @type {HTMLElement} */ (path[0]);
    if (TYPING.has(target.tagName) || target.isContentEditable) return;
    if (this._asks?.writing) return; // those letters were for the card
    if (!this.globalKeys && !path.includes(this._scope)) return;
    const act = {
      p: () => this._press(),
      r: () => this._redirect(),
      c: () => this._askCancel(),
      "?": () => (this.help = !this.help),
    }[event.key.toLowerCase()];
    if (!act || (event.key !== "?" && !this._everywhere && !path.includes(this._scope))) return;
    event.preventDefault();
    void act();
  }

  /** Where keys count: the whole run, if we are part of one. @returns {EventTarget} */
  get _scope() {
    const root = this.getRootNode();
    const host = root instanceof ShadowRoot ? root.host : null;
    return host?.localName === "midrun-run" ? host : this;
  }

  /** Pause, or whatever the first button means now. */
  async _press() {
    const offer = this.view?.controls.pause;
    const settled = performance.now() - this._flippedAt > SETTLE;
    if (!offer?.enabled || !settled || this.sheet === "cancel") return;
    const caps = Object.keys(offer.caps).length ? { caps: offer.caps } : {};
    await this._send(offer.command, caps, { seen: offer.command === "resume", as: offer.label });
  }

  _redirect() {
    if (!this.view?.controls.redirect.enabled || this.sheet === "cancel") return;
    this.notice = "";
    this.sheet = "redirect";
    const open = this.renderRoot.querySelector("midrun-composer");
    /** @type {import("./composer.js").Composer | null} */ (open)?.reach();
  }

  /**
   * Open the sheet that says what a cancel would do: no single key or tap cancels. A second one
   * confirms it, but not so soon that the sheet cannot have been read.
   */
  async _askCancel() {
    const offer = this.view?.controls.cancel;
    if (!offer?.enabled) return;
    if (this.sheet === "cancel") {
      if (performance.now() - this._sheetAt <= SETTLE) return;
      const open = this.renderRoot.querySelector("midrun-cancel-sheet");
      await /** @type {import("./cancel-sheet.js").CancelSheet} */ (open).confirm();
      return;
    }
    this.notice = "";
    this.sheet = "cancel";
    this._sheetAt = performance.now();
  }

  /**
   * @param {string} verb @param {object} [body]
   * @param {{seen?: boolean, as?: string}} [how] `as`: what it is called where it is pressed
   */
  async _send(verb, body, how) {
    const store = this.store;
    this.notice = "";
    const made = await this.attempt(async () => store?.send(verb, body, how), how?.as);
    if (made) this.notice = overtaken(made.command?.receipt, verb, this.view?.you ?? "");
    return made;
  }

  /** @param {Pending} pending */
  async _withdraw(pending) {
    return this.attempt(async () => this.store?.withdraw(pending.seq));
  }

  /** @param {Pending} pending */
  async _hurry(pending) {
    if (await this._withdraw(pending)) {
      await this._send("redirect", { instruction: pending.text, when: "now" });
    }
  }

  /** @param {import("./shapes.js").Ask} ask @param {string} value */
  async _settle(ask, value) {
    const store = this.store;
    await this.attempt(async () =>
      store?.api.post(`/v1/asks/${ask.ref}`, { decision: "answer", value }),
    );
    store?.refresh();
  }

  /** What waits for an answer, where we are part of a page that shows it. */
  get _asks() {
    const root = /** @type {Document | ShadowRoot} */ (this.getRootNode());
    return /** @type {import("./asks.js").Asks | null} */ (root.querySelector("midrun-asks"));
  }

  /** What became of the work, where we are part of a page that shows it. */
  get _report() {
    const root = /** @type {Document | ShadowRoot} */ (this.getRootNode());
    return /** @type {import("./report.js").ReportPanel | null} */ (root.querySelector("midrun-report"));
  }

  /** @param {string} text */
  async _followUp(text) {
    const made = await this._send("fork", { instruction: text });
    if (made) this.open(made.run_id);
  }

  /** @param {string} said */
  async _closed(said) {
    if (!this.sheet) {
      // The press and the look may both have closed it; only the press has something to say.
      this.notice ||= said;
      return;
    }
    const button = { cancel: "cancel", redirect: "redirect", fork: "fork", "": "" }[this.sheet];
    this.sheet = "";
    this._unasked = false;
    this.notice = said ?? "";
    await this.updateComplete;
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(`#${button}`))?.focus();
  }

  // ── what is drawn ───────────────────────────────────────────────────────────

  render() {
    const { store, view: run } = this;
    if (!store || !run) return this._empty();
    return html`<section class="bar" part="bar" aria-label="Run controls">
      ${top(store, run, wayTo(run, this._asks, this._report))} ${lostLine(store)} ${haltLine(store, run)}
      ${pausingLine(store, run, (verb, body) => void this._send(verb, body))}
      ${this.sheet === "cancel" || run.hold_until ? holdLine(store, run) : nothing}
      ${pendingLines(run, (pending) => void this._withdraw(pending), (pending) => void this._hurry(pending))}
      ${unsureLines(run, (ask, value) => void this._settle(ask, value))}
      ${askLine(run, this._asks)}
      ${isOver(run) ? nothing : diffLines(store, run)}
      ${returnedLines(store, run, (text) => void this._followUp(text))}
      ${this.notice ? html`<div class="line"><span>${emphatic(this.notice)}</span></div>` : nothing}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      ${isOver(run) ? endButtons(this, run) : this._buttons(run)} ${this._sheet()}
      ${this.help ? this._keysHelp() : nothing}
      <div class="unseen" role="status">${store.link === "lost" ? "Connection lost." : spoken(run)}</div>
    </section>`;
  }

  _empty() {
    const problem = this.store?.problem;
    if (problem) return html`<section class="bar error" role="alert">${problem.message}</section>`;
    const lost = this.store?.link === "lost";
    return html`<section class="bar dim" aria-label="Run controls">
      ${lost ? "The server does not answer; trying again…" : "Loading the run…"}
    </section>`;
  }

  /** @param {Run} run */
  _buttons({ controls: { pause, redirect, cancel } }) {
    return html`<div class="buttons" ?inert=${this.sheet === "cancel"}>
      ${this._button("pause", "P", pause, () => this._press())}
      ${this._button("redirect", "R", redirect, () => this._redirect(), this.sheet === "redirect")}
      ${this._button("cancel", "C", cancel, () => this._askCancel(), this.sheet === "cancel")}
    </div>`;
  }

  /**
   * @param {string} id @param {string} key @param {Offer} offer @param {() => unknown} act
   * @param {boolean} [expanded] whether what it opens is open
   */
  _button(id, key, offer, act, expanded) {
    const name = id === "pause" ? offer.command : id;
    const [tone, shape] = LOOKS[name] ?? LOOKS.pause;
    return html`<button
      class="big"
      id=${id}
      part=${id}
      ?data-long=${offer.label.length > LONG}
      aria-keyshortcuts=${key}
      aria-disabled=${offer.enabled ? nothing : "true"}
      aria-expanded=${expanded === undefined ? nothing : String(expanded)}
      @click=${() => void act()}
    >
      <b data-tone=${offer.enabled ? tone : "dim"}
        >${icon(shape)}<span>${offer.label}</span><kbd aria-hidden="true">${key}</kbd></b
      >
      <small>${offer.consequence}</small>
    </button>`;
  }

  _keysHelp() {
    const change = (/** @type {Event} */ event) => {
      this._everywhere = /** @type {HTMLInputElement} */ (event.target).checked;
      keepKeys(this._everywhere);
    };
    return html`<div class="line">
      <span>P pause or resume · R redirect · C cancel · Esc closes what is open</span>
      ${this.globalKeys
        ? html`<label>
            <input type="checkbox" .checked=${this._everywhere} @change=${change} />
            wherever the focus is on this page
          </label>`
        : nothing}
    </div>`;
  }

  _sheet() {
    if (!this.sheet) return nothing;
    const closed = (/** @type {CustomEvent<string>} */ event) => void this._closed(event.detail);
    return html`<div class="sheet">
      ${this.sheet === "cancel"
        ? html`<midrun-cancel-sheet
            .store=${this.store}
            .unasked=${this._unasked}
            @closed=${closed}
          ></midrun-cancel-sheet>`
        : html`<midrun-composer
            .store=${this.store}
            .unasked=${this._unasked}
            mode=${this.sheet}
            @closed=${closed}
          ></midrun-composer>`}
    </div>`;
  }
}

/** What somebody who does not look is told; nothing that is no longer so. @param {Run} run */
const spoken = ({ phase, sign }) =>
  sign.said || (phase === "cancelling" ? "Cancelling. No new calls." : "");

customElements.define("midrun-controls", MidrunControls);
