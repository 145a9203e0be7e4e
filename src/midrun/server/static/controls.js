// @ts-check
/**
 * `<midrun-controls>`: the control bar of a run.
 *
 * Attributes: `run`, `base`, `token`, and `global-keys`: with it the keys P, R and C work wherever
 * the focus is; otherwise only inside the element, or the `<midrun-run>` that it is part of.
 *
 * The server decides the labels of the buttons, their consequences, and whether they are enabled.
 */
import { nothing } from "./lit.js";
import { wasOpenBeforeReload } from "./cancel-sheet.js";
import {
  isFinished,
  renderAskRow,
  renderDiffRows,
  renderHaltRow,
  renderHoldRow,
  renderJumpLink,
  renderLostRow,
  renderPausingRow,
  renderPendingRows,
  renderReturnedRows,
  renderStatusRow,
  renderUnsureRows,
} from "./control-bar-rows.js";
import { style } from "./control-bar-style.js";
import { loadDraft } from "./drafts.js";
import { renderEmphasis } from "./emphasis.js";
import { renderFinishedActions } from "./finished-actions.js";
import { formatOvertaken } from "./format.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import "./composer.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").Button} Button */
/** @typedef {import("./types.js").PendingView} PendingText */
/** @typedef {import("./run-store.js").Run} Run */

