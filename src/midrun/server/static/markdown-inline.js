// @ts-check
/**
 * The inline parser of Markdown: emphasis, code, links and line breaks inside one block.
 *
 * It reads the text once from left to right. Marks that may open something wait on a stack until
 * the mark that closes it arrives; marks that stay alone are text. Every pair nests: a pair that
 * closes drops all marks that were opened inside it. Each character enters and leaves the stacks
 * once, so the time is linear. A pair that would be nested too deeply is shown as it was written.
 */

/**
 * A piece of text. `tag` is "" for plain text; `href` is set for links that may be followed.
 * @typedef {{tag: "" | "em" | "strong" | "s" | "code" | "a", text: string, href: string, children: Inline[]}} Inline
 */
/** A part of the text in reading order: literal text, finished pieces, or the edges of pairs. */
/** @typedef {{text: string, piece: Inline | null, opens: Pair[], closes: Pair[]}} Part */
/** @typedef {{tag: Inline["tag"], mark: string, end: string, href: string}} Pair */
/**
 * A mark that may open a pair; `left` characters of it are not used.
 * @typedef {{part: Part, at: number, char: string, left: number}} Opener
 */

const DEPTH_MAX = 16;
/** Longer runs of asterisks are decoration, not emphasis. */
const RUN_MAX = 3;
/** Blocks that are longer are shown without inline marks. */
const TEXT_MAX_CHARS = 200_000;
const HREF_MAX_CHARS = 2_000;
const SPECIAL = /[`*_~[\]!<\\]|https?:\/\//g;
const BARE_URL = /https?:\/\/[^\s<>"`[\]\u0000-\u001f]+/y;
const ANGLE_URL = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const SAFE_SCHEMES = new Set(["http:", "https:", "mailto:"]);
const WORD = /[\p{L}\p{N}]/u;

/**
 * Return the address of a link if it may be followed, else "". Relative addresses would lead into
 * this server, and a name before the host hides where a link leads.
 * @param {string} text
 */
export function safeHref(text) {
  if (text.length > HREF_MAX_CHARS || !URL.canParse(text)) return "";
  const url = new URL(text);
  return SAFE_SCHEMES.has(url.protocol) && !url.username && !url.password ? url.href : "";
}

/**
 * Parse the text of one block.
 * @param {string} text @param {boolean} [isOpen] whether more text follows: then code and strong
 *   text whose end has not arrived is shown as such already, so that it does not change its look
 * @returns {Inline[]}
 */
export function parseInline(text, isOpen = false) {
  if (text.length > TEXT_MAX_CHARS) return [plain(text)];
  return buildTree(new InlineReader(text, isOpen).read());
}

/** @param {string} text @returns {Inline} */
const plain = (text) => ({ tag: "", text, href: "", children: [] });

class InlineReader {
  #text;
  #isOpen;
  #at = 0;
  /** @type {Part[]} */
  #parts = [];
  /** @type {Record<string, Opener[]>} by mark: emphasis that may close, innermost last */
  #openers = { "*": [], _: [], "~": [] };
  /** @type {{part: Part, at: number}[]} brackets that may start a link, innermost last */
  #brackets = [];
  /** @type {Map<number, number[]> | null} by length: where runs of backticks start, last one first */
  #codeRuns = null;

  /** @param {string} text @param {boolean} isOpen */
  constructor(text, isOpen) {
    this.#text = text;
    this.#isOpen = isOpen;
  }

  read() {
    const text = this.#text;
    while (this.#at < text.length) {
      SPECIAL.lastIndex = this.#at;
      const start = SPECIAL.exec(text)?.index ?? text.length;
      if (start > this.#at) this.#addText(text.slice(this.#at, start));
      this.#at = start;
      if (start < text.length) this.#readSpecial(text[start]);
    }
    if (this.#isOpen) this.#showOpenMarks();
    return this.#parts;
  }

  /** @param {string} text */
  #addText(text) {
    const part = { text, piece: null, opens: [], closes: [] };
    this.#parts.push(part);
    return /** @type {Part} */ (part);
  }

  /** @param {Inline} piece @param {number} end */
  #addPiece(piece, end) {
    this.#parts.push({ text: "", piece, opens: [], closes: [] });
    this.#at = end;
  }

