// @ts-check
/** `<midrun-thread>`: the other runs of the same conversation. */
import { css, nothing } from "./lit.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {{run_id: string, task: string, phase: string, started_at: string}} Line */

export class Thread extends StoreElement {
  static quiet = true;

  static properties = { ...StoreElement.properties, lines: { state: true } };

  static styles = [
    theme,
    css`
      ol {
        list-style: none;
        padding: 0;
        display: grid;
        gap: 4px;
      }
    `,
  ];

  constructor() {
    super();
    /** @type {Line[]} */
    this.lines = [];
    this._of = "";
  }

  updated() {
    const thread = this.view?.thread ?? "";
    if (!thread || thread === this._of) return;
    this._of = thread;
    void this._load(thread);
  }

  /** @param {string} thread */
  async _load(thread) {
    const { store } = this;
    const path = `/v1/runs?limit=50&thread=${encodeURIComponent(thread)}`;
    const page = await this.attempt(async () => store?.api.get(path));
    if (page) this.lines = page.items;
  }

  render() {
    const { store } = this;
    const others = this.lines.filter((line) => line.run_id !== store?.id);
    if (!this.shown(others.length > 0) || !store) return nothing;
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Conversation</h2>
      <ol>
        ${others.map(
          (line) => html`<li>
            <a href=${`${store.api.base}/runs/${encodeURIComponent(line.run_id)}`}>${line.task}</a>
            <span class="dim">${line.phase}</span>
          </li>`,
        )}
      </ol>
    </section>`;
  }
}

customElements.define("midrun-thread", Thread);
