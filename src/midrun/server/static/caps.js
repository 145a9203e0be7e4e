// @ts-check
/** `<midrun-caps>`: the use of each cap, and a button for operators to raise it. */
import { css, nothing } from "./lit.js";
import { FINISHED_PHASES, formatCapName, formatCapValue } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").CapView} Cap */


export class Caps extends StoreElement {
  static ignoresLive = true;

  static styles = [
    theme,
    css`
      .cap {
        display: grid;
        grid-template-columns: 1fr auto auto;
        align-items: center;
        gap: 0 8px;
      }
      .no-button {
        grid-template-columns: 1fr auto;
      }
      meter {
        grid-column: 1 / -1;
        width: 100%;
        height: 8px;
      }
      button {
        min-height: var(--target, 24px);
        min-width: var(--target, 24px);
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
      <h2 id="title">${run.caps.length ? "Caps" : "Usage"}</h2>
      ${run.caps.map((cap) => this._renderCap(cap))}
      ${run.caps.some((cap) => cap.name === "tokens") || !tokens
        ? nothing
        : renderFigure("Tokens", formatCapValue("tokens", tokens))}
      ${run.caps.some((cap) => cap.name === "cost") || !cost
        ? nothing
        : renderFigure("Cost", formatCapValue("cost", cost))}
      ${FINISHED_PHASES.has(run.phase)
        ? nothing
        : html`<p class="dim">${run.caps.length ? "At a cap the run pauses and asks you." : "No caps are set."}</p>`}
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  /** @param {Cap} cap */
  _renderCap(cap) {
    const share = cap.cap ? Math.min(cap.used / cap.cap, 1) : 0;
    const name = formatCapName(cap.name);
    const mayRaise = this.view?.role === "operator" && this.view.allowed.includes("raise_cap");
    const raised = formatCapValue(cap.name, cap.raised);
    return html`<div class=${mayRaise ? "cap" : "cap no-button"}>
      <span>${name}</span>
      <span class="figures">${formatCapValue(cap.name, cap.used)} / ${formatCapValue(cap.name, cap.cap)}</span>
      ${mayRaise
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
    await this.attempt(() => store.showReply(store.api.patch(store.path, body, { ifMatch: store.etag }), "raise_cap"));
  }
}

/** @param {string} name @param {string} value */
function renderFigure(name, value) {
  return html`<div class="cap no-button"><span>${name}</span><span class="figures">${value}</span></div>`;
}

customElements.define("midrun-caps", Caps);
