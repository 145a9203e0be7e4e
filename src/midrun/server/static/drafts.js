// @ts-check
/**
 * Drafts: text that the viewer has typed and not sent, kept in `sessionStorage`.
 *
 * A draft survives a reload of its tab and a new sign-in. Where storage is switched off, reading
 * and writing it throws; then a draft lives only as long as the element that holds it.
 */

const KEY_PREFIX = "midrun draft ";

/** Return the stored draft, "" if there is none. @param {string} name @returns {string} */
export function loadDraft(name) {
  try {
    return sessionStorage.getItem(KEY_PREFIX + name) ?? "";
  } catch {
    return ""; // storage is switched off
  }
}

/** Store a draft; an empty text removes it. @param {string} name @param {string} text */
export function saveDraft(name, text) {
  try {
    if (text) sessionStorage.setItem(KEY_PREFIX + name, text);
    else sessionStorage.removeItem(KEY_PREFIX + name);
  } catch {
    // storage is switched off
  }
}

/** Remove all drafts at sign-out: another person may sign in next in this tab. */
export function clearDrafts() {
  try {
    const names = Object.keys(sessionStorage).filter((name) => name.startsWith(KEY_PREFIX));
    for (const name of names) sessionStorage.removeItem(name);
  } catch {
    // storage is switched off
  }
}
