// @ts-check
/**
 * Places: how many feeds one browser keeps open to a server.
 *
 * A browser has six connections to a server, over all its tabs, and an open feed takes one of
 * them. With six tabs that each held one, no button of any of them would get through. So there
 * are fewer places than that, for tabs that somebody looks at; who has none looks in now and then.
 */

const PLACES = 4;

/** How long a tab keeps its place while nobody looks at it, in milliseconds. */
const UNSEEN = 5_000;

/** Return what gives the place back, or null if there is none. @returns {Promise<(() => void) | null>} */
export async function place() {
  if (document.hidden) return null;
  if (!navigator.locks) return () => undefined; // plain http beyond loopback: each for itself
  for (let number = 0; number < PLACES; number++) {
    const give = await locked(`midrun-feed-${number}`);
    if (give) return give;
  }
  return null;
}

/** Take a lock that all tabs share, if it is free. @param {string} name */
function locked(name) {
  return new Promise((/** @type {(give: (() => void) | null) => void} */ done, fail) => {
    navigator.locks
      .request(name, { ifAvailable: true }, (lock) => {
        if (!lock) return done(null);
        return new Promise((give) => done(() => give(undefined)));
      })
      .catch(fail);
  });
}

/**
 * Call back once nobody has looked at the tab for a while; return what calls that off.
 * @param {() => void} back
 */
export function whenUnseen(back) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(back, UNSEEN);
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
}

/**
 * Wait; but no longer than until somebody looks at the tab again.
 * @param {number} ms @param {AbortSignal} signal
 */
export function rest(ms, signal) {
  return new Promise((/** @type {(value?: undefined) => void} */ done) => {
    const seen = () => !document.hidden && end();
    const end = () => {
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
      signal.removeEventListener("abort", end);
      done();
    };
    const timer = setTimeout(end, ms);
    document.addEventListener("visibilitychange", seen);
    signal.addEventListener("abort", end);
  });
}
