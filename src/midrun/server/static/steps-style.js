// @ts-check
/** Styles of the transcript: the words of the agent are its content, everything else is quiet. */
import { css } from "./lit.js";

export const style = css`
  :host {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 8px;
    container-type: inline-size;
  }
  ol {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 18px;
    padding: 0;
    list-style: none;
  }
  ol:not(:has(li)) {
    display: none;
  }
  li {
    min-width: 0;
    scroll-margin: 12px;
  }
  /* Items that have not begun are in the rail beside, where there is room for it. */
  li[data-empty] {
    display: var(--in-rail, list-item);
  }
  li[data-empty] + li[data-empty] {
    margin-top: -12px;
  }
  .head {
    display: grid;
    grid-template-columns: auto minmax(0, 1fr) auto;
    align-items: baseline;
    gap: 10px;
    padding: 2px 0;
    list-style: none;
    color: var(--dim);
  }
  .head .style {
    align-self: center;
  }
  .head::-webkit-details-marker {
    display: none;
  }
  summary.head {
    cursor: pointer;
    padding-bottom: 6px;
    border-bottom: 1px solid var(--line);
  }
  summary.head .title::after {
    content: " ›";
    color: var(--dim);
  }
  details[open] > summary.head .title::after {
    content: " ⌄";
  }
  .shown,
  midrun-file {
    justify-self: start;
    margin-left: 10px;
  }
  .title {
    overflow-wrap: anywhere;
    unicode-bidi: plaintext;
  }
  summary.head .title > span {
    color: var(--fg);
    font-weight: 600;
  }
  .tool {
    font-size: 12.5px;
  }
  details[open] > .head .tool {
    display: none; /* the calls below name it */
  }
  /* Turns that only call tools read as one list. */
  li.plain[data-calls] + li.plain[data-calls] {
    margin-top: -14px;
  }
  .body > .turn[data-calls] + .turn[data-calls] {
    margin-top: -10px;
  }
  .previous {
    display: block;
    font-size: 12.5px;
  }
  .not-done {
    text-decoration: line-through;
  }
  .style {
    display: inline-flex;
    align-items: center;
    gap: 6px;
    font-size: 12.5px;
    font-weight: 600;
    white-space: nowrap;
  }
  .body {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 14px;
    padding-top: 10px;
  }
  .plain .body,
  li:first-child.message {
    padding-top: 0;
  }
  .turn {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 8px;
    min-width: 0;
  }
  .turn midrun-text {
    max-width: 76ch;
  }
  .turn[data-role="user"] {
    justify-self: end;
    max-width: min(76ch, 88%);
    padding: 10px 14px;
    border: 1px solid var(--line);
    border-radius: 14px;
    background: var(--panel);
  }
  .turn[data-role="runtime"] {
    padding-left: 10px;
    border-left: 3px solid var(--line);
    font-size: 13px;
    color: var(--dim);
  }
  .author {
    font-size: 12.5px;
    font-weight: 600;
    color: var(--dim);
  }
  .thinking > summary {
    width: fit-content;
    font-size: 12.5px;
    color: var(--dim);
  }
  .thinking pre {
    max-height: 300px;
    padding-left: 10px;
    border-left: 2px solid var(--line);
    overflow: auto;
    color: var(--dim);
  }
  .text {
    white-space: pre-wrap;
    overflow-wrap: anywhere;
    unicode-bidi: plaintext;
  }
  .break {
    font-size: 12.5px;
    font-weight: 600;
  }
  .break::before {
    content: "— ";
  }
  .call {
    min-width: 0;
    border-radius: 8px;
    font-size: 13px;
    color: var(--dim);
  }
  .call[open] {
    border: 1px solid var(--line);
    background: var(--panel);
    color: var(--fg);
  }
  .call > summary {
    display: flex;
    align-items: center;
    gap: 10px;
    padding: 3px 8px;
    min-width: 0;
    border-radius: 8px;
    list-style: none;
  }
  .call > summary:hover {
    background: var(--panel);
  }
  .call .style {
    flex: none;
    font-weight: 500;
  }
  /* The check mark says it; screen readers get the word, too. */
  .call .style[data-style="done"] > span {
    position: absolute;
    width: 1px;
    height: 1px;
    overflow: hidden;
    clip-path: inset(50%);
    white-space: nowrap;
  }
  .child {
    margin-left: 34px; /* below the title of its call */
    font-size: 12.5px;
  }
  .call-title {
    flex: 0 1 auto;
    min-width: 0;
    overflow: hidden;
    text-overflow: ellipsis;
    white-space: nowrap;
  }
  .call .note,
  .call-error {
    min-width: 0;
    overflow: hidden;
    text-overflow: ellipsis;
    white-space: nowrap;
    font-size: 12.5px;
  }
  .call-error {
    flex: 1 1 0;
    min-width: 40%;
    color: var(--stop);
  }
  .call > dl {
    display: grid;
    grid-template-columns: 90px minmax(0, 1fr);
    gap: 6px 10px;
    padding: 6px 10px 10px;
  }
  .call > dl > dt {
    color: var(--dim);
  }
  .call > dl > dd {
    min-width: 0;
    overflow-wrap: anywhere;
  }
  @container (max-width: 560px) {
    /* One line for an item: its icon, its title, and the word for its state at the end. */
    .head .style {
      display: contents;
    }
    .head .style > .icon {
      align-self: center;
    }
    .head .title {
      grid-column: 2;
      grid-row: 1;
    }
    .head .style > span {
      grid-column: 3;
      grid-row: 1;
    }
    .head .tool {
      display: none; /* the calls below name it */
    }
    .call > dl {
      grid-template-columns: minmax(0, 1fr);
    }
    .call > summary {
      flex-wrap: wrap;
      row-gap: 2px;
    }
    .call-title {
      flex: 1 1 0;
      min-width: 50%;
    }
    .call-error {
      flex-basis: 100%;
      padding-left: 26px;
      white-space: normal;
    }
  }
`;
