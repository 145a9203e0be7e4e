// @ts-check
/**
 * Browser notifications: a run needs a person, has failed or is completed.
 *
 * `NewsDetector` finds the changes that are worth one; elements announce them as `midrun-news`.
 * Our own pages turn that event into a notification of the browser if the viewer has switched
 * them on and the page does not have the focus.
 */

import { readable } from "./template.js";

/** @typedef {{run: string, word: string, task: string}} News the detail of `midrun-news` */

const STORAGE_KEY = "midrun notices";
const NEWS_PHASES = new Set(["waiting", "failed", "completed"]);

/** Detects when a run enters a phase that is news. The first observation of a run never is. */
export class NewsDetector {
  /** @type {Map<string, string>} by run: the news it is in now, or "" */
  #current = new Map();

  /**
   * Record the run's phase; tell whether it has just become news.
   * @param {string} run @param {string} phase @param {boolean} isCapped paused at a cap
   */
  isNews(run, phase, isCapped) {
    const before = this.#current.get(run);
    const now = NEWS_PHASES.has(phase) ? phase : phase === "paused" && isCapped ? "cap" : "";
    this.#current.set(run, now);
    return before !== undefined && now !== "" && now !== before;
  }
}

/** Return the button that switches notifications on and off; "" if the browser allows none. */
export function createNotificationButton() {
  if (!("Notification" in globalThis) || Notification.permission === "denied") return "";
  const button = document.createElement("button");
  const draw = () => {
    button.textContent = isEnabled() ? "Notifications on" : "Notify me";
    button.setAttribute("aria-pressed", String(isEnabled()));
    button.title = "Notifies you when a run needs you, fails or completes while this page is not in focus";
  };
  button.addEventListener("click", async () => {
    // Browsers show their permission prompt only in response to a click.
    const granted = (await Notification.requestPermission()) === "granted";
    saveChoice(granted && !isEnabled());
    if (granted) draw();
    else button.remove();
  });
  draw();
  return button;
}

/** Show a notification unless the page has the focus. @param {News} news @param {string} href the run's page */
export function notify({ run, word, task }, href) {
  if (!isEnabled() || (!document.hidden && document.hasFocus())) return;
  try {
    const notification = new Notification(readable(word), { body: readable(task), tag: run });
    notification.addEventListener("click", () => {
      window.focus();
      if (location.href !== href) location.href = href;
      notification.close();
    });
  } catch {
    // Some mobile browsers allow notifications from service workers only.
  }
}

const isEnabled = () => Notification.permission === "granted" && loadChoice();

function loadChoice() {
  try {
    return localStorage.getItem(STORAGE_KEY) === "on";
  } catch {
    return false; // storage is switched off
  }
}

/** @param {boolean} on */
function saveChoice(on) {
  try {
    localStorage.setItem(STORAGE_KEY, on ? "on" : "off");
  } catch {
    // storage is switched off
  }
}
