// @ts-check
/** The lines of the control bar above its buttons: where the run stands, and what pends. */
import { nothing } from "./lit.js";
import { hasNewCourse } from "./happenings.js";
import { icon } from "./icons.js";
import { LOOKS, by, capValue, clock, count, money, signed, span, timeOfDay, whom } from "./words.js";
import { html } from "./template.js";

/** @typedef {import("./shapes.js").Run} Run */
/** @typedef {import("./run-store.js").RunStore} RunStore */

const OVER = new Set(["completed", "cancelled"]);
const MOVING = new Set(["running", "pausing", "cancelling", "halting"]);

/** Tell whether a run has come to its end. @param {Run} run */
export const isOver = (run) => OVER.has(run.phase);

/**
 * Badge, clock, place, what it is at, the way to what it is about, what is used.
 * @param {RunStore} store @param {Run} run @param {unknown} link as `wayTo` draws it
 */
export function top(store, run, link) {
  const lost = store.link === "lost";
  const { look, word, by: who } = lost
    ? { look: "lost", word: "Connection lost", by: "" }
    : run.sign;
  const [tone, border] = LOOKS[look] ?? LOOKS.queued;
  const moving = !lost && MOVING.has(look);
  return html`<div class="top">
    <span class="badge" part="badge" data-tone=${tone} data-border=${border}>
      ${icon(look, moving)}<span>${signed(word, who, run.you)}${lost ? "" : silence(store, run)}</span>
    </span>
    <span
      class=${run.working && !lost ? "clock" : "clock still"}
      role="timer"
      aria-label="Time at work"
      .textContent=${clock(store.elapsed)}
    ></span>
    <span class="mono">${place(run)}</span>
    <span class="at">
      <span class="note">${lost ? nothing : note(store, run)}</span>
      ${link}
    </span>
    ${used(run)}
  </div>`;
}

/** For how long nothing is heard of the worker. @param {RunStore} store @param {Run} run */
function silence(store, run) {
  const seconds = (store.now - Date.parse(run.silent_since)) / 1000;
  return run.lost && seconds >= 1 ? ` for at least ${span(seconds)}` : "";
}

/** Where it stands in its plan; a side question that made none stands nowhere in it. @param {Run} run */
function place(run) {
  const rows = run.rows.filter((row) => row.look !== "dropped");
  if (!rows.length) return run.place;
  const done = rows.filter((row) => row.look === "done").length;
  const still = isOver(run) || run.phase === "paused";
  if (still) return `${done} of ${rows.length} done`;
  return run.plan_held ? `held at ${run.place}` : run.place;
}

/** What it is at, and since when. @param {RunStore} store @param {Run} run */
function note(store, run) {
  const seconds = (store.now - Date.parse(run.since_at)) / 1000;
  const age = seconds < 1 ? "" : span(seconds);
  const parts = [run.sign.note];
  if (run.phase === "pausing") parts.push(age);
  else if (age && (run.phase === "paused" || run.phase === "waiting")) parts.unshift(`for ${age}`);
  return parts.filter(Boolean).join(" · ");
}

/** @param {Run} run */
function used(run) {
  const cost = run.caps.find((cap) => cap.name === "cost");
  if (cost) return html`<span class="used">${money(cost.used)} of ${money(cost.cap)}</span>`;
  const [cap] = run.caps;
  if (cap) {
    const [part, whole] = [capValue(cap.name, cap.used), capValue(cap.name, cap.cap)];
    // "step 2 of 7", of the plan, stands in the same line: this one says that it is a cap
    const steps = cap.name === "steps";
    const [before, after] = steps ? ["step cap ", ""] : ["", ` ${cap.name.replace("_", " ")}`];
    return html`<span class="used">${before}${part} of ${whole}${after}</span>`;
  }
  if (run.usage.cost_usd) return html`<span class="used">${money(run.usage.cost_usd)}</span>`;
  return nothing;
}

