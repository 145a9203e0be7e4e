// @ts-check
/**
 * `<midrun-composer>`: the line in which the viewer writes to the run. It is always there.
 *
 * The text is an instruction, or a side question (`isQuestion`); after the end of the run it
 * starts a new run that continues from there. Enter sends it for the next turn, Ctrl+Enter for
 * now: an instruction stops the current call, a question interrupts the reply. A question to a
 * paused run resumes it. Escape leaves the field and keeps the text. Files are attached with the
 * button, pasted or dropped; they are sent with the text.
 *
 * The focus stays in the field after the text was sent, and while nothing can be sent: otherwise
 * the next letters of a viewer who goes on typing would be shortcuts. So the field is read-only
 * then, not disabled.
 */
import { css, live, nothing } from "./lit.js";
import { filesOf, formatLimits } from "./attachments.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";
import { FINISHED_PHASES } from "./format.js";

/** Phases in which a redirect or a side question can be sent. */
const ACTIVE_PHASES = new Set(["running", "pausing", "waiting", "queued"]);
const STALE_QUESTION =
  "Not sent: the run takes no side questions now. Your text is kept; press “Question” to make it an instruction.";

/** @typedef {import("./run-store.js").Run} Run */

/** Whether the viewer types on a screen: then no keys are named. */
const isTouched = () => matchMedia("(pointer: coarse)").matches;

/** Tell whether a question resumes the run, because it is paused. @param {Run} run */
const isResumedByQuestion = ({ phase, controls }) => phase === "paused" && controls.ask.enabled;

/**
 * Emits "sent" after the text was sent; the detail is the run's immediate acknowledgement, or "".
 * Emits "left" when the viewer leaves the field with Escape. The draft survives a reload.
 */
