// @ts-check
/** Templates of turns: their text, the place where it was interrupted, and their folded calls. */
import { nothing } from "./lit.js";
import { openArtifact } from "./artifacts.js";
import { renderFiles } from "./file-view.js";
import { renderEmphasis } from "./emphasis.js";
import { STEP_STYLES, formatBy, formatTimeOfDay } from "./format.js";
import { icon } from "./icons.js";
import { renderMarkdown } from "./markdown-text.js";
import { formatCall, humanizeName, parseStructure, renderJsonText, renderValue } from "./call-text.js";
import { exact, html } from "./template.js";

/** @typedef {import("./types.js").TurnView} Turn */
/** @typedef {import("./types.js").CallLine} CallSummary */
/** @typedef {import("./run-store.js").LiveReply} LiveReply */
/**
 * `notes` are by call; `isLost`: the worker or the server is silent, so "running" is in doubt.
 * `artifacts`: all versions that calls have shown.
 * @typedef {{you: string, notes: Map<string, string>, base: string, isLost: boolean,
 *   store: import("./run-store.js").RunStore | null, artifacts: import("./types.js").ArtifactView[]}} TurnContext
 */

/** The tool that changes the plan; the plan itself is shown instead of its calls. */
const PLAN_TOOL = "plan";

/** Return the calls of a turn that are shown. @param {Turn} turn */
export const visibleCalls = (turn) => turn.calls.filter((call) => call.tool !== PLAN_TOOL);

/**
 * Tell whether a turn is shown. The task is not, it is the page's heading; nor is the line that
 * tells the model which topic is held, because a panel shows that to people.
 * @param {Turn} turn
 */
export const hasContent = (turn) =>
  (turn.kind !== "task" || turn.inherited) &&
  !(turn.role === "runtime" && turn.kind === "held") &&
  Boolean(turn.text || turn.thinking || turn.files?.length || visibleCalls(turn).length);

/** Tell whether a turn has calls and no words. @param {Turn} turn */
export const isOnlyCalls = (turn) =>
  turn.role === "assistant" && !turn.text && !turn.thinking && !turn.agent && visibleCalls(turn).length > 0;

/**
 * Render the icon and the label of a style.
 * @param {string} style @param {boolean} isLost whether the worker or the server is silent
 */
export function renderStyle(style, isLost) {
  const shown = isLost && style === "running" ? "unheard" : style;
  const [word, tone, shape] = STEP_STYLES[shown] ?? STEP_STYLES.queued;
  return html`<span class="style" data-style=${shown} data-tone=${tone}
    >${icon(shape, shown === "running")}<span>${word}</span></span
  >`;
}

/**
 * @param {Turn} turn
 * @param {TurnContext & {isContinuation: boolean}} context `isContinuation`: the text continues
 *   one that was interrupted
 */
export function renderTurn(turn, context) {
  const isPerson = turn.role === "user" || turn.kind === "person";
  const name = turn.role === "runtime" ? "Midrun" : isPerson ? turn.by || "Unnamed user" : "Agent";
  return html`<div class="turn" data-role=${turn.role} data-turn=${turn.number} ?data-calls=${isOnlyCalls(turn)}>
    ${turn.role === "assistant" && !isPerson
      ? turn.agent
        ? html`<span class="author">${turn.agent}</span>`
        : nothing
      : html`<span class="author">${name === context.you ? "You" : name}${
          turn.kind === "person" ? ", in the agent’s place" : ""
        }</span>`}
    ${turn.thinking
      ? html`<details class="thinking">
          <summary>Thinking</summary>
          <pre>${turn.thinking}</pre>
        </details>`
      : nothing}
    ${context.isContinuation ? html`<span class="break" data-tone="ok">continued here</span>` : nothing}
    ${turn.text ? renderText(turn) : nothing}
    ${renderFiles(context.store, turn.files)}
    ${turn.interrupted
      ? html`<span class="break" data-tone="hold">interrupted here; the text above is kept</span>`
      : nothing}
    ${visibleCalls(turn).map((call) => renderCall(call, context))}
  </div>`;
}

