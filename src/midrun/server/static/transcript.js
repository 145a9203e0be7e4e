// @ts-check
/**
 * `<midrun-transcript>`: the words of a run as they are written, its calls, result and artifacts.
 *
 * Attributes: `run`, `base`, `token` as for `<midrun-controls>`. Slots: `empty` (shown before the
 * first turn) and `end` (below the result). Inside a box of the page that scrolls, it follows new
 * text; it never scrolls the page itself.
 */
import { css, nothing } from "./lit.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import "./artifact-dialog.js";
import "./artifacts.js";
import "./result.js";
import "./steps.js";
import { html } from "./template.js";

export class MidrunTranscript extends StoreElement {
  static ignoresLive = true;

  static styles = [
    theme,
    css`
      :host {
        display: grid;
        grid-template-columns: minmax(0, 1fr);
        gap: 14px;
      }
    `,
  ];

  /** @param {CustomEvent<{name: string, version: number}>} event */
  _openArtifact({ detail }) {
    const dialog = this.renderRoot.querySelector("midrun-artifact-dialog");
    void /** @type {import("./artifact-dialog.js").ArtifactDialog | null} */ (dialog)?.show(detail.name, detail.version);
  }

  render() {
    const { store } = this;
    if (!store) return nothing;
    if (store.problem) return html`<p data-tone="stop" role="alert">${store.problem.message}</p>`;
    if (!store.run) return html`<p class="dim">Loading the run…</p>`;
    return html`${this.renderConnection()}
      <midrun-steps .store=${store} @midrun-artifact=${this._openArtifact}><slot name="empty" slot="empty">Nothing has been done so far.</slot></midrun-steps>
      <midrun-result .store=${store}></midrun-result>
      <midrun-artifacts .store=${store} @midrun-artifact=${this._openArtifact}></midrun-artifacts>
      <midrun-artifact-dialog .store=${store}></midrun-artifact-dialog>
      <slot name="end"></slot>`;
  }
}

customElements.define("midrun-transcript", MidrunTranscript);
