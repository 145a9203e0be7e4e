// @ts-check
/**
 * `<midrun-asks>`: the questions and approvals that wait for a person, as cards.
 *
 * Two people may decide the same ask at once; the first decision counts. Text that the viewer has
 * typed for an ask which another decision closed is not lost: it stays on a card of its own until
 * the viewer dismisses it. All drafts survive a reload.
 *
 * Asks of the kind "unsure" are on the control bar (`control-bar-rows.js`); in a page without it,
 * where this element stands alone, they have cards, too.
 *
 * Slot `empty`: shown while there is nothing to decide, if the element stands alone.
 */
import { css, live, nothing, repeat } from "./lit.js";
import { artifactsOfCall, openArtifact } from "./artifacts.js";
import { filesOf } from "./attachments.js";
import { Problem } from "./api.js";
import { formatDecider, formatExact, formatTooLate, formatTyped, formatValue, isTooLate, namesOfChanged, withoutOptions } from "./ask-text.js";
import { fieldStyle, formatCall, humanizeName, parseJson, renderFields, renderRaw, renderValue } from "./call-text.js";
import { findInvalidField, formStyle, isEditable, renderArgumentForm, renderRawToggle } from "./argument-form.js";
import { scrollIntoSight } from "./auto-scroll.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { asContent, findChange, previewStyle, renderDifference } from "./file-preview.js";
import "./file-view.js";
import { FileLoader } from "./files.js";
import { formatAge, youOr } from "./format.js";
import { icon } from "./icons.js";
import { StoreElement, copyToClipboard } from "./store-element.js";
import { theme } from "./theme.js";
import { renderMarkdown } from "./markdown-text.js";
import { editable, html } from "./template.js";

/** @typedef {import("./run-store.js").Ask} Ask */
/** @typedef {{id: string, text: string}} RecentDecision */
/**
 * Text of the viewer for an ask that another decision closed first; `message` names that decision.
 * @typedef {{question: string, message: string, text: string}} UnsentText
 */

/** How long a decision is shown here; the timeline keeps it. */
const DECISION_SHOWN_MS = 30_000;
/** A card that has just appeared or moved takes no press for so long: it may have been meant for another. */
const FRESH_MS = 500;
/** The built-in tool that only asks: its arguments are the question and the buttons. */
const ASK_HUMAN_TOOL = "ask_human";
/** The answers to a child run's question whether an unknown call took effect. */
const UNSURE_ANSWERS = [
  ["yes", "It did"],
  ["no", "It didn’t"],
  ["unknown", "Don’t know"],
];
/** The assumption about a call of unknown outcome, by the answer of a person. */
const UNSURE_OUTCOMES = /** @type {Record<string, string>} */ ({
  yes: "it took effect",
  no: "it did not take effect",
  unknown: "its outcome stays unknown",
});
const CHOICE_LABELS = /** @type {Record<string, string>} */ ({
  approve: "Approved",
  decline: "Declined",
  answer: "Answered",
});
/** By the reason why an ask was closed without a decision. */
const CLOSED_LABELS = /** @type {Record<string, string>} */ ({
  superseded: "Replaced",
  cancelled: "Cancelled",
  expired: "Expired",
  evidence: "Settled without an answer",
  elsewhere: "Decided in the child run",
});

