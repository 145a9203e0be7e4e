// @ts-check
/**
 * Drafts: what somebody is writing, and has not sent. It survives a reload, and signing in again.
 *
 * Storage may be switched off; then a draft lives as long as its element.
 */

const OURS = "midrun draft ";

/** @param {string} name @returns {string} */
export function kept(name) {
  try {
    return sessionStorage.getItem(OURS + name) ?? "";
  } catch {
    return "";
  }
}

/** @param {string} name @param {string} text nothing is kept of an empty one */
export function keep(name, text) {
  try {
    if (text) sessionStorage.setItem(OURS + name, text);
    else sessionStorage.removeItem(OURS + name);
  } catch {
    // as above
  }
}

/** Forget them all: whoever signs in next is somebody else. */
export function forget() {
  try {
    const names = Object.keys(sessionStorage).filter((name) => name.startsWith(OURS));
    for (const name of names) sessionStorage.removeItem(name);
  } catch {
    // as above
  }
}
