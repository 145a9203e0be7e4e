// @ts-check
/** Events of the feed in words, for the timeline. */

/** @typedef {import("./shapes.js").Happened} Happened */
import { MARKED } from "./emphasis.js";
import { exact } from "./template.js";

/** @typedef {"control" | "steps" | "tools" | "effects"} Group */

const GROUPS = /** @type {[RegExp, Group][]} */ ([
  [/^(undo|residue)\./, "effects"],
  [/^call\./, "tools"],
  [/^(plan|frame|answer|history|worker|stop|cap\.reached)/, "steps"],
  [/./, "control"],
]);

/** Return which filter shows an event. @param {Happened} event @returns {Group} */
export function group(event) {
  return GROUPS.find(([pattern]) => pattern.test(event.type))?.[1] ?? "control";
}

/**
 * Tell whether words waited for the run when it was resumed: then it does not go on as before.
 * @param {Happened[]} events @param {Happened} resumed
 */
export function hasNewCourse(events, resumed) {
  if (resumed.data.instruction) return true;
  const last = events.findLast(({ seq, type }) => seq < resumed.seq && type.startsWith("redirect."));
  return last?.type === "redirect.requested";
}

/**
 * Return an event's own words, where it has some.
 * @param {Happened} event @param {Happened[]} events all that are known @returns {string}
 */
export function words(event, events) {
  const { type, data } = event;
  switch (type) {
    case "run.resumed":
      if (data.instruction || data.reason) return data.instruction || data.reason;
      return hasNewCourse(events, event) ? "with new words" : "no changes";
    default:
      return own(event);
  }
}

/** What is said of an event whatever came before it. @param {Happened} event @returns {string} */
function own({ type, data }) {
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
    case "wheel.wrote":
      return data.text;
    case "redirect.applied":
      return `− ${data.minus} + ${data.plus}`;
    case "redirect.closed":
    case "message.closed":
      return `${data.why}: ${data.text}`;
    case "run.cancelling":
      return data.undo === "all" ? "and undo what can be undone" : data.reason;
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
      return data.reply?.text || shown(data.result);
    case "call.aborted":
      return data.text ? `stopped after “${data.text.trim()}”` : "stopped midway";
    case "call.unknown":
      return "nobody knows whether it happened";
    case "call.sealed":
      return data.why;
    case "call.settled":
      return { true: "it did happen", false: "it did not happen" }[String(data.happened)] ?? "";
    case "ask.opened":
      return data.question;
    case "ask.answered":
      return [data.decision.choice, shown(data.decision.value) || data.decision.reason]
        .filter(Boolean)
        .join(": ");
    case "ask.closed":
      return data.why;
    case "frame.pushed":
      return `holding “${data.goal}”`;
    case "frame.resumed":
    case "frame.reconstructed":
    case "frame.abandoned":
      return unmarked(data.words);
    case "plan.made":
      return planned(data.items);
    case "worker.took":
      return data.holder;
    case "wheel.used_tool":
      return data.tool;
    default:
      return data.reason ?? data.why ?? "";
  }
}

/** How far a plan is; what was dropped is not counted. @param {{mark: string}[]} items */
function planned(items) {
  const done = items.filter(({ mark }) => mark === "done").length;
  return `${done} of ${items.filter(({ mark }) => mark !== "dropped").length} done`;
}

/** The runtime's own words, without their emphasis. @param {string} text */
const unmarked = (text) => text.replace(MARKED, "$1");

/** @param {unknown} value */
function shown(value) {
  if (value === null || value === undefined) return "";
  return exact(typeof value === "string" ? value : JSON.stringify(value));
}
