// @ts-check
/** Styles of the control bar. */
import { css } from "./lit.js";

export const style = css`
  :host {
    container-type: inline-size;
  }
  .bar {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 8px;
    padding: 10px 12px;
    border: 1px solid var(--line);
    border-radius: var(--round);
    background: var(--bg);
    box-shadow: 0 -2px 18px rgb(0 0 0 / 0.08);
  }
  .status {
    display: flex;
    flex-wrap: wrap;
    align-items: center;
    gap: 4px 14px;
  }
  .clock {
    font: 700 15px var(--mono);
    font-variant-numeric: tabular-nums;
  }
  .clock.stopped {
    color: var(--dim);
  }
  .activity {
    flex: 1 1 160px;
    display: flex;
    align-items: baseline;
    gap: 10px;
    min-width: 0;
  }
  .activity .link {
    flex: none;
  }
  .note {
    min-width: 0;
    color: var(--dim);
    overflow: hidden;
    text-overflow: ellipsis;
    white-space: nowrap;
  }
  .note:empty,
  .activity:not(:has(.link, .note:not(:empty))) {
    display: none;
  }
  .usage {
    margin-left: auto;
    font: 12px var(--mono);
    color: var(--dim);
  }
  .line {
    display: flex;
    flex-wrap: wrap;
    align-items: baseline;
    gap: 2px 10px;
    min-width: 0;
    overflow-wrap: anywhere;
  }
  .line .icon {
    align-self: center;
  }
  .diff {
    display: grid;
    font: 12.5px/1.5 var(--mono);
    overflow-wrap: anywhere;
  }
  .diff span::before {
    display: inline-block;
    width: 1.6em;
    content: attr(data-symbol);
  }
  .buttons {
    display: grid;
    grid-template-columns: repeat(3, minmax(0, 1fr));
    gap: 8px;
  }
  .buttons[inert] {
    opacity: 0.55;
  }
  .sheet {
    padding-top: 8px;
    border-top: 1px solid var(--line);
  }
  .control {
    display: grid;
    gap: 1px;
    align-content: start;
    min-height: 56px;
    padding: 8px 10px;
    border-radius: 10px;
    text-align: left;
  }
  .control b {
    display: flex;
    align-items: center;
    gap: 7px;
    font-size: 15px;
    font-weight: 600;
  }
  .control small {
    font-size: 12.5px;
    line-height: 1.35;
    color: var(--dim);
  }
  .control[aria-disabled="true"] {
    background: transparent;
  }
  .control[aria-disabled="true"] b {
    font-weight: 500;
    color: var(--dim);
  }
  kbd {
    margin-left: auto;
    padding: 2px 5px;
    border: 1px solid var(--line);
    border-radius: 4px;
    background: var(--bg);
    font: 400 11px/1 var(--mono);
    color: var(--dim);
  }
  .error {
    color: var(--stop);
    font-weight: 600;
    overflow-wrap: anywhere;
  }
  @media (pointer: coarse) {
    kbd {
      display: none;
    }
  }
  @container (max-width: 520px) {
    kbd {
      display: none;
    }
    .bar {
      gap: 6px;
      padding: 8px;
    }
    .status {
      gap: 3px 10px;
      font-size: 13px;
    }
    .badge {
      padding: 1px 8px 1px 6px;
    }
    .clock {
      font-size: 14px;
    }
    .activity {
      flex-basis: 40%;
      order: 1;
    }
    .usage {
      order: 2;
      font-size: 11.5px;
    }
    .note {
      display: -webkit-box;
      -webkit-box-orient: vertical;
      -webkit-line-clamp: 2;
      white-space: normal;
    }
    .note:has(~ .link) {
      -webkit-line-clamp: 1; /* the panel that the link leads to says the rest */
    }
    .row button {
      padding-inline: 9px;
    }
    .row {
      gap: 6px;
    }
    .buttons {
      gap: 6px;
    }
    .control {
      min-height: 48px;
      padding: 5px 6px;
    }
    .control b {
      gap: 5px;
      font-size: 14px;
    }
    .control small {
      font-size: 12px;
      line-height: 1.2;
    }
    .buttons[inert] .control {
      min-height: 0;
    }
    .buttons[inert] small {
      display: none; /* the sheet below the buttons says it */
    }
  }
  @container (max-width: 420px) {
    .buttons {
      grid-template-columns: 10fr 11fr 10fr;
    }
    .buttons:has(#pause[data-long]) {
      grid-template-columns: 13fr 10fr 9fr; /* so that "Keep running" fits on one line */
    }
    .control b {
      gap: 4px;
      font-size: 13px;
    }
  }
  @container (max-width: 350px) {
    .buttons:has(#pause[data-long]) {
      grid-template-columns: 11fr 8fr 8fr;
    }
    .control .icon {
      display: none;
    }
  }
  @container (max-width: 320px) {
    .buttons,
    .buttons:has(#pause[data-long]) {
      grid-template-columns: 1fr;
    }
    .control {
      grid-template-columns: 112px minmax(0, 1fr);
      align-items: center;
      gap: 8px;
      min-height: 44px;
    }
  }
`;
