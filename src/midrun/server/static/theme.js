// @ts-check
/**
 * Styles that all elements share. Every colour, font and radius is a `--midrun-*` property that a
 * host page may set; nothing else of the host page's styles reaches the inside.
 *
 * `--midrun-scheme: dark` (or `light`) sets the colour scheme; the default is the viewer's own.
 */
import { css } from "./lit.js";

export const theme = css`
  :host {
    all: initial;
    display: block;
    color-scheme: var(--midrun-scheme, light dark);
    --bg: var(--midrun-bg, light-dark(#ffffff, #14161a));
    --panel: var(--midrun-panel, light-dark(#f6f7f9, #1b1e24));
    --fg: var(--midrun-fg, light-dark(#16181d, #eceef2));
    --dim: var(--midrun-dim, light-dark(#555b66, #a3a9b5));
    --line: var(--midrun-line, light-dark(#d5d9e0, #333842));
    --edge: var(--midrun-edge, light-dark(#858b96, #767d8a));
    --run: var(--midrun-run, light-dark(#0b5cad, #6cb2ff));
    --hold: var(--midrun-hold, light-dark(#7a4d00, #ffc24d));
    --wait: var(--midrun-wait, light-dark(#6b2fb3, #c9a2ff));
    --stop: var(--midrun-stop, light-dark(#a3210f, #ff8f7d));
    --ok: var(--midrun-ok, light-dark(#0f6b3a, #5fd39a));
    --round: var(--midrun-radius, 12px);
    --sans: var(--midrun-font, system-ui, -apple-system, "Segoe UI", "Noto Sans", sans-serif);
    --mono: var(
      --midrun-mono,
      ui-monospace,
      "SF Mono",
      "Cascadia Mono",
      "DejaVu Sans Mono",
      Menlo,
      Consolas,
      monospace
    );
    /* A host page's rules for every element have precedence over :host; their values would be inherited. */
    font: 14px/1.45 var(--sans) !important;
    color: var(--fg) !important;
    cursor: auto !important;
    letter-spacing: normal !important;
    line-break: auto !important;
    list-style: disc !important;
    quotes: auto !important;
    tab-size: 8 !important;
    text-align: start !important;
    text-decoration: none !important;
    text-indent: 0 !important;
    text-shadow: none !important;
    text-transform: none !important;
    white-space: normal !important;
    word-break: normal !important;
    word-spacing: normal !important;
    -webkit-text-fill-color: currentcolor !important;
    -webkit-text-stroke: 0 !important;
  }
  :host([hidden]) {
    display: none;
  }
  *,
  ::before,
  ::after {
    box-sizing: border-box;
  }
  h1,
  h2,
  h3,
  p,
  ul,
  ol,
  dl,
  dd,
  pre {
    margin: 0;
  }
  h2 {
    font-size: 13px;
    font-weight: 700;
    letter-spacing: 0.04em;
    text-transform: uppercase;
    color: var(--dim);
  }
  ul,
  ol {
    padding-left: 18px;
  }
  a {
    color: var(--run);
  }
  code,
  pre,
  .mono {
    font-family: var(--mono);
    font-variant-numeric: tabular-nums;
  }
  pre {
    font-size: 12.5px;
    white-space: pre-wrap;
    overflow-wrap: anywhere;
  }
  code {
    unicode-bidi: isolate; /* right-to-left text inside reorders nothing outside */
  }
  a,
  b,
  button,
  em,
  span,
  h1,
  textarea,
  input[type="text"] {
    unicode-bidi: plaintext; /* isolated as well; its first letter sets the direction */
  }
  .dim {
    color: var(--dim);
  }
  .row {
    display: flex;
    flex-wrap: wrap;
    align-items: center;
    gap: 8px;
  }
  .panel {
    border: 1px solid var(--line);
    border-radius: var(--round);
    background: var(--panel);
    padding: 12px;
    display: grid;
    gap: 8px;
    min-width: 0;
    overflow-wrap: anywhere;
  }
  .visually-hidden {
    position: absolute;
    width: 1px;
    height: 1px;
    overflow: hidden;
    clip-path: inset(50%);
    white-space: nowrap;
  }
  .icon {
    flex: none;
    width: 16px;
    height: 16px;
    fill: none;
    stroke: currentColor;
    stroke-width: 2;
    stroke-linecap: round;
    stroke-linejoin: round;
  }

  button,
  input,
  textarea,
  select {
    font: inherit;
    color: inherit;
  }
  button {
    cursor: pointer;
    min-height: var(--target, 32px);
    padding: 5px 12px;
    border: 1.5px solid var(--line);
    border-radius: 8px;
    background: var(--panel);
  }
  button:hover:not(:disabled, [aria-disabled="true"]) {
    border-color: currentColor;
  }
  button:disabled,
  button[aria-disabled="true"] {
    cursor: not-allowed;
    color: var(--dim);
    border-style: dashed;
  }
  button.main,
  button.danger {
    font-weight: 600;
    color: var(--bg);
    background: var(--run);
    border-color: var(--run);
  }
  button.danger {
    background: var(--stop);
    border-color: var(--stop);
  }
  button.main:hover:not(:disabled),
  button.danger:hover:not(:disabled) {
    border-color: var(--fg);
  }
  button.main:disabled,
  button.danger:disabled {
    color: var(--dim);
    background: transparent;
    border-color: var(--line);
  }
  button.link {
    min-height: var(--target, 24px);
    padding: 0 2px;
    border: 0;
    background: none;
    color: var(--run);
    text-decoration: underline;
    text-underline-offset: 2px;
  }
  textarea,
  input[type="text"],
  input[type="number"],
  input[type="search"],
  select {
    width: 100%;
    padding: 8px;
    border: 1.5px solid var(--edge);
    border-radius: 8px;
    background: var(--bg);
  }
  textarea,
  input,
  select {
    font-weight: 400;
  }
  textarea {
    min-height: 58px;
    resize: vertical;
  }
  @media (pointer: coarse), (max-width: 480px) {
    :host {
      --target: 44px; /* the height of what a finger hits */
    }
    select,
    summary,
    input[type="text"],
    input[type="number"],
    input[type="search"],
    label:has(> input[type="checkbox"]) {
      min-height: 44px;
    }
    summary {
      align-content: center;
    }
  }
  @media (pointer: coarse) {
    textarea,
    input,
    select {
      font-size: 16px; /* some phones zoom into a field with a smaller font, and stay there */
    }
  }
  fieldset {
    min-width: 0;
    margin: 0;
    padding: 0;
    border: 0;
  }
  details > summary {
    cursor: pointer;
    min-height: 24px;
  }
  :focus-visible {
    outline: 2px solid var(--run);
    outline-offset: 2px;
  }
  /* A heading or a panel takes the focus so that a screen reader starts there; nothing is typed into it. */
  :is(h1, h2, h3, section):focus-visible {
    outline: none;
  }

  .badge {
    display: inline-flex;
    align-items: center;
    gap: 6px;
    padding: 2px 10px 2px 8px;
    border: 1.5px solid currentColor;
    border-radius: 999px;
    font-weight: 600;
    background: var(--bg);
  }
  .badge[data-border="dashed"] {
    border-style: dashed;
  }
  .badge[data-border="filled"] {
    background: color-mix(in srgb, currentColor 12%, var(--bg));
  }
  [data-tone="run"] {
    color: var(--run);
  }
  [data-tone="hold"] {
    color: var(--hold);
  }
  [data-tone="wait"] {
    color: var(--wait);
  }
  [data-tone="stop"] {
    color: var(--stop);
  }
  [data-tone="ok"] {
    color: var(--ok);
  }
  [data-tone="dim"] {
    color: var(--dim);
  }

  @media (prefers-reduced-motion: no-preference) {
    .icon.pulse {
      animation: pulse 1.6s ease-in-out infinite;
    }
    @keyframes pulse {
      50% {
        opacity: 0.35;
      }
    }
  }
  @media (forced-colors: active) {
    button,
    .badge,
    .panel {
      border-color: ButtonText;
    }
    .badge[data-border="filled"] {
      border-width: 3px;
    }
  }
`;
