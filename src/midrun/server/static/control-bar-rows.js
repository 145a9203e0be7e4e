// @ts-check
/** The rows of the control bar above its buttons: the run's status, and everything pending. */
import { humanizeName } from "./call-text.js";
import { nothing } from "./lit.js";
import {
  FINISHED_PHASES,
  STATUS_STYLES,
  formatAge,
  formatBy,
  formatCapValue,
  formatClock,
  formatCount,
  formatDate,
  formatMoney,
  formatStatus,
  formatTimeOfDay,
  youOr,
} from "./format.js";
import { icon } from "./icons.js";
import { html } from "./template.js";

/** @typedef {import("./run-store.js").Run} Run */
/** @typedef {import("./run-store.js").RunStore} RunStore */

/** A pause that takes longer offers to stop the calls that it waits for. */
const LONG_PAUSE_MS = 10_000;
/** Characters of a question on the bar; the card has all of it. */
const ASK_MAX_CHARS = 80;
/** The HTTP status for a run that does not exist, or that the viewer may not see. */
const GONE = 404;
/** Looks whose icon is animated. */
const MOVING_STYLES = new Set(["running", "pausing", "cancelling", "halting"]);

/** Tell whether a run is completed or cancelled. @param {Run} run */
export const isFinished = (run) => FINISHED_PHASES.has(run.phase);

/**
 * Render the status row: badge, clock, plan position, current activity, a link, usage.
 * @param {RunStore} store @param {Run} run @param {unknown} link as `renderJumpLink` returns it
 * @param {() => void} showKeys
 */
export function renderStatusRow(store, run, link, showKeys) {
  const isLost = store.connection === "lost";
  const status = isLost ? { style: "lost", word: "Connection lost", by: "" } : run.status;
  const { style } = status;
  const [tone, border] = STATUS_STYLES[style] ?? STATUS_STYLES.queued;
  const isMoving = !isLost && MOVING_STYLES.has(style);
  const silence = isLost ? "" : formatSilence(store, run);
  return html`<div class="status">
    <span class="badge" part="badge" data-tone=${tone} data-border=${border}>
      ${icon(style, isMoving)}<span>${formatStatus(status, run.you)}${silence}</span>
    </span>
    <span
      class=${run.working && !isLost ? "clock" : "clock stopped"}
      role="timer"
      aria-label="Time at work"
      .textContent=${formatClock(store.elapsed)}
    ></span>
    <span class="place">${run.position}</span>
    <span class="activity">
      <span class="note">${isLost ? nothing : formatNote(store, run)}</span>
      ${link}
    </span>
    ${renderUsage(run)}
    <button class="keys" aria-label="Keys" title="Keys (?)" @click=${showKeys}>?</button>
  </div>`;
}

/** Return the time since the last sign of life of a lost worker. @param {RunStore} store @param {Run} run */
function formatSilence(store, run) {
  const seconds = (store.now - Date.parse(run.worker_silent_since)) / 1000;
  return run.worker_lost && seconds >= 1 ? ` for at least ${formatAge(seconds)}` : "";
}

/** Return the note of the status line with the time in this phase. @param {RunStore} store @param {Run} run */
function formatNote(store, run) {
  const seconds = (store.now - Date.parse(run.phase_at)) / 1000;
  const age = seconds < 1 ? "" : formatAge(seconds);
  const parts = [run.status.note];
  if (run.phase === "pausing") parts.push(age);
  else if (age && (run.phase === "paused" || run.phase === "waiting")) parts.unshift(`for ${age}`);
  return parts.filter(Boolean).join(" · ");
}

/** Render the most important cap and its use: cost, else the first cap. @param {Run} run */
function renderUsage(run) {
  const cost = run.caps.find((cap) => cap.name === "cost");
  if (cost) return html`<span class="usage">${formatMoney(cost.used)} of ${formatMoney(cost.cap)}</span>`;
  const [cap] = run.caps;
  if (cap) {
    const [used, limit] = [formatCapValue(cap.name, cap.used), formatCapValue(cap.name, cap.cap)];
    const noun = cap.name === "steps" ? "turns" : cap.name.replace("_", " ");
    return html`<span class="usage">${used} of ${limit} ${noun}</span>`;
  }
  if (run.usage.cost_usd) return html`<span class="usage">${formatMoney(run.usage.cost_usd)}</span>`;
  return nothing;
}

