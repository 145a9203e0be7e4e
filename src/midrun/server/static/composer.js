// @ts-check
/** `<midrun-composer>`: the form for a new instruction, a side question, or a fork. */
import { css, live, nothing } from "./lit.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** Phases in which a redirect or a side question can be sent. */
const ACTIVE_PHASES = new Set(["running", "pausing", "waiting", "queued"]);

/**
 * `mode` is "redirect", or "fork" to continue from a finished run. Emits "closed" when it was sent
 * or discarded; the detail is the run's immediate acknowledgement, or "".
 *
 * The draft survives a reload. A composer that was opened only because there is a draft has
 * `isRestored`, and does not take the focus.
 */
export class Composer extends StoreElement {
  static properties = {
    ...StoreElement.properties,
    mode: { type: String },
    isRestored: { attribute: false },
    text: { state: true },
    isSideQuestion: { state: true },
    when: { state: true },
    busy: { state: true },
  };

  static styles = [
    theme,
    css`
      form {
        display: grid;
        gap: 8px;
      }
      fieldset {
        display: flex;
        flex-wrap: wrap;
        gap: 4px 16px;
      }
      legend {
        float: left;
        margin-right: 12px;
        padding: 0;
        line-height: 24px;
        color: var(--dim);
      }
      .kinds label {
        padding: 2px 12px 2px 8px;
        border: 1px solid var(--edge);
        border-radius: 999px;
      }
      .kinds label:has(:checked) {
        border-color: var(--run);
        font-weight: 600;
        color: var(--run);
      }
      @media (pointer: coarse), (max-width: 560px) {
        .key-hints {
          display: none;
        }
      }
      label.choice {
        display: flex;
        align-items: center;
        gap: 6px;
        min-height: 24px;
      }
      .error {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];

  constructor() {
    super();
    this.mode = "redirect";
    this.isRestored = false;
    this.text = "";
    this.isSideQuestion = false; // the run answers it, then continues with its task
    /** @type {"next_step" | "now"} */
    this.when = "next_step";
    this.busy = false;
  }

  get _draftName() {
    return this.store?.id ?? "";
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    if (!this.hasUpdated && !this.text) this._restoreDraft();
  }

  /** Load the draft of this tab from before a reload, and its kind. */
  _restoreDraft() {
    this.text = loadDraft(this._draftName);
    const kind = loadDraft(`${this._draftName} how`);
    this.isSideQuestion = kind === "aside";
    if (kind === "now") this.when = "now";
  }

  _saveDraft() {
    const kind = this.isSideQuestion ? "aside" : this.when;
    saveDraft(this._draftName, this.text);
    saveDraft(`${this._draftName} how`, this.text && kind);
  }

  firstUpdated() {
    if (!this.isRestored) this.focusText();
  }

  focusText() {
    this.renderRoot.querySelector("textarea")?.focus();
  }

  /** @param {string} text */
  _setText(text) {
    this.text = text;
    this.error = "";
    this._saveDraft();
  }

  /** @param {KeyboardEvent} event */
  _onKeydown(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this._discard();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      void this._submit();
    }
  }

  _discard() {
    this._setText("");
    this._close();
  }

  /** @param {string} [reply] the run's immediate acknowledgement */
  _close(reply = "") {
    this.dispatchEvent(new CustomEvent("closed", { detail: reply }));
  }

  async _submit() {
    const text = this.text.trim();
    const store = this.store;
    if (!store || this.busy) return;
    if (!text) {
      this.error = this._asksQuestion ? "Enter your question." : "Enter what should happen next.";
      return;
    }
    this.busy = true;
    const sent = await this.attempt(() => this._post(store, text));
    this.busy = false;
    if (!sent) return;
    this._setText("");
    this._close(sent.command?.receipt.acknowledgement);
    if (sent.run_id && sent.run_id !== store.id) this.openRun(sent.run_id); // a fork
  }

  /**
   * Send the text with the control that fits: fork, message, resume or redirect. With `ifSeen` the
   * server refuses it if another control was sent since the view that is shown.
   * @param {import("./run-store.js").RunStore} store @param {string} text
   */
  _post(store, text) {
    if (this.mode === "fork") return store.send("fork", { instruction: text });
    if (this._asksQuestion) return store.send("messages", { text, urgency: "next" });
    const button = this.view?.controls.redirect;
    if (button?.command === "resume") {
      return store.send("resume", { instruction: text, caps: button.caps }, { ifSeen: true });
    }
    return store.send("redirect", { instruction: text, when: this.when }, { ifSeen: true });
  }

  get _isActive() {
    return this.mode === "redirect" && ACTIVE_PHASES.has(this.view?.phase ?? "");
  }

  /** Whether the text will be sent as a side question. */
  get _asksQuestion() {
    return this.isSideQuestion && this._isActive;
  }

  get _submitLabel() {
    if (this.mode === "fork") return "Continue with this";
    if (!this._isActive) return "Resume with this";
    return this._asksQuestion ? "Ask" : "Redirect";
  }

  render() {
    return html`<form
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        void this._submit();
      }}
      @keydown=${this._onKeydown}
    >
      ${this._isActive ? this._renderKinds() : nothing}
      <label for="text">${this._asksQuestion ? "What do you want to know?" : "What should happen next?"}</label>
      <textarea
        id="text"
        rows="2"
        maxlength="100000"
        .value=${live(this.text)}
        @input=${(/** @type {InputEvent} */ event) =>
          this._setText(/** @type {HTMLTextAreaElement} */ (event.target).value)}
      ></textarea>
      ${this._isActive && !this.isSideQuestion ? this._renderTimes() : nothing}
      ${this._asksQuestion
        ? html`<div class="dim">Answered at the next step; then the run continues where it was.</div>`
        : nothing}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      <div class="row">
        <button class="main" aria-disabled=${this.busy ? "true" : nothing}>${this._submitLabel}</button>
        <button type="button" @click=${this._discard}>Discard</button>
        <span class="dim key-hints">Enter sends · Shift+Enter new line · Esc discards</span>
      </div>
    </form>`;
  }

  _renderKinds() {
    return html`<fieldset class="kinds" aria-label="Kind of message">
      ${this._renderChoice("kind", "New instruction", !this.isSideQuestion, () => (this.isSideQuestion = false))}
      ${this._renderChoice("kind", "Side question", this.isSideQuestion, () => (this.isSideQuestion = true))}
    </fieldset>`;
  }

  _renderTimes() {
    const [later, now] = [this.when === "next_step", this.when === "now"];
    return html`<fieldset>
      <legend>When</legend>
      ${this._renderChoice("when", "After this step finishes", later, () => (this.when = "next_step"))}
      ${this._renderChoice("when", "Now — stop the current call", now, () => (this.when = "now"))}
    </fieldset>`;
  }

  /** @param {string} name @param {string} label @param {boolean} checked @param {() => void} choose */
  _renderChoice(name, label, checked, choose) {
    const onChange = () => {
      choose();
      this._saveDraft();
    };
    return html`<label class="choice">
      <input type="radio" name=${name} .checked=${live(checked)} @change=${onChange} />${label}
    </label>`;
  }
}

customElements.define("midrun-composer", Composer);
