// @ts-check
/** Icons: each status of a run or a step has its own shape, so that no status depends on colour. */
import { svg, html } from "./lit.js";

/** @type {Record<string, string>} */
const PATHS = {
  queued: "M12 7v5l3 2M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Z",
  open: "M12 5a7 7 0 1 0 0 14 7 7 0 0 0 0-14Z",
  running: "M8 5.5v13l10-6.5-10-6.5Z",
  pausing: "M8 6v12M12 9v6M16 6v12",
  paused: "M9 6v12M15 6v12",
  waiting:
    "M8 11V6a1.5 1.5 0 0 1 3 0v4m0-1V4.5a1.5 1.5 0 0 1 3 0V10m0-3a1.5 1.5 0 0 1 3 0v6a7 7 0 0 1-7 7" +
    "c-3 0-4.5-2-6-5l-1-2a1.5 1.5 0 0 1 2.6-1.4L8 14",
  cancelling: "M12 3a9 9 0 1 0 9 9M9 9l6 6M15 9l-6 6",
  cancelled: "M7 7h10v10H7Z",
  completed: "M5 12.5l4.5 4.5L19 7.5",
  failed: "M12 9v5m0 3v.5M12 3 2.5 20h19L12 3Z",
  halted: "M8 3h8l5 5v8l-5 5H8l-5-5V8l5-5ZM8 12h8",
  halting: "M8 3h8l5 5v8l-5 5M8 21l-5-5V8l5-5M8 12h8",
  lost: "M4 4l16 16M5 10a10 10 0 0 1 4-2.4M2.5 7.5A14 14 0 0 1 7 5M12 19h.01M9 15.5a4.5 4.5 0 0 1 4-.9M15 8a10 10 0 0 1 4 2M17 5a14 14 0 0 1 4.5 2.5",
  undo: "M9 7 4 12l5 5M4 12h10a6 6 0 0 1 6 6",
  redirect: "M4 18v-5a5 5 0 0 1 5-5h10m-4-4 4 4-4 4",
  ask: "M9 9a3 3 0 1 1 4.5 2.6c-.9.6-1.5 1.2-1.5 2.4m0 3.5v.5M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18Z",
  attach: "M19 11.5l-7.5 7.5a4.6 4.6 0 0 1-6.5-6.5l8-8a3.1 3.1 0 0 1 4.4 4.4l-8 8a1.5 1.5 0 0 1-2.2-2.2l7.2-7.2",
  send: "M12 19V5M6 11l6-6 6 6",
  dropped: "M6 12h12",
  stopped: "M7 7l10 10M17 7 7 17",
};

/** @param {string} name @param {boolean} [pulse] whether it is animated */
export const icon = (name, pulse = false) =>
  html`<svg class=${pulse ? "icon pulse" : "icon"} viewBox="0 0 24 24" aria-hidden="true">
    ${svg`<path d=${PATHS[name] ?? PATHS.queued}></path>`}
  </svg>`;