export class Asks extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    openField: { state: true },
    drafts: { state: true },
    recentDecisions: { state: true },
    unsentTexts: { state: true },
    copiedAsk: { state: true },
    isRaw: { state: true },
    agent: { state: true },
  };

  static styles = [
    theme,
    fieldStyle,
    formStyle,
    previewStyle,
    css`
      .card {
        display: grid;
        grid-template-columns: minmax(0, 1fr);
        gap: 8px;
        padding-top: 10px;
        border-top: 1px solid var(--line);
      }
      .question {
        font-size: 15px;
        font-weight: 600;
        unicode-bidi: plaintext;
      }
      .subject {
        display: grid;
        gap: 6px;
        padding: 8px 10px;
        border: 1px solid var(--line);
        border-radius: 8px;
        background: var(--bg);
      }
      .subject midrun-file {
        --preview-height: 260px; /* the buttons below stay in reach */
      }
      .subject .link {
        justify-self: start;
      }
      :host {
        scroll-margin: 10px;
      }
      .panel {
        border-color: var(--wait);
      }
      .panel.idle {
        border-color: var(--line);
      }
      .card[inert] > .row,
      .card[inert] > form {
        opacity: 0.5;
      }
      .card[data-fresh] {
        pointer-events: none;
      }
      .error {
        color: var(--stop);
      }
      .decided {
        display: grid;
        gap: 4px;
        font-size: 13px;
      }
      .card ~ .decided {
        padding-top: 8px;
        border-top: 1px solid var(--line);
      }
      .decided h3 {
        font-size: 12.5px;
        font-weight: 600;
        color: var(--dim);
      }
      .json-editor {
        font: 12.5px var(--mono);
      }
    `,
  ];

  constructor() {
    super();
    /** @type {{ask: string, of: "edit" | "decline"} | null} the one field that is open */
    this.openField = null;
    /** @type {Record<string, string>} by ask */
    this.drafts = {};
    /** @type {RecentDecision[]} newest first */
    this.recentDecisions = [];
    /** @type {Record<string, UnsentText>} by ask; kept until the viewer dismisses it */
    this.unsentTexts = {};
    this.isRaw = false; // arguments are edited as JSON
    /** @type {import("./types.js").AgentLine | null} with the schemas of its tools, once one is needed */
    this.agent = null;
    this._isAgentLoaded = false;
    this._loader = new FileLoader(this);
    this.copiedAsk = ""; // the ask whose unsent text was copied last
    /** @type {Set<string>} asks with a decision of ours whose reply has not come */
    this._sending = new Set();
    /** @type {Map<string, Ask>} all asks seen so far: an event names only the id of a closed one */
    this._knownAsks = new Map();
    /** @type {Set<string>} asks that have been scrolled into view once */
    this._scrolledTo = new Set();
    this._isRestored = false;
    this._wasShown = false; // a view of the run has been rendered
    /** @type {Map<string, ReturnType<typeof setTimeout>>} asks that have just appeared or moved */
    this._fresh = new Map();
    /** @type {Map<string, string>} by ask: the cards above it */
    this._cardsAbove = new Map();
    /** @type {Map<string, import("./argument-form.js").FieldKind>} by argument, of the open editor */
    this._fieldKinds = new Map();
  }

  /** Whether the viewer is typing a decision. */
  get isWriting() {
    const asks = this.view?.asks ?? [];
    return asks.some(({ id }) => this.openField?.ask === id || this.drafts[id]?.trim());
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    const store = this._ownStore;
    if (store && !store.askPanels.includes(this)) store.setAskPanels([...store.askPanels, this]);
    if (this.view && !this._isRestored) this._restoreDrafts(this.view);
    const isEdited = ["drafts", "openField", "unsentTexts"].some((name) => changed.has(name));
    if (this._isRestored && isEdited) this._saveDrafts();
    this._markMovedCards();
    for (const ask of this.view?.asks ?? []) this._knownAsks.set(ask.id, ask);
  }

  /** The asks that have a card here. */
  get _shownAsks() {
    return (this.view?.asks ?? []).filter((ask) => this.isStandalone || ask.kind !== "unsure");
  }

  /** Mark each card that is new, or moves because a card above it appears or disappears. */
  _markMovedCards() {
    const unsent = Object.keys(this.unsentTexts);
    const ids = this._shownAsks.map(({ id }) => id);
    const above = new Map(ids.map((id, at) => [id, [...unsent, "", ...ids.slice(0, at)].join()]));
    // Cards that are there when the page is opened have not appeared under a finger.
    if (this._wasShown) for (const [id, cards] of above) if (this._cardsAbove.get(id) !== cards) this._markFresh(id);
    this._wasShown ||= Boolean(this.view);
    this._cardsAbove = above;
  }

  /** Let a card take no press for a moment. @param {string} id */
  _markFresh(id) {
    clearTimeout(this._fresh.get(id));
    const timer = setTimeout(() => {
      this._fresh.delete(id);
      this.requestUpdate();
    }, FRESH_MS);
    this._fresh.set(id, timer);
  }

  /** Tell whether the focus is in the card of an ask. @param {string} id */
  _hasFocus(id) {
    const card = /** @type {HTMLElement | null | undefined} */ (this.shadowRoot?.activeElement?.closest("[data-ask]"));
    return card?.dataset.ask === id;
  }

  _releaseStore() {
    const store = this._ownStore;
    store?.setAskPanels(store.askPanels.filter((panel) => panel !== this));
    super._releaseStore();
  }

  updated() {
    this._scrollToNewAsks();
    const isApproval = this._shownAsks.some(({ kind, tool }) => kind === "approval" && tool);
    if (isApproval && !this._isAgentLoaded) void this._loadAgent();
  }

  /** Load the drafts of this tab from before a reload. @param {import("./run-store.js").Run} run */
  _restoreDrafts(run) {
    this._isRestored = true;
    const text = loadDraft(`${run.run_id} asks`);
    if (!text) return;
    ({ drafts: this.drafts, field: this.openField, lost: this.unsentTexts = {} } = JSON.parse(text));
    const open = new Set(run.asks.map(({ id }) => id));
    for (const [id, draft] of Object.entries(this.drafts)) {
      if (open.has(id)) continue;
      const message = "Your text was not sent: the question was closed while this page was not open.";
      this._keepUnsent(id, { question: "", message, text: formatTyped(draft) });
    }
  }

  _saveDrafts() {
    const { drafts, openField: field, unsentTexts: lost } = this;
    const isNeeded = field || Object.keys(drafts).length || Object.keys(lost).length;
    saveDraft(`${this.store?.id} asks`, isNeeded ? JSON.stringify({ drafts, field, lost }) : "");
  }

  /** Turn the draft of an ask into an unsent text. @param {string} id @param {UnsentText} unsent */
  _keepUnsent(id, unsent) {
    this._discardDraft(id);
    this.unsentTexts = { ...this.unsentTexts, [id]: unsent };
  }

  /** @param {string} id */
  _dismissUnsent(id) {
    const { [id]: _, ...others } = this.unsentTexts;
    this.unsentTexts = others;
  }

  /** Return the viewer's text for an ask; "" if the field still has its first content. @param {Ask} ask */
  _writtenText(ask) {
    const text = this.drafts[ask.id] ?? "";
    return text === editable(ask.args) ? "" : formatTyped(text);
  }

  /** Scroll to us once for each new ask that the viewer may decide. */
  _scrollToNewAsks() {
    const fresh = (this.view?.asks ?? []).filter(
      ({ id, kind, may_decide }) => kind !== "unsure" && may_decide && !this._scrolledTo.has(id),
    );
    for (const { id } of fresh) this._scrolledTo.add(id);
    if (fresh.length) scrollIntoSight(this);
  }

  /** @param {string} selector */
  _focus(selector) {
    const found = /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(selector));
    found?.focus({ preventScroll: true });
  }

  /** Show for a while that an ask was decided or closed, with actor and decision. */
  onFeedEvent(/** @type {import("./types.js").FeedEvent} */ { type, by, data }) {
    const ask = this._knownAsks.get(data.ask ?? "");
    if (!ask || (type !== "ask.answered" && type !== "ask.closed")) return;
    const actor = youOr(by, this.view?.you ?? "");
    const verb = type === "ask.closed" ? (CLOSED_LABELS[data.why] ?? "Closed") : CHOICE_LABELS[data.decision.choice];
    const { value: given, reason } = data.decision ?? {};
    const isEdited = data.decision?.choice === "approve" && given;
    const value = isEdited ? "" : formatExact(given) || reason;
    const changes = isEdited ? `, with another ${namesOfChanged(ask.args, given)}` : "";
    const message = `${verb}${actor ? ` by ${actor}` : ""}${value ? `: “${value}”` : ""}${changes}`;
    this._rescueDraft(ask, message, by === this.view?.you && formatValue(given));
    const decision = { id: ask.id, text: formatDecision(ask, message, given, actor) };
    this.recentDecisions = [decision, ...this.recentDecisions].slice(0, 3);
    setTimeout(() => {
      this.recentDecisions = this.recentDecisions.filter((one) => one !== decision);
    }, DECISION_SHOWN_MS);
  }

  /**
   * Keep the draft of an ask that was just closed, unless it equals the viewer's own answer.
   * @param {Ask} ask @param {string} message @param {string | false} answered the viewer's own answer
   */
  _rescueDraft(ask, message, answered) {
    const text = this._writtenText(ask);
    // The feed may overtake the reply to a decision of ours. Only the reply knows whether ours or
    // another one closed the ask, so leave the draft to `_sendDecision`.
    if (this._sending.has(ask.id)) return;
    if (!text || text === answered) this._discardDraft(ask.id);
    else this._keepUnsent(ask.id, { question: ask.question, message: `Your text was not sent. ${message}`, text });
  }

  /** Scroll to the first card and focus its first control, once it takes keys. */
  reveal() {
    this.scrollIntoView({ block: "nearest" });
    if (this._fresh.size) {
      setTimeout(() => void this.updateComplete.then(() => this._focusFirst()), FRESH_MS);
      this._focus("h2");
    } else this._focusFirst();
  }

  _focusFirst() {
    const first = this.renderRoot.querySelector(".card button, .card input, .card textarea");
    /** @type {HTMLElement | null} */ (first)?.focus({ preventScroll: true });
  }

  render() {
    const asks = this._shownAsks;
    const unsent = Object.entries(this.unsentTexts);
    const count = asks.length + unsent.length + this.recentDecisions.length;
    if (!count) return this.renderWithoutContent();
    this.setShown(true);
    return html`<section class=${asks.length ? "panel" : "panel idle"} aria-labelledby="title">
      <h2 id="title" tabindex="-1">${formatTitle(asks.length, unsent.length)}</h2>
      ${this.renderConnection()}
      ${repeat(unsent, ([id]) => id, ([id, one]) => this._renderUnsent(id, one))}
      ${repeat(asks, (ask) => ask.id, (ask) => this._renderCard(ask))}
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
      ${this.recentDecisions.length
        ? html`<div class="decided">
            ${asks.length + unsent.length ? html`<h3>Decided just now</h3>` : nothing}
            ${this.recentDecisions.map((decision) => html`<p class="dim">${decision.text}</p>`)}
          </div>`
        : nothing}
    </section>`;
  }

  /** @param {Ask} ask */
  _renderCard(ask) {
    const isEdited = this.openField?.ask === ask.id && this.openField.of === "edit";
    const secondsLeft = ask.expires_at
      ? (Date.parse(ask.expires_at) - (this.store?.now ?? 0)) / 1000
      : Infinity;
    const child = ask.kind === "child" ? ask.data : null;
    const tool = child ? child.tool : ask.tool;
    const why = child ? child.why : ask.why;
    const isFresh = this._fresh.has(ask.id);
    // `inert` would end the typing of a viewer who is in this card; there only the pointer waits.
    return html`<div class="card" data-ask=${ask.id} ?data-fresh=${isFresh} ?inert=${isFresh && !this._hasFocus(ask.id)}>
      <div class="question">${ask.question ? renderMarkdown(ask.question) : defaultQuestion(ask, tool)}</div>
      ${child
        ? html`<span class="dim"
            >A <a href=${`${this.store?.api.base ?? ""}/runs/${child.run}`}>child run</a> asks${
              tool && tool !== ASK_HUMAN_TOOL ? html`, for “${humanizeName(tool)}”` : nothing
            }.</span
          >${(ask.of ?? "question") === "question" ? nothing : html`<div class="subject">${renderValue(ask.args)}</div>`}`
        : isEdited
          ? nothing // the form shows the arguments
          : this._renderSubject(ask)}
      ${(ask.files ?? []).map(
        (file) => html`<div class="subject"><midrun-file .store=${this.store} .file=${file} .isOpen=${true}></midrun-file></div>`,
      )}
      ${this._renderArtifacts(ask)}
      ${ask.hidden ? html`<span class="hidden-arguments">${ask.hidden}</span>` : nothing}
      ${why ? html`<span class="dim">Why: ${why}</span>` : nothing}
      ${secondsLeft < Infinity
        ? html`<span class="dim">${secondsLeft > 0 ? `Expires in ${formatAge(secondsLeft)}` : "Expired"}</span>`
        : nothing}
      ${ask.may_decide ? this._renderButtons(ask) : html`<span class="dim">${formatDecider(ask)}</span>`}
    </div>`;
  }

  /** @param {string} id @param {UnsentText} unsent */
  _renderUnsent(id, { question, message, text }) {
    const copy = async () => {
      this.copiedAsk = (await copyToClipboard(text)) ? id : "";
    };
    return html`<div class="card" data-unsent=${id}>
      ${question ? html`<span class="question">${question}</span>` : nothing}
      <p class="error" role="alert">${message}</p>
      ${text
        ? html`<label>Your text <textarea readonly rows="2" .value=${text}></textarea></label>`
        : nothing}
      <div class="row">
        ${text
          ? html`<button @click=${() => void copy()}>${this.copiedAsk === id ? "Copied" : "Copy"}</button>`
          : nothing}
        <button @click=${() => this._dismissUnsent(id)}>Dismiss</button>
      </div>
    </div>`;
  }

  /** Render the call that is to be approved, or the tool that asks and its data. @param {Ask} ask */
  _renderSubject({ kind, tool, data, args }) {
    if (tool === ASK_HUMAN_TOOL) return nothing;
    if (kind !== "question") return this._renderArguments(this._sortArguments(tool, args));
    const details = withoutOptions(data);
    return html`${details === null || details === undefined ? nothing : html`<div class="subject">${renderValue(details)}</div>`}
      <span class="dim">“${humanizeName(tool)}” asks.</span>`;
  }

  /** Render the arguments of a call; those that replace a text, as the lines that change. @param {any} args */
  _renderArguments(args) {
    const change = findChange(args, this.view?.artifacts ?? []);
    if (!change) return html`<div class="subject">${renderValue(args)}</div>`;
    const { store } = this;
    const before = change.file && store ? this._loader.read(store, change.file) : asContent(change.before);
    const { rest } = change;
    return html`<div class="subject">
      ${Object.keys(rest).length ? renderFields(rest, 0) : nothing}
      <span class="dim">What changes${change.file ? html` in “${change.file.name}”` : nothing}</span>
      ${renderDifference(before, asContent(change.after))} ${renderRaw(args)}
    </div>`;
  }

  /** Return arguments in the order of the tool's parameters; the journal has them by name. @param {string} tool @param {any} args */
  _sortArguments(tool, args) {
    const names = Object.keys(this.agent?.parameters[tool]?.properties ?? {}).filter((name) => name in (args ?? {}));
    return names.length ? { ...Object.fromEntries(names.map((name) => [name, args[name]])), ...args } : args;
  }

  /** Render the artifacts that a call names or has shown: what would be sent is read before it is approved. @param {Ask} ask */
  _renderArtifacts({ call, args }) {
    const root = this.getRootNode();
    const hasPanel = root instanceof ShadowRoot && root.host.localName === "midrun-run";
    return artifactsOfCall(this.view?.artifacts ?? [], call, args).map(({ name, version, file }) => {
      return html`<div class="subject">
        <span class="dim">Artifact “${name}”${version > 1 ? `, version ${version}` : ""}</span>
        <midrun-file .store=${this.store} .file=${file} .isOpen=${true}></midrun-file>
        ${hasPanel && version > 1
          ? html`<button class="link" aria-haspopup="dialog" @click=${() => openArtifact(this, name, version)}>Versions and changes</button>`
          : nothing}
      </div>`;
    });
  }

  /** @param {Ask} ask */
  _renderButtons(ask) {
    if (this.openField?.ask === ask.id) {
      return this.openField.of === "edit" ? this._renderEditor(ask) : this._renderDeclineForm(ask);
    }
    switch (ask.of ?? ask.kind) {
      case "approval":
        return html`<div class="row">
          <button class="main" @click=${() => void this._sendDecision(ask, { decision: "approve" })}>
            Approve
          </button>
          ${ask.kind === "approval"
            ? html`<button
                class="edit"
                @click=${() => void this._openField(ask, "edit", editable(ask.args))}
              >
                Edit…
              </button>`
            : nothing}
          <button class="decline" @click=${() => void this._openField(ask, "decline", "")}>
            Decline…
          </button>
        </div>`;
      case "unsure":
        return html`<div class="row">
          ${UNSURE_ANSWERS.map(
            ([value, label]) =>
              html`<button @click=${() => void this._sendDecision(ask, { decision: "answer", value })}>
                ${label}
              </button>`,
          )}
        </div>`;
      default:
        return this._renderAnswerForm(ask);
    }
  }

  /** @param {Ask} ask */
  _renderAnswerForm(ask) {
    const data = ask.kind === "child" ? ask.data?.data : ask.data;
    const options = Array.isArray(data?.options) ? data.options : [];
    const send = (/** @type {unknown} */ value) => {
      const files = this._attachmentsOf(ask)?.bodies ?? [];
      if (value === "" && !files.length) return;
      void this._sendDecision(ask, { decision: "answer", value, ...(files.length ? { files } : {}) });
    };
    const add = (/** @type {Event} */ event, /** @type {DataTransfer | null} */ transfer) => {
      const files = filesOf(transfer);
      if (!ask.takes_files || !files.length) return;
      event.preventDefault();
      void this._attachmentsOf(ask)?.add(files);
    };
    return html`${options.length
        ? html`<div class="row">
            ${options.map(
              (/** @type {unknown} */ option) =>
                html`<button @click=${() => send(option)}>${formatExact(option)}</button>`,
            )}
          </div>`
        : nothing}
      ${ask.takes_files ? html`<midrun-attachments .draft=${this._attachmentsDraft(ask)} .api=${this.store?.api}></midrun-attachments>` : nothing}
      <form
        class="row"
        @paste=${(/** @type {ClipboardEvent} */ event) => add(event, event.clipboardData)}
        @dragover=${(/** @type {DragEvent} */ event) => {
          if (ask.takes_files && event.dataTransfer?.types.includes("Files")) event.preventDefault();
        }}
        @drop=${(/** @type {DragEvent} */ event) => add(event, event.dataTransfer)}
        @submit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          send((this.drafts[ask.id] ?? "").trim());
        }}
      >
        <input
          type="text"
          aria-label=${`Answer to: ${ask.question}`}
          placeholder=${options.length ? "Another answer" : "Your answer"}
          .value=${live(this.drafts[ask.id] ?? "")}
          @input=${(/** @type {InputEvent} */ event) => this._updateDraft(ask, event)}
        />
        ${ask.takes_files
          ? html`<button
              type="button"
              class="attach"
              aria-label="Add files"
              title="Attach files, or paste or drop them here."
              @click=${() => this._attachmentsOf(ask)?.choose()}
            >
              ${icon("attach")}
            </button>`
          : nothing}
        <button class="main">Answer</button>
        ${ask.declinable
          ? html`<button type="button" class="decline" @click=${() => void this._openField(ask, "decline", "")}>
              Decline…
            </button>`
          : nothing}
      </form>`;
  }

  /** @param {Ask} ask */
  _attachmentsDraft({ id }) {
    return `${this.store?.id ?? ""} ${id}`;
  }

  /** The files that the viewer has attached to an answer. @param {Ask} ask */
  _attachmentsOf({ id }) {
    const selector = `[data-ask="${CSS.escape(id)}"] midrun-attachments`;
    return /** @type {import("./attachments.js").Attachments | null} */ (this.renderRoot.querySelector(selector));
  }

  /** Render the arguments as fields, or as JSON. Both write the same draft, which is JSON. @param {Ask} ask */
  _renderEditor(ask) {
    const args = parseJson(this.drafts[ask.id] ?? "");
    const isForm = !this.isRaw && isEditable(args);
    const toggle = isEditable(args) ? renderRawToggle(this.isRaw, () => this._toggleRaw()) : nothing;
    return html`${isForm ? this._renderForm(ask, /** @type {Record<string, unknown>} */ (args)) : this._renderJson(ask)}
      <div class="row">
        <button class="main" @click=${() => void this._approveEdited(ask)}>Approve this</button>
        <button @click=${() => void this._closeField()}>Discard</button>
        ${toggle}
      </div>`;
  }

  /** Switch between fields and JSON; the fields are chosen again for what was written as JSON. */
  _toggleRaw() {
    this.isRaw = !this.isRaw;
    this._fieldKinds.clear();
  }

  /** @param {Ask} ask @param {Record<string, unknown>} args */
  _renderForm(ask, args) {
    const change = (/** @type {Record<string, unknown>} */ next) => {
      this.drafts = { ...this.drafts, [ask.id]: editable(next) };
    };
    return html`<div role="group" aria-label=${`Arguments of ${humanizeName(ask.tool)}`} @keydown=${this._closeOnEscape}>
      ${renderArgumentForm(args, this._fieldKinds, change, this.agent?.parameters[ask.tool])}
    </div>`;
  }

  /** @param {Ask} ask */
  _renderJson(ask) {
    return html`<textarea
        class="json-editor"
        rows="5"
        @keydown=${this._closeOnEscape}
        aria-label=${`Arguments of ${humanizeName(ask.tool)}, as JSON`}
        .value=${live(this.drafts[ask.id] ?? "")}
        @input=${(/** @type {InputEvent} */ event) => this._updateDraft(ask, event)}
      ></textarea>`;
  }

  /** @param {Ask} ask */
  _renderDeclineForm(ask) {
    return html`<form
      class="row"
      @keydown=${this._closeOnEscape}
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        const comment = (this.drafts[ask.id] ?? "").trim();
        void this._sendDecision(ask, { decision: "decline", comment });
      }}
    >
      <input
        class="reason"
        type="text"
        maxlength="1000"
        aria-label="Why not? The agent is told."
        placeholder="Why not? (optional)"
        .value=${live(this.drafts[ask.id] ?? "")}
        @input=${(/** @type {InputEvent} */ event) => this._updateDraft(ask, event)}
      />
      <button class="main">Decline</button>
      <button type="button" @click=${() => void this._closeField()}>Back</button>
    </form>`;
  }

  /** @param {KeyboardEvent} event */
  _closeOnEscape(event) {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    void this._closeField();
  }

  /** @param {Ask} ask @param {InputEvent} event */
  _updateDraft(ask, event) {
    const { value } = /** @type {HTMLInputElement} */ (event.target);
    this.drafts = { ...this.drafts, [ask.id]: value };
  }

  /** Open a field with its first content. @param {Ask} ask @param {"edit" | "decline"} of @param {string} text */
  async _openField(ask, of, text) {
    this._discardDraft();
    this._fieldKinds.clear();
    this.isRaw = false;
    this.drafts = { ...this.drafts, [ask.id]: text };
    this.openField = { ask: ask.id, of };
    await this.updateComplete;
    this._focus(of === "edit" ? ".arguments input, .arguments textarea, .json-editor" : ".reason");
  }

  /** Load the schemas of the agent's tools; without them the values tell the kinds of the fields. */
  async _loadAgent() {
    const { store } = this;
    this._isAgentLoaded = true; // once
    try {
      this.agent = (await store?.loadAgent()) ?? null;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
    }
  }

  /** Close the open field; the focus returns to the button that opened it. */
  async _closeField() {
    const { ask, of } = this.openField ?? {};
    this._discardDraft();
    await this.updateComplete;
    this._focus(`[data-ask="${ask}"] .${of}`);
  }

  /** Remove the draft of an ask, by default that of the open field, and close its field. */
  _discardDraft(id = this.openField?.ask) {
    this.error = "";
    if (!id) return;
    const { [id]: _, ...others } = this.drafts;
    this.drafts = others;
    if (this.openField?.ask === id) this.openField = null;
  }

  /** @param {Ask} ask */
  async _approveEdited(ask) {
    const invalid = findInvalidField(this.renderRoot);
    if (invalid) {
      this.error = `${invalid}: this value cannot be used.`;
      return;
    }
    let args;
    try {
      args = JSON.parse(this.drafts[ask.id]);
    } catch (error) {
      this.error = `This is not JSON: ${/** @type {Error} */ (error).message}`;
      return;
    }
    await this._sendDecision(ask, { decision: "edit", args });
  }

  /**
   * Send a decision. If another one closed the ask before, ours is not used: a card names the
   * one that counts, and keeps the viewer's text.
   * @param {Ask} ask @param {{decision: string, value?: unknown, comment?: string, args?: any, files?: import("./attachments.js").FileBody[]}} body
   */
  async _sendDecision(ask, body) {
    const { store, view: run } = this;
    if (!store || !run) return;
    const text = formatValue(body.value) || formatTyped(this.drafts[ask.id] ?? "");
    this._sending.add(ask.id);
    const reply = await this.attempt(async () => {
      try {
        return await store.decide(ask, body, { ifSeen: true }).catch((error) => {
          if (!(error instanceof Problem && error.status === 412)) throw error;
          // 412: another control was sent to the run since our view. That does not change this
          // ask, so send the decision again without the condition.
          return store.decide(ask, body);
        });
      } catch (error) {
        if (!(error instanceof Problem && isTooLate(error))) throw error;
        const message = formatTooLate(error, body.decision, run.you);
        this._keepUnsent(ask.id, { question: ask.question, message, text });
        return { control: "" }; // decided, but not by us
      }
    });
    this._sending.delete(ask.id);
    if (!reply) return;
    this._discardDraft(ask.id);
    saveDraft(`${this._attachmentsDraft(ask)} files`, "");
  }
}

