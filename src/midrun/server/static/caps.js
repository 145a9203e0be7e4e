// @ts-check
/** `<midrun-caps>`: how much of each bound is used, and raising one. */
import { css, nothing } from "./lit.js";
import { etag } from "./api.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { capName, capValue } from "./words.js";
import { html } from "./template.js";

/** @typedef {import("./shapes.js").Cap} Cap */

export class Caps extends StoreElement {
  static quiet = true;

  static styles = [
    theme,
    css`
      .cap {
        display: grid;
        grid-template-columns: 1fr auto auto;
        align-items: center;
        gap: 0 8px;
      }
      .plain {
        grid-template-columns: 1fr auto;
      }
      meter {
        grid-column: 1 / -1;
        width: 100%;
        height: 8px;
      }
      button {
        min-height: 24px;
        min-width: 24px;
        padding: 0 6px;
      }
      .figures {
        font: 12.5px var(--mono);
      }
      .warn {
        grid-column: 1 / -1;
        font-size: 12.5px;
      }
      .error {
        color: var(--stop);
      }
    `,
  ];

  render() {
    const run = this.view;
    if (!run) return nothing;
    const { tokens, cost_usd: cost } = run.usage;
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Caps</h2>
      ${run.caps.map((cap) => this._cap(cap))}
      ${run.caps.some((cap) => cap.name === "tokens") || !tokens
        ? nothing
        : figure("Tokens", capValue("tokens", tokens))}
      ${run.caps.some((cap) => cap.name === "cost") || !cost
        ? nothing
        : figure("Cost", capValue("cost", cost))}
      <p class="dim">
        ${run.caps.length ? "At a cap the run pauses and asks you." : "No caps are set."}
      </p>
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  /** @param {Cap} cap */
  _cap(cap) {
    const share = cap.cap ? Math.min(cap.used / cap.cap, 1) : 0;
    const name = capName(cap.name);
    const operator = this.view?.role === "operator" && this.view.allowed.includes("raise_cap");
    const raised = capValue(cap.name, cap.raised);
    return html`<div class=${operator ? "cap" : "cap plain"}>
      <span>${name}</span>
      <span class="figures">${capValue(cap.name, cap.used)} / ${capValue(cap.name, cap.cap)}</span>
      ${operator
        ? html`<button
            title=${`Raise to ${raised}`}
            aria-label=${`Raise ${name} to ${raised}`}
            @click=${() => void this._raise(cap)}
          >
            +
          </button>`
        : nothing}
      <meter
        min="0"
        max=${cap.cap}
        high=${cap.cap * 0.8}
        value=${Math.min(cap.used, cap.cap)}
        aria-label=${`${name} used`}
      ></meter>
      ${share >= 0.8
        ? html`<span class="warn" data-tone="hold">${Math.floor(share * 100)} % used</span>`
        : nothing}
    </div>`;
  }

  /** @param {Cap} cap */
  async _raise(cap) {
    const { store, view: run } = this;
    if (!store || !run) return;
    const body = { caps: { [cap.name]: cap.raised } };
    await this.attempt(() => store.api.patch(store.path, body, { ifMatch: etag(run) }));
    store.refresh();
  }
}

/** @param {string} name @param {string} value */
function figure(name, value) {
  return html`<div class="cap plain"><span>${name}</span><span class="figures">${value}</span></div>`;
}

customElements.define("midrun-caps", Caps);
