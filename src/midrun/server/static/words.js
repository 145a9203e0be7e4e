// @ts-check
/** Words and figures that elements share: clocks, ages, money, names. */

/** @typedef {import("./shapes.js").Run} Run */

/** Return "01:02:03". @param {number} seconds */
export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return [whole / 3600, (whole / 60) % 60, whole % 60]
    .map((part) => String(Math.floor(part)).padStart(2, "0"))
    .join(":");
}

/** Return how long something has lasted: "4 s", "3 min", "2 h", "5 d". @param {number} seconds */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 172_800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86_400)} d`;
}

/** Return the time of day. @param {string | number} at RFC 3339, or milliseconds */
export function timeOfDay(at) {
  const date = new Date(at);
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** @param {number} usd */
export function money(usd) {
  return `$${usd.toFixed(2)}`;
}

/** Return who did something as whoever looks calls them. @param {string} name @param {string} you */
export function whom(name, you) {
  return name === you ? "you" : name;
}

/** Return " by you", or nothing where nobody did it. @param {string} name @param {string} you */
export function by(name, you) {
  return name ? ` by ${whom(name, you)}` : "";
}

const FIRST = /** @type {Record<string, string>} */ ({
  already_pausing: "paused",
  already_paused: "paused",
  already_cancelling: "cancelled",
  already_cancelled: "cancelled",
});

/**
 * Say that a control changed nothing because another person's came first; else say nothing.
 * @param {import("./shapes.js").Receipt | undefined} receipt @param {string} verb @param {string} you
 */
export function overtaken(receipt, verb, you) {
  const did = FIRST[receipt?.already ?? ""];
  if (!receipt?.by || receipt.by === you || !did) return "";
  return `Your ${verb} was not used: ${receipt.by} ${did} first.`;
}

/**
 * Return a sign's word with who did it: "Cancelled by you — 1 undo failed".
 * @param {string} word @param {string} name @param {string} you
 */
export function signed(word, name, you) {
  const [what, ...more] = word.split(" — ");
  return [what + by(name, you), ...more].join(" — ");
}

/** @param {number} number @param {string} noun */
export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

const UNITS = /** @type {Record<string, [string, string]>} */ ({
  steps: ["Steps", ""],
  tokens: ["Tokens", ""],
  cost: ["Cost", "$"],
  time: ["Time at work", "s"],
  tool_calls: ["Tool calls", ""],
  repeats: ["Same calls in a row", ""],
});

/** Return what a cap is called. @param {string} name */
export function capName(name) {
  return UNITS[name]?.[0] ?? name;
}

/** Return a figure of a cap. @param {string} name @param {number} value */
export function capValue(name, value) {
  if (name === "cost") return money(value);
  if (name === "time") return clock(value);
  return Math.round(value).toLocaleString("en");
}

/** How a look is drawn: tone and border; the icon goes by the look itself. */
export const LOOKS = /** @type {Record<string, [string, string]>} */ ({
  queued: ["dim", "dashed"],
  running: ["run", "solid"],
  pausing: ["hold", "dashed"],
  paused: ["hold", "filled"],
  waiting: ["wait", "solid"],
  cancelling: ["stop", "dashed"],
  cancelled: ["stop", "filled"],
  completed: ["ok", "filled"],
  failed: ["stop", "filled"],
  halted: ["stop", "filled"],
  halting: ["stop", "dashed"],
  lost: ["fg", "dashed"],
});

/** Where an item or a call stands: what it is called, its tone, its icon. */
export const STEP_LOOKS = /** @type {Record<string, [string, string, string]>} */ ({
  queued: ["Queued", "dim", "queued"],
  running: ["Running", "run", "running"],
  held: ["Held", "hold", "paused"],
  needs_you: ["Needs you", "wait", "waiting"],
  done: ["Done", "ok", "completed"],
  undone: ["Undone", "hold", "undo"],
  stopped: ["Stopped", "stop", "stopped"],
  not_started: ["Not started", "dim", "dropped"],
  dropped: ["Dropped", "dim", "dropped"],
  unheard: ["No word", "fg", "lost"],
  left_open: ["Left open", "dim", "dropped"],
  failed: ["Failed", "stop", "failed"],
});
