// @ts-check
/** `<midrun-timeline>`: the events of a run, newest first. */
import { css, nothing, repeat } from "./lit.js";
import { formatTimeOfDay, youOr } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { exact, html } from "./template.js";

/** How many events are shown at first, and more on request; as many as the feed sends at first. */
const EVENT_PAGE_SIZE = 300;

/** @typedef {import("./types.js").FeedEvent} FeedEvent */

const FILTERS = /** @type {[string, string][]} */ ([
  ["all", "All"],
  ["control", "Control"],
  ["steps", "Steps"],
  ["tools", "Tools"],
  ["effects", "Effects"],
]);
/** @typedef {"control" | "steps" | "tools" | "effects"} Group */

const GROUP_PATTERNS = /** @type {[RegExp, Group][]} */ ([
  [/^(undo|residue)\./, "effects"],
  [/^call\./, "tools"],
  [/^(plan|frame|answer|history|lease|stop|cap\.reached)/, "steps"],
  [/./, "control"],
]);

/** Return the filter that an event belongs to. @param {FeedEvent} event */
const groupOf = ({ type }) => GROUP_PATTERNS.find(([pattern]) => pattern.test(type))?.[1];

/** Events with arguments or results: each hidden character in their text is shown. */
const EXACT_TYPES = /^(call|ask|undo)\./;

/** By tone of an entry's text: the tone of the page. */
const TONES = /** @type {Record<string, string>} */ ({
  good: "ok",
  bad: "stop",
  person: "run",
  go: "run",
  hold: "hold",
  wait: "wait",
  stop: "stop",
  undo: "hold",
  quiet: "dim",
  detail: "dim",
});

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
        font-size: 13px;
        font-variant-numeric: tabular-nums;
        overflow-wrap: anywhere;
      }
      .list li {
        display: grid;
        grid-template-columns: auto auto minmax(0, 1fr);
        gap: 0 10px;
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
  _renderRow({ seq, ts, type, text: { who, short, sentence, tone } }) {
    const show = EXACT_TYPES.test(type) ? exact : String;
    const subject = youOr(who, this.view?.you ?? "");
    return html`<li data-type=${type} title=${show(subject + sentence.slice(who.length))}>
      <span class="dim">${formatTimeOfDay(ts)}</span><span>#${seq}</span>
      <span class="event" data-tone=${TONES[tone] ?? nothing}
        ><span class=${subject === "you" ? "you" : ""}>${show(subject)}</span> ${show(short)}</span
      >
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