/**
 * Render why a run cannot be shown: it was deleted, it does not exist, or the server refuses it.
 * @param {import("./api.js").Problem} problem @param {string} base URL of the server
 */
export function renderProblem({ erasure, status, message }, base) {
  const list = html`<p><a href=${`${base}/`}>All runs</a></p>`;
  if (erasure) {
    const why = erasure.why ? ` The reason: ${erasure.why}` : "";
    return html`<h2>This run was deleted</h2>
      <p>Deleted${formatBy(erasure.by, "")} on ${formatDate(erasure.at)}.${why}</p>
      <p class="dim">Its transcript, its files and its timeline are gone. What it did outside of Midrun stays done.</p>
      ${list}`;
  }
  if (status !== GONE) return html`<p>${message}</p>`;
  return html`<h2>This run is not here</h2>
    <p>It was deleted, it never existed, or you may not see it.</p>
    <p class="dim">${message}</p>
    ${list}`;
}

/** Say since when the connection is lost. @param {RunStore} store */
export function renderLostRow(store) {
  if (store.connection !== "lost") return nothing;
  return html`<div class="line">
    <span>
      As of <span class="mono">${formatTimeOfDay(store.heardAt)}</span> — the run may still be working.
      Reconnecting; the page tells you if a press cannot be sent.
    </span>
  </div>`;
}

/** Return the title of a call, else its name as words. @param {{title: string, tool: string}} call */
const nameCall = ({ title, tool }) => title || humanizeName(tool) || "The model";

/**
 * Say which calls a pause waits for, and offer to stop them.
 * @param {RunStore} store @param {Run} run @param {(verb: string, body?: object) => void} send
 */
export function renderPausingRow(store, run, send) {
  if (run.phase !== "pausing" || !run.in_flight.length || run.worker_lost) return nothing;
  const unresponsive = run.in_flight.filter((call) => store.unresponsiveCalls.has(call.id));
  if (unresponsive.length) {
    return html`<div class="line">
      <span>${unresponsive.map(nameCall).join(", ")} does not respond.</span>
      <button class="link" @click=${() => send("force_pause")}>Stop waiting for it</button>
    </div>`;
  }
  const isLong = store.now - Date.parse(run.phase_at) > LONG_PAUSE_MS;
  if (!isLong || run.hold_now) return nothing; // with `hold_now` the calls are being stopped
  return html`<div class="line">
    <span>${run.in_flight.map(nameCall).join(", ")} is still running.</span>
    <button class="link" @click=${() => send("pause", { mode: "now" })}>Stop this call now</button>
  </div>`;
}

/**
 * Render the redirects and messages that wait for their turn.
 * @param {Run} run
 * @param {(pending: import("./types.js").PendingView) => void} withdraw
 * @param {(pending: import("./types.js").PendingView) => void} applyNow
 */
export function renderPendingRows(run, withdraw, applyNow) {
  return run.pending.map((pending) => {
    const isRedirect = pending.kind === "redirect";
    const noun = isRedirect ? "Redirect" : "Question";
    const until = pending.urgency === "later" ? "for the end of the task" : "for the next turn";
    return html`<div class="line" data-tone=${isRedirect ? "run" : "wait"}>
      ${icon(isRedirect ? "redirect" : "ask")}
      <span>
        ${noun}${formatBy(pending.by, run.you)} waits ${until}: “${pending.text}”${formatFileCount(pending.files)}
      </span>
      <button class="link" @click=${() => withdraw(pending)}>Withdraw</button>
      ${isRedirect && pending.when === "next_step" && run.phase === "running"
        ? html`<button class="link" @click=${() => applyNow(pending)}>Apply now</button>`
        : nothing}
    </div>`;
  });
}

