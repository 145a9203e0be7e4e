// @ts-check
/** `<midrun-thread>`: the other runs of the same thread. */
import { css, nothing } from "./lit.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {{run_id: string, task: string, phase: string, started_at: string}} ThreadRun */

export class Thread extends StoreElement {
  static ignoresLive = true;

  static properties = { ...StoreElement.properties, runs: { state: true } };

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
    /** @type {ThreadRun[]} */
    this.runs = [];
    this._loadedThread = "";
  }

  updated() {
    const thread = this.view?.thread ?? "";
    if (!thread || thread === this._loadedThread) return;
    this._loadedThread = thread;
    void this._load(thread);
  }

  /** @param {string} thread */
  async _load(thread) {
    const { store } = this;
    const path = `/v1/runs?limit=50&thread=${encodeURIComponent(thread)}`;
    const page = await this.attempt(async () => store?.api.get(path));
    if (page) this.runs = page.items;
  }

  render() {
    const { store } = this;
    const others = this.runs.filter((run) => run.run_id !== store?.id);
    if (!this.setShown(others.length > 0) || !store) return nothing;
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Conversation</h2>
      <ol>
        ${others.map(
          (run) => html`<li>
            <a href=${`${store.api.base}/runs/${encodeURIComponent(run.run_id)}`}>${run.task}</a>
            <span class="dim">${run.phase}</span>
          </li>`,
        )}
      </ol>
    </section>`;
  }
}

customElements.define("midrun-thread", Thread);
