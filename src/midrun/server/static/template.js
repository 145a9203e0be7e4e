// @ts-check
/**
 * Templates whose texts cannot hide anything: `html` shows every string that it draws with
 * characters visible that a reader would not see, or that turn the reading direction.
 *
 * In prose some of them belong to the text, as a joiner in an emoji. `exact` is for arguments,
 * paths, commands and results, where every one is shown. `codec/hidden_characters.py` says the
 * same for the terminal; a test compares the two.
 */
import { html as draw } from "./lit.js";

/** First and last of each range, as `RANGES` of `codec/hidden_characters.py`. */
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
// What is matched before the group is kept as it is, with the character that it belongs to.
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

/** @param {string} char */
function symbol(char) {
  const code = char.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  return code === 0x7f ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

/** Return arguments, a path or a result with every hidden character shown. @param {string} text */
export function exact(text) {
  return text.replaceAll("\r\n", "\n").replace(HIDDEN, symbol);
}

/** Return prose without characters that mislead its reader. @param {string} text */
export function readable(text) {
  return text
    .replaceAll("\r\n", "\n")
    .replace(IN_PROSE, (whole, hidden) => (hidden === undefined ? whole : symbol(hidden)));
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
function shown(value) {
  if (typeof value === "string") return readable(value);
  return Array.isArray(value) ? value.map(shown) : value;
}

/**
 * Draw a template. A value that is not a string, as `live` gives a field, stays as it is: a
 * reader may edit it.
 * @param {TemplateStringsArray} strings @param {unknown[]} values
 */
export function html(strings, ...values) {
  return draw(strings, ...values.map(shown));
}
