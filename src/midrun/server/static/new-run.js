// @ts-check
/**
 * `<midrun-new-run>`: the form that starts a run. Operators may set caps.
 *
 * A part of `<midrun-runs>`, which gives it its store. Events: `midrun-started` with the id of
 * the run; `midrun-done` when the form can be closed.
 */
import { filesOf, formatLimits } from "./attachments.js";
import { css, nothing } from "./lit.js";
import { Problem, newRequestKey } from "./api.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { FocusElement } from "./focus-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./runs-store.js").RunsStore} RunsStore */
/** @typedef {import("./types.js").AgentLine} Agent */

const DRAFT_NAME = "new run";

/** Name on the wire, label, and smallest step. @type {[string, string, string][]} */
const CAPS = [
  ["steps", "Turns", "1"],
  ["cost", "Cost, in dollars", "0.01"],
  ["time", "Time at work, in seconds", "1"],
  ["tokens", "Tokens", "1"],
  ["tool_calls", "Tool calls", "1"],
];

export class MidrunNewRun extends FocusElement {
  static properties = {
    store: { attribute: false },
    _agents: { state: true },
    _agent: { state: true },
    _problem: { state: true },
    _busy: { state: true },
  };

  constructor() {
    super();
    /** @type {RunsStore | null} */
    this.store = null;
    /** @type {Agent[] | null} */
    this._agents = null;
    /** @type {import("./types.js").UploadLimits | null} */
    this._uploads = null;
    this._agent = "";
    this._problem = "";
    this._busy = false;
    this._requestKey = newRequestKey(); // one form starts one run, however often Start is pressed
  }

  async connectedCallback() {
    super.connectedCallback();
    try {
      const { items = [], uploads = null } = (await this.store?.api.loadAgents()) ?? {};
      this._agents = items;
      this._uploads = uploads;
      this._agent ||= this._agents[0]?.name ?? "";
    } catch (error) {
      this.#showProblem(error);
    }
    await this.updateComplete;
    this.renderRoot.querySelector("textarea")?.focus();
  }

  render() {
    if (!this._agents) return html`<p class="dim" role="status">${this._problem || "Loading agents …"}</p>`;
    if (!this._agents.length) {
      return html`<p class="panel">
        This server has no agents. Start it with an app: <code>midrun serve app.py</code>
      </p>`;
    }
    return html`<form
      class="panel"
      aria-label="New run"
      @submit=${this.#start}
      @keydown=${this.#onKeydown}
      @paste=${(/** @type {ClipboardEvent} */ event) => this.#takeFiles(event, event.clipboardData)}
      @drop=${(/** @type {DragEvent} */ event) => this.#takeFiles(event, event.dataTransfer)}
      @dragover=${(/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") && event.preventDefault()}
    >
      <label>
        Agent
        <select name="agent" @change=${this.#onAgentChange}>
          ${this._agents.map(({ name }) => html`<option .selected=${name === this._agent}>${name}</option>`)}
        </select>
      </label>
      <label>
        What should it do?
        <textarea name="task" required rows="3" .value=${loadDraft(DRAFT_NAME)} @input=${this.#onInput}></textarea>
      </label>
      <div>
        <midrun-attachments .draft=${DRAFT_NAME} .api=${this.store?.api} @emptied=${() => this.renderRoot.querySelector("textarea")?.focus()}></midrun-attachments>
        <button type="button" @click=${() => this.#attachments?.choose()}>Attach files…</button>
        <span class="dim">or paste or drop them here. ${this._uploads ? `${formatLimits(this._uploads)}.` : ""}</span>
      </div>
      ${this.store?.hasRole("operator") ? this.#renderCaps() : nothing}
      ${this._problem ? html`<p class="problem" role="alert">${this._problem}</p>` : nothing}
      <div class="row">
        <button class="main" aria-disabled=${this._busy ? "true" : nothing}>Start</button>
        <button type="button" @click=${this.#close}>Discard</button>
      </div>
    </form>`;
  }

  get #attachments() {
    return /** @type {import("./attachments.js").Attachments | null} */ (this.renderRoot.querySelector("midrun-attachments"));
  }

  /** Add the files of a paste or a drop. @param {Event} event @param {DataTransfer | null} transfer */
  #takeFiles(event, transfer) {
    const files = filesOf(transfer);
    if (!files.length) return;
    event.preventDefault();
    void this.#attachments?.add(files);
  }

  #renderCaps() {
    const agentCaps = this._agents?.find(({ name }) => name === this._agent)?.stop;
    return html`<details>
      <summary>Caps</summary>
      <p class="dim">
        At a cap the run pauses and asks. A cap that is set here replaces the agent’s own caps:
        ${agentCaps || "none"}.
      </p>
      <div class="caps">
        ${CAPS.map(
          ([name, label, step]) =>
            html`<label>${label} <input type="number" name=${name} min=${step} step=${step} /></label>`,
        )}
      </div>
    </details>`;
  }

  /** @param {Event} event */
  #onAgentChange = (event) => {
    this._agent = /** @type {HTMLSelectElement} */ (event.target).value;
  };

  /** Save the task as a draft. @param {Event} event */
  #onInput = (event) => {
    saveDraft(DRAFT_NAME, /** @type {HTMLTextAreaElement} */ (event.target).value);
  };

  /** @param {KeyboardEvent} event */
  #onKeydown = (event) => {
    if (event.key === "Escape") this.#close();
  };

  #close = () => {
    saveDraft(DRAFT_NAME, "");
    this.#attachments?.clear();
    this.#emit("midrun-done", undefined);
  };

  /** @param {SubmitEvent} event */
  #start = async (event) => {
    event.preventDefault();
    if (this._busy) return;
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const caps = Object.fromEntries(
      CAPS.map(([name]) => /** @type {const} */ ([name, Number(form.get(name))])).filter(
        ([, cap]) => cap > 0,
      ),
    );
    this._busy = true;
    this._problem = "";
    try {
      const files = this.#attachments?.bodies ?? [];
      const body = { agent: form.get("agent"), input: form.get("task"), caps, ...(files.length ? { files } : {}) };
      const run = await this.store?.api.post("/v1/runs", body, { key: this._requestKey });
      this.#emit("midrun-started", run.run_id);
      this.#close();
    } catch (error) {
      this._requestKey = newRequestKey(); // the next attempt is a new request
      this.#showProblem(error);
    } finally {
      this._busy = false;
    }
  };

  /** @param {unknown} error */
  #showProblem(error) {
    if (!(error instanceof Problem)) throw error;
    this._problem = error.message;
  }

  /** @param {string} name @param {unknown} detail */
  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true, cancelable: true }));
  }

  static styles = [
    theme,
    css`
      label {
        display: grid;
        gap: 4px;
        font-weight: 600;
      }
      .caps {
        display: grid;
        grid-template-columns: repeat(auto-fill, minmax(170px, 1fr));
        gap: 8px;
        margin-top: 8px;
      }
      .caps label {
        font-weight: 400;
      }
      .problem {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];
}

customElements.define("midrun-new-run", MidrunNewRun);