  /** @param {string} char */
  #readSpecial(char) {
    if (char === "`") return this.#readCode();
    if (char === "*" || char === "_" || char === "~") return this.#readRun(char);
    if (char === "[") return this.#readOpenBracket("[");
    if (char === "!" && this.#text[this.#at + 1] === "[") return this.#readOpenBracket("![");
    if (char === "]") return this.#readCloseBracket();
    if (char === "<" || char === "h") return this.#readUrl(char === "<" ? ANGLE_URL : BARE_URL);
    const next = this.#text[this.#at + 1];
    const isEscape = char === "\\" && next !== undefined && ESCAPABLE.test(next);
    this.#addText(isEscape ? next : char);
    this.#at += isEscape ? 2 : 1;
  }

  #readCode() {
    const [start, length] = [this.#at, this.#runLength()];
    const end = this.#findCodeEnd(start + length, length);
    if (end < 0 && !this.#isOpen) {
      this.#addText(this.#text.slice(start, start + length));
      this.#at += length;
      return;
    }
    const code = this.#text.slice(start + length, end < 0 ? undefined : end).replaceAll("\n", " ");
    const isPadded = code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "";
    const text = isPadded ? code.slice(1, -1) : code;
    this.#addPiece({ tag: "code", text, href: "", children: [] }, end < 0 ? this.#text.length : end + length);
  }

  /** Return where the next run of so many backticks starts, or -1. @param {number} from @param {number} length */
  #findCodeEnd(from, length) {
    if (!this.#codeRuns) {
      this.#codeRuns = new Map();
      for (const { 0: run, index } of [...this.#text.matchAll(/`+/g)].reverse()) {
        const places = this.#codeRuns.get(run.length);
        if (places) places.push(index);
        else this.#codeRuns.set(run.length, [index]);
      }
    }
    const places = this.#codeRuns.get(length) ?? [];
    while (places.length && places[places.length - 1] < from) places.pop();
    return places.at(-1) ?? -1;
  }

  /** Return the length of the run of equal characters here. */
  #runLength() {
    const char = this.#text[this.#at];
    let end = this.#at + 1;
    while (this.#text[end] === char) end += 1;
    return end - this.#at;
  }

  /** Read a run of emphasis marks: close what it can, then let the rest open. @param {string} char */
  #readRun(char) {
    const length = this.#runLength();
    const [before, after] = [this.#text[this.#at - 1] ?? " ", this.#text[this.#at + length] ?? " "];
    const part = this.#addText("");
    const at = this.#at;
    this.#at += length;
    const isUsable = char === "~" ? length === 2 : length <= RUN_MAX;
    // An underscore inside a word, as in snake_case, is no mark.
    const [inWordBefore, inWordAfter] = [char === "_" && WORD.test(before), char === "_" && WORD.test(after)];
    let left = length;
    if (isUsable && !/\s/.test(before) && !inWordAfter) left = this.#closePairs(part, char, left);
    part.text = char.repeat(left);
    const canOpen = isUsable && left > 0 && !/\s/.test(after) && !inWordBefore;
    if (canOpen) this.#openers[char].push({ part, at, char, left });
  }

  /** Close pairs with a run of marks; return how many of them are left. @param {Part} part @param {string} char @param {number} left */
  #closePairs(part, char, left) {
    const openers = this.#openers[char];
    while (left > 0) {
      const opener = openers.at(-1);
      const size = opener && (char === "~" ? 2 : Math.min(opener.left, left, 2));
      if (!opener || !size) break;
      part.closes.push(this.#openPair(opener, size));
      left -= size;
      this.#dropInside(opener.at);
      if (!opener.left) openers.pop();
    }
    return left;
  }