/** Since when nothing was heard. @param {RunStore} store */
export function lostLine(store) {
  if (store.link !== "lost") return nothing;
  return html`<div class="line">
    <span>
      As of <span class="mono">${timeOfDay(store.heardAt)}</span> — the run may still be working.
      Reconnecting; you are told if what you press cannot be sent.
    </span>
  </div>`;
}

/**
 * What a pause waits for, and how not to wait.
 * @param {RunStore} store @param {Run} run @param {(verb: string, body?: object) => void} send
 */
export function pausingLine(store, run, send) {
  if (run.phase !== "pausing" || !run.in_flight.length || run.lost) return nothing;
  const silent = run.in_flight.filter((call) => store.silent.has(call.id));
  if (silent.length) {
    return html`<div class="line">
      <span>${silent.map((call) => call.tool || "the model").join(", ")} does not respond.</span>
      <button class="link" @click=${() => send("force_pause")}>Stop waiting for it</button>
    </div>`;
  }
  const waited = store.now - Date.parse(run.since_at) > 10_000;
  if (!waited || run.hold_now) return nothing;
  return html`<div class="line">
    <span>${run.in_flight.map((call) => call.tool).join(", ")} takes its time.</span>
    <button class="link" @click=${() => send("pause", { mode: "now" })}>Stop this call now</button>
  </div>`;
}

/**
 * Words that wait for their boundary.
 * @param {Run} run
 * @param {(pending: import("./shapes.js").Pending) => void} withdraw
 * @param {(pending: import("./shapes.js").Pending) => void} hurry
 */
export function pendingLines(run, withdraw, hurry) {
  return run.pending.map((pending) => {
    const redirect = pending.kind === "redirect";
    const what = redirect ? "Redirect" : "Message";
    const until = pending.urgency === "later" ? "for the end of the task" : "for the next step";
    return html`<div class="line" data-tone="run">
      ${icon("redirect")}
      <span>
        ${what}${by(pending.by, run.you)} waits ${until}: “${pending.text}”
      </span>
      <button class="link" @click=${() => withdraw(pending)}>Withdraw</button>
      ${redirect && pending.when === "next_step" && run.phase === "running"
        ? html`<button class="link" @click=${() => hurry(pending)}>Apply now</button>`
        : nothing}
    </div>`;
  });
}

/**
 * What the last change of course was, until the run has taken its next step: one line in, and
 * one out where something is.
 * @param {RunStore} store @param {Run} run
 */
export function diffLines({ events }, run) {
  const at = events.findLastIndex(({ type }) => COURSE.test(type));
  if (at < 0 || hasMoved(events.slice(at + 1))) return nothing;
  const { type, data } = events[at];
  if (type === "run.resumed" && !hasNewCourse(events, events[at])) {
    return html`<div class="diff"><span data-sign="=">resumed, no changes</span></div>`;
  }
  if (type !== "redirect.applied") return nothing;
  return html`<div class="diff">
    ${isPlanned(run, data.minus)
      ? nothing
      : html`<span data-sign="−" data-tone="stop">${data.minus}</span>`}
    <span data-sign="+" data-tone="ok">${data.plus}</span>
  </div>`;
}

const COURSE = /^(redirect\.applied|run\.(resumed|pausing|paused|cancelling))$/;

/** Tell whether a step was taken since. @param {import("./shapes.js").Happened[]} events */
function hasMoved(events) {
  let first = "";
  let ended = false;
  for (const { type, data } of events) {
    if (type === "plan.made" || type === "ask.opened") return true;
    if (type === "call.done") ended = true;
    if (type !== "call.started") continue;
    if (ended && data.call_kind === first) return true;
    first ||= data.call_kind;
  }
  return false;
}

const GONE = new Set(["not_started", "dropped"]);

/** Tell whether the plan still has it. @param {Run} run @param {string} text cut to a line */
function isPlanned(run, text) {
  const begin = text.replace(/…$/, "");
  return run.rows.some(
    (row) => !GONE.has(row.look) && row.text.split(/\s+/).join(" ").startsWith(begin),
  );
}

