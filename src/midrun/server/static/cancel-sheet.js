// @ts-check
/**
 * `<midrun-cancel-sheet>`: asks to confirm a cancel; lists the calls it would undo and those it cannot.
 *
 * A sheet opens above the buttons of the control bar, which cannot be pressed meanwhile.
 */
import { css, nothing } from "./lit.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { formatOvertaken } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { formatListedCall } from "./call-text.js";
import { html } from "./template.js";

/** How long the run is paused while the viewer decides; then it resumes by itself. */
const HOLD_S = 60;
const HOLDABLE_PHASES = new Set(["queued", "running", "waiting"]);
const PAUSE_PHASES = new Set(["pausing", "paused"]);

/** @typedef {import("./run-store.js").Run} Run */

/** Return the name under which this tab remembers an open sheet. @param {string} id */
const draftName = (id) => `${id} cancel`;

/** Tell whether a reload has closed the sheet while it holds the run. @param {Run} run */
export const wasOpenBeforeReload = (run) =>
  isHeldByViewer(run) && Boolean(loadDraft(draftName(run.run_id)));

/** @param {Run} run */
const isHeldByViewer = (run) => Boolean(run.hold_until) && PAUSE_PHASES.has(run.phase) && run.phase_by === run.you;

/**
 * Pauses the run while it is open, for at most `HOLD_S`. Emits "closed"; the detail is a message
 * for the viewer, or "". A sheet that was reopened after a reload has `isRestored`, and the run
 * is still held by the sheet from before.
 */
export class CancelSheet extends StoreElement {
  static properties = {
    ...StoreElement.properties,
    isRestored: { attribute: false },
    hold: { state: true },
  };

  static styles = [
    theme,
    css`
      section {
        display: grid;
        gap: 6px;
        overflow-wrap: anywhere;
      }
      h3 {
        margin-bottom: 2px;
        font-size: 17px;
        line-height: 1.3;
      }
      .row {
        margin-top: 4px;
      }
      .error {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];

  constructor() {
    super();
    this.isRestored = false;
    /** @type {"none" | "requested" | "held"} whether this sheet holds the run */
    this.hold = "none";
    this._holdSeq = 0; // seq of the entry by which it does
  }

  firstUpdated() {
    this.renderRoot.querySelector("h3")?.focus();
    const run = this.view;
    if (!run) return;
    saveDraft(draftName(run.run_id), "open");
    if (this.isRestored) this.hold = "held";
    // A run that is held by us from an earlier sheet is held anew: that hold may end any moment.
    else if (HOLDABLE_PHASES.has(run.phase) || isHeldByViewer(run)) void this._holdRun();
  }

  async _holdRun() {
    const store = this.store;
    this.hold = "requested";
    const reply = await this.attempt(async () =>
      store?.send("pause", { hold_s: HOLD_S, reason: "while a cancel is decided" }),
    );
    this._holdSeq = reply?.command.receipt.seq ?? 0;
    this.hold = reply ? "held" : "none";
  }

  updated() {
    const run = this.view;
    if (!run) return;
    const isHeld = this.hold === "held";
    const isHalted = isHeld && run.phase === "halted"; // a halt ends our hold
    if (!run.controls.cancel.enabled || isHalted) this._close("");
    // The view may be older than our hold; only a later one can say that it has ended.
    else if (isHeld && !PAUSE_PHASES.has(run.phase) && run.seq >= this._holdSeq) {
      this._close("No decision came in time, so the run resumed.");
    }
  }

  /** @param {string} message for the viewer */
  _close(message) {
    saveDraft(draftName(this.view?.run_id ?? ""), "");
    this.dispatchEvent(new CustomEvent("closed", { detail: message }));
  }

  /** Cancel as the first button does: with undo, if there is something to undo. */
  confirm() {
    return this._cancel(this.view?.controls.cancel.undo_count ? "all" : "in_flight");
  }

  /** Resume the run if this sheet holds it, and close. */
  async keepRunning() {
    const store = this.store;
    const isHeld = this.hold !== "none" && this.view?.hold_until;
    if (isHeld && !(await this.attempt(async () => store?.send("resume")))) return;
    this._close("");
  }

  /** @param {"all" | "in_flight"} undo */
  async _cancel(undo) {
    const store = this.store;
    const reply = await this.attempt(async () => store?.send("cancel", { undo }));
    if (reply) this._close(formatOvertaken(reply.command?.receipt, "cancel", this.view?.you ?? ""));
  }

  render() {
    const run = this.view;
    if (!run) return nothing;
    const { undo, irreversible, unsure, release, undo_count } = run.controls.cancel;
    return html`<section aria-labelledby="question" @keydown=${this._closeOnEscape}>
      <div>
        <h3 id="question" tabindex="-1">Cancel this run?</h3>
        ${run.in_flight.length
          ? "Calls in progress will be stopped. Nothing new starts while you decide."
          : "Nothing new starts while you decide."}
      </div>
      ${renderCalls("It can undo:", undo)} ${renderCalls("It cannot undo:", irreversible)}
      ${renderCalls("Released in any case:", release)}
      ${renderCalls("Unknown whether it happened:", unsure)}
      ${[undo, irreversible, release, unsure].some((calls) => calls.length)
        ? nothing
        : html`<div>It has changed nothing that a cancel could undo.</div>`}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      <div class="row">
        <button class="danger" @click=${() => this.confirm()}>
          ${undo_count ? `Cancel and undo ${undo_count}` : "End the run"}
        </button>
        ${undo_count
          ? html`<button @click=${() => this._cancel("in_flight")}>Cancel, keep changes</button>`
          : nothing}
        <button @click=${() => this.keepRunning()}>
          ${this.hold === "none" ? "Leave it as it is" : "Keep running"}
        </button>
      </div>
    </section>`;
  }

  /** @param {KeyboardEvent} event */
  _closeOnEscape(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    void this.keepRunning();
  }
}

/** @param {string} title @param {string[]} calls */
function renderCalls(title, calls) {
  if (!calls.length) return nothing;
  return html`<div>${title}
    <ul>
      ${calls.map((call) => html`<li>${formatListedCall(call)}</li>`)}
    </ul>
  </div>`;
}

customElements.define("midrun-cancel-sheet", CancelSheet);
