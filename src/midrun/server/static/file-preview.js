// @ts-check
/** Templates of file contents: Markdown, tables, text, pictures, and the lines that two versions differ in. */
import { css, nothing } from "./lit.js";
import { formatSize, isComparable, isPdf, previewKind } from "./files.js";
import { diffLines } from "./line-diff.js";
import { renderMarkdown } from "./markdown-text.js";
import { exact, html } from "./template.js";

/** @typedef {import("./types.js").FileRef} FileRef */
/** @typedef {import("./files.js").FileContent} FileContent */

const TABLE_MAX_ROWS = 200;
const TABLE_MAX_COLUMNS = 30;
/** A longer cell is wrapped. */
const CELL_MAX_CHARS = 32;
/** Symbols and words of the lines of a difference; the words are for screen readers. */
const DIFF_MARKS = /** @type {Record<string, [string, string]>} */ ({
  added: ["+", "added: "],
  removed: ["−", "removed: "],
  same: [" ", ""],
  gap: ["…", "unchanged lines are left out"],
});

export const previewStyle = css`
  .preview {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 8px;
    min-width: 0;
    overflow: auto;
  }
  .preview img {
    max-width: 100%;
    max-height: 70vh;
    border-radius: 6px;
    object-fit: contain;
    justify-self: start;
    /* A picture with transparent parts stays readable in both colour schemes. */
    background: #fff;
  }
  .preview pre {
    padding: 8px 10px;
    border: 1px solid var(--line);
    border-radius: 8px;
    background: var(--bg);
  }
  .preview table {
    border-collapse: collapse;
    font-size: 13px;
  }
  .preview th,
  .preview td {
    padding: 3px 8px;
    border: 1px solid var(--line);
    text-align: start;
    vertical-align: top;
    white-space: pre-wrap;
    overflow-wrap: break-word; /* a column is as wide as its longest word, and the box scrolls */
  }
  .preview td.short {
    white-space: pre;
  }
  .preview th {
    background: var(--panel);
    white-space: nowrap;
  }
  .difference {
    padding: 6px 0;
    border: 1px solid var(--line);
    border-radius: 8px;
    background: var(--bg);
    list-style: none;
    font: 12.5px/1.5 var(--mono);
    overflow-wrap: anywhere;
  }
  .difference li {
    display: grid;
    grid-template-columns: 2em minmax(0, 1fr);
    padding: 0 10px;
    white-space: pre-wrap;
  }
  .difference [data-kind="added"] {
    background: color-mix(in srgb, var(--ok) 12%, var(--bg));
  }
  .difference [data-kind="removed"] {
    background: color-mix(in srgb, var(--stop) 12%, var(--bg));
  }
`;

/** Render the content of a file. @param {FileRef} file @param {FileContent | null} content null: it is being loaded */
export function renderPreview(file, content) {
  const kind = previewKind(file);
  if (isPdf(file)) return html`<p class="dim">Open the PDF in a new tab, or download it.</p>`;
  if (kind === "none") return html`<p class="dim">There is no preview of this kind of file (${file.media_type}).</p>`;
  if (!content) return html`<p class="dim">Loading ${file.name} …</p>`;
  if (content.problem) return html`<p data-tone="stop" role="alert">Cannot load ${file.name}: ${content.problem}</p>`;
  if (kind === "image") return html`<img src=${content.url} alt=${file.name} />`;
  return html`${renderText(kind, content.text)}${content.isCut
    ? html`<p class="dim">Only the beginning is shown. Download the file to see all ${formatSize(file.size)}.</p>`
    : nothing}`;
}

/** @param {import("./files.js").PreviewKind} kind @param {string} text */
function renderText(kind, text) {
  if (kind === "markdown") return renderMarkdown(text);
  if (kind === "table") return renderTable(parseTable(text));
  return html`<pre tabindex="0">${exact(text)}</pre>`;
}

