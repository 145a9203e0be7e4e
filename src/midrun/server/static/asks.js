// @ts-check
/** `<midrun-asks>`: what waits for a person to decide. */
import { css, live, nothing, repeat } from "./lit.js";
import { Problem, etag } from "./api.js";
import { details, drawn, isLost, notUsed, pretty, question, waitsFor } from "./ask-words.js";
import { keep, kept } from "./drafts.js";
import { copied } from "./ended.js";
import { bring } from "./following.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { span, whom } from "./words.js";
import { editable, exact, html } from "./template.js";

/** @typedef {import("./shapes.js").Ask} Ask */
/** @typedef {{id: string, text: string}} Decided */
/**
 * A text that a person wrote for an ask that another decision closed first; `said` names it.
 * @typedef {{question: string, said: string, text: string}} Lost
 */

/** Milliseconds for which one reads what was decided; the timeline has it for good. */
const LINGER = 30_000;
/** It asks, and does nothing else: its arguments are the question and the buttons. */
const ASKER = "ask_human";
/** What is said of a call of which nobody knows; the bar says it of the run's own. */
const SETTLED = [
  ["yes", "It did"],
  ["no", "It didn’t"],
  ["unknown", "Don’t know"],
];
const CHOICES = /** @type {Record<string, string>} */ ({
  approve: "Approved",
  decline: "Declined",
  answer: "Answered",
});

export class Asks extends StoreElement {
  static quiet = true;

  static properties = {
    ...StoreElement.properties,
    field: { state: true },
    drafts: { state: true },
    decided: { state: true },
    lost: { state: true },
    copied: { state: true },
  };

  static styles = [
    theme,
    css`
      .card {
        display: grid;
        gap: 6px;
        padding-top: 8px;
        border-top: 1px solid var(--line);
      }
      .question {
        font-weight: 600;
        white-space: pre-wrap;
        unicode-bidi: plaintext;
      }
      :host {
        scroll-margin: 10px;
      }
      .panel {
        border-color: var(--wait);
      }
      .panel.quiet {
        border-color: var(--line);
      }
      .error {
        color: var(--stop);
      }
      textarea {
        font: 12.5px var(--mono);
      }
    `,
  ];

  constructor() {
    super();
    /** @type {{ask: string, of: "edit" | "decline"} | null} what is open to be written into */
    this.field = null;
    /** @type {Record<string, string>} */
    this.drafts = {};
    /** @type {Decided[]} */
    this.decided = [];
    /** @type {Record<string, Lost>} by ask; kept until the reader dismisses it */
    this.lost = {};
    this.copied = ""; // the ask whose lost text was copied last
    /** @type {Set<string>} asks for which a decision is on its way */
    this._sending = new Set();
    /** @type {Map<string, Ask>} */
    this._known = new Map();
    /** @type {Set<string>} those that were brought before the reader's eyes */
    this._brought = new Set();
    this._restored = false;
  }

  /** Whether somebody is about to decide something in their own words. */
  get writing() {
    const asks = this.view?.asks ?? [];
    return asks.some(({ id }) => this.field?.ask === id || this.drafts[id]?.trim());
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    if (this.view && !this._restored) this._restore(this.view);
    const written = ["drafts", "field", "lost"].some((name) => changed.has(name));
    if (this._restored && written) this._keep();
    for (const ask of this.view?.asks ?? []) this._known.set(ask.id, ask);
  }

  updated() {
    this._bring();
  }

  /** Take up what was written before a reload. @param {import("./shapes.js").Run} run */
  _restore(run) {
    this._restored = true;
    const text = kept(`${run.run_id} asks`);
    if (!text) return;
    ({ drafts: this.drafts, field: this.field, lost: this.lost = {} } = JSON.parse(text));
    const open = new Set(run.asks.map(({ id }) => id));
    for (const [id, draft] of Object.entries(this.drafts)) {
      if (open.has(id)) continue;
      const said = "Your text was not sent: the question was closed while this page was away.";
      this._lose(id, { question: "", said, text: draft.trim() });
    }
  }

  _keep() {
    const { drafts, field, lost } = this;
    const written = field || Object.keys(drafts).length || Object.keys(lost).length;
    keep(`${this.store?.id} asks`, written ? JSON.stringify({ drafts, field, lost }) : "");
  }

