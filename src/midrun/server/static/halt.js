// @ts-check
/**
 * The operators' halts. `<midrun-halts>` lists them with actor and reason, and lets operators lift
 * them; `<midrun-halt-sheet>` sets one. Both are parts of `<midrun-runs>`.
 */
import { css, nothing } from "./lit.js";
import { Problem } from "./api.js";
import { FocusElement } from "./focus-element.js";
import { formatDate } from "./format.js";
import { icon } from "./icons.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./runs-store.js").RunsStore} RunsStore */
/** @typedef {import("./types.js").HaltRecord} Halt */

/** Return the runs that a scope covers, in words. @param {string} scope */
function formatScope(scope) {
  const [kind, name] = [scope.split(":", 1)[0], scope.slice(scope.indexOf(":") + 1)];
  switch (kind) {
    case "agent":
      return `Every run of the agent ${name}`;
    case "label":
      return `Every run labelled ${name}`;
    case "run":
      return `The run ${name}`;
    default:
      return "Every run";
  }
}

export class MidrunHalts extends FocusElement {
  static properties = { store: { attribute: false }, _problem: { state: true } };

  constructor() {
    super();
    /** @type {RunsStore | null} */
    this.store = null;
    this._problem = "";
    this._onChange = () => this.requestUpdate();
  }

  connectedCallback() {
    super.connectedCallback();
    this.store?.addEventListener("change", this._onChange);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.store?.removeEventListener("change", this._onChange);
  }

  render() {
    const { store } = this;
    if (!store?.halts.length) return nothing;
    return html`<section class="panel" aria-label="Halted">
      ${store.halts.map((halt) => this.#renderHalt(halt))}
      ${this._problem ? html`<p class="problem" role="alert">${this._problem}</p>` : nothing}
    </section>`;
  }

  /** @param {Halt} halt */
  #renderHalt(halt) {
    const when = formatDate(halt.at);
    return html`<div class="row">
      <span class="badge" data-tone="stop" data-border="filled">${icon("halted")}Halted</span>
      <span class="explanation">
        <strong>${formatScope(halt.scope)}</strong>: nothing starts until this is lifted.
        ${halt.reason ? html`Reason: ${halt.reason}` : nothing}
        <span class="dim">(${halt.by}, ${when})</span>
      </span>
      ${this.store?.hasRole("operator")
        ? html`<button aria-label=${`Lift the halt: ${formatScope(halt.scope)}`} @click=${() => this.#lift(halt)}>
            Lift
          </button>`
        : nothing}
    </div>`;
  }

  /** @param {Halt} halt */
  async #lift({ scope }) {
    this._problem = "";
    try {
      await this.store?.api.post("/v1/lift", { scope });
      this.dispatchEvent(new CustomEvent("midrun-lifted", { detail: formatScope(scope) }));
      await this.store?.loadHalts();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this._problem = error.message;
    }
  }

  static styles = [
    theme,
    css`
      .panel {
        border: 1.5px solid var(--stop);
      }
      .explanation {
        flex: 1 1 240px;
        min-width: 0;
      }
      .problem {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];
}

export class MidrunHaltSheet extends FocusElement {
  static properties = {
    store: { attribute: false },
    _kind: { state: true },
    _problem: { state: true },
  };

  constructor() {
    super();
    /** @type {RunsStore | null} */
    this.store = null;
    this._kind = "all";
    this._problem = "";
  }

  firstUpdated() {
    this.renderRoot.querySelector("select")?.focus();
  }

  render() {
    const nameLabel = { agent: "Which agent", label: "Which label", run: "Which run" }[this._kind];
    return html`<form class="panel" aria-label="Halt" @submit=${this.#submit} @keydown=${this.#onKeydown}>
      <p>
        <strong>Halt.</strong> Calls in progress are stopped now, and nothing starts until you lift
        the halt. No work is lost: each run then continues where it was.
      </p>
      <div class="fields">
        <label>
          Which runs
          <select name="kind" @change=${this.#onKindChange}>
            <option value="all">Every run</option>
            <option value="agent">The runs of one agent</option>
            <option value="label">The runs with one label</option>
            <option value="run">One run</option>
          </select>
        </label>
        ${nameLabel ? html`<label>${nameLabel}<input type="text" name="name" required maxlength="200" /></label>` : nothing}
        <label>Reason<input type="text" name="reason" required maxlength="1000" /></label>
      </div>
      ${this._problem ? html`<p class="problem" role="alert">${this._problem}</p>` : nothing}
      <div class="row">
        <button class="danger">Halt</button>
        <button type="button" @click=${this.#close}>Back</button>
      </div>
    </form>`;
  }

  /** @param {Event} event */
  #onKindChange = (event) => {
    this._kind = /** @type {HTMLSelectElement} */ (event.target).value;
  };

  /** @param {KeyboardEvent} event */
  #onKeydown = (event) => {
    if (event.key === "Escape") this.#close();
  };

  #close = () => {
    this.dispatchEvent(new CustomEvent("midrun-done", { bubbles: true, composed: true }));
  };

  /** @param {SubmitEvent} event */
  #submit = async (event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const scope = this._kind === "all" ? "all" : `${this._kind}:${form.get("name")}`;
    this._problem = "";
    try {
      await this.store?.api.post("/v1/halt", { scope, reason: form.get("reason") });
      await this.store?.loadHalts();
      this.#close();
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this._problem = error.message;
    }
  };

  static styles = [
    theme,
    css`
      .fields {
        display: grid;
        grid-template-columns: repeat(auto-fit, minmax(200px, 1fr));
        gap: 8px;
      }
      label {
        display: grid;
        gap: 4px;
        font-weight: 600;
      }
      .problem {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];
}

customElements.define("midrun-halts", MidrunHalts);
customElements.define("midrun-halt-sheet", MidrunHaltSheet);
