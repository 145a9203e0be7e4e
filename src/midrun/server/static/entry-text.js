// @ts-check
/** Short descriptions of the feed's events, for the timeline. */

/** @typedef {import("./types.js").FeedEvent} FeedEvent */
import { EMPHASIS } from "./emphasis.js";
import { exact } from "./template.js";

/** @typedef {"control" | "steps" | "tools" | "effects"} Group */

const GROUP_PATTERNS = /** @type {[RegExp, Group][]} */ ([
  [/^(undo|residue)\./, "effects"],
  [/^call\./, "tools"],
  [/^(plan|frame|answer|history|lease|stop|cap\.reached)/, "steps"],
  [/./, "control"],
]);

/** Return the timeline filter that an event belongs to. @param {FeedEvent} event @returns {Group} */
export function groupOf(event) {
  return GROUP_PATTERNS.find(([pattern]) => pattern.test(event.type))?.[1] ?? "control";
}

/**
 * Tell whether a resumed run got a new instruction, with the resume or by a pending redirect.
 * @param {FeedEvent[]} events @param {FeedEvent} resumed
 */
export function hasNewInstruction(events, resumed) {
  if (resumed.data.instruction) return true;
  const last = events.findLast(({ seq, type }) => seq < resumed.seq && type.startsWith("redirect."));
  return last?.type === "redirect.requested";
}

/**
 * Return the description of an event, "" where its type says it all.
 * @param {FeedEvent} event @param {FeedEvent[]} events all known ones @returns {string}
 */
export function describeEvent(event, events) {
  const { type, data } = event;
  switch (type) {
    case "run.resumed":
      if (data.instruction || data.reason) return data.instruction || data.reason;
      return hasNewInstruction(events, event) ? "with a new instruction" : "no changes";
    default:
      return describeAlone(event);
  }
}

/** Describe an event that needs no look at the events before it. @param {FeedEvent} event @returns {string} */
function describeAlone({ type, data }) {
  switch (type) {
    case "run.created":
      return data.task;
    case "run.imported":
      return `with a checkpoint that is ${data.kid ? "signed" : "not signed"}`;
    case "run.pausing":
      return data.now ? "now" : data.reason;
    case "run.paused":
      return data.why === "user" ? "" : data.why.replace("_", " ");
    case "redirect.requested":
    case "message.received":
    case "takeover.wrote":
      return data.text;
    case "redirect.applied":
      return `− ${data.minus} + ${data.plus}`;
    case "redirect.closed":
    case "message.closed":
      return `${data.why}: ${data.text}`;
    case "run.cancelling":
      return data.undo === "all" ? "and undo everything undoable" : data.reason;
    case "run.completed":
      return data.output;
    case "run.failed":
    case "call.failed":
    case "undo.failed":
    case "undo.gave_up":
      return data.error;
    case "run.halted":
      return data.reason;
    case "cap.reached":
      return data.stop;
    case "cap.raised":
      return Object.keys(data.caps).join(", ");
    case "call.started":
      return data.attempt > 1 ? `attempt ${data.attempt}` : "";
    case "call.done":
      return data.reply?.text || formatValue(data.result);
    case "call.aborted":
      return data.text ? `stopped after “${data.text.trim()}”` : "stopped midway";
    case "call.unknown":
      return "unknown whether it happened";
    case "call.sealed":
      return data.why;
    case "call.settled":
      return { true: "it did happen", false: "it did not happen" }[String(data.happened)] ?? "";
    case "ask.opened":
      return data.question;
    case "ask.answered":
      return [data.decision.choice, formatValue(data.decision.value) || data.decision.reason]
        .filter(Boolean)
        .join(": ");
    case "ask.closed":
      return data.why;
    case "frame.pushed":
      return `holding “${data.goal}”`;
    case "frame.resumed":
    case "frame.reconstructed":
    case "frame.abandoned":
      return withoutEmphasis(data.text);
    case "plan.made":
      return formatPlanProgress(data.items);
    case "lease.taken":
      return data.holder;
    case "takeover.tool_requested":
      return data.tool;
    default:
      return data.reason ?? data.why ?? "";
  }
}

/** Return how many items of a plan are done; dropped items do not count. @param {{state: string}[]} items */
function formatPlanProgress(items) {
  const done = items.filter(({ state }) => state === "done").length;
  return `${done} of ${items.filter(({ state }) => state !== "dropped").length} done`;
}

/** Return text of the runtime without its emphasis. @param {string} text */
const withoutEmphasis = (text) => text.replace(EMPHASIS, "$1");

/** Return a value on one line, hidden characters shown. @param {unknown} value */
function formatValue(value) {
  if (value === null || value === undefined) return "";
  return exact(typeof value === "string" ? value : JSON.stringify(value));
}
