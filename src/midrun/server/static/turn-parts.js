// @ts-check
/** Turns as they are drawn: what was said, where it was cut off, and the calls, folded. */
import { nothing } from "./lit.js";
import { emphatic, led } from "./emphasis.js";
import { icon } from "./icons.js";
import { STEP_LOOKS, by, timeOfDay } from "./words.js";
import { exact, html } from "./template.js";

/** @typedef {import("./shapes.js").Turn} Turn */
/** @typedef {import("./shapes.js").CallLine} CallLine */
/** @typedef {import("./run-store.js").Saying} Saying */

/** The agent's own list is drawn as the list, not as a call. */
const PLAN = "plan";

/** Return the calls that are worth showing. @param {Turn} turn */
export const madeCalls = (turn) => turn.calls.filter((call) => call.tool !== PLAN);

/** Tell whether there is anything to draw; the task is the page's heading. @param {Turn} turn */
export const hasContent = (turn) =>
  (turn.kind !== "task" || turn.earlier) && Boolean(turn.text || turn.thinking || madeCalls(turn).length);

/**
 * Where something stands: icon and word.
 * @param {string} look @param {boolean} lost whether nothing is heard of the worker, or the server
 */
export function standing(look, lost) {
  const shown = lost && look === "running" ? "unheard" : look;
  const [word, tone, shape] = STEP_LOOKS[shown] ?? STEP_LOOKS.queued;
  return html`<span class="standing" data-tone=${tone}
    >${icon(shape, shown === "running")}<span>${word}</span></span
  >`;
}

/**
 * @param {Turn} turn
 * @param {{you: string, goesOn: boolean, notes: Map<string, string>, base: string,
 *   lost: boolean}} about
 *   `goesOn`: the text goes on from one that was cut off
 */
export function drawn(turn, about) {
  const person = turn.role === "user" || turn.kind === "person";
  const name = turn.role === "runtime" ? "Midrun" : person ? turn.by || "Somebody" : "Agent";
  return html`<div class="turn" data-role=${turn.role} data-turn=${turn.number}>
    ${turn.role === "assistant" && !person
      ? nothing
      : html`<span class="who">${name === about.you ? "You" : name}${
          turn.kind === "person" ? ", as the assistant" : ""
        }</span>`}
    ${turn.thinking
      ? html`<details class="thinking">
          <summary>Thinking</summary>
          <pre>${turn.thinking}</pre>
        </details>`
      : nothing}
    ${about.goesOn ? html`<span class="mark" data-tone="ok">went on here</span>` : nothing}
    ${turn.text
      ? html`<p class="text">${turn.role === "runtime" ? emphatic(turn.text) : led(turn.text)}</p>`
      : nothing}
    ${turn.interrupted
      ? html`<span class="mark" data-tone="hold">interrupted here; the text above is kept</span>`
      : nothing}
    ${madeCalls(turn).map((call) => called(call, about))}
  </div>`;
}

/**
 * @param {CallLine} call
 * @param {{you: string, notes: Map<string, string>, base: string, lost: boolean}} about
 */
function called(call, about) {
  const note = about.notes.get(call.id);
  return html`<details class="call" data-call=${call.id}>
    <summary>
      ${standing(call.look, about.lost)}<code>${exact(call.tool)}</code><code class="dim brief">${call.args === "{}" ? "" : exact(call.args)}</code>
      ${note ? html`<span class="dim">${note}</span>` : nothing}
    </summary>
    <dl>
      ${entry("Why", call.why)} ${coded("Arguments", call.args)} ${coded("Result", call.result)}
      ${entry("Error", exact(call.error))} ${entry("Made", times(call, about.you))}
      ${call.child
        ? html`<dt>Child run</dt>
            <dd><a href=${`${about.base}/runs/${call.child}`}>${call.child}</a></dd>`
        : nothing}
    </dl>
  </details>`;
}

/** @param {CallLine} call @param {string} you */
function times(call, you) {
  if (!call.started_at) return "not yet";
  const attempts = call.attempts > 1 ? `, attempt ${call.attempts}` : "";
  return `at ${timeOfDay(call.started_at)}${attempts}${call.by_hand ? by(you, "") : ""}`;
}

/** @param {string} name @param {string} text */
function entry(name, text) {
  return text
    ? html`<dt>${name}</dt>
        <dd>${text}</dd>`
    : nothing;
}

/** @param {string} name @param {string} text JSON, as far as it goes */
function coded(name, text) {
  return text
    ? html`<dt>${name}</dt>
        <dd><pre>${exact(indented(text))}</pre></dd>`
    : nothing;
}

/** @param {string} text */
function indented(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" ? JSON.stringify(value, null, 2) : text;
  } catch {
    return text;
  }
}

/** What the agent is saying now. @param {Saying} saying @param {boolean} goesOn */
export function spoken(saying, goesOn) {
  return html`<div class="turn" data-turn="Infinity">
    ${saying.thinking && !saying.text
      ? html`<p class="text dim">${saying.midway ? "… " : ""}${saying.thinking}</p>`
      : nothing}
    ${goesOn && saying.text
      ? html`<span class="mark" data-tone="ok">went on here</span>`
      : nothing}
    ${saying.text
      ? html`<p class="text">${saying.midway ? "… " : ""}${led(saying.text)}<span class="caret" aria-hidden="true"></span></p>`
      : nothing}
    ${saying.midway && saying.text
      ? html`<p class="dim">What came before is shown when it is finished.</p>`
      : nothing}
    ${saying.tool
      ? html`<p class="dim">writes a call of <code>${saying.tool}</code> …</p>`
      : saying.text || saying.thinking
        ? nothing
        : html`<p class="dim">${saying.midway ? "writing …" : "thinking …"}</p>`}
  </div>`;
}