/**
 * Words that came back because the run ended first.
 * @param {RunStore} store @param {Run} run @param {(text: string) => void} follow
 */
export function returnedLines(store, run, follow) {
  if (!isOver(run)) return nothing;
  const first = run.phase === "completed" ? "It finished first." : "It was cancelled first.";
  return store.events
    .filter(({ type, data }) => /\.closed$/.test(type) && data.why === "returned" && data.text)
    .map(
      ({ data }) => html`<div class="line">
        <span>${first} Your text: “${data.text}”</span>
        <button class="link" @click=${() => follow(data.text)}>Start a follow-up run</button>
      </div>`,
    );
}

/**
 * A call of which nobody knows whether it happened.
 * @param {Run} run
 * @param {(ask: import("./shapes.js").Ask, value: string) => void} settle
 */
export function unsureLines(run, settle) {
  return run.asks
    .filter((ask) => ask.kind === "unsure")
    .map(
      (ask) => html`<div class="line" data-ask=${ask.id}>
        <span>
          Did <b class="mono">${ask.tool}</b> go through? Nobody knows; look where it acts.
        </span>
        ${ask.may_decide
          ? html`<span class="row">
              <button @click=${() => settle(ask, "yes")}>It did</button>
              <button @click=${() => settle(ask, "no")}>It didn’t</button>
              <button @click=${() => settle(ask, "unknown")}>Don’t know</button>
            </span>`
          : html`<span class="dim">Somebody else has to say.</span>`}
      </div>`,
    );
}

/**
 * The way to what the run is about now, where the page shows it: what waits for an answer, or what
 * became of the work.
 * @param {Run} run
 * @param {{reach(): void} | null} asks @param {{reach(): void} | null} report
 */
export function wayTo(run, asks, report) {
  if (report && run.phase === "cancelled") return way("Read the report", report);
  const count = mine(run).length;
  if (!asks || !count || run.phase !== "waiting") return nothing;
  return way(count > 1 ? `Answer (${count})…` : "Answer…", asks);
}

/** What waits for an answer while the run goes on, and the way there. @param {Run} run @param {{reach(): void} | null} asks */
export function askLine(run, asks) {
  const count = mine(run).length;
  if (!asks || !count || run.phase === "waiting" || isOver(run)) return nothing;
  return html`<div class="line" data-tone="wait">
    ${icon("waiting")}<span>Needs your answer${count > 1 ? ` (${count})` : ""}</span>
    ${way("Answer…", asks)}
  </div>`;
}

/** @param {Run} run */
const mine = (run) => run.asks.filter((ask) => ask.kind !== "unsure" && ask.may_decide);

/** @param {string} label @param {{reach(): void}} there */
const way = (label, there) =>
  html`<button class="link" @click=${() => there.reach()}>${label}</button>`;

/**
 * The halt that a run is under, why, and the way to lift it; also of a run that had come to rest.
 * @param {RunStore} store @param {Run} run
 */
export function haltLine(store, { phase, halt, since_reason, you, role }) {
  const halted = phase === "halted";
  if (!halt && !halted) return nothing;
  const reason = (halted && since_reason) || halt?.reason;
  const holds = halted ? "" : `A halt${by(halt?.by ?? "", you)} holds: nothing of it starts. `;
  return html`<div class="line">
    ${halted ? nothing : icon("halted")}
    <span>${holds}${reason ? `Reason: ${reason}` : ""}</span>
    ${role === "operator" ? html`<a href=${`${store.api.base}/`}>Lift it on the list of runs</a>` : nothing}
  </div>`;
}

/** How long a held pause holds. @param {RunStore} store @param {Run} run */
export function holdLine(store, run) {
  if (!run.hold_until || isOver(run)) return nothing;
  const left = Math.max(0, Math.ceil((Date.parse(run.hold_until) - store.now) / 1000));
  const who = whom(run.since_by, run.you);
  const verb = who === "you" ? "decide" : "decides";
  return html`<div class="line dim">
    <span>Held while ${who} ${verb}; goes on by itself in ${count(left, "second")}.</span>
  </div>`;
}
