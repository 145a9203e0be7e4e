// @ts-check
/** `<midrun-frames>`: thoughts that are held while something else is answered. */
import { css, nothing } from "./lit.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { span } from "./words.js";
import { html } from "./template.js";

/** @typedef {import("./shapes.js").Frame} Frame */

export class Frames extends StoreElement {
  static quiet = true;

  static styles = [
    theme,
    css`
      ol {
        display: grid;
        gap: 8px;
        list-style: none;
        padding: 0;
      }
      li {
        display: grid;
        gap: 4px;
      }
      .error {
        color: var(--stop);
      }
    `,
  ];

  render() {
    const { store, view: run } = this;
    if (!this.shown(Boolean(run?.frames.length)) || !store || !run) return nothing;
    const [top, ...others] = [...run.frames].reverse();
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Held thoughts (${run.frames.length} of ${run.frames_max})</h2>
      <p><b>${run.goal}</b><br /><span class="dim">answering now</span></p>
      <ol>
        ${this._frame(top, run.frames.length, true)}
        ${others.map((frame, at) => this._frame(frame, others.length - at, false))}
      </ol>
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  /** @param {Frame} frame @param {number} number @param {boolean} top */
  _frame(frame, number, top) {
    const now = this.store?.now ?? 0;
    const stale = Date.parse(frame.expires_at) <= now;
    const age = span((now - Date.parse(frame.held_at)) / 1000);
    const acts = top && this.view?.role !== "viewer";
    return html`<li>
      <span>${number}. <b>${frame.goal}</b></span>
      <span class="dim">
        held at ${frame.place}, for ${age}${stale ? "; going back would be a reconstruction" : ""}
      </span>
      ${acts
        ? html`<span class="row">
            <button @click=${() => void this._act(frame, "resume")}>
              ${stale ? "Reconstruct" : "Go back to it"}
            </button>
            <button @click=${() => void this._act(frame, "drop")}>Drop</button>
          </span>`
        : nothing}
    </li>`;
  }

  /** @param {Frame} frame @param {"resume" | "drop"} what */
  async _act(frame, what) {
    const store = this.store;
    if (!store) return;
    const path = `frames/${frame.id}`;
    await this.attempt(() =>
      what === "resume"
        ? store.send(`${path}/resume`)
        : store.api.delete(`${store.path}/${path}`),
    );
    store.refresh();
  }
}

customElements.define("midrun-frames", Frames);
