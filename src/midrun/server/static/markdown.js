// @ts-check
/**
 * The block parser of Markdown: text in, a list of blocks out. `markdown-inline.js` parses the
 * text inside a block, `markdown-text.js` makes nodes of both.
 *
 * It knows what models write: headings, lists, tables, fenced code, quotes, rules. It never
 * fails, and takes linear time: each line is looked at once for each level of nesting, and the
 * levels are limited. HTML is text like any other.
 *
 * A text that is being streamed grows at its end. All blocks but the last are final, so only the
 * last one is parsed again (`BlockReader`). While `isOpen`, the last block is read as what it is
 * about to become: a row that starts with a bar is a table before its second line has arrived.
 */

/** @typedef {"left" | "right" | "center" | ""} Align */
/**
 * One block. `source` is the text that it was parsed from: blocks of the same kind and source are
 * the same. `children` are items of a list, rows of a table, blocks of an item or a quote.
 * @typedef {object} Block
 * @property {"paragraph" | "heading" | "code" | "rule" | "quote" | "list" | "item" | "table" | "row"} kind
 * @property {string} source
 * @property {string} text of a paragraph, a heading or code
 * @property {number} level of a heading, first number of an ordered list, 1 for the head of a table
 * @property {string} language of code
 * @property {Block[]} children
 * @property {string[]} cells of a row
 * @property {Align[]} aligns of the cells
 */

/** Deeper levels are read as plain paragraphs. */
const NESTING_MAX = 8;
const COLUMNS_MAX = 64;
/** Longer lines are no rules and no delimiter rows, so the patterns need not look at them. */
const MARK_LINE_MAX_CHARS = 1000;
/** The lookaheads keep the pattern from trying each shorter run of marks: that is quadratic. */
const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:- *){3,}|(?:\* *){3,}|(?:_ *){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( +)|$)/;
/** The row below the head of a table; while it arrives, its beginning. */
const DELIMITER_ROW = /^ {0,3}\|? *:?-+:? *(?:\| *:?-+:? *)*\|? *$/;
const DELIMITER_START = /^[|:\- ]*$/;
/** A continuation line of an item is indented at least so far. */
const ITEM_INDENT = 2;

/** @param {Block["kind"]} kind @param {string[]} lines @param {Partial<Block>} [more] @returns {Block} */
const block = (kind, lines, more) => ({
  kind,
  source: lines.join("\n"),
  text: "",
  level: 0,
  language: "",
  children: [],
  cells: [],
  aligns: [],
  ...more,
});

/** Parses a growing text: each call continues at the block that was the last one before. */
export class BlockReader {
  #text = "";
  /** @type {Block[]} without the last one, which may still change */
  #finalBlocks = [];
  #finalChars = 0;

