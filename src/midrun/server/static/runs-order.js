// @ts-check
/** Which runs come first in a list, which belong under which chip, and what their cells say. */

/** @typedef {import("./runs-store.js").Line} Line */
/** @typedef {"all" | "attention" | "running" | "paused" | "finished"} Chip */

const URGENT = ["ask", "cap", "residue"];
const ORDER = ["paused", "halted", "pausing", "cancelling", "running", "queued", "failed"];

/** @type {Record<Chip, {label: string, fits: (line: Line) => boolean}>} */
export const CHIPS = {
  all: { label: "All", fits: () => true },
  attention: { label: "Needs you", fits: ({ work }) => work.yours },
  running: { label: "Running", fits: of("queued", "running", "pausing", "cancelling") },
  paused: { label: "Paused", fits: of("paused", "halted") },
  finished: { label: "Finished", fits: of("completed", "cancelled", "failed") },
};

/** @param {...string} phases @returns {(line: Line) => boolean} */
function of(...phases) {
  return (line) => phases.includes(line.phase);
}

/** Those that wait for a person, then those at rest, those at work, the rest by time. @param {Line} line */
function rank(line) {
  const urgent = URGENT.indexOf(line.attention);
  if (urgent >= 0) return urgent;
  const place = ORDER.indexOf(line.phase);
  return URGENT.length + (place >= 0 ? place : ORDER.length);
}

/** @param {Line} a @param {Line} b */
export const attentionFirst = (a, b) =>
  rank(a) - rank(b) || b.started_at.localeCompare(a.started_at);

/** @param {number} count */
export const named = (count) => (count === 1 ? "1 run" : `${count} runs`);

/** "step 4 of 7" as "4/7"; where a side question is at hand, the plan is held there. @param {Line} line */
export function step({ step, work }) {
  const [, at, of] = /^step (\d+) of (\d+)$/.exec(work.place) ?? [];
  if (!at) return String(step);
  return work.plan_held ? `held at ${at}/${of}` : `${at}/${of}`;
}
