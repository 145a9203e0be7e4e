// @ts-check
/** `<midrun-steps>`: the task list, with what was said and done for each item. */
import { nothing, repeat } from "./lit.js";
import { Following } from "./following.js";
import { formerly } from "./formerly.js";
import { style } from "./steps-style.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { drawn, hasContent, madeCalls, spoken, standing } from "./turn-parts.js";
import { html } from "./template.js";

/** @typedef {import("./shapes.js").Turn} Turn */
/** @typedef {import("./shapes.js").Run} Run */
/** @typedef {{key: string, title: string, look: string, tool: string, turns: Turn[],
 *   number: string, was: string, now: boolean}} Line one without a look is what others said */

/** What the runtime says and then puts before the agent's next reply. */
const SAID_AGAIN = new Set(["back", "dropped"]);
const NEVER = new Set(["not_started", "dropped"]);
const AT_WORK = new Set(["running", "needs_you", "held", "stopped", "failed"]);

export class Steps extends StoreElement {
  static styles = [theme, style];

  constructor() {
    super();
    this._following = new Following(this);
  }

  connectedCallback() {
    super.connectedCallback();
    this._following.start();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this._following.stop();
  }

  updated() {
    const total = this.store?.turns.total ?? 0;
    const whole = total > 0 && total >= (this.view?.turns ?? 0);
    this._following.drew(whole, this.view?.phase === "running");
  }

  render() {
    const { store, view: run } = this;
    if (!store || !run) return nothing;
    const speaking = saying(store, run);
    const turns = store.turns.items.filter(hasContent).filter(unsaid(store, speaking));
    const lines = run.rows.length
      ? planned(run, turns, store.events)
      : unplanned(run, turns);
    const here = lines.findLast((line) => line.now);
    return html`<h2 id="title">Steps</h2>
      ${store.turns.before && !run.rows.length
        ? html`<button class="link" @click=${() => void this._earlier()}>
            Load earlier (${store.turns.before})
          </button>`
        : nothing}
      <ol aria-labelledby="title">
        ${repeat(lines, (line) => line.key, (line) => this._line(run, line, line === here ? speaking : undefined))}
        ${speaking && !here ? this._line(run, fresh(lines.length + 1), speaking) : nothing}
      </ol>
      ${lines.length || speaking
        ? nothing
        : html`<p class="dim empty">Nothing has been done so far.</p>`}
      ${this._answer(run)}`;
  }

  /** @param {Run} run @param {Line} line @param {import("./run-store.js").Saying} [speaking] */
  _line(run, line, speaking) {
    const { store } = this;
    const lost = run.lost || store?.link === "lost"; // nobody knows whether it still runs
    const about = {
      you: run.you,
      notes: store?.notes ?? new Map(),
      base: store?.api.base ?? "",
      lost,
    };
    if (!line.look) {
      const said = line.turns.map((turn) => drawn(turn, { ...about, goesOn: false }));
      return html`<li class="said">${said}</li>`;
    }
    const look = speaking && line.look !== "held" ? "running" : line.look;
    const kind = NEVER.has(look) ? "title never" : line.number ? "title" : "title echo";
    const head = html`${standing(look, lost)}
      <span class=${kind}
        ><span>${line.number}${line.title}</span>${line.was
          ? html`<code class="was dim">was: ${line.was}</code>`
          : nothing}</span
      >
      <code class="tool dim">${line.tool}</code>`;
    if (!line.turns.length && !speaking) {
      return html`<li data-look=${line.look}><div class="head">${head}</div></li>`;
    }
    return html`<li data-look=${look}>
      <details ?open=${line.now || Boolean(speaking)}>
        <summary class="head">${head}</summary>
        <div class="body">
          ${repeat(line.turns, (turn) => turn.number, (turn, at) =>
            drawn(turn, { ...about, goesOn: wentOn(line.turns, at) }))}
          ${speaking ? spoken(speaking, wentOn(line.turns, line.turns.length)) : nothing}
        </div>
      </details>
    </li>`;
  }

  /** @param {Run} run */
  _answer(run) {
    if (run.phase === "failed") {
      return html`<section class="result" data-tone="stop" aria-label="Error">
        <p>${run.error}</p>
      </section>`;
    }
    if (run.phase !== "completed" || !run.output) return nothing;
    return html`<section class="result" aria-labelledby="result">
      <h2 id="result">Result</h2>
      <p class="text">${run.output}</p>
    </section>`;
  }

