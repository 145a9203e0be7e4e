// @ts-check
/**
 * `<midrun-steps>`: the plan's items with their turns; without a plan, the turns.
 *
 * A turn is a message, a reply of the agent, or a line of Midrun itself. The reply that is being
 * streamed is rendered at the end of the current item. Slot `empty`: shown before the first turn.
 */
import { nothing, repeat } from "./lit.js";
import { AutoScroll } from "./auto-scroll.js";
import { fieldStyle, humanizeName } from "./call-text.js";
import { style } from "./steps-style.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { hasContent, isOnlyCalls, renderLiveReply, renderStyle, renderTurn, visibleCalls } from "./turn-parts.js";
import { html } from "./template.js";
import { FINISHED_PHASES } from "./format.js";

/** @typedef {import("./types.js").TurnView} Turn */
/** @typedef {import("./run-store.js").Run} Run */
/** @typedef {import("./types.js").FeedEvent} FeedEvent */
/** @typedef {import("./types.js").PlanRow} PlanItem */
/** @typedef {import("./run-store.js").LiveReply} LiveReply */
/**
 * One row of the list: a plan item, a step without a plan, or a message, which has no style.
 * `was` is the item's text before a redirect replaced it.
 * @typedef {{key: string, title: string, style: string, tool: string, turns: Turn[],
 *   number: string, item: number, was: string, isCurrent: boolean}} StepRow
 */

/** Kinds of runtime turns whose text Midrun also puts before the agent's next reply. */
const REPEATED_KINDS = new Set(["back", "dropped"]);
const NOT_DONE_STYLES = new Set(["not_started", "dropped"]);
const CURRENT_STYLES = new Set(["running", "needs_you", "held", "stopped", "failed"]);

export class Steps extends StoreElement {
  static styles = [theme, fieldStyle, style];

  constructor() {
    super();
    this._autoScroll = new AutoScroll(this, () => this.dispatchEvent(new CustomEvent("followed")));
  }

  connectedCallback() {
    super.connectedCallback();
    this._autoScroll.start();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this._autoScroll.stop();
  }

  updated() {
    const total = this.store?.turns.total ?? 0;
    const isComplete = total > 0 && total >= (this.view?.turns ?? 0);
    this._autoScroll.onRendered(isComplete, this.view?.phase === "running", FINISHED_PHASES.has(this.view?.phase ?? ""));
  }

  render() {
    const { store, view: run } = this;
    if (!store || !run) return nothing;
    const reply = currentReply(store, run);
    // In a conversation the question of this run belongs between the earlier ones and its answer.
    const isConversation = store.turns.items.some((turn) => turn.inherited);
    const turns = store.turns.items
      .filter((turn) => hasContent(turn) || (isConversation && turn.kind === "task"))
      .filter((turn) => !isRepeated(turn, store.turns.items, reply));
    const rows = run.plan_rows.length
      ? planRows(run, turns, store.events)
      : turnRows(run, isConversation ? turns : turns.filter((turn) => !isResult(run, turn)));
    const current = rows.findLast((row) => row.isCurrent);
    return html`<h2 id="title" class="visually-hidden">Transcript</h2>
      ${store.turns.earlierCount && !run.plan_rows.length
        ? html`<button class="link" @click=${() => void this._loadEarlier()}>
            Load earlier (${store.turns.earlierCount})
          </button>`
        : nothing}
      <ol aria-labelledby="title">
        ${repeat(rows, (row) => row.key, (row) => this._renderRow(run, row, row === current ? reply : undefined))}
        ${reply && !current ? this._renderRow(run, newRow(rows.length + 1), reply) : nothing}
      </ol>
      ${rows.length || reply || run.output
        ? nothing
        : html`<slot name="empty"><p class="dim empty">Nothing has been done so far.</p></slot>`}`;
  }

