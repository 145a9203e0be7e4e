// @ts-check
/**
 * Templates that make hidden characters visible: `html` replaces, in every string that it renders,
 * characters that have no glyph or that turn the reading direction by a symbol.
 *
 * In prose some of them belong to the text, as the joiner in an emoji; they stay. `exact` is for
 * arguments, paths, commands and results, where every one is replaced. The terminal uses
 * `text/hidden_characters.py`, which does the same; a test compares the two.
 */
import { html as litHtml } from "./lit.js";

/** First and last character of each range, as `RANGES` of `text/hidden_characters.py`. */
export const RANGES = [
  [0x00, 0x08],
  [0x0b, 0x1f],
  [0x7f, 0x9f],
  [0xad, 0xad],
  [0x34f, 0x34f],
  [0x61c, 0x61c],
  [0x115f, 0x1160],
  [0x17b4, 0x17b5],
  [0x180b, 0x180f],
  [0x200b, 0x200f],
  [0x2028, 0x202e],
  [0x2060, 0x206f],
  [0x2800, 0x2800],
  [0x3164, 0x3164],
  [0xd800, 0xdfff],
  [0xfe00, 0xfe0f],
  [0xfeff, 0xfeff],
  [0xffa0, 0xffa0],
  [0xfff0, 0xfffb],
  [0x1bca0, 0x1bca3],
  [0x1d173, 0x1d17a],
  [0xe0000, 0xe0fff],
];

const CLASS = RANGES.map((range) => range.map((code) => `\\u{${code.toString(16)}}`).join("-")).join("");
const HIDDEN = new RegExp(`[${CLASS}]`, "gu");
// The alternatives before the group match hidden characters that belong to the text, each with the
// character that it belongs to; they are kept.
const IN_PROSE = new RegExp(
  [
    `[^\\x00-\\x7f${CLASS}](?:\\ufe0e|\\ufe0f\\u200d?|\\u200c|\\u200d)`,
    "[0-9#*]\\ufe0f\\u20e3",
    "\\u{1f3f4}[\\u{e0020}-\\u{e007e}]{1,16}\\u{e007f}",
    "\\u2800",
    `([${CLASS}])`,
  ].join("|"),
  "gu",
);

/** Return a visible symbol for a hidden character. @param {string} char */
function symbolFor(char) {
  const code = char.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Return arguments, a path or a result with every hidden character shown. @param {string} text */
export function exact(text) {
  return text.replaceAll("\r\n", "\n").replace(HIDDEN, symbolFor);
}

/** Return prose with misleading characters shown, and those that belong to it kept. @param {string} text */
export function readable(text) {
  return text
    .replaceAll("\r\n", "\n")
    .replace(IN_PROSE, (whole, hidden) => (hidden === undefined ? whole : symbolFor(hidden)));
}

/** Return a value as JSON that can be edited, every hidden character as an escape. @param {unknown} value */
export function editable(value) {
  const escape = (/** @type {string} */ char) =>
    [...Array(char.length).keys()]
      .map((at) => `\\u${char.charCodeAt(at).toString(16).padStart(4, "0")}`)
      .join("");
  return JSON.stringify(value, null, 2)?.replace(HIDDEN, escape) ?? "";
}

/** @param {unknown} value @returns {unknown} */
function showHidden(value) {
  if (typeof value === "string") return readable(value);
  return Array.isArray(value) ? value.map(showHidden) : value;
}

/**
 * Render a template. Values that are not strings stay as they are, so a field whose text is given
 * with `live` can be edited without change.
 * @param {TemplateStringsArray} strings @param {unknown[]} values
 */
export function html(strings, ...values) {
  return litHtml(strings, ...values.map(showHidden));
}
