// @ts-check
/** The server, as elements call it: JSON in, JSON out, and refusals as `Problem`. */

/** @typedef {import("./shapes.js").Run} Run */
/** @typedef {{id: string, receipt: import("./shapes.js").Receipt}} Command */
/** @typedef {{command: Command, run: Run}} Told */

/** The server that these scripts came from: the folder above theirs. */
export const HOME = new URL("..", import.meta.url).href.replace(/\/$/, "");

/** The header that carries the proof of a session, beside its cookie. */
const PROOF_HEADER = "Midrun-Session-Proof";

/** Proofs where storage is switched off: they live as long as the page. @type {Map<string, string>} */
const unstored = new Map();

/** Return the name under which the proof of a server is kept. @param {string} base */
const proofName = (base) => `midrun session ${new URL(base, document.baseURI).href.replace(/\/$/, "")}`;

/**
 * Return the second part of this browser's session, or nothing. Browsers send a cookie to every
 * port of a host, but storage belongs to the origin, port included: no other server has this.
 * @param {string} base
 */
function proofOf(base) {
  try {
    return localStorage.getItem(proofName(base)) ?? unstored.get(base) ?? "";
  } catch {
    return unstored.get(base) ?? "";
  }
}

/** @param {string} base @param {string} proof an empty one is forgotten */
function keepProof(base, proof) {
  unstored.set(base, proof);
  try {
    if (proof) localStorage.setItem(proofName(base), proof);
    else localStorage.removeItem(proofName(base));
  } catch {
    // it is kept above
  }
}

/**
 * Exchange a credential for a session of this browser.
 * @param {string} shown `Code …` or `Bearer …`
 * @param {string} [base] where the server is
 * @returns {Promise<{name: string, role: string}>}
 */
export async function signIn(shown, base = HOME) {
  const headers = { "Content-Type": "application/json", Authorization: shown };
  const reply = await fetch(`${base}/v1/session`, { method: "POST", headers, body: "{}" });
  const said = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Problem({ ...said, status: reply.status });
  keepProof(base, said.proof);
  return said;
}

/** End the session of this browser. @param {string} [base] */
export async function signOut(base = HOME) {
  await new Api(base).delete("/v1/session").catch(() => undefined);
  keepProof(base, "");
}

/**
 * A refusal (RFC 9457). `run` is the run as it is now, where there is one, so that whoever was
 * refused can repaint. `status` is 0 if the server did not answer at all.
 */
export class Problem extends Error {
  /** @param {{status: number, type?: string, title?: string, detail?: string,
   *    reason?: string, by?: string, phase?: string, run?: Run, code?: string, args?: any[]}} said */
  constructor(said) {
    super(said.detail || said.title || `the server said ${said.status}`);
    this.name = "Problem";
    this.status = said.status;
    this.slug = (said.type ?? "").split(":").pop() ?? "";
    this.reason = said.reason ?? "";
    /** What exactly a run would not have, without the run and what else may be asked of it. */
    this.why = said.code === "control_refused" ? String(said.args?.at(-1) ?? "") : "";
    this.by = said.by ?? "";
    this.phase = said.phase ?? "";
    this.run = said.run;
  }
}

/** Calls one server, by cookie where the page is the server's own, or with a token. */
export class Api {
  /**
   * @param {string} [base] where the server is; a prefix belongs to it
   * @param {string} [token]
   */
  constructor(base = HOME, token = "") {
    this.base = base.replace(/\/$/, "");
    this.token = token;
  }

  /** @param {string} path @param {Record<string, string>} [headers] @returns {Promise<any>} */
  get(path, headers = {}) {
    return this.#send("GET", path, headers);
  }

  /** @param {string} path @returns {Promise<string>} the run's report, for one */
  async markdown(path) {
    const reply = await this.open(path, { Accept: "text/markdown" });
    return reply.text();
  }

  /**
   * @param {string} path @param {object} [body]
   * @param {{ifMatch?: string, key?: string}} [how] @returns {Promise<any>}
   */
  post(path, body = {}, how = {}) {
    return this.#change("POST", path, body, how);
  }

  /**
   * @param {string} path @param {object} body
   * @param {{ifMatch?: string, key?: string}} [how] @returns {Promise<any>}
   */
  patch(path, body, how = {}) {
    return this.#change("PATCH", path, body, how);
  }

  /** @param {string} path @param {{key?: string}} [how] @returns {Promise<any>} */
  delete(path, how = {}) {
    return this.#change("DELETE", path, {}, how);
  }

  /**
   * Return a response that is fine, still unread: a feed, for one.
   * @param {string} path @param {Record<string, string>} [headers] @param {AbortSignal} [signal]
   */
  async open(path, headers = {}, signal) {
    return this.#fetch(path, { method: "GET", headers, signal });
  }

  /**
   * Every change has a key: whoever presses twice, or is cut off and asks again, asks once.
   * @param {string} method @param {string} path @param {object} body
   * @param {{ifMatch?: string, key?: string}} how
   */
  #change(method, path, body, how) {
    /** @type {Record<string, string>} */
    const headers = { "Content-Type": "application/json", "Idempotency-Key": how.key ?? newKey() };
    if (how.ifMatch) headers["If-Match"] = how.ifMatch;
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
    const proof = this.token ? "" : proofOf(this.base);
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
      const said = await reply.json().catch(() => ({}));
      throw new Problem({ ...said, status: reply.status });
    }
    return reply;
  }
}

/** Return a key that nobody has used. `randomUUID` is missing on plain http beyond loopback. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Return what names this view, for If-Match. @param {Run} run */
export function etag(run) {
  return `"${run.control_rev}.${run.seq}"`;
}
