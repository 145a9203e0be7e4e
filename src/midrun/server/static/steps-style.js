// @ts-check
/** Styles of the steps. */
import { css } from "./lit.js";

export const style = css`
  :host {
    display: grid;
    gap: 8px;
    container-type: inline-size;
  }
  ol {
    list-style: none;
    padding: 0;
    border: 1px solid var(--line);
    border-radius: var(--round);
    overflow: hidden;
  }
  ol:empty,
  ol:not(:has(li)) {
    display: none;
  }
  li + li {
    border-top: 1px solid var(--line);
  }
  li[data-style="running"] {
    background: color-mix(in srgb, var(--run) 7%, var(--bg));
  }
  li[data-style="needs_you"] {
    background: color-mix(in srgb, var(--wait) 9%, var(--bg));
  }
  .head {
    display: grid;
    grid-template-columns: 108px minmax(0, 1fr) auto;
    align-items: center;
    gap: 10px;
    padding: 9px 12px;
    list-style: none;
  }
  .head::-webkit-details-marker {
    display: none;
  }
  summary.head {
    cursor: pointer;
  }
  summary.head .title::after {
    content: " ›";
    color: var(--dim);
  }
  details[open] > summary.head .title::after {
    content: " ⌄";
  }
  .title {
    overflow-wrap: anywhere;
    unicode-bidi: plaintext;
  }
  details[open] > .head .first-line > span {
    display: none; /* the turn below has the same text */
  }
  .previous {
    display: block;
    font-size: 12.5px;
  }
  .not-done {
    color: var(--dim);
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
    gap: 8px;
    padding: 0 12px 12px 130px;
  }
  .turn {
    display: grid;
    gap: 6px;
    min-width: 0;
  }
  li.message {
    padding: 9px 12px 9px 130px;
  }
  .turn[data-role="user"],
  .turn[data-role="runtime"] {
    padding-left: 10px;
    border-left: 3px solid var(--line);
  }
  .author {
    font-size: 12.5px;
    font-weight: 600;
    color: var(--dim);
  }
  .thinking > summary {
    font-size: 12.5px;
    font-weight: 600;
    color: var(--dim);
  }
  .text {
    white-space: pre-wrap;
    overflow-wrap: anywhere;
    unicode-bidi: plaintext;
  }
  .caret {
    display: inline-block;
    width: 8px;
    height: 1em;
    margin-left: 1px;
    vertical-align: text-bottom;
    background: currentColor;
    opacity: 0.6;
  }
  .break {
    font-size: 12.5px;
    font-weight: 600;
  }
  .break::before {
    content: "— ";
  }
  .call {
    border: 1px solid var(--line);
    border-radius: 8px;
    background: var(--bg);
    min-width: 0;
  }
  .call summary {
    display: flex;
    align-items: center;
    gap: 10px;
    padding: 4px 8px;
    min-width: 0;
  }
  .short-args {
    flex: 1;
    min-width: 0;
    overflow: hidden;
    text-overflow: ellipsis;
    white-space: nowrap;
    font-size: 12.5px;
  }
  dl {
    display: grid;
    grid-template-columns: 90px minmax(0, 1fr);
    gap: 4px 10px;
    padding: 4px 8px 8px;
  }
  dt {
    color: var(--dim);
  }
  dd {
    overflow-wrap: anywhere;
  }
  .result {
    display: grid;
    gap: 6px;
    padding: 12px;
    border: 1px solid var(--line);
    border-radius: var(--round);
  }
  .result[data-tone="stop"] {
    border-color: var(--stop);
    overflow-wrap: anywhere;
  }
  @media (prefers-reduced-motion: no-preference) {
    .caret {
      animation: blink 1s steps(2, start) infinite;
    }
    @keyframes blink {
      to {
        opacity: 0;
      }
    }
  }
  @container (max-width: 560px) {
    .head {
      grid-template-columns: minmax(0, 1fr) auto;
    }
    .head .style {
      grid-column: 1;
    }
    .head .title {
      grid-column: 1 / -1;
      grid-row: 2;
    }
    .body,
    li.message {
      padding-left: 12px;
    }
  }
`;
