// @ts-check
/**
 * `<midrun-controls>`: the control bar of a run.
 *
 * Attributes: `run`, `base`, `token`; `global-keys`: with it the keys P, R, S, C and A work wherever
 * the focus is, otherwise only inside the element or the `<midrun-run>` that it is part of;
 * `docked`: the bar stays at the lower edge, and everything that comes and goes is above it. So
 * the buttons do not move while one aims at them. Without it, such rows are below the buttons.
 *
 * Slot `actions`: below the buttons, for buttons of the page itself.
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
  renderProblem,
  renderReturnedRows,
  renderStatusRow,
  renderUnsureRows,
} from "./control-bar-rows.js";
import { style } from "./control-bar-style.js";
import { renderEmphasis } from "./emphasis.js";
import { renderFinishedActions } from "./finished-actions.js";
import { formatOvertaken } from "./format.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import "./composer.js";
import "./asks.js";
import { html } from "./template.js";

/** @typedef {Pick<import("./types.js").Button, "enabled" | "command" | "label" | "consequence">} ShownButton */
/** @typedef {import("./types.js").PendingView} PendingText */
/** @typedef {import("./run-store.js").Run} Run */

/** A button that has just changed its meaning ignores presses for so long: they meant the old one. */
const PRESS_DELAY_MS = 400;
/** How often clocks and ages on the bar are drawn again. */
const TICK_MS = 500;
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
  ask: ["wait", "ask"],
  cancel: ["stop", "cancelled"],
});

const FINISHED_HINT = "Run again starts the same task from its beginning; continuing keeps what was said.";

/** The keys and what they do; `?` shows them. */
const HELP_KEYS = [
  ["P", "pause or resume"],
  ["R", "write an instruction"],
  ["S", "ask a side question"],
  ["C", "cancel: opens the sheet; its button confirms"],
  ["A", "answer: goes to the open question or approval"],
  ["Enter", "send the text: from the next turn"],
  ["Ctrl+Enter", "send it now, and stop the current call"],
  ["Shift+Enter", "new line"],
  ["Esc", "leave the field, close the sheet; never stops a run"],
  ["?", "these keys"],
];

export class MidrunControls extends StoreElement {
  static properties = {
    ...StoreElement.properties,
    globalKeys: { type: Boolean, attribute: "global-keys" },
    docked: { type: Boolean },
    sheet: { state: true },
    notice: { state: true },
    help: { state: true },
    pointedAt: { state: true },
  };

  static styles = [theme, style];

  constructor() {
    super();
    this.globalKeys = false;
    this.docked = false;
    /** @type {"" | "cancel"} */
    this.sheet = "";
    this.notice = "";
    this.help = false;
    this.pointedAt = ""; // the button, or "composer", that has the pointer or the focus
    this._shortcutsEverywhere = loadShortcutsEverywhere();
    this._restoredRun = ""; // the run whose cancel sheet has been restored
    this._isRestored = false; // the sheet is open because it was open before a reload
    this._pauseLabel = "";
    this._pauseChangedAt = -Infinity; // when the first button got another label
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
  }

