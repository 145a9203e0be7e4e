// @ts-check
/** `<midrun-timeline>`: everything that happened to a run, the newest first. */
import { css, nothing, repeat } from "./lit.js";
import { group, words } from "./happenings.js";
import { EVENTS } from "./run-store.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { timeOfDay, whom } from "./words.js";
import { html } from "./template.js";

/** @typedef {import("./shapes.js").Happened} Happened */

const FILTERS = /** @type {[string, string][]} */ ([
  ["all", "All"],
  ["control", "Control"],
  ["steps", "Steps"],
  ["tools", "Tools"],
  ["effects", "Effects"],
]);
const LONG = 160;

export class Timeline extends StoreElement {
  static quiet = true;

  static properties = {
    ...StoreElement.properties,
    filter: { state: true },
    rows: { state: true },
  };

  static styles = [
    theme,
    css`
      :host {
        display: grid;
        gap: 8px;
      }
      .head {
        justify-content: space-between;
      }
      button.chip {
        min-height: 26px;
        padding: 1px 10px;
        border-radius: 999px;
        font-size: 12.5px;
      }
      button.chip[aria-pressed="true"] {
        border-color: var(--run);
        color: var(--run);
        font-weight: 600;
      }
      .list {
        max-height: 420px;
        overflow: auto;
        margin: 0;
        padding: 10px 12px;
        border: 1px solid var(--line);
        border-radius: var(--round);
        list-style: none;
        font: 12.5px/1.6 var(--mono);
        overflow-wrap: anywhere;
      }
      .list li {
        display: grid;
        grid-template-columns: auto auto minmax(0, 1fr);
        gap: 0 10px;
      }
      .what span {
        margin-right: 3px; /* and the space that parts them */
      }
      .you {
        font-weight: 700;
        color: var(--run);
      }
    `,
  ];

  constructor() {
    super();
    this.filter = "all";
    this.rows = EVENTS;
  }

  render() {
    const events = this.store?.events ?? [];
    const fits = events.filter((event) => this.filter === "all" || group(event) === this.filter);
    const drawn = fits.slice(-this.rows).reverse();
    return html`<div class="row head">
        <h2 id="title">Timeline</h2>
        <div class="row" role="group" aria-label="Show">
          ${FILTERS.map(
            ([name, label]) => html`<button
              class="chip"
              aria-pressed=${String(this.filter === name)}
              @click=${() => (this.filter = name)}
            >
              ${label}
            </button>`,
          )}
        </div>
      </div>
      <ol class="list" tabindex="0" aria-labelledby="title">
        ${repeat(drawn, (event) => event.seq, (event) => this._row(event))}
        ${this._more(events, fits.length)}
      </ol>`;
  }

  /** @param {Happened} event */
  _row(event) {
    const call = event.data.call ? this.store?.turns.call(event.data.call) : null;
    const who = event.by && whom(event.by, this.view?.you ?? "");
    const model = this.store?.thoughts.has(event.data.call);
    const flying = this.view?.in_flight.find((one) => one.id === event.data.call)?.tool;
    const text = call?.tool === "plan" ? "" : words(event, this.store?.events ?? []).trim();
    return html`<li>
      <span class="dim">${timeOfDay(event.ts)}</span><span>#${event.seq}</span>
      <span class="what">
        <span>${shownType(event)}</span>
        ${who ? html`<span class=${who === "you" ? "you" : ""}>${who}</span>` : nothing}
        ${event.data.call
          ? html`<span>${call?.tool ?? (model ? "model" : flying || event.data.call)}</span>`
          : nothing}
        ${text
          ? html`<span class="dim">${text.length > LONG ? `${text.slice(0, LONG)}…` : text}</span>`
          : nothing}
        ${call?.why ? html`<span class="dim">why: ${call.why}</span>` : nothing}
      </span>
    </li>`;
  }

  /** @param {Happened[]} events @param {number} fitting */
  _more(events, fitting) {
    const hidden = fitting > this.rows;
    if (!hidden && (events[0]?.seq ?? 1) <= 1) return nothing;
    return html`<li>
      <button class="link" @click=${() => void this._earlier(hidden)}>Load earlier</button>
    </li>`;
  }

  /** @param {boolean} hidden whether they are known and only not drawn */
  async _earlier(hidden) {
    const store = this.store;
    this.rows += EVENTS;
    if (!hidden && store) await this.attempt(() => store.earlier());
  }
}

customElements.define("midrun-timeline", Timeline);

/** What is held is released, not undone; the events of both have one name. @param {Happened} event */
function shownType({ type, data }) {
  return data.action === "release" ? type.replace("undo.", "release.") : type;
}
