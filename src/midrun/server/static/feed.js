// @ts-check
/**
 * Feeds: server-sent events, read with `fetch`.
 *
 * `EventSource` cannot be used: it sends no token, reports a refusal like a lost connection, and
 * hides the keep-alive comments of the server.
 *
 * A feed resumes where its caller says, with `Last-Event-ID`; the journal is the buffer, so a
 * broken connection loses nothing. Only visible tabs hold a feed open, and only as
 * many as there are slots (`feed-slots.js`); other tabs poll.
 */
import { Problem } from "./api.js";
import { acquireSlot, waitUntilVisible, onLongHidden } from "./feed-slots.js";

/** @typedef {{type: string, seq: number, data: any}} StreamEvent `seq` is 0 for a delta, which is not stored */

/** Without any data for so long, a feed is lost. The server sends a keep-alive every 15 s. */
const SILENCE_MAX_MS = 40_000;
/** Delays before the first, second … retry; the last one repeats. */
const RETRY_DELAYS_MS = [300, 1000, 2000, 5000];
/** While polling: close a connection after so long without data; start the next one later. */
const POLL_IDLE_MS = 250;
const POLL_INTERVAL_MS = 2000;

/**
 * Follow a feed, and resume when it breaks. Returns when the server has ended the feed, or when
 * `signal` aborts.
 *
 * @param {import("./api.js").Api} api
 * @param {string} path
 * @param {object} options
 * @param {(event: StreamEvent) => void} options.onEvent
 * @param {(reply: Response) => void} [options.onOpen]
 * @param {() => void} [options.onLost]
 * @param {() => void} [options.onAlive] called with every event and keep-alive
 * @param {AbortSignal} options.signal
 * @param {() => number} [options.resumeAfter] the seq to resume after; 0 to begin
 * @throws {Problem} the server refuses the feed
 */
export async function followFeed(api, path, { onEvent, onOpen, onLost, onAlive, signal, resumeAfter = () => 0 }) {
  /** @param {StreamEvent} event */
  const receive = (event) => {
    tries = 0;
    onEvent(event);
  };
  let tries = 0;
  while (!signal.aborted) {
    const releaseSlot = await acquireSlot();
    const connection = new Connection(signal, !releaseSlot);
    try {
      const reply = await connection.open(api, path, resumeAfter());
      if (reply.status === 204 || !reply.body) return;
      onOpen?.(reply);
      if (await connection.read(reply.body, receive, onAlive)) return;
    } catch (error) {
      if (signal.aborted) return;
      const isRefused = error instanceof Problem && error.status >= 400 && error.status < 500;
      if (isRefused && error.status !== 429) throw error;
    } finally {
      connection.close();
      releaseSlot?.();
    }
    if (signal.aborted) return;
    if (!connection.closedByUs) onLost?.();
    const delay = connection.closedByUs
      ? POLL_INTERVAL_MS
      : RETRY_DELAYS_MS[Math.min(tries++, RETRY_DELAYS_MS.length - 1)];
    await waitUntilVisible(delay, signal);
  }
}

/** One connection. Where it is `closedByUs`, it has polled or has given up its slot; else it was lost. */
class Connection {
  #abort = new AbortController();
  #timer = setTimeout(() => this.#abort.abort(), SILENCE_MAX_MS);
  #isPoll;
  #signal;
  #stopHiddenTimer;
  closedByUs = false;

  /** @param {AbortSignal} signal @param {boolean} isPoll whether to close once no more data comes */
  constructor(signal, isPoll) {
    this.#signal = signal;
    this.#isPoll = isPoll;
    this.#signal.addEventListener("abort", this.close);
    this.#stopHiddenTimer = onLongHidden(this.#closeByUs);
  }

  #closeByUs = () => {
    this.closedByUs = true;
    this.#abort.abort();
  };

  close = () => {
    clearTimeout(this.#timer);
    this.#stopHiddenTimer();
    this.#signal.removeEventListener("abort", this.close);
    this.#abort.abort();
  };

  /** @param {import("./api.js").Api} api @param {string} path @param {number} last */
  open(api, path, last) {
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    if (last) headers["Last-Event-ID"] = String(last);
    return api.getStream(path, headers, this.#abort.signal);
  }

  /**
   * Read the body to its end; return true if the server has ended the feed for good.
   * @param {ReadableStream<Uint8Array>} body
   * @param {(event: StreamEvent) => void} receive
   * @param {() => void} [onAlive]
   */
  async read(body, receive, onAlive) {
    this.#restartTimer();
    for await (const { id, type, data } of parseMessages(body)) {
      this.#restartTimer();
      onAlive?.();
      if (type === "stream.end") return true;
      if (type !== "ping") receive({ type, seq: Number(id), data: JSON.parse(data) });
    }
    return false;
  }

  #restartTimer() {
    clearTimeout(this.#timer);
    this.#timer = this.#isPoll
      ? setTimeout(this.#closeByUs, POLL_IDLE_MS)
      : setTimeout(() => this.#abort.abort(), SILENCE_MAX_MS);
  }
}

/**
 * Yield the events of a stream until it ends. A keep-alive comment has the type "ping".
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{id: string, type: string, data: string}, void>}
 */
export async function* parseMessages(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let incomplete = ""; // the start of an event whose end has not arrived
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (incomplete + decoder.decode(value, { stream: true })).split("\n\n");
    incomplete = blocks.pop() ?? "";
    yield* blocks.map(parseBlock);
  }
}

/** Parse one event; our server writes each field on one line. @param {string} block */
function parseBlock(block) {
  const event = { id: "", type: "ping", data: "" };
  for (const line of block.split("\n")) {
    const [name, value] = [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)];
    if (name === "id") event.id = value;
    else if (name === "event") event.type = value;
    else if (name === "data") event.data = value;
  }
  return event;
}
