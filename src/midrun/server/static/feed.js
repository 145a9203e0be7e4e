// @ts-check
/**
 * Feeds: server-sent events over fetch.
 *
 * `EventSource` would do that by itself, but it shows no token, does not tell a refusal from a
 * lost connection, and keeps the server's signs of life to itself.
 */
import { Problem } from "./api.js";
import { place, rest, whenUnseen } from "./places.js";

/** @typedef {{type: string, seq: number, data: any}} Heard `seq` is 0 for what is not stored */

/** Milliseconds without a sign of life, which comes every 15 s, until a feed counts as lost. */
const SILENCE = 40_000;
/** Milliseconds before the next try; the last one stays. */
const WAITS = [300, 1000, 2000, 5000];
/** Without a place: how long nothing comes until a look is over, and between two looks. */
const GLANCE = 250;
const BETWEEN = 2000;

/**
 * Follow a feed, and come back from the last entry heard when it breaks. Returns when the feed
 * has ended for good, or `signal` says so.
 *
 * @param {import("./api.js").Api} api
 * @param {string} path
 * @param {object} how
 * @param {(event: Heard) => void} how.heard
 * @param {(reply: Response) => void} [how.opened]
 * @param {() => void} [how.lost]
 * @param {() => void} [how.alive] any sign of life
 * @param {AbortSignal} how.signal
 * @param {number} [how.last] the entry that was heard last
 * @throws {Problem} the server answers, and will not have us
 */
export async function follow(api, path, { heard, opened, lost, alive, signal, last = 0 }) {
  /** @param {Heard} event */
  const take = (event) => {
    tries = 0;
    if (event.seq) last = event.seq;
    else if (event.type === "stream.reset") last = 0;
    heard(event);
  };
  let tries = 0;
  while (!signal.aborted) {
    const give = await place();
    const line = new Line(signal, !give);
    try {
      const reply = await line.opened(api, path, last);
      if (reply.status === 204 || !reply.body) return;
      opened?.(reply);
      if (await line.over(reply.body, take, alive)) return;
    } catch (error) {
      if (signal.aborted) return;
      const refused = error instanceof Problem && error.status >= 400 && error.status < 500;
      if (refused && error.status !== 429) throw error;
    } finally {
      line.close();
      give?.();
    }
    if (signal.aborted) return;
    if (!line.left) lost?.();
    await rest(line.left ? BETWEEN : WAITS[Math.min(tries++, WAITS.length - 1)], signal);
  }
}

/** One connection. It is `left` without being lost where the browser has no place for it. */
class Line {
  #broken = new AbortController();
  #timer = setTimeout(() => this.#broken.abort(), SILENCE);
  #glance;
  #signal;
  #seen;
  left = false;

  /** @param {AbortSignal} signal @param {boolean} glance look in, and leave */
  constructor(signal, glance) {
    this.#signal = signal;
    this.#glance = glance;
    this.#signal.addEventListener("abort", this.close);
    this.#seen = whenUnseen(this.#leave);
  }

  #leave = () => {
    this.left = true;
    this.#broken.abort();
  };

  close = () => {
    clearTimeout(this.#timer);
    this.#seen();
    this.#signal.removeEventListener("abort", this.close);
    this.#broken.abort();
  };

  /** @param {import("./api.js").Api} api @param {string} path @param {number} last */
  opened(api, path, last) {
    /** @type {Record<string, string>} */
    const headers = { Accept: "text/event-stream" };
    if (last) headers["Last-Event-ID"] = String(last);
    return api.open(path, headers, this.#broken.signal);
  }

  /**
   * Hear it out; tell whether there is nothing to come back for.
   * @param {ReadableStream<Uint8Array>} body
   * @param {(event: Heard) => void} take
   * @param {() => void} [alive]
   */
  async over(body, take, alive) {
    this.#wait();
    for await (const { id, type, data } of messages(body)) {
      this.#wait();
      alive?.();
      if (type === "stream.end") return true;
      if (type !== "ping") take({ type, seq: Number(id), data: JSON.parse(data) });
    }
    return false;
  }

  #wait() {
    clearTimeout(this.#timer);
    this.#timer = this.#glance
      ? setTimeout(this.#leave, GLANCE)
      : setTimeout(() => this.#broken.abort(), SILENCE);
  }
}

/**
 * Yield what comes in, for as long as it comes; a mere sign of life is of type "ping".
 * @param {ReadableStream<Uint8Array>} body
 * @returns {AsyncGenerator<{id: string, type: string, data: string}, void>}
 */
export async function* messages(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop() ?? "";
    yield* blocks.map(parsed);
  }
}

/** @param {string} block */
function parsed(block) {
  const found = { id: "", type: "ping", data: "" };
  for (const line of block.split("\n")) {
    const [name, value] = [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)];
    if (name === "id") found.id = value;
    else if (name === "event") found.type = value;
    else if (name === "data") found.data = value;
  }
  return found;
}
