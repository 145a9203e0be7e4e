// @ts-check
/** Texts of asks: the person who may decide, refused decisions. */

import { formatBrief, humanizeName, parseStructure } from "./call-text.js";
import { exact } from "./template.js";
import { youOr } from "./format.js";

/** @typedef {import("./run-store.js").Ask} Ask */
/** @typedef {import("./api.js").Problem} Problem */

/** Return the data of a question without its options, which become buttons. @param {any} data */
export function withoutOptions(data) {
  if (typeof data !== "object" || Array.isArray(data)) return data;
  const { options: _, ...others } = data ?? {};
  return Object.keys(others).length ? others : null;
}

/** Name the person or role that has to decide. @param {Ask} ask */
export function formatDecider(ask) {
  if (ask.audience === "operator") return "An operator has to decide.";
  if (ask.audience.startsWith("user:")) return `${ask.audience.slice(5)} has to decide.`;
  return "Another person has to decide.";
}

/** The reasons of a refusal because the ask was decided or closed before. */
const TOO_LATE_REASONS = new Set(["already_answered", "ask_closed"]);
const DECISION_NOUNS = /** @type {Record<string, string>} */ ({
  answer: "answer",
  approve: "approval",
  edit: "approval",
});

/** Tell whether a decision was refused because the ask was closed before. @param {Problem} problem */
export const isTooLate = (problem) => TOO_LATE_REASONS.has(problem.reason);

/**
 * Say that a decision was not used, and which one was.
 * @param {Problem} problem @param {string} decision the viewer's @param {string} you
 */
export function formatTooLate({ by, refusal }, decision, you) {
  const winner = by ? `${youOr(by, you)} ${refusal || "decided"} first` : refusal || "it was closed first";
  return `Your ${DECISION_NOUNS[decision] ?? "decision"} was not used: ${winner}.`;
}

/** Return a value as text with every hidden character shown. @param {unknown} value */
export const formatExact = (value) => exact(formatValue(value));

/** Return a value as text: a string as it is, everything else in a few words. @param {unknown} value */
export function formatValue(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : formatBrief(value);
}

/** Name the arguments that an approval has changed. @param {any} before @param {any} after */
export function namesOfChanged(before, after) {
  const names = Object.keys({ ...before, ...after });
  const changed = names.filter((name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]));
  return changed.map((name) => `“${humanizeName(name)}”`).join(", ") || "argument";
}

/** Return a draft as the viewer knows it: edited arguments as one line each. @param {string} draft */
export function formatTyped(draft) {
  const value = parseStructure(draft);
  if (!value || Array.isArray(value)) return draft.trim();
  const entries = Object.entries(value).map(([key, one]) => `${humanizeName(key)}: ${formatValue(one)}`);
  return entries.join("\n");
}