  async _earlier() {
    const store = this.store;
    await this.attempt(async () => store?.turns.earlier());
    this.requestUpdate();
  }
}

/**
 * What the agent is saying now; empty where it speaks and nothing was heard of it so far.
 * @param {import("./run-store.js").RunStore} store @param {Run} run
 */
function saying(store, run) {
  const heard = [...store.live.values()].at(-1);
  if (heard) return heard;
  const speaks = run.in_flight.some((call) => !call.tool && call.form === "call");
  return speaks ? { text: "", thinking: "", tool: "", midway: true, since: 0 } : undefined;
}

/**
 * Return what drops the runtime's own "Back to …" where the agent's reply begins with it.
 * @param {import("./run-store.js").RunStore} store @param {import("./run-store.js").Saying} [speaking]
 */
function unsaid(store, speaking) {
  return (/** @type {Turn} */ turn) => {
    if (turn.role !== "runtime" || !SAID_AGAIN.has(turn.kind)) return true;
    if (speaking?.text.includes(turn.text)) return false;
    const later = store.turns.items.filter(({ number }) => number > turn.number);
    return !later.some(({ role, text }) => role === "assistant" && text.includes(turn.text));
  };
}

/**
 * Tell whether what follows goes on from a text that was cut off.
 * @param {Turn[]} turns @param {number} at
 */
function wentOn(turns, at) {
  const next = turns[at];
  if (next && (next.role !== "assistant" || !next.text)) return false;
  const before = turns.slice(0, at).findLast((turn) => turn.role !== "runtime");
  return before?.role === "assistant" && before.interrupted; // not an answer to somebody
}

/**
 * The plan's items, each with its turns; what was for none stands before or after.
 * @param {Run} run @param {Turn[]} turns @param {import("./shapes.js").Happened[]} events
 * @returns {Line[]}
 */
function planned(run, turns, events) {
  const were = formerly(events, run.rows);
  const first = turns.findIndex((turn) => turn.item > 0);
  const before = turns.slice(0, Math.max(first, 0)).filter((turn) => !turn.item);
  const after = (first < 0 ? turns : turns.slice(first)).filter(
    (turn) => !turn.item && !isResult(run, turn),
  );
  const now = run.rows.findLastIndex((row) => AT_WORK.has(row.look));
  let number = 0; // as "step 4 of 7" counts: what was dropped is no step
  const items = run.rows.map((row, at) => ({
    key: `item ${at}`,
    title: row.text,
    number: row.look === "dropped" ? "" : `${++number}. `,
    look: run.plan_held && row.look === "running" ? "held" : row.look,
    tool: row.tool,
    turns: turns.filter((turn) => turn.item === at + 1),
    was: were.get(at) ?? "",
    now: at === now,
  }));
  return [...other("before", "Before the plan", before), ...items, ...other("after", "After that", after)];
}

/** Tell whether a turn is what stands below as the result. @param {Run} run @param {Turn} turn */
const isResult = (run, turn) =>
  run.phase === "completed" && turn.text === run.output && !turn.thinking && !madeCalls(turn).length;

/** @param {string} key @param {string} title @param {Turn[]} turns @returns {Line[]} */
function other(key, title, turns) {
  if (!turns.length) return [];
  const look = turns.at(-1)?.look ?? "done";
  return [{ key, title, number: "", look, tool: tools(turns), turns, was: "", now: look === "running" }];
}

/**
 * Without a plan each reply of the agent is a step; what others said stands between them.
 * @param {Run} run @param {Turn[]} turns @returns {Line[]}
 */
function unplanned(run, turns) {
  const lines = turns.map((turn) => {
    const title = turn.text.split("\n")[0] || tools([turn]);
    return {
      key: `turn ${turn.number}`,
      title: title.length > 100 ? `${title.slice(0, 99)}…` : title,
      number: "",
      look: turn.role === "assistant" ? turn.look : "",
      tool: tools([turn]),
      turns: [turn],
      was: "",
      now: false,
    };
  });
  const last = lines.at(-1);
  if (last?.look && run.phase !== "completed") last.now = last.look !== "done";
  return lines;
}

/** @param {Turn[]} turns */
function tools(turns) {
  return [...new Set(turns.flatMap(madeCalls).map((call) => call.tool))].join(", ");
}

/** A step that has only begun. @param {number} number @returns {Line} */
function fresh(number) {
  return { key: `fresh ${number}`, title: "", number: "", look: "running", tool: "", turns: [], was: "", now: true };
}

customElements.define("midrun-steps", Steps);