  /** Turn `size` characters of an opener into the start of a pair. @param {Opener} opener @param {number} size */
  #openPair(opener, size) {
    const mark = opener.char.repeat(size);
    /** @type {Pair} */
    const pair = { tag: opener.char === "~" ? "s" : size === 2 ? "strong" : "em", mark, end: mark, href: "" };
    opener.left -= size;
    opener.part.text = opener.char.repeat(opener.left);
    opener.part.opens.unshift(pair); // pairs that are closed later are further outside
    return pair;
  }

  /** Forget the marks after a place: a pair around them has been closed. @param {number} at */
  #dropInside(at) {
    for (const openers of Object.values(this.#openers)) while ((openers.at(-1)?.at ?? -1) > at) openers.pop();
    while ((this.#brackets.at(-1)?.at ?? -1) > at) this.#brackets.pop();
  }

  /** @param {"[" | "!["} mark of a link or a picture */
  #readOpenBracket(mark) {
    this.#brackets.push({ part: this.#addText(mark), at: this.#at });
    this.#at += mark.length;
  }

  #readCloseBracket() {
    const bracket = this.#brackets.pop();
    const target = bracket && this.#text[this.#at + 1] === "(" ? this.#readTarget(this.#at + 2) : null;
    if (!bracket || !target) {
      this.#addText("]");
      this.#at += 1;
      return;
    }
    const end = target.isArriving ? "" : this.#text.slice(this.#at, target.end);
    if (target.isArriving) bracket.part.text = "";
    this.#closeLink(bracket, safeHref(target.href), end);
    this.#at = target.end;
  }

  /** @param {{part: Part, at: number}} bracket @param {string} href @param {string} end as it was written */
  #closeLink({ part, at }, href, end) {
    const isPicture = part.text === "![";
    /** @type {Pair} */
    const pair = { tag: "a", mark: part.text, end, href };
    part.text = isPicture && href ? "Picture: " : "";
    // An address that may not be followed is shown as it was written.
    if (!href) part.text = pair.mark;
    part.opens.push(pair);
    const last = this.#addText(href ? "" : end);
    last.closes.push(pair);
    this.#dropInside(at);
    this.#brackets = []; // links do not nest
  }

  /**
   * Read the address of a link. It has no brackets, so no two addresses overlap, and the search
   * for their ends is linear.
   * @param {number} start
   */
  #readTarget(start) {
    let depth = 0;
    for (let at = start; at < this.#text.length; at++) {
      const char = this.#text[at];
      if (char === "[" || char === "]" || char === "\n") return null;
      if (char === "(") depth += 1;
      else if (char === ")" && depth) depth -= 1;
      else if (char === ")") {
        const [href] = this.#text.slice(start, at).trim().split(/\s/, 1); // a title may follow
        return { href: href.replace(/^<|>$/g, ""), end: at + 1, isArriving: false };
      }
    }
    // The address is still arriving: show the words of the link, not a part of its address.
    return this.#isOpen ? { href: "", end: this.#text.length, isArriving: true } : null;
  }

  /** @param {RegExp} pattern */
  #readUrl(pattern) {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#text);
    const written = found ? trimUrl(found[1] ?? found[0]) : "";
    const href = written && safeHref(written);
    if (!found || !href) {
      const text = found?.[0] ?? this.#text[this.#at];
      this.#addText(text);
      this.#at += text.length;
      return;
    }
    const end = found[1] === undefined ? this.#at + written.length : this.#at + found[0].length;
    this.#addPiece({ tag: "a", text: "", href, children: [plain(written)] }, end);
  }

  /** Show strong text whose end has not arrived as strong. */
  #showOpenMarks() {
    for (const opener of this.#openers["*"]) if (opener.left === 2) this.#openPair(opener, 2);
  }
}

/** Remove punctuation that ends the sentence and not the address. @param {string} url */
function trimUrl(url) {
  let end = url.length;
  const marks = url.includes("(") ? ".,;:!?'*_~]" : ".,;:!?'*_~])";
  while (end && marks.includes(url[end - 1])) end -= 1;
  return url.slice(0, end);
}

/** Build the tree of pieces from parts in reading order. @param {Part[]} parts @returns {Inline[]} */
function buildTree(parts) {
  /** @type {Inline[]} */
  const top = [];
  /** @type {{pair: Pair | null, list: Inline[]}[]} */
  const stack = [{ pair: null, list: top }];
  /** @type {Set<Pair>} pairs that are nested too deeply, or links that may not be followed */
  const ignored = new Set();
  const add = (/** @type {string} */ text) => {
    const { list } = stack[stack.length - 1];
    const last = list.at(-1);
    if (!text) return;
    if (last?.tag === "") last.text += text;
    else list.push(plain(text));
  };
  for (const { text, piece, opens, closes } of parts) {
    for (const pair of closes) {
      if (ignored.has(pair)) add(pair.tag === "a" ? "" : pair.end);
      else stack.pop();
    }
    add(text);
    for (const pair of opens) {
      if ((pair.tag === "a" && !pair.href) || stack.length > DEPTH_MAX) {
        ignored.add(pair);
        add(pair.tag === "a" ? "" : pair.mark);
        continue;
      }
      /** @type {Inline} */
      const made = { tag: pair.tag, text: "", href: pair.href, children: [] };
      stack[stack.length - 1].list.push(made);
      stack.push({ pair, list: made.children });
    }
    const isNested = piece?.tag === "a" && stack.some(({ pair }) => pair?.tag === "a");
    if (piece) stack[stack.length - 1].list.push(...(isNested ? piece.children : [piece]));
  }
  return top;
}
