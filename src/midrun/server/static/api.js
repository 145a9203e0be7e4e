// @ts-check
/** HTTP requests to the server: JSON in, JSON out. Refusals raise `Problem`. */

/** @typedef {import("./run-store.js").Run} Run */

/** The URL of the server that these scripts came from: the folder above theirs. */
export const DEFAULT_BASE = new URL("..", import.meta.url).href.replace(/\/$/, "");

/** The header that carries the proof of a session; the cookie alone is refused. */
const PROOF_HEADER = "Midrun-Session-Proof";

/** Proofs by server, for pages where storage is switched off. @type {Map<string, string>} */
const proofsInMemory = new Map();

/** Return the storage key of a server's proof. @param {string} base */
const proofKey = (base) => `midrun session ${new URL(base, document.baseURI).href.replace(/\/$/, "")}`;

/**
 * Return the proof of this browser's session, "" if it has none. Browsers send a cookie to every
 * port of a host, so another server on this machine can see it. Storage belongs to one origin,
 * port included: only our own pages can read the proof.
 * @param {string} base
 */
function loadProof(base) {
  try {
    return localStorage.getItem(proofKey(base)) ?? proofsInMemory.get(base) ?? "";
  } catch {
    return proofsInMemory.get(base) ?? "";
  }
}

/** Store a proof; an empty one is removed. @param {string} base @param {string} proof */
function saveProof(base, proof) {
  proofsInMemory.set(base, proof);
  try {
    if (proof) localStorage.setItem(proofKey(base), proof);
    else localStorage.removeItem(proofKey(base));
  } catch {
    // storage is switched off; the proof is in memory
  }
}

/**
 * Exchange a credential for a session of this browser.
 * @param {string} credential `Code …` or `Bearer …`
 * @param {string} [base] URL of the server
 * @returns {Promise<{name: string, role: string}>}
 */
export async function signIn(credential, base = DEFAULT_BASE) {
  const headers = { "Content-Type": "application/json", Authorization: credential };
  const reply = await fetch(`${base}/v1/session`, { method: "POST", headers, body: "{}" });
  const session = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Problem({ ...session, status: reply.status });
  saveProof(base, session.proof);
  return session;
}

/** End the session of this browser. @param {string} [base] */
export async function signOut(base = DEFAULT_BASE) {
  await new Api(base).delete("/v1/session").catch(() => undefined);
  saveProof(base, "");
}

/**
 * A refused request (RFC 9457). `run` is the run as it is now, if the request was about one, so
 * that the element can be drawn again. `status` is 0 if the server did not answer at all.
 */
export class Problem extends Error {
  /** @param {{status: number, type?: string, title?: string, detail?: string,
   *    reason?: string, by?: string, phase?: string, run?: Run, code?: string, args?: any[],
   *    sign_in?: string}} details */
  constructor(details) {
    super(details.detail || details.title || `The server answered ${details.status}.`);
    this.name = "Problem";
    this.status = details.status;
    this.reason = details.reason ?? "";
    /** The reason of a refused control as text, without the run's name and the allowed controls. */
    this.refusal = details.code === "control_refused" ? String(details.args?.at(-1) ?? "") : "";
    this.by = details.by ?? "";
    /** The tombstone of a deleted run. */
    this.erasure = details.code === "run_erased" ? readErasure(details.args ?? []) : null;
    this.run = details.run;
    /** Path of the server at which an identity provider signs browsers in, or "". */
    this.signInPath = details.sign_in ?? "";
  }
}

/** @param {unknown[]} args of the error: run, actor, time in microseconds, reason */
const readErasure = ([, by, at, why]) => ({ by: String(by ?? ""), at: Number(at) / 1000, why: String(why ?? "") });

/** Sends requests to one server, with a token or with the session of this browser. */
export class Api {
  /**
   * @param {string} [base] URL of the server, with the path it is mounted at
   * @param {string} [token]
   */
  constructor(base = DEFAULT_BASE, token = "") {
    this.base = base.replace(/\/$/, "");
    this.token = token;
  }

  /** @param {string} path @param {Record<string, string>} [headers] @returns {Promise<any>} */
  get(path, headers = {}) {
    return this.#send("GET", path, headers);
  }

  /** Return the agents of the server with their tools, and the limits on files. @returns {Promise<import("./types.js").Agents>} */
  loadAgents() {
    return this.get("/v1/agents");
  }

  /** Get a resource as Markdown, as a run's report. @param {string} path @returns {Promise<string>} */
  async getMarkdown(path) {
    const reply = await this.getStream(path, { Accept: "text/markdown" });
    return reply.text();
  }

  /**
   * @param {string} path @param {object} [body]
   * @param {{ifMatch?: string, key?: string}} [options] @returns {Promise<any>}
   */
  post(path, body = {}, options = {}) {
    return this.#sendChange("POST", path, body, options);
  }

  /**
   * @param {string} path @param {object} body
   * @param {{ifMatch?: string, key?: string}} [options] @returns {Promise<any>}
   */
  patch(path, body, options = {}) {
    return this.#sendChange("PATCH", path, body, options);
  }

  /** @param {string} path @param {{key?: string}} [options] @returns {Promise<any>} */
  delete(path, options = {}) {
    return this.#sendChange("DELETE", path, {}, options);
  }

  /**
   * Return a successful response whose body is not read yet, as a feed needs it.
   * @param {string} path @param {Record<string, string>} [headers] @param {AbortSignal} [signal]
   */
  async getStream(path, headers = {}, signal) {
    return this.#fetch(path, { method: "GET", headers, signal });
  }

  /**
   * Send a change under an idempotency key: a repetition with the same key changes nothing.
   * @param {string} method @param {string} path @param {object} body
   * @param {{ifMatch?: string, key?: string}} options
   */
  #sendChange(method, path, body, options) {
    /** @type {Record<string, string>} */
    const headers = { "Content-Type": "application/json", "Idempotency-Key": options.key ?? newRequestKey() };
    if (options.ifMatch) headers["If-Match"] = options.ifMatch;
    return this.#send(method, path, headers, JSON.stringify(body));
  }

  /**
   * @param {string} method @param {string} path
   * @param {Record<string, string>} headers @param {string} [body]
   */
  async #send(method, path, headers, body) {
    const reply = await this.#fetch(path, { method, headers, body });
    return reply.status === 204 ? null : reply.json();
  }

  /** @param {string} path @param {RequestInit & {headers: Record<string, string>}} request */
  async #fetch(path, request) {
    const proof = this.token ? "" : loadProof(this.base);
    if (this.token) request.headers["Authorization"] = `Bearer ${this.token}`;
    if (proof) request.headers[PROOF_HEADER] = proof;
    let reply;
    try {
      reply = await fetch(this.base + path, { ...request, credentials: "same-origin" });
    } catch (error) {
      if (request.signal?.aborted) throw error;
      throw new Problem({ status: 0, title: "The server does not answer." });
    }
    if (!reply.ok) {
      const details = await reply.json().catch(() => ({}));
      throw new Problem({ ...details, status: reply.status });
    }
    return reply;
  }
}

/** Return a random key. `crypto.randomUUID` is missing with plain HTTP beyond loopback. */
export function newRequestKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return the entity tag of a view, for `If-Match`. @param {Run} run */
export function formatEtag(run) {
  return `"${run.control_rev}.${run.seq}"`;
}
