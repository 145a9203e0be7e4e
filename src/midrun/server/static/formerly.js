// @ts-check
/** What plan items were before somebody changed the course. */

/** @typedef {import("./shapes.js").Happened} Happened */
/** @typedef {import("./shapes.js").Row} Row */

/**
 * Return, for each row that a redirect has changed, what stood there: the plan of now against
 * the last one before the redirect that came last. What was only moved has not changed.
 * @param {Happened[]} events @param {Row[]} rows @returns {Map<number, string>} by index
 */
export function formerly(events, rows) {
  const found = new Map();
  const turn = events.findLast(({ type }) => type === "redirect.applied");
  const before = turn && events.findLast(({ type, seq }) => type === "plan.made" && seq < turn.seq);
  if (!before) return found;
  const old = /** @type {string[]} */ (before.data.items.map((/** @type {Row} */ item) => item.text));
  const now = new Set(rows.map((row) => row.text));
  rows.forEach(({ text }, at) => {
    if (at < old.length && !old.includes(text) && !now.has(old[at])) found.set(at, old[at]);
  });
  return found;
}