/** Render rows as a table; the first one has the names of the columns. @param {string[][]} rows */
function renderTable([head = [], ...rows]) {
  const cut = (/** @type {string[]} */ row) => row.slice(0, TABLE_MAX_COLUMNS);
  const isCut = rows.length > TABLE_MAX_ROWS || head.length > TABLE_MAX_COLUMNS;
  return html`<table>
      <thead>
        <tr>${cut(head).map((name) => html`<th scope="col">${exact(name)}</th>`)}</tr>
      </thead>
      <tbody>
        ${rows.slice(0, TABLE_MAX_ROWS).map(
          (row) => html`<tr>${cut(row).map((cell) => html`<td class=${cell.length <= CELL_MAX_CHARS ? "short" : nothing}>${exact(cell)}</td>`)}</tr>`,
        )}
      </tbody>
    </table>
    ${isCut
      ? html`<p class="dim">
          The table shows ${TABLE_MAX_ROWS} rows and ${TABLE_MAX_COLUMNS} columns at most; the file has ${rows.length} rows.
        </p>`
      : nothing}`;
}

/** Parse comma-separated values (RFC 4180), or values that are separated by tabs or semicolons. @param {string} text @returns {string[][]} */
export function parseTable(text) {
  const [first] = text.split(/\r?\n/, 1);
  const separator = ["\t", ";", ","].find((one) => first.includes(one)) ?? ",";
  const rows = [[""]];
  let isQuoted = false;
  for (let index = 0; index < text.length; index++) {
    const row = rows[rows.length - 1];
    const char = text[index];
    if (isQuoted && char === '"' && text[index + 1] === '"') row[row.length - 1] += text[++index];
    else if (char === '"' && (isQuoted || !row[row.length - 1])) isQuoted = !isQuoted;
    else if (isQuoted) row[row.length - 1] += char;
    else if (char === separator) row.push("");
    else if (char === "\n") rows.push([""]);
    else if (char !== "\r" || text[index + 1] !== "\n") row[row.length - 1] += char;
  }
  return rows.filter((row) => row.length > 1 || row[0]);
}

/** The names of arguments that replace one text by another, as tools that edit files have them. */
const OLD_NAME = /^(old|before)(_?(text|str|string|content|value|lines))?$/;
const NEW_NAMES = /** @type {Record<string, string>} */ ({ old: "new", before: "after" });
/** The names of arguments that have the new content of an artifact. */
const CONTENT_NAMES = ["content", "text", "body", "markdown"];

/**
 * Return the change of a text that a call would make: by a pair of arguments as `old_text` and
 * `new_text`, or by the new content of an artifact that another argument names. `rest` are the
 * other arguments.
 * @param {any} args @param {import("./types.js").ArtifactView[]} artifacts
 * @returns {{before: string, after: string, file: FileRef | null, rest: Record<string, unknown>} | null}
 */
export function findChange(args, artifacts) {
  if (typeof args !== "object" || !args) return null;
  const without = (/** @type {string[]} */ ...names) =>
    Object.fromEntries(Object.entries(args).filter(([name]) => !names.includes(name)));
  const old = Object.keys(args).find((name) => OLD_NAME.test(name)) ?? "";
  const changed = old.replace(/^(old|before)/, (word) => NEW_NAMES[word]);
  if (old && [args[old], args[changed]].every((one) => typeof one === "string")) {
    return { before: args[old], after: args[changed], file: null, rest: without(old, changed) };
  }
  const content = CONTENT_NAMES.find((name) => typeof args[name] === "string") ?? "";
  const file = artifacts.findLast(({ name }) => Object.values(without(content)).includes(name))?.file;
  if (!content || !file || !isComparable(file, file)) return null;
  return { before: "", after: args[content], file, rest: without(content) };
}

/** Return a text as the content of a file. @param {string} text @returns {FileContent} */
export const asContent = (text) => ({ text, isCut: false, url: "", problem: "" });

/**
 * Render the lines in which a file differs from its version before.
 * @param {FileContent | null} before @param {FileContent | null} after
 */
export function renderDifference(before, after) {
  if (!before || !after) return html`<p class="dim">Loading both versions …</p>`;
  const problem = before.problem || after.problem;
  if (problem) return html`<p data-tone="stop" role="alert">Cannot compare the versions: ${problem}</p>`;
  const lines = diffLines(before.text, after.text);
  if (!lines) return html`<p class="dim">The versions differ too much to be compared line by line.</p>`;
  if (!lines.length) return html`<p class="dim">The versions are the same.</p>`;
  return html`<ol class="difference" tabindex="0" aria-label="Changed lines">
    ${lines.map(({ kind, text }) => {
      const [symbol, word] = DIFF_MARKS[kind];
      return html`<li data-kind=${kind}>
        <span aria-hidden="true">${symbol}</span><span><span class="visually-hidden">${word}</span>${exact(text)}</span>
      </li>`;
    })}
  </ol>`;
}
