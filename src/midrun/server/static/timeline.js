// @ts-check
/** `<midrun-timeline>`: the events of a run, newest first. */
import { css, nothing, repeat } from "./lit.js";
import { describeEvent, groupOf } from "./entry-text.js";
import { formatTimeOfDay, youOr } from "./format.js";
import { EVENT_PAGE_SIZE } from "./run-store.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").FeedEvent} FeedEvent */

const FILTERS = /** @type {[string, string][]} */ ([
  ["all", "All"],
  ["control", "Control"],
  ["steps", "Steps"],
  ["tools", "Tools"],
  ["effects", "Effects"],
]);
const TEXT_MAX_CHARS = 160;

export class Timeline extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    filter: { state: true },
    rowCount: { state: true },
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
      .event span {
        margin-right: 3px; /* in addition to the space between them */
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
    this.rowCount = EVENT_PAGE_SIZE;
  }

  render() {
    const events = this.store?.events ?? [];
    const matches = events.filter((event) => this.filter === "all" || groupOf(event) === this.filter);
    const shown = matches.slice(-this.rowCount).reverse();
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
        ${repeat(shown, (event) => event.seq, (event) => this._renderRow(event))}
        ${this._renderMore(events, matches.length)}
      </ol>`;
  }

  /** @param {FeedEvent} event */
  _renderRow(event) {
    const call = event.data.call ? this.store?.turns.findCall(event.data.call) : null;
    const actor = event.by && youOr(event.by, this.view?.you ?? "");
    const isModel = this.store?.modelCalls.has(event.data.call);
    const toolInFlight = this.view?.in_flight.find((one) => one.id === event.data.call)?.tool;
    const text = call?.tool === "plan" ? "" : describeEvent(event, this.store?.events ?? []).trim();
    return html`<li>
      <span class="dim">${formatTimeOfDay(event.ts)}</span><span>#${event.seq}</span>
      <span class="event">
        <span>${formatType(event)}</span>
        ${actor ? html`<span class=${actor === "you" ? "you" : ""}>${actor}</span>` : nothing}
        ${event.data.call
          ? html`<span>${call?.tool ?? (isModel ? "model" : toolInFlight || event.data.call)}</span>`
          : nothing}
        ${text
          ? html`<span class="dim">${text.length > TEXT_MAX_CHARS ? `${text.slice(0, TEXT_MAX_CHARS)}…` : text}</span>`
          : nothing}
        ${call?.why ? html`<span class="dim">why: ${call.why}</span>` : nothing}
      </span>
    </li>`;
  }

  /** @param {FeedEvent[]} events @param {number} matchCount */
  _renderMore(events, matchCount) {
    const hasHidden = matchCount > this.rowCount;
    if (!hasHidden && (events[0]?.seq ?? 1) <= 1) return nothing;
    return html`<li>
      <button class="link" @click=${() => void this._loadEarlier(hasHidden)}>Load earlier</button>
    </li>`;
  }

  /** @param {boolean} hasHidden whether the store has earlier events that are not shown yet */
  async _loadEarlier(hasHidden) {
    const store = this.store;
    this.rowCount += EVENT_PAGE_SIZE;
    if (!hasHidden && store) await this.attempt(() => store.loadEarlier());
  }
}

customElements.define("midrun-timeline", Timeline);

/** Return the type; the release of a held resource has events of undo, and is shown by its own name. @param {FeedEvent} event */
function formatType({ type, data }) {
  return data.action === "release" ? type.replace("undo.", "release.") : type;
}
