// @ts-check
/** `<midrun-frames>`: the topics that are held while the run answers a side question. */
import { css, nothing } from "./lit.js";
import { formatAge } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").FrameView} HeldTopic */

export class HeldTopics extends StoreElement {
  static ignoresLive = true;

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
    if (!this.setShown(Boolean(run?.frames.length)) || !store || !run) return nothing;
    const [top, ...others] = [...run.frames].reverse();
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Held topics (${run.frames.length} of ${run.frames_max})</h2>
      <p><b>${run.goal}</b><br /><span class="dim">answering now</span></p>
      <ol>
        ${this._renderTopic(top, run.frames.length, true)}
        ${others.map((topic, at) => this._renderTopic(topic, others.length - at, false))}
      </ol>
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  /** Render a topic; only the top one has buttons. @param {HeldTopic} topic @param {number} number @param {boolean} isTop */
  _renderTopic(topic, number, isTop) {
    const now = this.store?.now ?? 0;
    const isStale = Date.parse(topic.expires_at) <= now;
    const age = formatAge((now - Date.parse(topic.held_at)) / 1000);
    const mayAct = isTop && this.view?.role !== "viewer";
    return html`<li>
      <span>${number}. <b>${topic.goal}</b></span>
      <span class="dim">
        held at ${topic.position}, for ${age}${isStale ? "; the agent would have to reconstruct it" : ""}
      </span>
      ${mayAct
        ? html`<span class="row">
            <button @click=${() => void this._act(topic, "resume")}>
              ${isStale ? "Go back and reconstruct it" : "Go back to it"}
            </button>
            <button @click=${() => void this._act(topic, "drop")}>Drop</button>
          </span>`
        : nothing}
    </li>`;
  }

  /** @param {HeldTopic} topic @param {"resume" | "drop"} action */
  async _act(topic, action) {
    const store = this.store;
    if (!store) return;
    const path = `frames/${topic.id}`;
    await this.attempt(() =>
      action === "resume"
        ? store.showReply(store.api.post(`${store.path}/${path}/resume`), "resume_frame")
        : store.showReply(store.api.delete(`${store.path}/${path}`), "drop_frame"),
    );
  }
}

customElements.define("midrun-frames", HeldTopics);
