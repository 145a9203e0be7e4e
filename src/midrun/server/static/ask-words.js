// @ts-check
/** Asks in words: what they want to know, what they come with, who may decide. */

/** @typedef {import("./shapes.js").Ask} Ask */

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

/** @param {unknown} value */
export function pretty(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "string" ? value : JSON.stringify(value, null, 1);
}
