// @ts-check
/** Whether keys work wherever the focus is, on a page that lets them: the reader's own choice. */

const NAME = "midrun keys";

/** @returns {boolean} */
export function keysEverywhere() {
  try {
    return localStorage.getItem(NAME) !== "inside";
  } catch {
    return true; // storage may be switched off
  }
}

/** @param {boolean} everywhere */
export function keepKeys(everywhere) {
  try {
    localStorage.setItem(NAME, everywhere ? "everywhere" : "inside");
  } catch {
    // as above; then it holds for this page
  }
}
