// @ts-check
/** `<midrun-cancel-sheet>`: what a cancel would undo, and what it could not, before it is asked. */
import { css, nothing } from "./lit.js";
import { keep, kept } from "./drafts.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { overtaken } from "./words.js";
import { exact, html } from "./template.js";

/** Seconds for which nothing new starts while somebody decides. */
const HOLD_S = 60;
const GOING = new Set(["queued", "running", "waiting"]);
const HELD = new Set(["pausing", "paused"]);

/** @typedef {import("./shapes.js").Run} Run */

/** @param {string} id */
const mark = (id) => `${id} cancel`;

/** Tell whether the run is held by a sheet that a reload has closed. @param {Run} run */
export const wasOpen = (run) => isHeldByYou(run) && Boolean(kept(mark(run.run_id)));

/** @param {Run} run */
const isHeldByYou = (run) => Boolean(run.hold_until) && HELD.has(run.phase) && run.since_by === run.you;

/**
 * Holds the run while it is open. Emits "closed", whose detail is what to say about it: the
 * hold ends by itself if nobody decides. Opened again after a reload it is `unasked`, and the run
 * is held already.
 */
export class CancelSheet extends StoreElement {
  static properties = {
    ...StoreElement.properties,
    unasked: { attribute: false },
    held: { state: true },
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
        font-size: 14px;
        display: inline;
      }
      li {
        font: 12.5px/1.5 var(--mono);
      }
      .error {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];

  constructor() {
    super();
    this.unasked = false;
    /** @type {"no" | "asked" | "yes"} whether it is us who hold the run */
    this.held = "no";
    this._from = 0; // the entry by which we hold it
  }

  firstUpdated() {
    this.renderRoot.querySelector("h3")?.focus();
    const run = this.view;
    if (!run) return;
    keep(mark(run.run_id), "open");
    if (this.unasked) this.held = "yes";
    else if (GOING.has(run.phase) || isHeldByYou(run)) void this._hold(); // it may go on by now
  }

  async _hold() {
    const store = this.store;
    this.held = "asked";
    const told = await this.attempt(async () =>
      store?.send("pause", { hold_s: HOLD_S, reason: "while a cancel is decided" }),
    );
    this._from = told?.command.receipt.seq ?? 0;
    this.held = told ? "yes" : "no";
  }

  updated() {
    const run = this.view;
    if (!run) return;
    const halted = this.held === "yes" && run.phase === "halted"; // our hold is over
    if (!run.controls.cancel.enabled || halted) this._close("");
    else if (this.held === "yes" && !HELD.has(run.phase) && run.seq >= this._from) {
      this._close("Nobody decided in time, so the run went on.");
    }
  }

  /** @param {string} said */
  _close(said) {
    keep(mark(this.view?.run_id ?? ""), "");
    this.dispatchEvent(new CustomEvent("closed", { detail: said }));
  }

  /** Cancel, as the first button says. */
  confirm() {
    return this._cancel(this.view?.controls.cancel.undoes ? "all" : "in_flight");
  }

  /** Let the run go on, if it is us who hold it. */
  async keep() {
    const store = this.store;
    const held = this.held !== "no" && this.view?.hold_until;
    if (held && !(await this.attempt(async () => store?.send("resume")))) return;
    this._close("");
  }

  /** @param {"all" | "in_flight"} undo */
  async _cancel(undo) {
    const store = this.store;
    const made = await this.attempt(async () => store?.send("cancel", { undo }));
    if (made) this._close(overtaken(made.command?.receipt, "cancel", this.view?.you ?? ""));
  }

  render() {
    const run = this.view;
    if (!run) return nothing;
    const { undo, never, unsure, release, undoes } = run.controls.cancel;
    return html`<section aria-labelledby="question" @keydown=${this._keyed}>
      <div>
        <h3 id="question" tabindex="-1">Cancel this run?</h3>
        ${run.in_flight.length
          ? "What is in progress is stopped. Nothing new starts while you decide."
          : "Nothing new starts while you decide."}
      </div>
      ${listed("It can undo:", undo)} ${listed("It cannot undo:", never)}
      ${listed("It releases, in any case:", release)}
      ${listed("Nobody knows whether these happened:", unsure)}
      ${[undo, never, release, unsure].some((deeds) => deeds.length)
        ? nothing
        : html`<div>It has changed nothing that a cancel could undo.</div>`}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      <div class="row">
        <button class="danger" @click=${() => this.confirm()}>
          ${undoes ? `Cancel and undo ${undoes}` : "Cancel"}
        </button>
        ${undoes
          ? html`<button @click=${() => this._cancel("in_flight")}>Cancel, keep changes</button>`
          : nothing}
        <button @click=${() => this.keep()}>
          ${this.held === "no" ? "Leave it as it is" : "Keep running"}
        </button>
      </div>
    </section>`;
  }

  /** @param {KeyboardEvent} event */
  _keyed(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    void this.keep();
  }
}

/** @param {string} title @param {string[]} deeds */
function listed(title, deeds) {
  if (!deeds.length) return nothing;
  return html`<div>${title}
    <ul>
      ${deeds.map((deed) => html`<li>${exact(deed)}</li>`)}
    </ul>
  </div>`;
}

customElements.define("midrun-cancel-sheet", CancelSheet);