/** @param {unknown[] | undefined} files */
const formatFileCount = (files) => (files?.length ? `, with ${formatCount(files.length, "file")}` : "");

/**
 * Render the last redirect as a diff, until the run has taken its next step: a line for the new
 * instruction, and one for the work that it replaced.
 * @param {RunStore} store @param {Run} run
 */
export function renderDiffRows({ events }, run) {
  const at = events.findLastIndex(({ type }) => DIFF_EVENTS.test(type));
  if (at < 0 || hasTakenStep(events.slice(at + 1))) return nothing;
  const { type, data } = events[at];
  if (type === "run.resumed" && !hasNewInstruction(events, events[at])) {
    return html`<div class="line dim"><span>Resumed; nothing was changed.</span></div>`;
  }
  if (type !== "redirect.applied") return nothing;
  return html`<div class="diff">
    <span data-symbol="+" data-tone="ok">New instruction: “${data.plus}”</span>
    ${isInPlan(run, data.minus)
      ? nothing
      : html`<span data-symbol="−" data-tone="stop">Instead of: ${data.minus}</span>`}
  </div>`;
}

/**
 * Tell whether a resumed run got a new instruction, with the resume or by a pending redirect.
 * @param {import("./types.js").FeedEvent[]} events @param {import("./types.js").FeedEvent} resumed
 */
function hasNewInstruction(events, resumed) {
  if (resumed.data.instruction) return true;
  const last = events.findLast(({ seq, type }) => seq < resumed.seq && type.startsWith("redirect."));
  return last?.type === "redirect.requested";
}

/** Events that show or remove the diff. */
const DIFF_EVENTS = /^(redirect\.applied|run\.(resumed|pausing|paused|cancelling))$/;

/**
 * Tell whether the run has taken a step in these events: it made a plan, asked, or started a
 * second call of the same kind as its first one after a call was done.
 * @param {import("./types.js").FeedEvent[]} events
 */
function hasTakenStep(events) {
  let firstKind = "";
  let isOneDone = false;
  for (const { type, data } of events) {
    if (type === "plan.made" || type === "ask.opened") return true;
    if (type === "call.done") isOneDone = true;
    if (type !== "call.started") continue;
    if (isOneDone && data.call_kind === firstKind) return true;
    firstKind ||= data.call_kind;
  }
  return false;
}

const DROPPED_STYLES = new Set(["not_started", "dropped"]);

/** Tell whether the plan still has an item. @param {Run} run @param {string} text shortened to one line */
function isInPlan(run, text) {
  const start = text.replace(/…$/, "");
  return run.plan_rows.some(
    (item) => !DROPPED_STYLES.has(item.style) && item.text.split(/\s+/).join(" ").startsWith(start),
  );
}

/**
 * Render the texts that were returned unused because the run finished before.
 * @param {RunStore} store @param {Run} run @param {(text: string) => void} startFollowUp
 */
export function renderReturnedRows(store, run, startFollowUp) {
  if (!isFinished(run)) return nothing;
  const cause = run.phase === "completed" ? "finished" : "was cancelled";
  return store.events
    .filter(({ type, data }) => /\.closed$/.test(type) && data.why === "returned" && data.text)
    .map(
      ({ data }) => html`<div class="line">
        <span>Your text was not used, because the run ${cause} first: “${data.text}”</span>
        <button class="link" @click=${() => startFollowUp(data.text)}>Start a follow-up run</button>
      </div>`,
    );
}

/**
 * Ask whether a call of unknown outcome took effect.
 * @param {Run} run
 * @param {(ask: import("./run-store.js").Ask, value: string) => void} settle
 */
