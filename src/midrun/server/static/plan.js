// @ts-check
/**
 * `<midrun-plan>`: the agent's plan as a rail beside the transcript, on wide screens.
 *
 * On narrower ones the transcript itself has all items of the plan, and the rail is not shown.
 * Event: `midrun-item` with the number of an item whose part of the transcript is wanted.
 */
import { css, nothing } from "./lit.js";
import { STEP_STYLES } from "./format.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

const CURRENT_STYLES = new Set(["running", "needs_you", "held"]);

export class PlanRail extends StoreElement {
  static ignoresLive = true;

  static styles = [
    theme,
    css`
      ol {
        display: grid;
        gap: 2px;
        margin-top: 8px;
        padding: 0;
        list-style: none;
      }
      button {
        display: grid;
        grid-template-columns: 18px minmax(0, 1fr);
        align-items: start;
        gap: 8px;
        width: 100%;
        padding: 6px 8px;
        border: 0;
        background: none;
        text-align: start;
        line-height: 1.35;
        overflow-wrap: anywhere;
      }
      button:hover {
        background: var(--panel);
      }
      button:focus-visible {
        outline-offset: -2px; /* the box around scrolls, and would cut it off */
      }
      .icon {
        margin-top: 2px;
      }
      [aria-current] {
        background: var(--panel);
        font-weight: 600;
      }
      .done {
        font-weight: 400;
        letter-spacing: normal;
        text-transform: none;
      }
      .left {
        color: var(--dim);
      }
      .dropped {
        text-decoration: line-through;
      }
    `,
  ];

  render() {
    const run = this.view;
    const items = run?.plan_rows ?? [];
    if (!run || !this.setShown(items.length > 0)) return nothing;
    const counted = items.filter(({ style }) => style !== "dropped");
    const done = counted.filter(({ style }) => style === "done").length;
    return html`<nav aria-labelledby="title">
      <h2 id="title">Plan <span class="done">${done}/${counted.length} done</span></h2>
      <ol>
        ${items.map((item, at) => this._renderItem(item, at + 1))}
      </ol>
    </nav>`;
  }

  /** @param {import("./types.js").PlanRow} item @param {number} number */
  _renderItem({ text, style }, number) {
    const [word, tone, shape] = STEP_STYLES[style] ?? STEP_STYLES.queued;
    const kind = style === "dropped" || style === "not_started" ? "left dropped" : style === "queued" ? "left" : "";
    return html`<li>
      <button
        class=${kind}
        aria-current=${CURRENT_STYLES.has(style) ? "step" : nothing}
        @click=${() => this.dispatchEvent(new CustomEvent("midrun-item", { detail: number }))}
      >
        <span data-tone=${tone}>${icon(shape, style === "running")}</span>
        <span>${text}<span class="visually-hidden">, ${word}</span></span>
      </button>
    </li>`;
  }
}

customElements.define("midrun-plan", PlanRail);
