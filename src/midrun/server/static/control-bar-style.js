// @ts-check
/** Styles of the control bar: rows that come and go, and a dock whose height never changes. */
import { css } from "./lit.js";

export const style = css`
  :host {
    container-type: inline-size;
  }
  .bar {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    padding: 8px 12px;
    border: 1px solid var(--line);
    border-radius: var(--round);
    background: var(--bg);
    box-shadow: 0 -2px 18px rgb(0 0 0 / 0.08);
  }
  :host([docked]) .bar {
    padding-bottom: calc(8px + env(safe-area-inset-bottom, 0px));
    border-bottom: 0;
    border-radius: var(--round) var(--round) 0 0;
  }
  .problem {
    gap: 8px;
    padding: 16px;
  }
  .problem h2 {
    font-size: 17px;
    letter-spacing: normal;
    text-transform: none;
    color: var(--fg);
  }
  .tray {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 8px;
    max-height: 56vh;
    overflow: auto;
    /* Room for focus rings, which overflow would cut off. */
    margin: 0 -6px;
    padding: 2px 6px 8px;
    border-bottom: 1px solid var(--line);
    margin-bottom: 8px;
  }
  .tray:not(:has(> :not([hidden]))) {
    display: none;
  }
  :host(:not([docked])) .tray {
    max-height: none;
    margin: 8px -6px 0;
    padding: 8px 6px 2px;
    border-top: 1px solid var(--line);
    border-bottom: 0;
  }
  .dock {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 8px;
  }
  .dock[inert] > :not(.status) {
    opacity: 0.45;
  }
  .status {
    display: flex;
    align-items: center;
    gap: 12px;
    height: 28px;
    white-space: nowrap;
  }
  .status .badge {
    min-width: 0;
    flex: 0 1 auto;
  }
  .status .badge span {
    overflow: hidden;
    text-overflow: ellipsis;
  }
  .clock {
    flex: none;
    font: 600 13px var(--mono);
    font-variant-numeric: tabular-nums;
  }
  .clock.stopped {
    color: var(--dim);
  }
  .place {
    flex: none;
    font-size: 13px;
    font-variant-numeric: tabular-nums;
  }
  .place:empty {
    display: none;
  }
  /* A note that has room for a few letters only is wrapped to a second line, which is not shown. */
  .activity {
    flex: 1 1 0;
    display: flex;
    flex-wrap: wrap;
    align-items: center;
    align-content: flex-start;
    gap: 24px 10px;
    min-width: 0;
    height: 100%;
    overflow: clip;
    overflow-clip-margin: 8px;
  }
  .activity::before {
    content: ""; /* the first line is never empty, and as high as the row */
    height: 100%;
    margin-right: -10px;
  }
  .activity:has(.link) {
    min-width: 132px; /* the badge before it gives way */
  }
  .activity .link {
    flex: none;
    font-weight: 600;
  }
  .note {
    flex: 1 1 90px;
    min-width: 0;
    max-width: max-content;
    color: var(--dim);
    overflow: hidden;
    text-overflow: ellipsis;
  }
  .note:empty {
    display: none;
  }
  .usage {
    flex: none;
    font: 12px var(--mono);
    color: var(--dim);
  }
  .status:has(.link) .usage {
    display: none; /* the panel of the caps has it */
  }
  .keys {
    flex: none;
    width: 26px;
    min-height: var(--target, 26px);
    padding: 0;
    border-width: 1px;
    border-radius: 50%;
    color: var(--dim);
    font-size: 12.5px;
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
    font-size: 13px;
    overflow-wrap: anywhere;
  }
  .diff span::before {
    display: inline-block;
    width: 1.6em;
    font-family: var(--mono);
    content: attr(data-symbol);
  }
  .buttons {
    display: grid;
    grid-template-columns: minmax(0, 1.25fr) repeat(3, minmax(0, 1fr)); /* "Keep running" is long */
    gap: 8px;
  }
  .finished button {
    min-height: var(--target, 40px);
  }
  .sheet {
    padding-bottom: 4px;
  }
  .control {
    height: 40px;
    padding: 4px 8px;
    border-radius: 10px;
    text-align: left;
  }
  .control b {
    display: flex;
    align-items: center;
    gap: 6px;
    font-size: 14px;
    font-weight: 600;
    line-height: 1.1;
  }
  /* The icon has the colour; four coloured words side by side would compete with the text. */
  .control:not([aria-disabled="true"]) b > span {
    color: var(--fg);
  }
  .control b > span {
    min-width: 0;
    overflow: hidden;
    text-overflow: ellipsis;
    white-space: nowrap;
  }
  .control[aria-disabled="true"] {
    background: transparent;
  }
  .control[aria-disabled="true"] b {
    font-weight: 500;
    color: var(--dim);
  }
  .control:not([aria-disabled="true"])#pause {
    border-color: color-mix(in srgb, var(--hold) 55%, var(--line));
  }
  .hint {
    height: 1.4em;
    overflow: hidden;
    color: var(--dim);
    font-size: 12.5px;
    line-height: 1.4;
    text-overflow: ellipsis;
    white-space: nowrap;
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
  .help {
    display: grid;
    gap: 8px;
  }
  .help dl {
    display: grid;
    grid-template-columns: repeat(auto-fill, minmax(min(280px, 100%), 1fr));
    gap: 4px 16px;
  }
  .help dl div {
    display: grid;
    grid-template-columns: 104px minmax(0, 1fr);
    align-items: baseline;
  }
  .help kbd {
    margin: 0;
  }
  .error {
    color: var(--stop);
    font-weight: 600;
    overflow-wrap: anywhere;
  }
  @media (pointer: coarse) {
    .control kbd {
      display: none;
    }
  }
  @media (pointer: coarse), (max-width: 480px) {
    .status .link {
      margin-block: -10px; /* higher than its line */
    }
    .keys {
      display: none;
    }
    .control {
      height: 44px;
    }
  }
  @container (max-width: 640px) {
    .control kbd {
      display: none; /* the label needs the room */
    }
    .status:has(.link) .place,
    .status .usage {
      display: none;
    }
  }
  @container (max-width: 560px) {
    .line {
      align-items: center;
    }
    .line > span:not(.row) {
      flex: 1 1 0; /* beside its icon and its button */
      min-width: 55%;
    }
    .bar {
      padding: 6px 8px;
    }
    .dock {
      gap: 6px;
    }
    .status {
      gap: 8px;
      height: 26px;
      font-size: 13px;
    }
    .badge {
      padding: 1px 8px 1px 6px;
    }
    .clock {
      font-size: 13px;
    }
    .buttons,
    .row {
      gap: 6px;
    }
    .finished .more {
      display: none;
    }
    .buttons {
      grid-template-columns: minmax(0, 1.6fr) repeat(3, minmax(0, 1fr));
    }
    .row button {
      padding-inline: 9px;
    }
    .control {
      padding: 2px;
      text-align: center;
    }
    .control b {
      flex-direction: column;
      justify-content: center;
      gap: 2px;
      font-size: 12px;
    }
    .control b > span {
      max-width: 100%;
    }
    .hint {
      height: 2.6em;
      line-height: 1.3;
      white-space: normal;
      font-size: 12px;
    }
  }
  @container (max-width: 420px) {
    .place {
      display: none;
    }
    .activity:has(.link) {
      min-width: max-content;
    }
    .status:has(.link) .clock {
      display: none;
    }
    .note:has(~ .link) {
      display: none; /* the panel that the link leads to says the rest */
    }
  }
`;