export class Composer extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    text: { state: true },
    isQuestion: { state: true },
    busy: { state: true },
    isDropTarget: { state: true },
    limits: { state: true },
  };

  static styles = [
    theme,
    css`
      :host {
        container-type: inline-size;
      }
      form {
        display: flex;
        align-items: flex-end;
        gap: 6px;
        padding: 3px;
        border: 1.5px solid var(--edge);
        border-radius: 12px;
        background: var(--bg);
      }
      form:focus-within {
        border-color: var(--run);
      }
      form:has(textarea:focus-visible) {
        outline: 2px solid var(--run);
        outline-offset: -1px;
      }
      form[data-question]:has(textarea:focus-visible) {
        outline-color: var(--wait);
      }
      form[data-question] {
        border-color: var(--wait);
      }
      form[data-drop] {
        border-color: var(--run);
        border-style: dashed;
        background: color-mix(in srgb, var(--run) 8%, var(--bg));
      }
      .attach {
        padding: 0 8px;
        border-color: transparent;
        background: none;
        color: var(--dim);
      }
      form[data-disabled] {
        border-color: var(--line);
        border-style: dashed;
      }
      textarea {
        flex: 1;
        min-width: 0;
        min-height: 36px;
        max-height: 132px;
        padding: 7px 10px;
        border: 0;
        background: none;
        resize: none;
        field-sizing: content;
      }
      textarea:focus-visible {
        outline: none; /* the line around has the ring */
      }
      textarea::placeholder {
        color: var(--dim);
        opacity: 1;
        overflow: hidden;
        white-space: nowrap;
      }
      /* A placeholder has no ellipsis; a long one fades out. */
      textarea:placeholder-shown:not(:focus-visible) {
        mask-image: linear-gradient(to left, transparent, black 28px);
      }
      button {
        flex: none;
        min-height: 36px;
        border-radius: 9px;
      }
      button.main:disabled {
        border-color: transparent;
      }
      .kind {
        display: flex;
        align-items: center;
        gap: 5px;
        padding: 3px 9px;
        border-color: var(--wait);
        color: var(--wait);
        font-weight: 600;
      }
      .send .icon {
        display: none;
      }
      @container (max-width: 480px) {
        .send .icon {
          display: block;
        }
        .send,
        .kind {
          display: grid;
          place-content: center;
          width: 44px;
          padding: 0;
        }
        .send span,
        .kind span {
          position: absolute;
          width: 1px;
          height: 1px;
          overflow: hidden;
          clip-path: inset(50%);
          white-space: nowrap;
        }
      }
      .error {
        padding-bottom: 4px;
        color: var(--stop);
        font-weight: 600;
      }
      @media (pointer: coarse), (max-width: 480px) {
        textarea,
        button {
          min-height: 44px;
        }
        textarea {
          padding-block: 10px;
        }
        form {
          padding: 0 0 0 2px;
        }
      }
    `,
  ];

  constructor() {
    super();
    this.text = "";
    this.isQuestion = false; // the run answers it, then continues with its task
    this.busy = false;
    this.isDropTarget = false; // files are being dragged over the field
    this.limits = ""; // on files, in words
    this._restoredRun = "";
  }

  get _draftName() {
    return this.store?.id ?? "";
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    if (this._draftName && this._draftName !== this._restoredRun) this._restoreDraft();
    if (this._isStaleQuestion && !this.text.trim()) this.isQuestion = false;
  }

  /** Load the draft of this tab from before a reload, and its kind. */
  _restoreDraft() {
    this._restoredRun = this._draftName;
    this.text = loadDraft(this._draftName);
    this.isQuestion = loadDraft(`${this._draftName} how`) === "aside";
    this.error = "";
  }

  _saveDraft() {
    saveDraft(this._draftName, this.text);
    saveDraft(`${this._draftName} how`, this.text && this.isQuestion ? "aside" : "");
  }

  /**
   * Focus the field to write an instruction or a question.
   * @param {boolean} isQuestion @param {string} [text] put into the field if it is empty
   */
  open(isQuestion, text = "") {
    this.isQuestion = isQuestion;
    this.text ||= text;
    this._saveDraft();
    this._focusField();
  }

  get _attachments() {
    return /** @type {import("./attachments.js").Attachments | null} */ (this.renderRoot.querySelector("midrun-attachments"));
  }

  /** Whether files can be sent with the text. */
  get _takesFiles() {
    return !this._isDisabled;
  }

  /** Show the limits on files before one is chosen. */
  async _showLimits() {
    const limits = await this._attachments?.loadLimits();
    if (limits && Number.isFinite(limits.files)) this.limits = ` ${formatLimits(limits)}.`;
  }

  /** Add the files of a paste or a drop; text is left to the browser. @param {Event} event @param {DataTransfer | null} transfer */
  _takeFiles(event, transfer) {
    this.isDropTarget = false;
    const files = filesOf(transfer);
    if (!files.length) return;
    event.preventDefault();
    if (!this._takesFiles) this.error = "Files were not added: they cannot be sent with this text.";
    else void this._attachments?.add(files);
  }

  /** Accept files that are dragged over us, instead of letting the browser open them. @param {DragEvent} event */
  _onDragover(event) {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    this.isDropTarget = this._takesFiles;
  }

  _focusField() {
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
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      if (!this.text) this.isQuestion = false;
      this.dispatchEvent(new CustomEvent("left"));
    } else if (event.key === "Enter" && !event.shiftKey && event.target instanceof HTMLTextAreaElement) {
      event.preventDefault();
      void this._submit(event.ctrlKey || event.metaKey ? "now" : "next_step");
    }
  }

  /** @param {"next_step" | "now"} when */
  async _submit(when) {
    const { store, text: typed } = this;
    const text = typed.trim();
    this._focusField(); // a button of ours may be disabled once the text is sent
    if (!store || this.busy || this._isDisabled) return;
    if (!text) {
      this.error = this.isQuestion ? "Enter your question." : "Enter what should happen next.";
      return;
    }
    if (this._isStaleQuestion) {
      this.error = STALE_QUESTION;
      return;
    }
    this.busy = true;
    const sent = await this.attempt(() => this._post(store, text, when));
    this.busy = false;
    if (!sent) return;
    this._removeSent(store, typed);
    const detail = sent.command?.receipt.acknowledgement ?? "";
    this.dispatchEvent(new CustomEvent("sent", { detail }));
    if (sent.run_id && sent.run_id !== store.id) this.openRun(sent.run_id); // a fork
  }

  /**
   * Remove a text that was sent. What the viewer has typed meanwhile stays, and so does the text
   * for another run, if that is shown by now.
   * @param {import("./run-store.js").RunStore} store @param {string} typed
   */
  _removeSent(store, typed) {
    if (store !== this.store) {
      saveDraft(store.id, "");
      saveDraft(`${store.id} files`, "");
      return;
    }
    this._attachments?.clear();
    this._setText(this.text.startsWith(typed) ? this.text.slice(typed.length) : this.text);
    if (!this.text.trim()) this.isQuestion = false;
  }

  /**
   * Send the text with the control that fits: fork, message, resume or redirect. With `ifSeen` the
   * server refuses it if another control was sent since the view that is shown.
   * @param {import("./run-store.js").RunStore} store @param {string} text @param {"next_step" | "now"} when
   */
  _post(store, text, when) {
    const files = this._attachments?.bodies ?? [];
    const attached = files.length ? { files } : {};
    if (this._isFork) return store.send("fork", { instruction: text, ...attached });
    if (this.isQuestion) return this._ask(store, { text, urgency: when === "now" ? "now" : "next", ...attached });
    const button = this.view?.controls.redirect;
    if (button?.command === "resume") {
      return store.send("resume", { instruction: text, caps: button.caps, ...attached }, { ifSeen: true });
    }
    return store.send("redirect", { instruction: text, when, ...attached }, { ifSeen: true });
  }

  /** Ask a side question; a paused run is resumed to answer it. @param {import("./run-store.js").RunStore} store @param {object} body */
  async _ask(store, body) {
    const isPaused = this.view !== null && isResumedByQuestion(this.view);
    const sent = await store.send("messages", body);
    if (isPaused) await store.send("resume");
    return sent;
  }

  get _isFork() {
    return FINISHED_PHASES.has(this.view?.phase ?? "");
  }

  /** Whether the text was written as a side question, which the run takes no more. */
  get _isStaleQuestion() {
    return this.isQuestion && this.view !== null && !this.view.controls.ask.enabled;
  }

  get _isDisabled() {
    const run = this.view;
    if (!run || run.role === "viewer") return true;
    return !this._isFork && !this.isQuestion && !run.controls.redirect.enabled;
  }

  /** Whether the text can be applied now, before the next turn. */
  get _canHurry() {
    const { phase, in_flight: calls = [] } = this.view ?? {};
    if (phase !== "running") return false;
    return !this.isQuestion || calls.some(({ tool, action }) => !tool && action === "call"); // a reply is interrupted, no tool
  }

  get _submitLabel() {
    if (this.isQuestion) return this.view && isResumedByQuestion(this.view) ? "Ask and resume" : "Ask";
    if (this._isFork) return "Continue with this";
    return ACTIVE_PHASES.has(this.view?.phase ?? "") ? "Redirect" : "Resume with this";
  }

  /** A sentence about what the keys do to the text. */
  get hint() {
    const run = this.view;
    if (!run || this._isDisabled) return run?.controls.redirect.consequence ?? "";
    if (this._isStaleQuestion) return STALE_QUESTION;
    if (this._isFork) return "Starts a new run that continues from here.";
    if (this.isQuestion) return this._questionHint;
    if (!this._canHurry || isTouched()) return run.controls.redirect.consequence;
    const calls = run.in_flight;
    if (calls.length && calls.every(({ tool }) => !tool)) return "Enter: the reply stops here, and the run follows you · Esc: keep it for later";
    return "Enter: from the next turn · Ctrl+Enter: now, stops the current call · Esc: keep it for later";
  }

  get _questionHint() {
    if (this.view?.phase === "paused") return this.view.controls.ask.consequence;
    if (!this._canHurry) return "Answered at the next turn; then the run continues where it was.";
    if (isTouched()) return this.view?.controls.ask.consequence ?? "";
    return "Enter: answered when this turn ends · Ctrl+Enter: now, interrupts the reply · Esc: keep it for later";
  }

  render() {
    const run = this.view;
    if (!run) return nothing;
    const isDisabled = this._isDisabled;
    const label = this.isQuestion ? "What do you want to know?" : "What should happen next?";
    const takesFiles = this._takesFiles;
    return html`${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      <midrun-attachments
        ?hidden=${!takesFiles}
        .draft=${this._draftName}
        .api=${this.store?.api}
        @changed=${() => this.requestUpdate()}
        @emptied=${() => this._focusField()}
      ></midrun-attachments>
      <form
        ?data-question=${this.isQuestion}
        ?data-disabled=${isDisabled}
        ?data-drop=${this.isDropTarget}
        @paste=${(/** @type {ClipboardEvent} */ event) => this._takeFiles(event, event.clipboardData)}
        @drop=${(/** @type {DragEvent} */ event) => this._takeFiles(event, event.dataTransfer)}
        @dragover=${this._onDragover}
        @dragleave=${() => (this.isDropTarget = false)}
        @submit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          void this._submit("next_step");
        }}
        @keydown=${this._onKeydown}
      >
        ${this.isQuestion ? this._renderKind() : nothing}
        <textarea
          rows="1"
          maxlength="100000"
          aria-label=${label}
          placeholder=${isDisabled ? run.controls.redirect.consequence : this._isFork ? "Continue from here…" : label}
          ?readonly=${isDisabled}
          aria-disabled=${isDisabled ? "true" : nothing}
          .value=${live(this.text)}
          @input=${(/** @type {InputEvent} */ event) =>
            this._setText(/** @type {HTMLTextAreaElement} */ (event.target).value)}
        ></textarea>
        ${takesFiles
          ? html`<button
              type="button"
              class="attach"
              aria-label="Attach files"
              title=${`Attach files, or paste or drop them here.${this.limits}`}
              @pointerenter=${() => void this._showLimits()}
              @focus=${() => void this._showLimits()}
              @click=${() => this._attachments?.choose()}
            >
              ${icon("attach")}
            </button>`
          : nothing}
        ${this.text.trim() && this._canHurry
          ? html`<button
              type="button"
              title=${`${this.isQuestion ? "Interrupts the reply" : "Stops the current call"} (Ctrl+Enter)`}
              @click=${() => void this._submit("now")}>
              Now
            </button>`
          : nothing}
        ${isDisabled
          ? nothing
          : html`<button class="main send" ?disabled=${!this.text.trim()} aria-disabled=${this.busy ? "true" : nothing}>
              ${icon("send")}<span>${this._submitLabel}</span>
            </button>`}
      </form>`;
  }

  /** Render the mark of a side question; pressing it makes the text an instruction again. */
  _renderKind() {
    return html`<button type="button" class="kind" aria-label="Side question; press to write an instruction" @click=${() => this.open(false)}>
      ${icon("ask")}<span>Question</span>
    </button>`;
  }
}

customElements.define("midrun-composer", Composer);