/** Return the question of an ask that has none of its own. @param {Ask} ask @param {string} tool */
const defaultQuestion = (ask, tool) =>
  (ask.of ?? ask.kind) === "unsure" ? `Did “${humanizeName(tool)}” go through?` : `Approve ${quoteTitle(ask.title || humanizeName(tool))}?`;

/**
 * Return a decision in one line. That on a call of unknown outcome says what is now assumed.
 * @param {Ask} ask @param {string} message @param {unknown} value @param {string} actor
 */
function formatDecision(ask, message, value, actor) {
  const assumed = (ask.of ?? ask.kind) === "unsure" ? UNSURE_OUTCOMES[String(value)] : "";
  if (assumed) return `${formatCall(ask)} — ${assumed}${actor ? `, says ${actor}` : ""}`.replace(/says you$/, "you say");
  const subject = (ask.of ?? ask.kind) === "approval" ? formatCall(ask) : ask.question || formatCall(ask);
  return `${subject} — ${message}`;
}

/** Return a title in quotation marks; marks inside it become single ones. @param {string} title */
const quoteTitle = (title) => `“${title.replaceAll("“", "‘").replaceAll("”", "’")}”`;

/** @param {number} asks @param {number} unsent */
function formatTitle(asks, unsent) {
  if (asks) return `Needs your answer (${asks})`;
  return unsent ? "Came too late" : "Decided just now";
}

customElements.define("midrun-asks", Asks);
