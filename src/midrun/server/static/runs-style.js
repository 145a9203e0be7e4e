// @ts-check
/** Styles of `<midrun-runs>`: a table; in a narrow box, one block for each run. */
import { css } from "./lit.js";

export const style = css`
  :host {
    container: runs / inline-size;
  }
  h1 {
    font-size: 22px;
  }
  .head {
    gap: 12px;
    margin-bottom: 12px;
  }
  .actions {
    margin-left: auto;
  }
  .sheet,
  midrun-halts,
  midrun-new-run,
  midrun-halt-sheet {
    margin-bottom: 12px;
  }
  .announcement:empty {
    display: none;
  }
  .announcement {
    margin-bottom: 12px;
    font-weight: 600;
  }
  .chips {
    margin-bottom: 8px;
  }
  .chips .search {
    flex: 1 1 180px;
    width: auto;
    min-height: var(--target, 32px);
    margin-left: auto;
    padding: 4px 10px;
  }
  .chip .mono {
    color: var(--dim);
  }
  .chip {
    border-radius: 999px;
  }
  .chip[aria-pressed="true"] {
    border-color: var(--fg);
    font-weight: 700;
    background: var(--bg);
  }
  .scroll {
    overflow-x: auto;
  }
  table {
    width: 100%;
    border-collapse: collapse;
  }
  th {
    padding: 6px 10px;
    text-align: left;
    font-size: 12px;
    color: var(--dim);
    border-bottom: 1px solid var(--line);
    white-space: nowrap;
  }
  td {
    padding: 10px;
    border-bottom: 1px solid var(--line);
    vertical-align: top;
  }
  td.action {
    padding-block: 6px;
  }
  td.figure {
    font-variant-numeric: tabular-nums;
  }
  .agents {
    width: auto;
    min-height: var(--target, 32px);
    padding: 4px 8px;
  }
  .about {
    margin-top: 2px;
    font-size: 12.5px;
  }
  tr.child .task {
    padding-left: 30px;
  }
  tr.child .task a {
    font-weight: 500;
  }
  td.figure,
  td.action,
  .state .badge {
    white-space: nowrap;
  }
  .note {
    max-width: 260px;
    overflow-wrap: anywhere;
  }
  .task {
    width: 45%;
    overflow-wrap: anywhere;
  }
  .task a {
    display: -webkit-box;
    -webkit-box-orient: vertical;
    -webkit-line-clamp: 3; /* the run's own page shows all of it */
    overflow: hidden;
    font-weight: 600;
    color: var(--fg);
    text-decoration: none;
    unicode-bidi: plaintext;
  }
  .preview {
    display: -webkit-box;
    -webkit-box-orient: vertical;
    -webkit-line-clamp: 2; /* the run's own page shows all of it */
    overflow: hidden;
    margin-top: 2px;
    font-size: 13.5px;
    unicode-bidi: plaintext;
  }
  tr:hover .task a,
  .task a:focus-visible {
    text-decoration: underline;
    text-underline-offset: 2px;
  }
  tbody tr:hover {
    background: color-mix(in srgb, var(--panel) 60%, var(--bg));
  }
  .note {
    margin-top: 4px;
    font-size: 12.5px;
  }
  .note:empty {
    display: none;
  }
  a.button {
    display: inline-grid;
    align-content: center;
    min-height: var(--target, 32px);
    padding: 5px 12px;
    border: 1.5px solid var(--wait);
    border-radius: 8px;
    color: var(--wait);
    font-weight: 600;
    text-decoration: none;
  }
  a.button:hover {
    background: color-mix(in srgb, var(--wait) 9%, var(--bg));
  }
  .problem {
    color: var(--stop);
    font-weight: 600;
  }
  .no-runs {
    margin-top: 8px;
  }
  .empty {
    display: grid;
    justify-items: center;
    gap: 12px;
    max-width: 52ch;
    margin: 8vh auto 0;
    text-align: center;
  }
  .empty h2 {
    font-size: 18px;
    letter-spacing: normal;
    text-transform: none;
    color: var(--fg);
  }
  .older {
    margin-top: 12px;
  }
  @container runs (max-width: 680px) {
    thead {
      position: absolute;
      clip-path: inset(50%);
      width: 1px;
      height: 1px;
      overflow: hidden;
    }
    table,
    tbody {
      display: block;
    }
    tr {
      display: flex;
      flex-wrap: wrap;
      align-items: baseline;
      gap: 4px 12px;
      padding: 12px 0;
      border-bottom: 1px solid var(--line);
    }
    td {
      display: block;
      padding: 0;
      border: 0;
    }
    .task {
      order: -1;
      width: 100%;
    }
    .state {
      flex: 1 1 50%;
    }
    .state .badge {
      white-space: normal;
      border-radius: 14px;
    }
    td.action {
      order: 1;
      padding: 0;
    }
    tr::after {
      content: ""; /* starts a new line for the figures */
      order: 2;
      flex-basis: 100%;
    }
    td[data-label] {
      order: 3;
    }
    tr.child {
      padding-left: 22px;
    }
    tr.child .task {
      padding-left: 0;
    }
    .unknown {
      display: none; /* here it would take a line of its own */
    }
    td[data-label]::before {
      content: attr(data-label) " ";
      color: var(--dim);
    }
    .head .actions {
      margin-left: 0;
    }
  }
`;
