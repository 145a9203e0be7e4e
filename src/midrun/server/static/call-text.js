// @ts-check
/**
 * Calls and values for people: a title instead of a name with JSON, fields instead of braces.
 *
 * The server sends the title of a call; where it has none, it is made here in the same form. The
 * JSON itself is behind a toggle. Every hidden character of an argument is shown.
 */
import { css, nothing } from "./lit.js";
import { exact, html } from "./template.js";

/** @typedef {{title?: string, tool: string, args?: unknown}} AnyCall `args` is a value, or JSON as text */

const VALUE_MAX_CHARS = 60;
const LISTED_MAX_ITEMS = 3;
const NESTING_MAX = 3;
const COLUMNS_MAX = 8;
/** Of a longer text only the beginning is shown. */
const CUT_CHARS = 320;
const CUT_LINES = 9;
/** Longer texts get lines of their own. */
const SHORT_MAX_CHARS = 60;
/** An object or a list that the server has cut; its last characters may say how long it was. */
const CUT_JSON = /^([{[].*)…(?: \(\d+ characters\))?$/s;

export const fieldStyle = css`
  .fields {
    display: grid;
    grid-template-columns: minmax(64px, auto) minmax(0, 1fr);
    gap: 3px 12px;
    padding: 0;
  }
  .fields dt {
    color: var(--dim);
    font-size: 13px;
    overflow-wrap: anywhere;
  }
  .fields dd {
    min-width: 0;
    overflow-wrap: anywhere;
  }
  /* A long text is below its name, and has the whole width. */
  .fields dd:has(> .long) {
    grid-column: 1 / -1;
  }
  .long {
    display: block;
    padding: 6px 10px;
    border-left: 3px solid var(--line);
    white-space: pre-wrap;
    unicode-bidi: plaintext;
  }
  .whole > summary {
    width: fit-content;
    color: var(--run);
    font-size: 13px;
  }
  .whole > .long {
    max-height: min(50vh, 480px); /* the buttons below stay in reach */
    overflow: auto;
    /* A shadow at the lower edge says that more follows; at the end of the text it is covered. */
    background:
      linear-gradient(transparent, var(--bg) 70%) bottom / 100% 28px no-repeat local,
      linear-gradient(transparent, color-mix(in srgb, var(--fg) 28%, transparent)) bottom / 100% 12px no-repeat scroll;
  }
  /* The whole text takes the place of its beginning. */
  .long:has(+ .whole[open]),
  .whole[open] > summary > .more,
  .whole:not([open]) > summary > .less {
    display: none;
  }
  .records {
    border-collapse: collapse;
    font-size: 13.5px;
    font-variant-numeric: tabular-nums;
    overflow-wrap: break-word;
  }
  .records th {
    color: var(--dim);
    font-weight: 500;
  }
  .records :is(th, td) {
    padding: 4px 16px 4px 0;
    border-bottom: 1px solid var(--line);
    text-align: start;
    vertical-align: top;
    unicode-bidi: plaintext;
  }
  .records-box {
    overflow-x: auto;
  }
  .fields ul {
    padding-inline-start: 18px;
  }
  .raw > summary {
    width: fit-content;
    color: var(--dim);
    font-size: 12.5px;
  }
  .raw pre {
    max-height: 320px;
    padding: 8px 10px;
    border: 1px solid var(--line);
    border-radius: 8px;
    background: var(--bg);
    overflow: auto;
  }
`;

/** Return the name of a tool as words: "send_mail" as "Send mail". @param {string} tool */
export function humanizeName(tool) {
  const words = tool.replace(/[_\-\s]+|(?<=[a-z0-9])(?=[A-Z])/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Return one line about a call: its title, else its name and its arguments. @param {AnyCall} call */
export function formatCall({ title, tool, args }) {
  if (title) return exact(title);
  const value = typeof args === "string" ? parseJson(args) : args;
  const name = exact(humanizeName(tool)) || "The model";
  if (value === undefined) return args ? `${name}: ${exact(String(args))}` : name;
  if (typeof value !== "object" || !value) return value === null ? name : `${name}: ${formatShort(value)}`;
  const pairs = Object.entries(value)
    .filter(([, one]) => one !== null && one !== "")
    .map(([key, one]) => `${nameArgument(key)} ${formatShort(one)}`);
  return pairs.length ? `${name}: ${pairs.join(", ")}` : name;
}

/** Return the name of an argument inside a sentence: "new_text" as "new text". @param {string} key */
const nameArgument = (key) => exact(/^\w+$/.test(key) ? key.replaceAll("_", " ").trim() || key : key);

/** Return one line about a call that the server sent as "tool {…}", or as its title. @param {string} text */
export function formatListedCall(text) {
  const [, tool, json] = /^(\S+) (\{.*)$/s.exec(text) ?? [];
  return tool && parseJson(json) !== undefined ? formatCall({ tool, args: json }) : exact(text);
}

/** Return a value in a few words; a text is quoted. @param {unknown} value @returns {string} */
function formatShort(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") return String(value);
  if (Array.isArray(value) && value.length) {
    const shown = value.slice(0, LISTED_MAX_ITEMS).map(formatShort).join(", ");
    const more = value.length - LISTED_MAX_ITEMS;
    return more > 0 ? `${shown} and ${more} more` : shown;
  }
  if (typeof value === "object" && value) return `(${formatPairs(value)})`;
  const text = String(value ?? "").replace(/\s+/g, " ").trim();
  const cut = text.length > VALUE_MAX_CHARS ? `${text.slice(0, VALUE_MAX_CHARS - 1)}…` : text;
  return `“${exact(cut).replace(/["“”„«»]/g, "'")}”`;
}

/** Return the fields of an object in a few words. @param {object} value */
function formatPairs(value) {
  const pairs = Object.entries(value).filter(([, one]) => one !== null && one !== "");
  const shown = pairs.slice(0, LISTED_MAX_ITEMS).map(([key, one]) => `${nameArgument(key)} ${formatShort(one)}`);
  const more = pairs.length - shown.length;
  return `${shown.join(", ") || "nothing"}${more > 0 ? ` and ${more} more` : ""}`;
}

/** Return a value other than a text in a few words. @param {unknown} value */
export const formatBrief = (value) =>
  typeof value === "object" && value && !Array.isArray(value) ? formatPairs(value) : formatShort(value);

/** Parse JSON; return undefined for other text, as for JSON that was cut. @param {string} text @returns {unknown} */
export function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Return the object or array that a text is, else null. @param {string} text */
export function parseStructure(text) {
  const value = /^\s*[{[]/.test(text) ? parseJson(text) : null;
  return typeof value === "object" ? value : null;
}

/** Render a value as fields, with its JSON behind a toggle. @param {unknown} value */
export function renderValue(value) {
  if (value === null || value === undefined) return nothing;
  const isPlain = typeof value !== "object";
  return html`${renderFields(value, 0)}${isPlain ? nothing : renderRaw(value)}`;
}

/** Render JSON text as fields, also if its end was cut off; text that is no JSON, as it is. @param {string} text */
export function renderJsonText(text) {
  const value = parseJson(text);
  if (value !== undefined) return renderValue(value);
  const [, beginning] = CUT_JSON.exec(text) ?? [];
  const part = beginning && parseBeginning(beginning);
  if (!part) return html`<pre>${exact(text)}</pre>`;
  return html`${renderFields(part, 0)}<span class="dim">Only the beginning is shown.</span>`;
}

/**
 * Parse JSON whose end is missing: leave out the value that is incomplete, unless it is a text,
 * and close what is open.
 * @param {string} text @returns {unknown} undefined if that is no JSON either
 */
export function parseBeginning(text) {
  /** @type {string[]} */
  const open = [];
  let isText = false;
  let end = 0; // up to here the text can be closed
  let closing = "";
  for (let at = 0; at < text.length; at++) {
    const char = text[at];
    if (isText && char === "\\") at++;
    else if (char === '"') isText = !isText;
    else if (isText) continue;
    else if (char === "{" || char === "[") open.push(char === "{" ? "}" : "]");
    else if (char === "}" || char === "]") open.pop();
    if (!isText && /[,{}[\]]/.test(char)) [end, closing] = [char === "," ? at : at + 1, open.toReversed().join("")];
  }
  const tail = isText ? parseJson(`${text.replace(/\\(u[0-9a-f]{0,3})?$/i, "")}"${open.toReversed().join("")}`) : undefined;
  return tail ?? (end ? parseJson(text.slice(0, end) + closing) : undefined);
}

/** Render the JSON of a value behind a toggle. @param {unknown} value @param {string} [label] of the toggle */
export const renderRaw = (value, label = "JSON") =>
  html`<details class="raw">
    <summary>${label}</summary>
    <pre tabindex="0">${exact(JSON.stringify(value, null, 2) ?? "")}</pre>
  </details>`;

/** @param {unknown} value @param {number} depth @returns {unknown} */
export function renderFields(value, depth) {
  if (typeof value === "string") return renderString(value);
  if (typeof value !== "object" || value === null) return html`<span>${formatScalar(value)}</span>`;
  if (depth >= NESTING_MAX && Object.keys(value).length) return renderRaw(value, formatShort(value));
  if (Array.isArray(value)) {
    if (!value.length) return html`<span class="dim">nothing</span>`;
    const columns = findColumns(value);
    if (columns) return renderRecords(columns, value);
    return html`<ul>
      ${value.map((one) => html`<li>${renderFields(one, depth + 1)}</li>`)}
    </ul>`;
  }
  const entries = Object.entries(value);
  if (!entries.length) return html`<span class="dim">nothing</span>`;
  return html`<dl class="fields">
    ${entries.map(([key, one]) => html`<dt>${nameField(key)}</dt><dd>${renderFields(one, depth + 1)}</dd>`)}
  </dl>`;
}

/** Return the name of a field as words; a name that is no identifier, as it is. @param {string} key */
const nameField = (key) => (/^[a-z]\w*$/i.test(key) ? humanizeName(key) : exact(key));

/**
 * Return the columns of a table that shows a list: the fields that all its objects have. Null if
 * they are not alike, or if a value is no plain one.
 * @param {unknown[]} list
 */
function findColumns(list) {
  if (list.length < 2 || !list.every((one) => typeof one === "object" && one && !Array.isArray(one))) return null;
  const rows = /** @type {Record<string, unknown>[]} */ (list);
  const columns = Object.keys(rows[0]);
  if (!columns.length || columns.length > COLUMNS_MAX) return null;
  const isAlike = (/** @type {Record<string, unknown>} */ row) =>
    Object.keys(row).length === columns.length &&
    columns.every((name) => name in row && isPlain(row[name]));
  return rows.every(isAlike) ? columns : null;
}

/** Tell whether a value fits into a cell. @param {unknown} value */
const isPlain = (value) =>
  typeof value === "string" ? value.length <= SHORT_MAX_CHARS && !value.includes("\n") : typeof value !== "object" || value === null;

/** @param {string[]} columns @param {any[]} rows */
const renderRecords = (columns, rows) => html`<div class="records-box"><table class="records">
    <thead>
      <tr>${columns.map((name) => html`<th scope="col">${nameField(name)}</th>`)}</tr>
    </thead>
    <tbody>
      ${rows.map((row) => html`<tr>${columns.map((name) => html`<td>${renderFields(row[name], NESTING_MAX)}</td>`)}</tr>`)}
    </tbody>
  </table></div>`;

/** Render a text; the end of a very long one is behind a toggle that says how long it is. @param {string} text */
function renderString(text) {
  if (text.length <= SHORT_MAX_CHARS && !text.includes("\n")) return html`<span>${exact(text) || "(empty)"}</span>`;
  const cut = findCut(text);
  if (cut >= text.length) return html`<span class="long">${exact(text)}</span>`;
  const count = text.length.toLocaleString("en");
  return html`<span class="long">${exact(text.slice(0, cut).trimEnd())} …</span>
    <details class="whole">
      <summary>
        <span class="more">Show all ${count} characters</span><span class="less">Show less</span>
      </summary>
      <span class="long" tabindex="0">${exact(text)}</span>
    </details>`;
}

/** Return where a text is cut: after some lines, between words. @param {string} text */
function findCut(text) {
  const lines = text.split("\n", CUT_LINES + 1);
  const linesEnd = lines.length > CUT_LINES ? lines.slice(0, CUT_LINES).join("\n").length : text.length;
  const cut = Math.min(linesEnd, CUT_CHARS);
  if (text.length - cut < CUT_CHARS / 4) return text.length; // a toggle for a few words is no help
  const end = Math.max(text.lastIndexOf(" ", cut), cut - 40);
  return isLowSurrogate(text, end) ? end - 1 : end;
}

/** Tell whether a cut at `at` would split a character of two units. @param {string} text @param {number} at */
const isLowSurrogate = (text, at) => /[\udc00-\udfff]/.test(text.charAt(at));

/** @param {unknown} value */
function formatScalar(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return value === null ? "nothing" : String(value);
}
