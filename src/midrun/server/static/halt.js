// @ts-check
/**
 * The operator's latch. `<midrun-halts>` says what is halted, by whom and why, to everybody, and
 * lets operators lift it; `<midrun-halt-sheet>` sets one. Parts of `<midrun-runs>`.
 */
import { css, nothing } from "./lit.js";
import { Problem } from "./api.js";
import { FocusElement } from "./focus-element.js";
import { icon } from "./icons.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./runs-store.js").RunsStore} RunsStore */
/** @typedef {import("./runs-store.js").Halt} Halt */

/** Say what a scope covers. @param {string} scope */
function covered(scope) {
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
    this._changed = () => this.requestUpdate();
  }

  connectedCallback() {
    super.connectedCallback();
    this.store?.addEventListener("change", this._changed);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this.store?.removeEventListener("change", this._changed);
  }

  render() {
    const { store } = this;
    if (!store?.halts.length) return nothing;
    return html`<section class="panel" aria-label="Halted">
      ${store.halts.map((halt) => this.#halt(halt))}
      ${this._problem ? html`<p class="problem" role="alert">${this._problem}</p>` : nothing}
    </section>`;
  }

  /** @param {Halt} halt */
  #halt(halt) {
    const when = new Date(halt.at).toLocaleString();
    return html`<div class="row">
      <span class="badge" data-tone="stop" data-border="filled">${icon("halted")}Halted</span>
      <span class="why">
        <strong>${covered(halt.scope)}</strong>: nothing starts until this is lifted.
        ${halt.reason ? html`Why: ${halt.reason}` : nothing}
        <span class="dim">(${halt.by}, ${when})</span>
      </span>
      ${this.store?.may("operator")
        ? html`<button aria-label=${`Lift the halt: ${covered(halt.scope)}`} @click=${() => this.#lift(halt)}>
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
      this.dispatchEvent(new CustomEvent("midrun-lifted", { detail: covered(scope) }));
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
      .why {
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
    const named = { agent: "Which agent", label: "Which label", run: "Which run" }[this._kind];
    return html`<form class="panel" aria-label="Halt" @submit=${this.#halt} @keydown=${this.#key}>
      <p>
        <strong>Halt.</strong> What is under way is stopped now, and nothing starts until you lift
        it. Nothing is lost: each run goes back to where it was.
      </p>
      <div class="fields">
        <label>
          What
          <select name="kind" @change=${this.#choose}>
            <option value="all">Every run</option>
            <option value="agent">The runs of one agent</option>
            <option value="label">The runs with one label</option>
            <option value="run">One run</option>
          </select>
        </label>
        ${named ? html`<label>${named}<input type="text" name="name" required maxlength="200" /></label>` : nothing}
        <label>Why<input type="text" name="reason" required maxlength="1000" /></label>
      </div>
      ${this._problem ? html`<p class="problem" role="alert">${this._problem}</p>` : nothing}
      <div class="row">
        <button class="danger">Halt</button>
        <button type="button" @click=${this.#close}>Back</button>
      </div>
    </form>`;
  }

  /** @param {Event} event */
  #choose = (event) => {
    this._kind = /** @type {HTMLSelectElement} */ (event.target).value;
  };

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    if (event.key === "Escape") this.#close();
  };

  #close = () => {
    this.dispatchEvent(new CustomEvent("midrun-done", { bubbles: true, composed: true }));
  };

  /** @param {SubmitEvent} event */
  #halt = async (event) => {
    event.preventDefault();
    const given = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const scope = this._kind === "all" ? "all" : `${this._kind}:${given.get("name")}`;
    this._problem = "";
    try {
      await this.store?.api.post("/v1/halt", { scope, reason: given.get("reason") });
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