  /** Return the blocks of a text. @param {string} text @param {boolean} isOpen whether more follows */
  read(text, isOpen) {
    if (!text.startsWith(this.#text)) {
      this.#finalBlocks = [];
      this.#finalChars = 0;
    }
    this.#text = text;
    const lines = text.slice(this.#finalChars).split("\n");
    const { blocks, lastAt } = parseLines(lines, 0, isOpen);
    const last = blocks.pop();
    for (const one of blocks) this.#finalBlocks.push(one);
    // The characters of the lines before the last block, each with its line break.
    for (let at = 0; at < lastAt; at++) this.#finalChars += lines[at].length + 1;
    return last ? [...this.#finalBlocks, last] : this.#finalBlocks;
  }
}

/**
 * Parse lines into blocks; `lastAt` is the line at which the last one starts.
 * @param {string[]} lines @param {number} depth @param {boolean} isOpen
 */
function parseLines(lines, depth, isOpen) {
  /** @type {Block[]} */
  const blocks = [];
  let lastAt = 0;
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [found, end] = parseBlock(lines, at, depth, isOpen);
    blocks.push(found);
    lastAt = at;
    at = end;
  }
  return { blocks, lastAt };
}

/** Parse the block at a line; return it with the line after it. @param {string[]} lines @param {number} at @param {number} depth @param {boolean} isOpen @returns {[Block, number]} */
function parseBlock(lines, at, depth, isOpen) {
  const line = lines[at];
  if (depth > NESTING_MAX) return [block("paragraph", lines.slice(at), { text: lines.slice(at).join("\n") }), lines.length];
  const fence = FENCE.exec(line);
  if (fence) return parseCode(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [block("heading", [line], { level: heading[1].length, text: headingText(line) }), at + 1];
  if (isRule(line)) return [block("rule", [line]), at + 1];
  if (QUOTE.test(line)) return parseQuote(lines, at, depth, isOpen);
  if (ITEM.test(line)) return parseList(lines, at, depth, isOpen);
  if (isTable(lines, at, isOpen)) return parseTable(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines, end)) end += 1;
  const text = lines.slice(at, end).join("\n").trim();
  return [block("paragraph", lines.slice(at, end), { text }), end];
}

/** @param {string} line */
const isRule = (line) => line.length <= MARK_LINE_MAX_CHARS && RULE.test(line.trimEnd());

/** Return the text of a heading without its number signs, at the end too. @param {string} line */
function headingText(line) {
  const text = line.trim().replace(/^#+/, "").trim();
  let end = text.length;
  while (end && text[end - 1] === "#") end -= 1;
  return end < text.length && (!end || text[end - 1] === " ") ? text.slice(0, end).trim() : text;
}

/** Tell whether a line ends the paragraph before it. @param {string[]} lines @param {number} at */
function startsBlock(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  // A number in running text is seldom the start of a list, unless it is the first one.
  if (item && item[3] && (!/\d/.test(item[2]) || /^1[.)]/.test(item[2]))) return true;
  return (
    FENCE.test(line) || HEADING.test(line) || isRule(line) || QUOTE.test(line) || isTable(lines, at, false) || startsWithBar(line)
  );
}

/** @param {string} line */
const startsWithBar = (line) => line.trimStart().startsWith("|");

/** @param {string[]} lines @param {number} at @param {RegExpExecArray} fence @returns {[Block, number]} */
function parseCode(lines, at, fence) {
  const mark = fence[1];
  const indent = lines[at].indexOf(mark[0]);
  let end = at + 1;
  while (end < lines.length && !closesFence(lines[end], mark)) end += 1;
  const code = lines.slice(at + 1, end).map((line) => stripIndent(line, indent));
  const language = fence[2].trim().split(/\s/, 1)[0].slice(0, 40);
  return [block("code", lines.slice(at, end + 1), { text: code.join("\n"), language }), end + 1];
}

/** @param {string} line @param {string} mark of the opening fence */
function closesFence(line, mark) {
  const text = line.trim();
  if (text.length < mark.length || line.startsWith("    ")) return false;
  for (const char of text) if (char !== mark[0]) return false;
  return true;
}

/** Remove at most `count` spaces from the start. @param {string} line @param {number} count */
function stripIndent(line, count) {
  let at = 0;
  while (at < count && line[at] === " ") at += 1;
  return line.slice(at);
}

/** @param {string[]} lines @param {number} at @param {number} depth @param {boolean} isOpen @returns {[Block, number]} */
function parseQuote(lines, at, depth, isOpen) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  const { blocks } = parseLines(inner, depth + 1, isOpen && end === lines.length);
  return [block("quote", lines.slice(at, end), { children: blocks }), end];
}

/** @param {string[]} lines @param {number} at @param {number} depth @param {boolean} isOpen @returns {[Block, number]} */
function parseList(lines, at, depth, isOpen) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const isOrdered = /\d/.test(first[2]);
  /** @type {Block[]} */
  const items = [];
  let end = at;
  for (;;) {
    const item = end < lines.length ? ITEM.exec(lines[end]) : null;
    if (!item || /\d/.test(item[2]) !== isOrdered || (!isOrdered && isRule(lines[end]))) break;
    const next = endOfItem(lines, end);
    items.push(parseItem(lines.slice(end, next), item, depth, isOpen && next === lines.length));
    end = next;
  }
  const level = isOrdered ? Number.parseInt(first[2], 10) : 0;
  const language = isOrdered ? "ol" : "ul";
  return [block("list", lines.slice(at, end), { children: items, level, language }), end];
}

