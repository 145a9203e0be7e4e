// @ts-check
/**
 * Feed slots: a limit on the feeds that all tabs of one browser keep open to a server.
 *
 * Over HTTP/1.1 a browser opens six connections per server, shared by all its tabs, and an open
 * feed occupies one of them. With six tabs that each hold a feed, no further request of any tab
 * would be sent, so no button would work. So there are four slots, for visible tabs only. A tab
 * without a slot polls: it opens the feed for a moment, reads the new entries, and closes it.
 *
 * A slot is a Web Lock. The browser frees it when its tab is closed or crashes.
 */

const SLOT_COUNT = 4;

/** Milliseconds for which a hidden tab keeps its slot. */
const HIDDEN_GRACE_MS = 5_000;

/**
 * Take a slot if one is free.
 * @returns {Promise<(() => void) | null>} frees the slot; null if all are taken or the tab is hidden
 */
export async function acquireSlot() {
  if (document.hidden) return null;
  // Locks exist in secure contexts only: not with plain HTTP beyond loopback. There, every tab
  // acts as if it had a slot.
  if (!navigator.locks) return () => undefined;
  for (let number = 0; number < SLOT_COUNT; number++) {
    const release = await tryLock(`midrun-feed-${number}`);
    if (release) return release;
  }
  return null;
}

/** Take a lock that all tabs share, if it is free. @param {string} name */
function tryLock(name) {
  return new Promise((/** @type {(release: (() => void) | null) => void} */ resolve, reject) => {
    navigator.locks
      .request(name, { ifAvailable: true }, (lock) => {
        if (!lock) return resolve(null);
        // The lock is held until this inner promise resolves.
        return new Promise((release) => resolve(() => release(undefined)));
      })
      .catch(reject);
  });
}

/**
 * Call back once the tab has been hidden for `HIDDEN_GRACE_MS`.
 * @param {() => void} callback @returns {() => void} cancels it
 */
export function onLongHidden(callback) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const check = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(callback, HIDDEN_GRACE_MS);
  };
  document.addEventListener("visibilitychange", check);
  check();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", check);
  };
}

/**
 * Wait for `ms`; return early if the tab becomes visible or `signal` aborts.
 * @param {number} ms @param {AbortSignal} signal
 */
export function waitUntilVisible(ms, signal) {
  return new Promise((/** @type {(value?: undefined) => void} */ resolve) => {
    const onVisibility = () => !document.hidden && end();
    const end = () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    document.addEventListener("visibilitychange", onVisibility);
    signal.addEventListener("abort", end);
  });
}