  /** @param {Run} run @param {StepRow} row @param {LiveReply} [reply] */
  _renderRow(run, row, reply) {
    const { store } = this;
    const isLost = run.worker_lost || store?.connection === "lost"; // "running" may be out of date
    const context = {
      you: run.you,
      notes: store?.notes ?? new Map(),
      base: store?.api.base ?? "",
      isLost,
      store: store ?? null,
      artifacts: run.artifacts ?? [],
    };
    if (!row.style) {
      const messages = row.turns.map((turn) => renderTurn(turn, { ...context, isContinuation: false }));
      return html`<li class="message">${messages}</li>`;
    }
    const style = reply && row.style !== "held" ? "running" : row.style;
    const kind = NOT_DONE_STYLES.has(style) ? "title not-done" : "title";
    const head = html`${renderStyle(style, isLost)}
      <span class=${kind}
        ><span>${row.number}${row.title}</span>${row.was
          ? html`<code class="previous dim">was: ${row.was}</code>`
          : nothing}</span
      >
      <span class="tool dim">${row.number ? humanizeName(row.tool) : row.tool}</span>`;
    const item = row.item || nothing;
    if (!row.turns.length && !reply) {
      return html`<li data-style=${row.style} data-item=${item} data-empty><div class="head">${head}</div></li>`;
    }
    const body = html`<div class="body">
      ${repeat(row.turns, (turn) => turn.number, (turn, at) =>
        renderTurn(turn, { ...context, isContinuation: isContinuation(row.turns, at) }))}
      ${reply ? renderLiveReply(reply, isContinuation(row.turns, row.turns.length)) : nothing}
    </div>`;
    if (!row.title) return html`<li data-style=${style} class="plain" ?data-calls=${!reply && row.turns.every(isOnlyCalls)}>${body}</li>`;
    // The words of the agent are the content: only items without any are folded.
    const hasText = row.turns.some(({ text, role }) => text && role !== "runtime");
    return html`<li data-style=${style} data-item=${item}>
      <details ?open=${row.isCurrent || Boolean(reply) || hasText}>
        <summary class="head">${head}</summary>
        ${body}
      </details>
    </li>`;
  }

  /** Whether the reader is at the end of the transcript. */
  get isAtEnd() {
    return this._autoScroll.isAtEnd;
  }

  /** Whether the reader has scrolled away from the end of the transcript. */
  get hasLeftEnd() {
    return this._autoScroll.hasLeftEnd;
  }

  /** Scroll to the end of the transcript, and follow it from there. */
  scrollToEnd() {
    this._autoScroll.scrollToEnd();
  }

  /** Scroll to a plan item and open it. @param {number} number counted from 1, dropped ones included */
  showItem(number) {
    const item = this.renderRoot.querySelector(`[data-item="${number}"]`);
    const details = item?.querySelector("details");
    if (details) details.open = true;
    item?.scrollIntoView({ block: "start" });
    /** @type {HTMLElement | null} */ (item?.querySelector("summary") ?? null)?.focus({ preventScroll: true });
  }

  async _loadEarlier() {
    const store = this.store;
    await this.attempt(async () => store?.turns.loadEarlier());
    this.requestUpdate();
  }
}

/**
 * Return the reply that is being streamed. It is empty while a model call is in flight of which
 * no delta has arrived; undefined if there is no such call.
 * @param {import("./run-store.js").RunStore} store @param {Run} run @returns {LiveReply | undefined}
 */
function currentReply(store, run) {
  const newest = [...store.live.values()].at(-1);
  if (newest) return newest;
  const isModelCalled = run.in_flight.some((call) => !call.tool && call.action === "call");
  return isModelCalled ? { text: "", thinking: "", tool: "", isPartial: true, since: 0 } : undefined;
}

/**
 * Tell whether a line of the runtime, as "Back to …", is repeated by a later reply of the agent.
 * @param {Turn} turn @param {Turn[]} turns @param {LiveReply} [reply]
 */
function isRepeated(turn, turns, reply) {
  if (turn.role !== "runtime" || !REPEATED_KINDS.has(turn.kind)) return false;
  if (reply?.text.includes(turn.text)) return true;
  const later = turns.filter(({ number }) => number > turn.number);
  return later.some(({ role, text }) => role === "assistant" && text.includes(turn.text));
}

/**
 * Tell whether the turn at `at`, or the live reply after the last one, continues a reply that was
 * interrupted. A reply after a message of a person answers that message instead.
 * @param {Turn[]} turns @param {number} at
 */
