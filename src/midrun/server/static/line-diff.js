// @ts-check
/**
 * The difference of two texts by lines: the shortest edit script (Myers, 1986), with some lines
 * around each change. The work is bounded; for texts that differ more there is no script.
 */

/** @typedef {{kind: "same" | "added" | "removed" | "gap", text: string}} DiffLine `gap`: lines that are left out */

const LINES_MAX = 5_000;
/** The most lines that may be added and removed together; the work grows with its square. */
const CHANGES_MAX = 600;
const CONTEXT_LINES = 3;

/**
 * Return the changed lines with their context; [] if the texts are equal, null if they differ too much.
 * @param {string} before @param {string} after @returns {DiffLine[] | null}
 */
export function diffLines(before, after) {
  if (before === after) return [];
  const [a, b] = [before, after].map((text) => text.replaceAll("\r\n", "\n").split("\n"));
  if (a.length > LINES_MAX || b.length > LINES_MAX) return null;
  const trace = findPath(a, b);
  return trace && leaveOutUnchanged(walkBack(a, b, trace));
}

/**
 * Return, for each number of changes, the furthest line of `a` that is reached on each diagonal.
 * @param {string[]} a @param {string[]} b @returns {Map<number, number>[] | null}
 */
function findPath(a, b) {
  const furthest = new Map([[1, 0]]);
  /** @type {Map<number, number>[]} */
  const trace = [];
  for (let changes = 0; changes <= CHANGES_MAX; changes++) {
    trace.push(new Map(furthest));
    for (let diagonal = -changes; diagonal <= changes; diagonal += 2) {
      let x = isDown(furthest, diagonal, changes) ? at(furthest, diagonal + 1) : at(furthest, diagonal - 1) + 1;
      let y = x - diagonal;
      while (x < a.length && y < b.length && a[x] === b[y]) [x, y] = [x + 1, y + 1];
      furthest.set(diagonal, x);
      if (x >= a.length && y >= b.length) return trace;
    }
  }
  return null;
}

/** @param {Map<number, number>} furthest @param {number} diagonal */
const at = (furthest, diagonal) => furthest.get(diagonal) ?? -1;

/** Tell whether the path comes to a diagonal by an added line. @param {Map<number, number>} furthest @param {number} diagonal @param {number} changes */
const isDown = (furthest, diagonal, changes) =>
  diagonal === -changes || (diagonal !== changes && at(furthest, diagonal - 1) < at(furthest, diagonal + 1));

/** @param {string[]} a @param {string[]} b @param {Map<number, number>[]} trace @returns {DiffLine[]} in order */
function walkBack(a, b, trace) {
  /** @type {DiffLine[]} */
  const lines = [];
  let [x, y] = [a.length, b.length];
  for (let changes = trace.length - 1; changes >= 0; changes--) {
    const furthest = trace[changes];
    const diagonal = x - y;
    const down = isDown(furthest, diagonal, changes);
    const fromX = changes ? at(furthest, down ? diagonal + 1 : diagonal - 1) : 0;
    const fromY = changes ? fromX - (down ? diagonal + 1 : diagonal - 1) : 0;
    while (x > fromX && y > fromY) {
      [x, y] = [x - 1, y - 1];
      lines.push({ kind: "same", text: a[x] });
    }
    if (!changes) break;
    if (down) lines.push({ kind: "added", text: b[--y] });
    else lines.push({ kind: "removed", text: a[--x] });
  }
  return lines.reverse();
}

/** Keep some unchanged lines around each change, and mark where others were. @param {DiffLine[]} lines */
function leaveOutUnchanged(lines) {
  const changed = lines.flatMap(({ kind }, index) => (kind === "same" ? [] : [index]));
  const kept = new Set(
    changed.flatMap((index) => [...Array(2 * CONTEXT_LINES + 1).keys()].map((offset) => index + offset - CONTEXT_LINES)),
  );
  /** @type {DiffLine[]} */
  const shown = [];
  lines.forEach((line, index) => {
    if (kept.has(index)) shown.push(line);
    else if (shown.at(-1)?.kind !== "gap") shown.push({ kind: "gap", text: "" });
  });
  return shown;
}
