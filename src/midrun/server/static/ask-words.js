// @ts-check
/** Asks in words: what they want to know, what they come with, who may decide. */

import { exact } from "./template.js";
import { whom } from "./words.js";

/** @typedef {import("./shapes.js").Ask} Ask */
/** @typedef {import("./api.js").Problem} Problem */

/** @param {Ask} ask @param {string} tool */
export const question = (ask, tool) =>
  ask.of === "unsure" ? `Did ${tool} go through?` : `Let it use ${tool}?`;

/** What a question comes with; its options are the buttons. @param {any} data */
export function details(data) {
  if (typeof data !== "object" || Array.isArray(data)) return data;
  const { options: _, ...others } = data ?? {};
  return Object.keys(others).length ? others : null;
}

/** @param {Ask} ask */
export function waitsFor(ask) {
  if (ask.audience === "operator") return "An operator has to decide.";
  if (ask.audience.startsWith("user:")) return `${ask.audience.slice(5)} has to decide.`;
  return "Somebody else has to decide.";
}

/** Why a server refuses a decision that came after another one. */
const LOST = new Set(["already_answered", "ask_closed"]);
const MINE = /** @type {Record<string, string>} */ ({
  answer: "answer",
  approve: "approval",
  edit: "approval",
});

/** Tell whether a decision was refused because the ask was closed first. @param {Problem} problem */
export const isLost = (problem) => LOST.has(problem.reason);

/**
 * Say that a decision was not used, and which one was.
 * @param {Problem} problem @param {string} decision what the loser sent @param {string} you
 */
export function notUsed({ by, why }, decision, you) {
  const won = by ? `${whom(by, you)} ${why || "decided"} first` : why || "it was closed first";
  return `Your ${MINE[decision] ?? "decision"} was not used: ${won}.`;
}

/** Return a value as text with every hidden character shown. @param {unknown} value */
export const drawn = (value) => exact(pretty(value));

/** Return a value as text. @param {unknown} value */
export function pretty(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}
