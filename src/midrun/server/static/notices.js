// @ts-check
/** Notices of the browser, for whoever has asked for them on our own pages and looks elsewhere. */

import { readable } from "./template.js";

/** @typedef {import("./newsworthy.js").News} News */

const NAME = "midrun notices";

/** The button that switches them on and off; nothing where the browser has none to give. */
export function noticeButton() {
  if (!("Notification" in globalThis) || Notification.permission === "denied") return "";
  const button = document.createElement("button");
  const draw = () => {
    button.textContent = areOn() ? "Notices on" : "Notify me";
    button.setAttribute("aria-pressed", String(areOn()));
    button.title = "Tells you when a run needs you, fails or completes while you look elsewhere";
  };
  button.addEventListener("click", async () => {
    const granted = (await Notification.requestPermission()) === "granted";
    keep(granted && !areOn());
    if (granted) draw();
    else button.remove();
  });
  draw();
  return button;
}

/** Tell, unless the page is in sight. @param {News} news @param {string} href where it is shown */
export function notify({ run, word, task }, href) {
  if (!areOn() || (!document.hidden && document.hasFocus())) return;
  try {
    const notice = new Notification(readable(word), { body: readable(task), tag: run });
    notice.addEventListener("click", () => {
      window.focus();
      if (location.href !== href) location.href = href;
      notice.close();
    });
  } catch {
    // some phones have them for service workers only
  }
}

const areOn = () => Notification.permission === "granted" && chosen();

function chosen() {
  try {
    return localStorage.getItem(NAME) === "on";
  } catch {
    return false; // storage may be switched off
  }
}

/** @param {boolean} on */
function keep(on) {
  try {
    localStorage.setItem(NAME, on ? "on" : "off");
  } catch {
    // as above
  }
}
