// @ts-check
/** `<midrun-result>`: the output of a completed run, or the error of a failed one. */
import { css, nothing } from "./lit.js";
import { fieldStyle, parseStructure, renderValue } from "./call-text.js";
import { renderMarkdown } from "./markdown-text.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

export class Result extends StoreElement {
  static ignoresLive = true;

  static styles = [
    theme,
    fieldStyle,
    css`
      :host {
        scroll-margin: 10px;
      }
      .result {
        display: grid;
        grid-template-columns: minmax(0, 1fr);
        gap: 10px;
        padding: 16px 18px;
        border: 1px solid color-mix(in srgb, var(--ok) 45%, var(--line));
        border-radius: var(--round);
      }
      .result[data-tone="stop"] {
        border-color: var(--stop);
        overflow-wrap: anywhere;
      }
    `,
  ];

  /** Scroll to the result and focus its heading. */
  reveal() {
    this.scrollIntoView({ block: "start" });
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector("h2"))?.focus({ preventScroll: true });
  }

  render() {
    const run = this.view;
    const isFailed = run?.phase === "failed";
    const isShown = isFailed || (run?.phase === "completed" && Boolean(run.output));
    if (!this.setShown(isShown) || !run) return nothing;
    if (isFailed) {
      return html`<section class="result" data-tone="stop" aria-label="Error"><p>${run.error}</p></section>`;
    }
    const value = parseStructure(run.output);
    return html`<section class="result" aria-labelledby="result">
      <h2 id="result" tabindex="-1">Result</h2>
      ${value ? renderValue(value) : renderMarkdown(run.output)}
    </section>`;
  }
}

customElements.define("midrun-result", Result);