export function renderUnsureRows(run, settle) {
  return run.asks
    .filter((ask) => ask.kind === "unsure")
    .map(
      (ask) => html`<div class="line" data-ask=${ask.id}>
        <span>
          Did <b>${nameCall(ask)}</b> go through? Its outcome is unknown; check the system it acts on.
        </span>
        ${ask.may_decide
          ? html`<span class="row">
              <button @click=${() => settle(ask, "yes")}>It did</button>
              <button @click=${() => settle(ask, "no")}>It didn’t</button>
              <button @click=${() => settle(ask, "unknown")}>Don’t know</button>
            </span>`
          : html`<span class="dim">Another person has to answer.</span>`}
      </div>`,
    );
}

/**
 * Render the button that scrolls to the asks of a waiting run, the report of a cancelled one, or
 * the result. Each panel is null where the page does not show it, and while it is not loaded.
 * @param {Run} run @param {{reveal(): void} | null} asks
 * @param {{reveal(): void} | null} report @param {{reveal(): void} | null} result
 */
export function renderJumpLink(run, asks, report, result) {
  if (report && run.phase === "cancelled") return renderRevealButton("Read the report", report);
  if (result && run.phase === "completed" && run.output) return renderRevealButton("Read the result", result);
  const count = asksForViewer(run).length;
  if (!asks || !count || run.phase !== "waiting") return nothing;
  return renderRevealButton(count > 1 ? `Answer (${count})…` : "Answer…", asks);
}

/** Render the asks of a run that goes on meanwhile. @param {Run} run @param {{reveal(): void} | null} asks */
export function renderAskRow(run, asks) {
  const count = asksForViewer(run).length;
  if (!asks || !count || run.phase === "waiting" || isFinished(run)) return nothing;
  return html`<div class="line" data-tone="wait">
    ${icon("waiting")}<span>Needs your answer${count > 1 ? ` (${count})` : html`: ${nameAsk(asksForViewer(run)[0])}`}</span>
    ${renderRevealButton("Answer…", asks)}
  </div>`;
}

/** Return an ask in a few words: its question on one line. @param {import("./run-store.js").Ask} ask */
function nameAsk({ question, title, kind, of }) {
  const text = ((of ?? kind) === "approval" && title) || question || title;
  const line = text.replace(/[*`]+/g, "").trim().split("\n", 1)[0];
  return line.length > ASK_MAX_CHARS ? `${line.slice(0, ASK_MAX_CHARS - 1)}…` : line;
}

/** @param {Run} run */
const asksForViewer = (run) => run.asks.filter((ask) => ask.kind !== "unsure" && ask.may_decide);

/** @param {string} label @param {{reveal(): void}} panel */
const renderRevealButton = (label, panel) =>
  html`<button class="link" @click=${() => panel.reveal()}>${label}</button>`;

/**
 * Render the halt that a run is under, its reason, and a link for operators to lift it. A paused
 * run stays paused under a halt, and shows it too.
 * @param {RunStore} store @param {Run} run
 */
export function renderHaltRow(store, { phase, halt, phase_reason, you, role }) {
  const isHalted = phase === "halted";
  if (!halt && !isHalted) return nothing;
  const reason = (isHalted && phase_reason) || halt?.reason;
  const effect = isHalted ? "" : `Under a halt${formatBy(halt?.by ?? "", you)}: it cannot start anything. `;
  return html`<div class="line">
    ${isHalted ? nothing : icon("halted")}
    <span>${effect}${reason ? `Reason: ${reason}` : ""}</span>
    ${role === "operator" ? html`<a href=${`${store.api.base}/`}>Lift it on the list of runs</a>` : nothing}
  </div>`;
}

/** Render the time that is left of a held pause. @param {RunStore} store @param {Run} run */
export function renderHoldRow(store, run) {
  if (!run.hold_until || isFinished(run)) return nothing;
  const seconds = Math.max(0, Math.ceil((Date.parse(run.hold_until) - store.now) / 1000));
  const holder = youOr(run.phase_by, run.you);
  const verb = holder === "you" ? "decide" : "decides";
  return html`<div class="line dim">
    <span>Paused while ${holder} ${verb}; continues by itself in ${formatCount(seconds, "second")}.</span>
  </div>`;
}
