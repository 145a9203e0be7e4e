// @ts-check
/** `<midrun-thread>`: the conversation that a run is part of, and a field that continues it. */
import { css, live, nothing } from "./lit.js";
import { filesOf } from "./attachments.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {{run_id: string, task: string, phase: string, started_at: string}} ThreadRun */

const FINISHED_PHASES = new Set(["completed", "cancelled", "failed"]);

export class Thread extends StoreElement {
  static ignoresLive = true;

  static properties = { ...StoreElement.properties, runs: { state: true }, text: { state: true } };

  static styles = [
    theme,
    css`
      ol {
        list-style: none;
        padding: 0;
        display: grid;
        gap: 6px;
      }
      li {
        padding-left: 10px;
        border-left: 3px solid var(--line);
        overflow-wrap: anywhere;
      }
      li[aria-current] {
        border-color: var(--run);
      }
      li > .dim {
        display: block;
        font-size: 12.5px;
      }
      form {
        display: grid;
        gap: 6px;
      }
      textarea {
        field-sizing: content;
        min-height: 40px;
        max-height: 160px;
      }
      .error {
        color: var(--stop);
      }
    `,
  ];

  constructor() {
    super();
    /** @type {ThreadRun[]} oldest first */
    this.runs = [];
    this.text = "";
    this._loadedThread = "";
    this._isSending = false;
  }

  updated() {
    const { thread = "", phase = "" } = this.view ?? {};
    const version = `${thread} ${FINISHED_PHASES.has(phase)}`;
    if (!thread || version === this._loadedThread) return;
    this._loadedThread = version;
    this.text ||= loadDraft(this._draftName);
    void this._load(thread);
  }

  get _draftName() {
    return `${this.store?.id} reply`;
  }

  /** @param {string} thread */
  async _load(thread) {
    const { store } = this;
    const path = `/v1/runs?limit=50&thread=${encodeURIComponent(thread)}`;
    const page = await this.attempt(async () => store?.api.get(path));
    if (page) this.runs = page.items.toSorted((/** @type {ThreadRun} */ a, /** @type {ThreadRun} */ b) => a.started_at.localeCompare(b.started_at));
  }

  render() {
    const { store, view: run } = this;
    if (!this.setShown(Boolean(run?.thread)) || !store || !run) return nothing;
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Conversation</h2>
      <ol>
        ${this.runs.map((one) =>
          one.run_id === store.id
            ? html`<li aria-current="page"><b>${one.task}</b><span class="dim">this run · ${run.phase}</span></li>`
            : html`<li>
                <a href=${`${store.api.base}/runs/${encodeURIComponent(one.run_id)}`}>${one.task}</a>
                <span class="dim">${one.phase}</span>
              </li>`,
        )}
      </ol>
      ${FINISHED_PHASES.has(run.phase) && run.role !== "viewer" ? this._renderReply() : nothing}
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  _renderReply() {
    const onKeydown = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      void this._reply();
    };
    return html`<form
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        void this._reply();
      }}
      @paste=${(/** @type {ClipboardEvent} */ event) => this._takeFiles(event, event.clipboardData)}
      @drop=${(/** @type {DragEvent} */ event) => this._takeFiles(event, event.dataTransfer)}
      @dragover=${(/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") && event.preventDefault()}
    >
      <midrun-attachments
        .draft=${this._draftName}
        .api=${this.store?.api}
        @emptied=${() => this.renderRoot.querySelector("textarea")?.focus()}
      ></midrun-attachments>
      <textarea
        rows="1"
        maxlength="100000"
        aria-label="Reply"
        placeholder="Reply: starts the next run of this conversation"
        .value=${live(this.text)}
        @input=${(/** @type {Event} */ event) => this._setText(/** @type {HTMLTextAreaElement} */ (event.target).value)}
        @keydown=${onKeydown}
      ></textarea>
      <div class="row">
        <button class="main" ?disabled=${!this.text.trim()}>Reply</button>
        <button type="button" @click=${() => this._attachments?.choose()}>Attach files…</button>
      </div>
    </form>`;
  }

  get _attachments() {
    return /** @type {import("./attachments.js").Attachments | null} */ (this.renderRoot.querySelector("midrun-attachments"));
  }

  /** Add the files of a paste or a drop. @param {Event} event @param {DataTransfer | null} transfer */
  _takeFiles(event, transfer) {
    const files = filesOf(transfer);
    if (!files.length) return;
    event.preventDefault();
    void this._attachments?.add(files);
  }

  /** @param {string} text */
  _setText(text) {
    this.text = text;
    saveDraft(this._draftName, text);
  }

  /** Start the next run of the conversation with the same agent. */
  async _reply() {
    const { store, view: run } = this;
    const input = this.text.trim();
    if (!store || !run || !input || this._isSending) return;
    this._isSending = true; // a second Enter would start a second run
    const files = this._attachments?.bodies ?? [];
    const body = { agent: run.agent, input, labels: run.labels, thread_id: run.thread, ...(files.length ? { files } : {}) };
    const started = await this.attempt(() => store.api.post("/v1/runs", body));
    this._isSending = false;
    if (!started) return;
    this._setText("");
    this._attachments?.clear();
    this.openRun(started.run_id);
  }
}

customElements.define("midrun-thread", Thread);