function isContinuation(turns, at) {
  const next = turns[at];
  if (next && (next.role !== "assistant" || !next.text)) return false;
  const before = turns.slice(0, at).findLast((turn) => turn.role !== "runtime");
  return before?.role === "assistant" && before.interrupted;
}

/**
 * Return one row for each plan item with its turns. Turns that belong to no item come in a row
 * before the first item, or in one after the last.
 * @param {Run} run @param {Turn[]} turns @param {FeedEvent[]} events @returns {StepRow[]}
 */
function planRows(run, turns, events) {
  const previous = replacedTexts(events, run.plan_rows);
  const first = turns.findIndex((turn) => turn.item > 0);
  const before = turns.slice(0, Math.max(first, 0)).filter((turn) => !turn.item);
  const after = (first < 0 ? turns : turns.slice(first)).filter(
    (turn) => !turn.item && !isResult(run, turn),
  );
  const current = run.plan_rows.findLastIndex((item) => CURRENT_STYLES.has(item.style));
  let number = 0; // dropped items have none, so that "plan 4/7" is item 4
  const items = run.plan_rows.map((item, at) => ({
    key: `item ${at}`,
    item: at + 1,
    title: item.text,
    number: item.style === "dropped" ? "" : `${++number}. `,
    style: item.style,
    tool: item.tool,
    turns: turns.filter((turn) => turn.item === at + 1),
    was: previous.get(at) ?? "",
    isCurrent: at === current,
  }));
  return [
    ...unassignedRow("before", "Before the plan", before),
    ...items,
    ...unassignedRow("after", "After the plan", after),
  ];
}

/**
 * Return the previous texts of the plan items that the last redirect has replaced: the current
 * plan against the last one before that redirect. An item that only moved has not changed.
 * @param {FeedEvent[]} events @param {PlanItem[]} items @returns {Map<number, string>} by index
 */
function replacedTexts(events, items) {
  const replaced = new Map();
  const redirect = events.findLast(({ type }) => type === "redirect.applied");
  const before =
    redirect && events.findLast(({ type, seq }) => type === "plan.made" && seq < redirect.seq);
  if (!before) return replaced;
  const old = /** @type {string[]} */ (before.data.items.map((/** @type {PlanItem} */ item) => item.text));
  const current = new Set(items.map((item) => item.text));
  items.forEach(({ text }, at) => {
    if (at < old.length && !old.includes(text) && !current.has(old[at])) replaced.set(at, old[at]);
  });
  return replaced;
}

/** Tell whether a turn is only the output, which is shown as the result. @param {Run} run @param {Turn} turn */
const isResult = (run, turn) =>
  run.phase === "completed" && turn.text === run.output && !turn.thinking && !visibleCalls(turn).length;

/** Return a row for turns that belong to no plan item, or none. @param {string} key @param {string} title @param {Turn[]} turns @returns {StepRow[]} */
function unassignedRow(key, title, turns) {
  if (!turns.length) return [];
  const style = turns.at(-1)?.style ?? "done";
  return [{ key, title, item: 0, number: "", style, tool: toolNames(turns), turns, was: "", isCurrent: style === "running" }];
}

/**
 * Return one row for each turn of a run without a plan. Replies of the agent are steps.
 * @param {Run} run @param {Turn[]} turns @returns {StepRow[]}
 */
function turnRows(run, turns) {
  const rows = turns.map((turn) => ({
    key: `turn ${turn.number}`,
    item: 0,
    title: "",
    number: "",
    style: turn.role === "assistant" ? turn.style : "",
    tool: "",
    turns: [turn],
    was: "",
    isCurrent: false,
  }));
  const last = rows.at(-1);
  if (last?.style && run.phase !== "completed") last.isCurrent = last.style !== "done";
  return rows;
}

/** @param {Turn[]} turns */
function toolNames(turns) {
  return [...new Set(turns.flatMap(visibleCalls).map((call) => humanizeName(call.tool)))].join(", ");
}

/** Return the row of a step of which only the live reply is known. @param {number} number @returns {StepRow} */
function newRow(number) {
  const texts = { title: "", number: "", tool: "", was: "" };
  return { key: `new ${number}`, item: 0, style: "running", turns: [], isCurrent: true, ...texts };
}

customElements.define("midrun-steps", Steps);
