// @ts-check
/**
 * `<midrun-new-run>`: choose an agent, say what to do, start. Operators may set caps.
 *
 * A part of `<midrun-runs>`, which gives it its store. Events: `midrun-started`, with the id of
 * the run; `midrun-done`, when the sheet may go.
 */
import { css, nothing } from "./lit.js";
import { Problem, newKey } from "./api.js";
import { keep, kept } from "./drafts.js";
import { FocusElement } from "./focus-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./runs-store.js").RunsStore} RunsStore */
/** @typedef {import("./runs-store.js").Agent} Agent */

const DRAFT = "new run";

/** Name on the wire, words, and the smallest step. @type {[string, string, string][]} */
const CAPS = [
  ["steps", "Steps", "1"],
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
    this._agent = "";
    this._problem = "";
    this._busy = false;
    this._key = newKey(); // one sheet starts one run, however often it is pressed
  }

  async connectedCallback() {
    super.connectedCallback();
    try {
      this._agents = (await this.store?.agents()) ?? [];
      this._agent ||= this._agents[0]?.name ?? "";
    } catch (error) {
      this.#say(error);
    }
    await this.updateComplete;
    this.renderRoot.querySelector("textarea")?.focus();
  }

  render() {
    if (!this._agents) return html`<p class="dim" role="status">${this._problem || "Looking for agents …"}</p>`;
    if (!this._agents.length) {
      return html`<p class="panel">
        No agent is known to this server. Start it with an app: <code>midrun serve app.py</code>
      </p>`;
    }
    return html`<form class="panel" aria-label="New run" @submit=${this.#start} @keydown=${this.#key}>
      <label>
        Agent
        <select name="agent" @change=${this.#choose}>
          ${this._agents.map(({ name }) => html`<option .selected=${name === this._agent}>${name}</option>`)}
        </select>
      </label>
      <label>
        What should it do?
        <textarea name="task" required rows="3" .value=${kept(DRAFT)} @input=${this.#keep}></textarea>
      </label>
      ${this.store?.may("operator") ? this.#caps() : nothing}
      ${this._problem ? html`<p class="problem" role="alert">${this._problem}</p>` : nothing}
      <div class="row">
        <button class="main" aria-disabled=${this._busy ? "true" : nothing}>Start</button>
        <button type="button" @click=${this.#close}>Discard</button>
      </div>
    </form>`;
  }

  #caps() {
    const own = this._agents?.find(({ name }) => name === this._agent)?.stop;
    return html`<details>
      <summary>Caps</summary>
      <p class="dim">
        At a cap the run pauses and asks. What is set here stands in for the agent’s own:
        ${own || "none"}.
      </p>
      <div class="caps">
        ${CAPS.map(
          ([name, words, least]) =>
            html`<label>${words} <input type="number" name=${name} min=${least} step=${least} /></label>`,
        )}
      </div>
    </details>`;
  }

  /** @param {Event} event */
  #choose = (event) => {
    this._agent = /** @type {HTMLSelectElement} */ (event.target).value;
  };

  /** What was typed survives a reload. @param {Event} event */
  #keep = (event) => {
    keep(DRAFT, /** @type {HTMLTextAreaElement} */ (event.target).value);
  };

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    if (event.key === "Escape") this.#close();
  };

  #close = () => {
    keep(DRAFT, "");
    this.#tell("midrun-done", undefined);
  };

  /** @param {SubmitEvent} event */
  #start = async (event) => {
    event.preventDefault();
    if (this._busy) return;
    const given = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const caps = Object.fromEntries(
      CAPS.map(([name]) => /** @type {const} */ ([name, Number(given.get(name))])).filter(
        ([, cap]) => cap > 0,
      ),
    );
    this._busy = true;
    this._problem = "";
    try {
      const body = { agent: given.get("agent"), input: given.get("task"), caps };
      const run = await this.store?.api.post("/v1/runs", body, { key: this._key });
      this.#tell("midrun-started", run.run_id);
      this.#close();
    } catch (error) {
      this._key = newKey();
      this.#say(error);
    } finally {
      this._busy = false;
    }
  };

  /** @param {unknown} error */
  #say(error) {
    if (!(error instanceof Problem)) throw error;
    this._problem = error.message;
  }

  /** @param {string} name @param {unknown} detail */
  #tell(name, detail) {
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