/** A button that has just changed its meaning ignores presses for so long: they meant the old one. */
const PRESS_DELAY_MS = 400;
/** How often clocks and ages on the bar are drawn again. */
const TICK_MS = 500;
/** A longer label does not fit into a third of a phone's width, and changes the columns. */
const LONG_LABEL_CHARS = 8;
/** Events after which the acknowledgement of a message is out of date. */
const MESSAGE_TAKEN_EVENTS = /^(message\.(taken|closed)|frame\.)/;
const INPUT_TAGS = new Set(["INPUT", "TEXTAREA", "SELECT"]);
const SHORTCUTS_STORAGE_KEY = "midrun keys";
/** By command: tone and icon of its button. */
const BUTTON_STYLES = /** @type {Record<string, [string, string]>} */ ({
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
    this._shortcutsEverywhere = loadShortcutsEverywhere();
    this._restoredRun = ""; // the run whose drafts have been restored
    this._isRestored = false; // the sheet is open because it was open before a reload
    this._pauseLabel = "";
    this._pauseChangedAt = -Infinity; // when the first button got another label
    this._cancelOpenedAt = -Infinity;
    /** @param {KeyboardEvent} event */
    this._keyListener = (event) => this._onKeydown(event);
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    document.addEventListener("keydown", this._keyListener);
    this._timer = setInterval(() => this.requestUpdate(), TICK_MS);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    document.removeEventListener("keydown", this._keyListener);
    clearInterval(this._timer);
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    const run = this.view;
    if (!run) return;
    const { label } = run.controls.pause;
    if (this._pauseLabel && label !== this._pauseLabel) this._pauseChangedAt = performance.now();
    this._pauseLabel = label;
    if (run.run_id !== this._restoredRun) this._restoreSheet(run);
    if (this.sheet === "redirect" && isFinished(run)) this.sheet = "fork"; // the draft is kept
  }

  /** Open the sheet that was open before a reload. @param {Run} run */
  _restoreSheet(run) {
    this._restoredRun = run.run_id;
    const mayWrite = run.role !== "viewer" && (run.controls.redirect.enabled || isFinished(run));
    if (wasOpenBeforeReload(run)) this.sheet = "cancel";
    else if (mayWrite && loadDraft(run.run_id)) this.sheet = "redirect";
    this._isRestored = this.sheet !== "";
  }

  /** Remove the acknowledgement of a message once the run has taken the message up. */
  onFeedEvent(/** @type {import("./types.js").FeedEvent} */ { type }) {
    if (MESSAGE_TAKEN_EVENTS.test(type)) this.notice = "";
  }

  // ── input ───────────────────────────────────────────────────────────────────

  /**
   * Handle a shortcut. The listener is on the document, so that it works without the focus in
   * this element; every condition below keeps a key from acting that was meant for something else.
   * @param {KeyboardEvent} event
   */
  _onKeydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || event.isComposing) return;
    if (event.defaultPrevented || !this.view || isFinished(this.view)) return;
    const path = event.composedPath();
    const target = /** @type {HTMLElement} */ (path[0]);
    if (INPUT_TAGS.has(target.tagName) || target.isContentEditable) return;
    if (this._asks?.isWriting) return; // the viewer may believe the focus is in the card
    const isInside = path.includes(this._shortcutScope);
    if (!this.globalKeys && !isInside) return;
    const act = {
      p: () => this._pressPause(),
      r: () => this._openRedirect(),
      c: () => this._openOrConfirmCancel(),
      "?": () => (this.help = !this.help),
    }[event.key.toLowerCase()];
    // "?" is not subject to the viewer's choice: it shows the checkbox that changes it.
    if (!act || (event.key !== "?" && !this._shortcutsEverywhere && !isInside)) return;
    event.preventDefault();
    void act();
  }

  /** The element inside which shortcuts work: the `<midrun-run>` that we are part of, else us. @returns {EventTarget} */
  get _shortcutScope() {
    const root = this.getRootNode();
    const host = root instanceof ShadowRoot ? root.host : null;
    return host?.localName === "midrun-run" ? host : this;
  }

  /** Send the command of the first button: pause, resume, hand back or retry. */
  async _pressPause() {
    const button = this.view?.controls.pause;
    const isSettled = performance.now() - this._pauseChangedAt > PRESS_DELAY_MS;
    if (!button?.enabled || !isSettled || this.sheet === "cancel") return;
    const caps = Object.keys(button.caps).length ? { caps: button.caps } : {};
    const ifSeen = button.command === "resume";
    await this._send(button.command, caps, { ifSeen, label: button.label });
  }

  _openRedirect() {
    if (!this.view?.controls.redirect.enabled || this.sheet === "cancel") return;
    this.notice = "";
    this.sheet = "redirect";
    const open = this.renderRoot.querySelector("midrun-composer");
    /** @type {import("./composer.js").Composer | null} */ (open)?.focusText();
  }

  /**
   * Open the cancel sheet, or confirm it if it is open. So no single key or tap cancels, and a
   * second one that comes too soon to have read the sheet does nothing.
   */
  async _openOrConfirmCancel() {
    const button = this.view?.controls.cancel;
    if (!button?.enabled) return;
    if (this.sheet === "cancel") {
      if (performance.now() - this._cancelOpenedAt <= PRESS_DELAY_MS) return;
      const open = this.renderRoot.querySelector("midrun-cancel-sheet");
      await /** @type {import("./cancel-sheet.js").CancelSheet} */ (open).confirm();
      return;
    }
    this.notice = "";
    this.sheet = "cancel";
    this._cancelOpenedAt = performance.now();
  }

  /**
   * @param {string} verb @param {object} [body]
   * @param {{ifSeen?: boolean, label?: string}} [options] `label`: of the button, for messages
   */
  async _send(verb, body, options) {
    const store = this.store;
    this.notice = "";
    const reply = await this.attempt(async () => store?.send(verb, body, options), options?.label);
    if (reply) this.notice = formatOvertaken(reply.command?.receipt, verb, this.view?.you ?? "");
    return reply;
  }

  /** @param {PendingText} pending */
  async _withdraw(pending) {
    return this.attempt(async () => this.store?.withdraw(pending.seq));
  }

  /** Send a pending redirect again, to be applied now. @param {PendingText} pending */
  async _applyNow(pending) {
    if (await this._withdraw(pending)) {
      await this._send("redirect", { instruction: pending.text, when: "now" });
    }
  }

  /** Say whether an unknown call took effect. @param {import("./run-store.js").Ask} ask @param {string} value */
  async _settle(ask, value) {
    await this.attempt(async () => this.store?.decide(ask, { decision: "answer", value }));
  }

  /** The asks of the same run, if we are part of a `<midrun-run>`. */
  get _asks() {
    const root = /** @type {Document | ShadowRoot} */ (this.getRootNode());
    return /** @type {import("./asks.js").Asks | null} */ (root.querySelector("midrun-asks"));
  }

  /** The report of the same run, if we are part of a `<midrun-run>`. */
  get _report() {
    const root = /** @type {Document | ShadowRoot} */ (this.getRootNode());
    return /** @type {import("./report.js").ReportPanel | null} */ (root.querySelector("midrun-report"));
  }

  /** @param {string} text */
  async _startFollowUp(text) {
    const started = await this._send("fork", { instruction: text });
    if (started) this.openRun(started.run_id);
  }

  /** Close the sheet; the focus returns to the button that opened it. @param {string} message */
  async _closeSheet(message) {
    if (!this.sheet) {
      // A new view closes the cancel sheet too, and may come before the reply to our cancel. Only
      // the reply has a message.
      this.notice ||= message;
      return;
    }
    const button = { cancel: "cancel", redirect: "redirect", fork: "fork", "": "" }[this.sheet];
    this.sheet = "";
    this._isRestored = false;
    this.notice = message ?? "";
    await this.updateComplete;
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(`#${button}`))?.focus();
  }

  // ── rendering ───────────────────────────────────────────────────────────────

  render() {
    const { store, view: run } = this;
    if (!store || !run) return this._renderEmpty();
    return html`<section class="bar" part="bar" aria-label="Run controls">
      ${renderStatusRow(store, run, renderJumpLink(run, this._asks, store.report && this._report))}
      ${renderLostRow(store)} ${renderHaltRow(store, run)}
      ${renderPausingRow(store, run, (verb, body) => void this._send(verb, body))}
      ${this.sheet === "cancel" || run.hold_until ? renderHoldRow(store, run) : nothing}
      ${renderPendingRows(run, (pending) => void this._withdraw(pending), (pending) => void this._applyNow(pending))}
      ${renderUnsureRows(run, (ask, value) => void this._settle(ask, value))}
      ${renderAskRow(run, this._asks)}
      ${isFinished(run) ? nothing : renderDiffRows(store, run)}
      ${renderReturnedRows(store, run, (text) => void this._startFollowUp(text))}
      ${this.notice ? html`<div class="line"><span>${renderEmphasis(this.notice)}</span></div>` : nothing}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      ${isFinished(run) ? renderFinishedActions(this, run) : this._renderButtons(run)} ${this._renderSheet()}
      ${this.help ? this._renderHelp() : nothing}
      <div class="visually-hidden" role="status">${formatAnnouncement(store.connection, run)}</div>
    </section>`;
  }

  _renderEmpty() {
    const problem = this.store?.problem;
    if (problem) return html`<section class="bar error" role="alert">${problem.message}</section>`;
    const isLost = this.store?.connection === "lost";
    return html`<section class="bar dim" aria-label="Run controls">
      ${isLost ? "The server does not answer; trying again…" : "Loading the run…"}
    </section>`;
  }

  /** @param {Run} run */
  _renderButtons({ controls: { pause, redirect, cancel } }) {
    const { sheet } = this;
    return html`<div class="buttons" ?inert=${sheet === "cancel"}>
      ${this._renderButton("pause", "P", pause, () => this._pressPause())}
      ${this._renderButton("redirect", "R", redirect, () => this._openRedirect(), sheet === "redirect")}
      ${this._renderButton("cancel", "C", cancel, () => this._openOrConfirmCancel(), sheet === "cancel")}
    </div>`;
  }

  /**
   * Render one of the three buttons. A disabled one stays focusable, so that its reason can be read.
   * @param {string} id @param {string} key @param {Button} button @param {() => unknown} act
   * @param {boolean} [expanded] whether the sheet that it opens is open
   */
  _renderButton(id, key, button, act, expanded) {
    const name = id === "pause" ? button.command : id;
    const [tone, shape] = BUTTON_STYLES[name] ?? BUTTON_STYLES.pause;
    return html`<button
      class="control"
      id=${id}
      part=${id}
      ?data-long=${button.label.length > LONG_LABEL_CHARS}
      aria-keyshortcuts=${key}
      aria-disabled=${button.enabled ? nothing : "true"}
      aria-expanded=${expanded === undefined ? nothing : String(expanded)}
      @click=${() => void act()}
    >
      <b data-tone=${button.enabled ? tone : "dim"}
        >${icon(shape)}<span>${button.label}</span><kbd aria-hidden="true">${key}</kbd></b
      >
      <small>${button.consequence}</small>
    </button>`;
  }

  _renderHelp() {
    const change = (/** @type {Event} */ event) => {
      this._shortcutsEverywhere = /** @type {HTMLInputElement} */ (event.target).checked;
      saveShortcutsEverywhere(this._shortcutsEverywhere);
    };
    return html`<div class="line">
      <span>P pause or resume · R redirect · C cancel · Esc closes the open sheet</span>
      ${this.globalKeys
        ? html`<label>
            <input type="checkbox" .checked=${this._shortcutsEverywhere} @change=${change} />
            anywhere on this page
          </label>`
        : nothing}
    </div>`;
  }

  _renderSheet() {
    if (!this.sheet) return nothing;
    const onClosed = (/** @type {CustomEvent<string>} */ event) => void this._closeSheet(event.detail);
    return html`<div class="sheet">
      ${this.sheet === "cancel"
        ? html`<midrun-cancel-sheet
            .store=${this.store}
            .isRestored=${this._isRestored}
            @closed=${onClosed}
          ></midrun-cancel-sheet>`
        : html`<midrun-composer
            .store=${this.store}
            .isRestored=${this._isRestored}
            mode=${this.sheet}
            @closed=${onClosed}
          ></midrun-composer>`}
    </div>`;
  }
}

/** Return the text that screen readers announce; "" clears an older one. @param {string} connection @param {Run} run */
function formatAnnouncement(connection, { phase, status }) {
  if (connection === "lost") return "Connection lost.";
  return status.announcement || (phase === "cancelling" ? "Cancelling. No new calls." : "");
}

/** Return the viewer's choice whether shortcuts work outside the element too. */
function loadShortcutsEverywhere() {
  try {
    return localStorage.getItem(SHORTCUTS_STORAGE_KEY) !== "inside";
  } catch {
    return true; // storage is switched off
  }
}

/** @param {boolean} everywhere */
function saveShortcutsEverywhere(everywhere) {
  try {
    localStorage.setItem(SHORTCUTS_STORAGE_KEY, everywhere ? "everywhere" : "inside");
  } catch {
    // storage is switched off; the choice holds until the page is closed
  }
}

customElements.define("midrun-controls", MidrunControls);