  /** Open the cancel sheet that was open before a reload. @param {Run} run */
  _restoreSheet(run) {
    this._restoredRun = run.run_id;
    this.sheet = wasOpenBeforeReload(run) ? "cancel" : "";
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
    if (event.defaultPrevented || !this.view) return;
    const path = event.composedPath();
    const target = /** @type {HTMLElement} */ (path[0]);
    if (INPUT_TAGS.has(target.tagName) || target.isContentEditable) return;
    if (this._asks?.isWriting) return; // the viewer may believe the focus is in the card
    const isInside = path.includes(this._shortcutScope);
    if (!this.globalKeys && !isInside) return;
    const act = {
      p: () => this._pressPause(),
      r: () => this.openComposer(false),
      s: () => this.openComposer(true),
      c: () => this._openCancel(),
      a: () => this._openAnswer(),
      "?": () => (this.help = !this.help),
    }[event.key.toLowerCase()];
    // "?" is not subject to the viewer's choice: it shows the checkbox that changes it.
    if (!act || (event.key !== "?" && !this._shortcutsEverywhere && !isInside)) return;
    if (isFinished(this.view) && !"r?".includes(event.key.toLowerCase())) return;
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

  /**
   * Focus the composer to write an instruction or a side question.
   * @param {boolean} isQuestion @param {string} [text] put into the field if it is empty
   */
  openComposer(isQuestion, text = "") {
    const run = this.view;
    const isPossible = run && (isQuestion ? run.controls.ask.enabled : run.controls.redirect.enabled || isFinished(run));
    if (!isPossible || this.sheet === "cancel") return;
    this.notice = "";
    this._composer?.open(isQuestion, text);
  }

  get _composer() {
    return /** @type {import("./composer.js").Composer | null} */ (this.renderRoot.querySelector("midrun-composer"));
  }

  /**
   * Open the cancel sheet. Only its own buttons cancel: the letter C, typed by a viewer who
   * believes that the focus is in a field, must never confirm.
   */
  _openCancel() {
    if (!this.view?.controls.cancel.enabled || this.sheet === "cancel") return;
    this.notice = "";
    this.sheet = "cancel";
  }

  /** Go to what waits for the viewer: the cards, else the row about a call of unknown outcome. */
  _openAnswer() {
    if (this.sheet === "cancel") return;
    const hasCard = this.view?.asks.some(({ kind }) => kind !== "unsure");
    const row = /** @type {HTMLElement | null} */ (this.renderRoot.querySelector("[data-ask] button"));
    if (row && !hasCard) row.focus();
    else this._asks?.reveal();
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

  /** The asks of the same run: a panel that the page has placed, that of our `<midrun-run>`, else our own. */
  get _asks() {
    const [panel] = this.store?.askPanels ?? [];
    if (panel) return panel;
    const root = this._isPart ? /** @type {ShadowRoot} */ (this.getRootNode()) : this.renderRoot;
    return /** @type {import("./asks.js").Asks | null} */ (root.querySelector("midrun-asks"));
  }

  /** Whether we are part of a `<midrun-run>`, which has a panel for the asks. */
  get _isPart() {
    return this._shortcutScope !== this;
  }

  /** The result of the same run, if we are part of a `<midrun-run>`. */
  get _result() {
    const root = /** @type {Document | ShadowRoot} */ (this.getRootNode());
    return /** @type {import("./result.js").Result | null} */ (root.querySelector("midrun-result"));
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
    this.sheet = "";
    this._isRestored = false;
    this.notice = message ?? "";
    await this.updateComplete;
    this._focusButton("cancel");
  }

  /** @param {string} id */
  _focusButton(id) {
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(`#${id}`))?.focus();
  }

  // ── rendering ───────────────────────────────────────────────────────────────

  render() {
    const { store, view: run } = this;
    if (!store || !run) return this._renderEmpty();
    const rows = html`<div class="tray">${this._renderRows(run)}</div>`;
    return html`<section class="bar" part="bar" aria-label="Run controls">
      ${this.docked ? rows : nothing}
      <div class="dock" ?inert=${this.sheet === "cancel"} @pointerover=${this._onPoint} @pointerleave=${this._onUnpoint}
        @focusin=${this._onPoint} @focusout=${this._onUnpoint}>
        ${renderStatusRow(store, run, renderJumpLink(run, this._asks, store.report && this._report, this._result), () => (this.help = !this.help))}
        <midrun-composer
          .store=${store}
          @sent=${this._onSent}
          @left=${() => this._focusButton(isFinished(run) ? "fork" : "redirect")}
        ></midrun-composer>
        ${isFinished(run) ? renderFinishedActions(this, run) : this._renderButtons(run)}
        <div class="hint" aria-hidden="true">${this._formatHint(run)}</div>
        <slot name="actions"></slot>
      </div>
      ${this.docked ? nothing : rows}
      <div class="visually-hidden" role="status">${formatAnnouncement(store.connection, run)}</div>
    </section>`;
  }

  /** Render everything that comes and goes. @param {Run} run */
  _renderRows(run) {
    const store = /** @type {import("./run-store.js").RunStore} */ (this.store);
    return html`${this._renderSheet()} ${this.help ? this._renderHelp() : nothing} ${renderLostRow(store)}
      ${renderHaltRow(store, run)}
      ${renderPausingRow(store, run, (verb, body) => void this._send(verb, body))}
      ${this.sheet === "cancel" || run.hold_until ? renderHoldRow(store, run) : nothing}
      ${renderPendingRows(run, (pending) => void this._withdraw(pending), (pending) => void this._applyNow(pending))}
      ${store.askPanels.length ? nothing : renderUnsureRows(run, (ask, value) => void this._settle(ask, value))}
      ${renderAskRow(run, this._asks)}
      ${isFinished(run) ? nothing : renderDiffRows(store, run)}
      ${renderReturnedRows(store, run, (text) => void this._startFollowUp(text))}
      ${this._isPart || store.askPanels.length ? nothing : html`<midrun-asks .store=${store}></midrun-asks>`}
      ${this.notice ? html`<div class="line"><span>${renderEmphasis(this.notice)}</span></div>` : nothing}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}`;
  }

  /** Show the acknowledgement of a text, and tell the element around that one was sent. @param {CustomEvent<string>} event */
  _onSent({ detail }) {
    this.notice = detail;
    this.dispatchEvent(new CustomEvent("sent"));
  }

  /** Remember which button the pointer or the focus is on. @param {Event} event */
  _onPoint(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const id = target.localName === "midrun-composer" ? "composer" : target.closest("button")?.id;
    this.pointedAt = id ?? "";
  }

  /** The pointer has left: what has the focus counts again. */
  _onUnpoint() {
    const focused = /** @type {HTMLElement | null} */ (this.shadowRoot?.activeElement ?? null);
    this.pointedAt = (focused?.localName === "midrun-composer" ? "composer" : focused?.id) ?? "";
  }

  /** Return the consequence of the button that is pointed at, else of the first one. @param {Run} run */
  _formatHint(run) {
    if (this.pointedAt === "composer") return this._composer?.hint ?? "";
    const { pause } = run.controls;
    if (isFinished(run)) return pause.command === "retry_undo" ? pause.consequence : FINISHED_HINT;
    return (run.controls[this.pointedAt] ?? pause).consequence;
  }

  _renderEmpty() {
    const problem = this.store?.problem;
    if (problem) {
      return html`<section class="bar problem" role="alert" aria-label="Run controls">
        ${renderProblem(problem, this.store?.api.base ?? "")}
      </section>`;
    }
    const isLost = this.store?.connection === "lost";
    return html`<section class="bar dim" aria-label="Run controls">
      ${isLost ? "The server does not answer; trying again…" : "Loading the run…"}
    </section>`;
  }

  /** @param {Run} run */
  _renderButtons(run) {
    const { pause, redirect, ask, cancel } = run.controls;
    return html`<div class="buttons">
      ${this._renderButton("pause", "P", pause, () => this._pressPause())}
      ${this._renderButton("redirect", "R", redirect, () => this.openComposer(false))}
      ${this._renderButton("ask", "S", ask, () => this.openComposer(true))}
      ${this._renderButton("cancel", "C", cancel, () => this._openCancel(), this.sheet === "cancel")}
    </div>`;
  }

  /**
   * Render one of the buttons. A disabled one stays focusable, so that its reason can be read.
   * @param {string} id @param {string} key @param {ShownButton} button @param {() => unknown} act
   * @param {boolean} [expanded] whether the sheet that it opens is open
   */
  _renderButton(id, key, button, act, expanded) {
    const name = id === "pause" ? button.command : id;
    const [tone, shape] = BUTTON_STYLES[name] ?? BUTTON_STYLES.pause;
    return html`<button
      class="control"
      id=${id}
      part=${id}
      aria-keyshortcuts=${key}
      aria-disabled=${button.enabled ? nothing : "true"}
      aria-expanded=${expanded === undefined ? nothing : String(expanded)}
      @click=${() => void act()}
    >
      <b data-tone=${button.enabled ? tone : "dim"}
        >${icon(shape)}<span>${button.label}</span><kbd aria-hidden="true">${key}</kbd></b
      >
      <small class="visually-hidden">${button.consequence}</small>
    </button>`;
  }

  _renderHelp() {
    const change = (/** @type {Event} */ event) => {
      this._shortcutsEverywhere = /** @type {HTMLInputElement} */ (event.target).checked;
      saveShortcutsEverywhere(this._shortcutsEverywhere);
    };
    return html`<section class="help" aria-label="Keys">
      <dl>
        ${HELP_KEYS.map(([keys, text]) => html`<div><dt><kbd>${keys}</kbd></dt><dd>${text}</dd></div>`)}
      </dl>
      <div class="row">
        ${this.globalKeys
          ? html`<label>
              <input type="checkbox" .checked=${this._shortcutsEverywhere} @change=${change} />
              These keys work anywhere on this page
            </label>`
          : nothing}
        <button @click=${() => (this.help = false)}>Close</button>
      </div>
    </section>`;
  }

  _renderSheet() {
    if (!this.sheet) return nothing;
    const onClosed = (/** @type {CustomEvent<string>} */ event) => void this._closeSheet(event.detail);
    return html`<div class="sheet">
      <midrun-cancel-sheet
        .store=${this.store}
        .isRestored=${this._isRestored}
        @closed=${onClosed}
      ></midrun-cancel-sheet>
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
