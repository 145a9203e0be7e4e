// @ts-check
/** Formatting that elements share: clocks, ages, money, names, and the style of each status. */

/** Format a duration as "01:02:03". @param {number} seconds */
export function formatClock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  return [whole / 3600, (whole / 60) % 60, whole % 60]
    .map((part) => String(Math.floor(part)).padStart(2, "0"))
    .join(":");
}

/** Format a duration in its largest unit: "4 s", "3 min", "2 h", "5 d". @param {number} seconds */
export function formatAge(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 172_800) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86_400)} d`;
}

/** Format a local time of day as "14:05:09". @param {string | number} at RFC 3339, or milliseconds */
export function formatTimeOfDay(at) {
  const date = new Date(at);
  return [date.getHours(), date.getMinutes(), date.getSeconds()]
    .map((part) => String(part).padStart(2, "0"))
    .join(":");
}

/** Format a duration in words: "4 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". @param {number} seconds */
export function formatDuration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const units = /** @type {[number, string][]} */ ([
    [86_400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ]);
  const first = units.findIndex(([size]) => whole >= size);
  if (first < 0) return "0 s";
  const [[size, unit], next] = [units[first], units[first + 1]];
  const rest = next ? Math.floor((whole % size) / next[0]) : 0;
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${next[1]}` : ""}`;
}

/** Format a local date and time as "2026-11-18 14:05". @param {string | number} at RFC 3339, or milliseconds */
export function formatDate(at) {
  const date = new Date(at);
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${day.join("-")} ${formatTimeOfDay(at).slice(0, 5)}`;
}

/** Return the end of an id, which is enough for the command line. @param {string} id */
export const formatShortId = (id) => id.slice(-6).toLowerCase();

/** @param {number} usd */
export function formatMoney(usd) {
  return `$${usd.toFixed(2)}`;
}

/** Return "you" for the viewer's own name, else the name. @param {string} name @param {string} you */
export function youOr(name, you) {
  return name === you || (name === "the user" && you === "user") ? "you" : name; // as `format_actor` names it
}

/** Return " by you" or " by ann"; "" without a name. @param {string} name @param {string} you */
export function formatBy(name, you) {
  return name ? ` by ${youOr(name, you)}` : "";
}

const FIRST_VERBS = /** @type {Record<string, string>} */ ({
  already_pausing: "paused",
  already_paused: "paused",
  already_cancelling: "cancelled",
  already_cancelled: "cancelled",
});

/**
 * Say that a control changed nothing because another person's came first; else return "".
 * @param {import("./types.js").Receipt | undefined} receipt @param {string} verb @param {string} you
 */
export function formatOvertaken(receipt, verb, you) {
  const did = FIRST_VERBS[receipt?.already ?? ""];
  if (!receipt?.by || receipt.by === you || !did) return "";
  return `Your ${verb} was not used: ${receipt.by} ${did} first.`;
}

/** Styles of a status that a person has requested, and that is not reached yet. */
const ONGOING_STYLES = new Set(["pausing", "cancelling", "halting"]);

/**
 * Return a status word with the name of its actor: "Cancelled by you — 1 undo failed", "Pausing,
 * requested by ann". The terminal has the same from `text.status.format_status_word`.
 * @param {{style: string, word: string, by: string}} status @param {string} you
 */
export function formatStatus({ style, word, by }, you) {
  const [status, ...more] = word.split(" — ");
  const actor = (by && ONGOING_STYLES.has(style) ? ", requested" : "") + formatBy(by, you);
  return [status + actor, ...more].join(" — ");
}

/** Return "1 second", "2 seconds". @param {number} number @param {string} noun */
export function formatCount(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

const CAP_LABELS = /** @type {Record<string, [string, string]>} */ ({
  steps: ["Turns", ""],
  tokens: ["Tokens", ""],
  cost: ["Cost", "$"],
  time: ["Time at work", "s"],
  tool_calls: ["Tool calls", ""],
  repeats: ["Same calls in a row", ""],
});

/** Return the label of a cap. @param {string} name its name on the wire */
export function formatCapName(name) {
  return CAP_LABELS[name]?.[0] ?? name;
}

/** Format a value in the unit of its cap. @param {string} name @param {number} value */
export function formatCapValue(name, value) {
  if (name === "cost") return formatMoney(value);
  if (name === "time") return formatClock(value);
  return Math.round(value).toLocaleString("en");
}

export const FINISHED_PHASES = new Set(["completed", "cancelled"]);

/** By style of a status line: tone and border of the badge. Its icon has the name of the style. */
export const STATUS_STYLES = /** @type {Record<string, [string, string]>} */ ({
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

/** By `style` of a plan item or a call: its label, its tone and its icon. */
export const STEP_STYLES = /** @type {Record<string, [string, string, string]>} */ ({
  queued: ["Queued", "dim", "open"],
  running: ["Running", "run", "running"],
  held: ["Paused", "hold", "paused"],
  needs_you: ["Needs you", "wait", "waiting"],
  done: ["Done", "ok", "completed"],
  undone: ["Undone", "hold", "undo"],
  stopped: ["Stopped", "stop", "stopped"],
  not_started: ["Not started", "dim", "dropped"],
  dropped: ["Dropped", "dim", "dropped"],
  unheard: ["No signal", "fg", "lost"],
  left_open: ["Left open", "dim", "dropped"],
  failed: ["Failed", "stop", "failed"],
});