/** Render the text of a turn. The agent writes Markdown; the words of people are shown as written. @param {Turn} turn */
function renderText({ role, text }) {
  const value = role === "assistant" ? parseStructure(text) : null;
  if (value) return html`<div class="text">${renderValue(value)}</div>`; // a structured result
  if (role === "assistant") return renderMarkdown(text);
  return html`<p class="text">${role === "runtime" ? renderEmphasis(text) : text}</p>`;
}

/** @param {CallSummary} call @param {TurnContext} context */
function renderCall(call, context) {
  const note = context.notes.get(call.id);
  return html`<details class="call" data-call=${call.id}>
    <summary>
      ${renderStyle(call.style, context.isLost)}<span class="call-title">${formatCall(call)}</span>
      ${note ? html`<span class="dim note">${note}</span>` : nothing}
      ${call.error ? html`<span class="call-error">${formatCallError(call, context.you)}</span>` : nothing}
    </summary>
    <dl>
      ${renderDetail("Tool", exact(call.tool))} ${renderDetail("Why", call.why)}
      ${renderJson("Arguments", call.args === "{}" ? "" : call.args)} ${renderJson("Result", call.result)}
      ${renderDetail("Error", formatCallError(call, context.you))} ${renderDetail("Made", formatAttempt(call, context.you))}
    </dl>
  </details>${call.child
    ? html`<a class="shown child" href=${`${context.base}/runs/${call.child}`}>Open its run</a>`
    : nothing}${renderShown(call, context)}${renderFiles(context.store, call.files)}`;
}

/** Render a button for each artifact that a call has shown; it opens the panel. @param {CallSummary} call @param {TurnContext} context */
function renderShown({ id }, { artifacts }) {
  return artifacts
    .filter(({ call }) => call === id)
    .map(({ name, version }) => {
      const open = (/** @type {Event} */ event) => openArtifact(event.target, name, version);
      return html`<button class="link shown" aria-haspopup="dialog" @click=${open}>
        ${name}${version > 1 ? `, version ${version}` : ""}
      </button>`;
    });
}

/** Return the error of a call; the viewer who declined it is "you". @param {CallSummary} call @param {string} you */
function formatCallError({ error }, you) {
  const declined = `declined by ${you}`;
  const isYours = error === declined || error.startsWith(`${declined}:`);
  return exact(isYours ? `declined by you${error.slice(declined.length)}` : error);
}

/** Return the start of a call's last attempt. @param {CallSummary} call @param {string} you */
function formatAttempt(call, you) {
  if (!call.started_at) return "not yet";
  const attempts = call.attempts > 1 ? `, attempt ${call.attempts}` : "";
  return `at ${formatTimeOfDay(call.started_at)}${attempts}${call.by_person ? formatBy(you, "") : ""}`;
}

/** @param {string} name @param {string} text */
function renderDetail(name, text) {
  return text
    ? html`<dt>${name}</dt>
        <dd>${text}</dd>`
    : nothing;
}

/** @param {string} name @param {string} text JSON; a long one is cut */
function renderJson(name, text) {
  return text
    ? html`<dt>${name}</dt>
        <dd>${renderJsonText(text)}</dd>`
    : nothing;
}

/** Render the reply that is being streamed. @param {LiveReply} reply @param {boolean} isContinuation */
export function renderLiveReply(reply, isContinuation) {
  return html`<div class="turn" data-turn="Infinity">
    ${reply.thinking && !reply.text
      ? html`<p class="text dim">${reply.isPartial ? "… " : ""}${reply.thinking}</p>`
      : nothing}
    ${isContinuation && reply.text
      ? html`<span class="break" data-tone="ok">continued here</span>`
      : nothing}
    ${reply.text
      ? renderMarkdown((reply.isPartial ? "… " : "") + reply.text, true)
      : nothing}
    ${reply.isPartial && reply.text
      ? html`<p class="dim">The beginning is shown when the reply is finished.</p>`
      : nothing}
    ${reply.tool
      ? html`<p class="dim">Preparing a call: ${humanizeName(reply.tool)} …</p>`
      : reply.text || reply.thinking
        ? nothing
        : html`<p class="dim">${reply.isPartial ? "Writing …" : "Thinking …"}</p>`}
  </div>`;
}