/** Return the line after an item: after its indented lines and those that continue its text. @param {string[]} lines @param {number} at */
function endOfItem(lines, at) {
  let end = at + 1;
  let isAfterBlank = false;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (!line.trim()) {
      isAfterBlank = true;
      continue;
    }
    const isIndented = line.length - line.trimStart().length >= ITEM_INDENT;
    if (!isIndented && (ITEM.test(line) || isAfterBlank || startsBlock(lines, end))) break;
    isAfterBlank = false;
  }
  return end;
}

/** @param {string[]} lines @param {RegExpExecArray} mark @param {number} depth @param {boolean} isOpen */
function parseItem(lines, mark, depth, isOpen) {
  const spaces = (mark[3] ?? " ").length;
  const indent = mark[1].length + mark[2].length + (spaces > 4 ? 1 : spaces);
  const inner = [lines[0].slice(indent), ...lines.slice(1).map((line) => stripIndent(line, indent))];
  const { blocks } = parseLines(inner, depth + 1, isOpen);
  return block("item", lines, { children: blocks });
}

/** Tell whether a table starts at a line. @param {string[]} lines @param {number} at @param {boolean} isOpen */
function isTable(lines, at, isOpen) {
  if (!lines[at].includes("|")) return false;
  const next = lines[at + 1];
  const isLast = at + 2 >= lines.length; // the row below has not arrived completely
  if (isOpen && isLast && startsWithBar(lines[at]) && (next === undefined || DELIMITER_START.test(next))) return true;
  return next?.includes("|") && next.length <= MARK_LINE_MAX_CHARS ? DELIMITER_ROW.test(next) : false;
}

/** @param {string[]} lines @param {number} at @returns {[Block, number]} */
function parseTable(lines, at) {
  let end = Math.min(at + 2, lines.length);
  while (end < lines.length && lines[end].trim() && (startsWithBar(lines[end]) || !startsBlock(lines, end))) end += 1;
  const aligns = splitRow(lines[at + 1] ?? "").map(alignOf);
  const columns = splitRow(lines[at]).length;
  const rows = [lines[at], ...lines.slice(at + 2, end)].map((line, index) => {
    const found = splitRow(line);
    const cells = Array.from({ length: columns }, (_, column) => found[column] ?? "");
    // The source of a row says how it is aligned: the row below the head may still be arriving.
    return block("row", [line, aligns.join(), String(columns)], { cells, aligns, level: index ? 0 : 1 });
  });
  return [block("table", lines.slice(at, end), { children: rows }), end];
}

/** @param {string} cell of the delimiter row @returns {Align} */
function alignOf(cell) {
  const [start, end] = [cell.startsWith(":"), cell.length > 1 && cell.endsWith(":")];
  if (start && end) return "center";
  return end ? "right" : start ? "left" : "";
}

/** Split a row at its bars, except those that are escaped or inside code. @param {string} line */
function splitRow(line) {
  /** @type {string[]} */
  const cells = [];
  let cell = "";
  let isCode = false;
  for (let at = 0; at < line.length; at++) {
    const char = line[at];
    if (char === "\\" && line[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (char === "|" && !isCode) {
      cells.push(cell);
      cell = "";
    } else {
      if (char === "`") isCode = !isCode;
      cell += char;
    }
  }
  cells.push(cell);
  if (!cells[0].trim()) cells.shift();
  if (cells.length && !cells[cells.length - 1].trim()) cells.pop();
  return cells.slice(0, COLUMNS_MAX).map((text) => text.trim());
}
