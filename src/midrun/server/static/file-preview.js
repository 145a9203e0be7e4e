// @ts-check
/** Templates of file contents: Markdown, tables, text, pictures, and the lines that two versions differ in. */
import { css, nothing } from "./lit.js";
import { formatSize, previewKind } from "./files.js";
import { diffLines } from "./line-diff.js";
import { renderMarkdown } from "./markdown-text.js";
import { exact, html } from "./template.js";

/** @typedef {import("./types.js").FileRef} FileRef */
/** @typedef {import("./files.js").FileContent} FileContent */

const TABLE_MAX_ROWS = 200;
const TABLE_MAX_COLUMNS = 30;
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
  }
  .preview th {
    background: var(--panel);
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
          (row) => html`<tr>${cut(row).map((cell) => html`<td>${exact(cell)}</td>`)}</tr>`,
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