  /** Keep a text that was not used, and remove the draft of its ask. @param {string} id @param {Lost} lost */
  _lose(id, lost) {
    this._drop(id);
    this.lost = { ...this.lost, [id]: lost };
  }

  /** @param {string} id */
  _dismiss(id) {
    const { [id]: _, ...others } = this.lost;
    this.lost = others;
  }

  /** Return the text that the person wrote for an ask; "" if the field is unchanged. @param {Ask} ask */
  _written(ask) {
    const text = this.drafts[ask.id] ?? "";
    return text === editable(ask.args) ? "" : text.trim();
  }

  /** What is new for the reader to decide may be out of their sight. */
  _bring() {
    const fresh = (this.view?.asks ?? []).filter(
      ({ id, kind, may_decide }) => kind !== "unsure" && may_decide && !this._brought.has(id),
    );
    for (const { id } of fresh) this._brought.add(id);
    if (fresh.length) bring(this);
  }

  /** @param {string} where */
  _focus(where) {
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(where))?.focus({ preventScroll: true });
  }

  /** Whoever looks at a card that somebody else decides is told by whom. */
  happened(/** @type {import("./shapes.js").Happened} */ { type, by, data }) {
    const ask = this._known.get(data.ask ?? "");
    if (!ask || (type !== "ask.answered" && type !== "ask.closed")) return;
    const who = whom(by, this.view?.you ?? "");
    const how = type === "ask.closed" ? `Closed (${data.why})` : CHOICES[data.decision.choice];
    const { value: given, reason } = data.decision ?? {};
    const value = drawn(given) || reason;
    const said = `${how}${who ? ` by ${who}` : ""}${value ? `: “${value}”` : ""}`;
    this._overtake(ask, said, by === this.view?.you && pretty(given));
    const decided = { id: ask.id, text: `${ask.question || ask.tool} — ${said}` };
    this.decided = [decided, ...this.decided].slice(0, 3);
    setTimeout(() => {
      this.decided = this.decided.filter((one) => one !== decided);
    }, LINGER);
  }

  /**
   * Keep a text that was being written when another decision closed its ask. The end of a
   * decision of ours that is on its way is told by its reply.
   * @param {Ask} ask @param {string} said @param {string | false} mine what we answered ourselves
   */
  _overtake(ask, said, mine) {
    const text = this._written(ask);
    if (this._sending.has(ask.id)) return;
    if (!text || text === mine) this._drop(ask.id);
    else this._lose(ask.id, { question: ask.question, said: `Your text was not sent. ${said}`, text });
  }

  /** Bring what waits before the reader's eyes, and under their hands. */
  reach() {
    this.scrollIntoView({ block: "start" });
    const first = this.renderRoot.querySelector(".card button, .card input, .card textarea");
    /** @type {HTMLElement | null} */ (first)?.focus({ preventScroll: true });
  }

  render() {
    const asks = (this.view?.asks ?? []).filter((ask) => ask.kind !== "unsure");
    const lost = Object.entries(this.lost);
    if (!this.shown(asks.length + lost.length + this.decided.length > 0)) return nothing;
    return html`<section class=${asks.length ? "panel" : "panel quiet"} aria-labelledby="title">
      <h2 id="title" tabindex="-1">${title(asks.length, lost.length)}</h2>
      ${repeat(lost, ([id]) => id, ([id, one]) => this._lostCard(id, one))}
      ${repeat(asks, (ask) => ask.id, (ask) => this._card(ask))}
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
      ${this.decided.map((decided) => html`<p class="dim">${decided.text}</p>`)}
    </section>`;
  }

  /** @param {Ask} ask */
  _card(ask) {
    const left = ask.expires_at
      ? (Date.parse(ask.expires_at) - (this.store?.now ?? 0)) / 1000
      : Infinity;
    const child = ask.kind === "child" ? ask.data : null;
    const tool = child ? child.tool : ask.tool;
    const why = child ? child.why : ask.why;
    return html`<div class="card" data-ask=${ask.id}>
      <span class="question">${ask.question || question(ask, tool)}</span>
      ${child
        ? html`<span class="dim"
            >A <a href=${`${this.store?.api.base ?? ""}/runs/${child.run}`}>child run</a> asks${
              tool && tool !== ASKER ? html`, for <code>${tool}</code>` : nothing
            }.</span
          >`
        : this._about(ask)}
      ${ask.hidden ? html`<span class="hidden-arguments">${ask.hidden}</span>` : nothing}
      ${why ? html`<span class="dim">Why: ${why}</span>` : nothing}
      ${left < Infinity
        ? html`<span class="dim">${left > 0 ? `Expires in ${span(left)}` : "Its time is up"}</span>`
        : nothing}
      ${ask.may_decide ? this._buttons(ask) : html`<span class="dim">${waitsFor(ask)}</span>`}
    </div>`;
  }

  /** @param {string} id @param {Lost} lost */
  _lostCard(id, { question, said, text }) {
    const copy = async () => {
      this.copied = (await copied(text)) ? id : "";
    };
    return html`<div class="card" data-lost=${id}>
      ${question ? html`<span class="question">${question}</span>` : nothing}
      <p class="error" role="alert">${said}</p>
      ${text
        ? html`<label>Your text <textarea readonly rows="2" .value=${text}></textarea></label>`
        : nothing}
      <div class="row">
        ${text
          ? html`<button @click=${() => void copy()}>${this.copied === id ? "Copied" : "Copy"}</button>`
          : nothing}
        <button @click=${() => this._dismiss(id)}>Dismiss</button>
      </div>
    </div>`;
  }

  /** What would be called, or who asks, and with what. @param {Ask} ask */
  _about({ kind, tool, data, args }) {
    if (tool === ASKER) return nothing;
    if (kind !== "question") return html`<pre>${exact(tool)} <bdi>${drawn(args)}</bdi></pre>`;
    const given = drawn(details(data));
    return html`${given ? html`<pre>${given}</pre>` : nothing}
      <span class="dim"><code>${tool}</code> asks.</span>`;
  }

  /** @param {Ask} ask */
  _buttons(ask) {
    if (this.field?.ask === ask.id) {
      return this.field.of === "edit" ? this._editor(ask) : this._reason(ask);
    }
    switch (ask.of ?? ask.kind) {
      case "approval":
        return html`<div class="row">
          <button class="main" @click=${() => void this._decide(ask, { decision: "approve" })}>
            Approve
          </button>
          ${ask.kind === "approval"
            ? html`<button
                class="edit"
                @click=${() => void this._write(ask, "edit", editable(ask.args))}
              >
                Edit…
              </button>`
            : nothing}
          <button class="decline" @click=${() => void this._write(ask, "decline", "")}>
            Decline…
          </button>
        </div>`;
      case "unsure":
        return html`<div class="row">
          ${SETTLED.map(
            ([value, label]) =>
              html`<button @click=${() => void this._decide(ask, { decision: "answer", value })}>
                ${label}
              </button>`,
          )}
        </div>`;
      default:
        return this._answer(ask);
    }
  }

  /** @param {Ask} ask */
  _answer(ask) {
    const data = ask.kind === "child" ? ask.data?.data : ask.data;
    const options = Array.isArray(data?.options) ? data.options : [];
    const send = (/** @type {unknown} */ value) =>
      void this._decide(ask, { decision: "answer", value });
    return html`${options.length
        ? html`<div class="row">
            ${options.map(
              (/** @type {unknown} */ option) =>
                html`<button @click=${() => send(option)}>${drawn(option)}</button>`,
            )}
          </div>`
        : nothing}
      <form
        class="row"
        @submit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          const text = (this.drafts[ask.id] ?? "").trim();
          if (text) send(text);
        }}
      >
        <input
          type="text"
          aria-label=${`Answer to: ${ask.question}`}
          .value=${live(this.drafts[ask.id] ?? "")}
          @input=${(/** @type {InputEvent} */ event) => this._draft(ask, event)}
        />
        <button class="main">Answer</button>
        ${ask.declinable
          ? html`<button type="button" class="decline" @click=${() => void this._write(ask, "decline", "")}>
              Decline…
            </button>`
          : nothing}
      </form>`;
  }

  /** @param {Ask} ask */
  _editor(ask) {
    return html`<textarea
        rows="5"
        @keydown=${this._escape}
        aria-label=${`Arguments of ${ask.tool}, as JSON`}
        .value=${live(this.drafts[ask.id] ?? "")}
        @input=${(/** @type {InputEvent} */ event) => this._draft(ask, event)}
      ></textarea>
      <div class="row">
        <button class="main" @click=${() => void this._approveEdited(ask)}>Approve this</button>
        <button @click=${() => void this._close()}>Discard</button>
      </div>`;
  }

  /** @param {Ask} ask */
  _reason(ask) {
    return html`<form
      class="row"
      @keydown=${this._escape}
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        const comment = (this.drafts[ask.id] ?? "").trim();
        void this._decide(ask, { decision: "decline", comment });
      }}
    >
      <input
        class="reason"
        type="text"
        maxlength="1000"
        aria-label="Why not? The agent is told."
        placeholder="Why not? (optional)"
        .value=${live(this.drafts[ask.id] ?? "")}
        @input=${(/** @type {InputEvent} */ event) => this._draft(ask, event)}
      />
      <button class="main">Decline</button>
      <button type="button" @click=${() => void this._close()}>Back</button>
    </form>`;
  }

  /** @param {KeyboardEvent} event */
  _escape(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    void this._close();
  }

  /** @param {Ask} ask @param {InputEvent} event */
  _draft(ask, event) {
    const { value } = /** @type {HTMLInputElement} */ (event.target);
    this.drafts = { ...this.drafts, [ask.id]: value };
  }

  /** Open a field, with what is written first. @param {Ask} ask @param {"edit" | "decline"} of @param {string} text */
  async _write(ask, of, text) {
    this._drop();
    this.drafts = { ...this.drafts, [ask.id]: text };
    this.field = { ask: ask.id, of };
    await this.updateComplete;
    this._focus(of === "edit" ? "textarea" : ".reason");
  }

  /** Close what is open, and go back to what opened it. */
  async _close() {
    const { ask, of } = this.field ?? {};
    this._drop();
    await this.updateComplete;
    this._focus(`[data-ask="${ask}"] .${of}`);
  }

  /** Forget what is written for an ask, that of the open field unless told, and the field. */
  _drop(id = this.field?.ask) {
    this.error = "";
    if (!id) return;
    const { [id]: _, ...others } = this.drafts;
    this.drafts = others;
    if (this.field?.ask === id) this.field = null;
  }

  /** @param {Ask} ask */
  async _approveEdited(ask) {
    let args;
    try {
      args = JSON.parse(this.drafts[ask.id]);
    } catch (error) {
      this.error = `This is not JSON: ${/** @type {Error} */ (error).message}`;
      return;
    }
    await this._decide(ask, { decision: "edit", args });
  }

  /**
   * Send a decision. One that comes second is not used: the card says which one was, and keeps
   * its text.
   * @param {Ask} ask @param {{decision: string, value?: unknown, comment?: string, args?: any}} body
   */
  async _decide(ask, body) {
    const { store, view: run } = this;
    if (!store || !run) return;
    const text = pretty(body.value) || (this.drafts[ask.id] ?? "").trim();
    this._sending.add(ask.id);
    const done = await this.attempt(async () => {
      try {
        await store.api.post(`/v1/asks/${ask.ref}`, body, { ifMatch: etag(run) }).catch((error) => {
          if (!(error instanceof Problem && error.status === 412)) throw error;
          // Something else was asked of the run meanwhile; this ask is still this ask.
          return store.api.post(`/v1/asks/${ask.ref}`, body);
        });
      } catch (error) {
        if (!(error instanceof Problem && isLost(error))) throw error;
        const said = notUsed(error, body.decision, run.you);
        this._lose(ask.id, { question: ask.question, said, text });
      }
      return true;
    });
    this._sending.delete(ask.id);
    store.refresh();
    if (done) this._drop(ask.id);
  }
}

/** @param {number} asks @param {number} lost */
function title(asks, lost) {
  if (asks) return `Needs your answer (${asks})`;
  return lost ? "Came too late" : "Decided just now";
}

customElements.define("midrun-asks", Asks);
