// @ts-check
/**
 * `<midrun-timeline>`: everything that happened in a run, in sentences.
 *
 * It is folded at first: the transcript above has the work itself. By default the entries are
 * grouped by turn, in reading order, with the durations of turns and calls; entries that say the
 * same are one row. *Every entry* shows the journal, newest first, with the number of each entry
 * and the beginning of its hash.
 */
import { css, nothing, repeat } from "./lit.js";
import { formatDuration, formatTimeOfDay, youOr } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { exact, html } from "./template.js";

/** How many events are shown at first, and more on request; as many as the feed sends at first. */
const EVENT_PAGE_SIZE = 300;

/** @typedef {import("./types.js").FeedEvent} FeedEvent */

const FILTERS = /** @type {[string, string][]} */ ([
  ["all", "All"],
  ["control", "Control"],
  ["steps", "Turns"],
  ["tools", "Tools"],
  ["effects", "Changes"],
]);
/** @typedef {"control" | "steps" | "tools" | "effects"} Group */

const GROUP_PATTERNS = /** @type {[RegExp, Group][]} */ ([
  [/^(undo|residue)\./, "effects"],
  [/^(call|artifact)\./, "tools"],
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
    isRaw: { state: true },
  };

  static styles = [
    theme,
    css`
      :host {
        display: grid;
        gap: 8px;
        scroll-margin: 12px;
      }
      summary {
        width: fit-content;
      }
      summary h2 {
        display: inline;
      }
      .filters {
        margin: 8px 0;
      }
      button.chip {
        min-height: var(--target, 26px);
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
      .list li:not(.group) {
        display: grid;
        grid-template-columns: auto auto minmax(0, 1fr) auto;
        gap: 0 10px;
      }
      .group + .group {
        margin-top: 10px;
      }
      .group h3 {
        display: flex;
        align-items: center;
        gap: 10px;
        font-size: 13px;
      }
      .group h3 meter {
        width: 120px;
        height: 8px;
        margin-left: auto;
      }
      .group h3 .dim {
        min-width: 64px;
        text-align: end;
      }
      .group ol {
        padding: 2px 0 0;
        list-style: none;
      }
      .list .group li {
        grid-template-columns: auto minmax(0, 1fr) auto;
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
    this.isRaw = false; // every entry is a row, with its number
  }

  render() {
    const events = this.store?.events ?? [];
    const matches = events.filter((event) => this.filter === "all" || groupOf(event) === this.filter);
    const shown = matches.slice(-this.rowCount);
    const more = this._renderMore(events, matches.length);
    return html`<details @toggle=${this._onToggle}>
        <summary><h2 id="title">Timeline</h2></summary>
        <div class="row filters" role="group" aria-label="Show">
          ${FILTERS.map(([name, label]) =>
            renderChip(label, this.filter === name, () => (this.filter = name)),
          )}
          ${renderChip("Every entry", this.isRaw, () => (this.isRaw = !this.isRaw))}
        </div>
        <ol class="list" tabindex="0" aria-labelledby="title">
        ${this.isRaw
          ? html`${repeat(shown.toReversed(), (event) => event.seq, (event) => this._renderRow(event))}${more}`
          : html`${more}${this._renderGroups(shown)}`}
        </ol>
      </details>`;
  }

  /** Show the list that was unfolded: it is below the edge of the window. @param {Event} event */
  _onToggle(event) {
    if (/** @type {HTMLDetailsElement} */ (event.target).open) this.scrollIntoView({ block: "start" });
  }

  /** @param {FeedEvent[]} events oldest first */
  _renderGroups(events) {
    const groups = groupByTurn(events);
    const longest = Math.max(...groups.map(countSeconds));
    const starts = new Map(events.filter(({ type }) => type === "call.started").map((event) => [event.data.call, event]));
    return repeat(
      groups,
      ([first]) => first.seq,
      (group) => html`<li class="group">
        <h3><span>${formatGroup(group)}</span>${renderBar(countSeconds(group), longest)}</h3>
        <ol>
          ${repeat(joinRepeated(group), ({ event }) => event.seq, ({ event, count }) =>
            this._renderSentence(event, count, starts.get(event.data.call)))}
        </ol>
      </li>`,
    );
  }

  /** @param {FeedEvent} event @param {number} count how often it came in a row @param {FeedEvent} [start] of its call */
  _renderSentence(event, count, start) {
    const isEnd = start && start !== event && CALL_ENDS.test(event.type);
    const details = [count > 1 ? `× ${count}` : "", isEnd ? formatSpan(start, event) : ""].filter(Boolean).join(" · ");
    return html`<li data-type=${event.type}>
      <span class="dim">${formatTimeOfDay(event.ts)}</span>${this._renderText(event)}<span class="dim">${details}</span>
    </li>`;
  }

  /** Render the text of an event in the words of every surface. @param {FeedEvent} event */
  _renderText({ type, text: { who, short, tone } }) {
    const show = EXACT_TYPES.test(type) ? exact : String;
    const subject = youOr(who, this.view?.you ?? "");
    return html`<span class="event" data-tone=${TONES[tone] ?? nothing}
      ><span class=${subject === "you" ? "you" : ""}>${show(subject)}</span> ${show(short)}</span
    >`;
  }

  /** @param {FeedEvent} event */
  _renderRow(event) {
    const { seq, ts, type, text, hash } = event;
    const show = EXACT_TYPES.test(type) ? exact : String;
    const subject = youOr(text.who, this.view?.you ?? "");
    return html`<li data-type=${type} title=${show(subject + text.sentence.slice(text.who.length))}>
      <span class="dim">${formatTimeOfDay(ts)}</span><span>#${seq}</span> ${this._renderText(event)}
      <code class="dim" title="Hash ${hash}">${hash.slice(0, 8)}</code>
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

/** @param {string} label @param {boolean} isPressed @param {() => void} press */
const renderChip = (label, isPressed, press) =>
  html`<button class="chip" aria-pressed=${String(isPressed)} @click=${press}>${label}</button>`;

/** Entries after which a call is over. */
const CALL_ENDS = /^call\.(done|failed|aborted|unknown)$/;

/** Tell whether an event is the call of the model that begins a turn. @param {FeedEvent} event */
const startsTurn = ({ type, data }) => type === "call.started" && data.call_kind === "model";

/** Split events where a turn begins. @param {FeedEvent[]} events @returns {FeedEvent[][]} */
function groupByTurn(events) {
  /** @type {FeedEvent[][]} */
  const groups = [];
  for (const event of events) {
    if (!groups.length || startsTurn(event)) groups.push([]);
    groups[groups.length - 1].push(event);
  }
  return groups;
}

/** Name a group: a turn by its beginning. @param {FeedEvent[]} group */
function formatGroup([first]) {
  if (first.type === "run.created") return "Start";
  return startsTurn(first) ? `Turn at ${formatTimeOfDay(first.ts)}` : `From ${formatTimeOfDay(first.ts)}`;
}

/** Return the time between two events in words; "" for less than a second. @param {FeedEvent} from @param {FeedEvent} to */
function formatSpan(from, to) {
  const seconds = (Date.parse(to.ts) - Date.parse(from.ts)) / 1000;
  return seconds < 1 ? "" : formatDuration(seconds);
}

/** Return the seconds from the first to the last event of a group. @param {FeedEvent[]} group */
const countSeconds = (group) => (Date.parse(group[group.length - 1].ts) - Date.parse(group[0].ts)) / 1000;

/** Render where the time went: the duration of a turn, and a bar beside those of the other turns. @param {number} seconds @param {number} longest */
const renderBar = (seconds, longest) =>
  seconds < 1
    ? nothing
    : html`<meter aria-hidden="true" min="0" max=${longest} value=${seconds}></meter>
        <span class="dim">${formatDuration(seconds)}</span>`;

/** Join events in a row that say the same. @param {FeedEvent[]} events @returns {{event: FeedEvent, count: number}[]} */
function joinRepeated(events) {
  /** @type {{event: FeedEvent, count: number}[]} */
  const rows = [];
  for (const event of events) {
    const last = rows.at(-1);
    const isSame = last && last.event.type === event.type && last.event.text.short === event.text.short;
    if (isSame) last.count += 1;
    else rows.push({ event, count: 1 });
  }
  return rows;
}

customElements.define("midrun-timeline", Timeline);
