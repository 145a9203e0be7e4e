// @ts-check
/** `<midrun-takeover>`: take over the agent's part of a run, write and use tools, hand back. */
import { css, live, nothing } from "./lit.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { humanizeName } from "./call-text.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** The fields whose text survives a reload. */
const DRAFT_FIELDS = ["text", "instruction"];

export class TakeOver extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    text: { state: true },
    instruction: { state: true },
    tool: { state: true },
    args: { state: true },
    tools: { state: true },
  };

  static styles = [
    theme,
    css`
      .group {
        display: grid;
        gap: 6px;
      }
      .error {
        color: var(--stop);
      }
    `,
  ];

  constructor() {
    super();
    this.text = "";
    this.instruction = "";
    this.tool = "";
    this.args = "{}";
    /** @type {string[] | null} */
    this.tools = null;
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    if (!this.hasUpdated) [this.text, this.instruction] = DRAFT_FIELDS.map((name) => loadDraft(this._draftName(name)));
  }

  updated() {
    if (this._hasTakenOver && this.tools === null) void this._loadTools();
  }

  /** Return the name of a field's draft. @param {string} name */
  _draftName(name) {
    return `${this.store?.id} ${name}`;
  }

  /** Whether the viewer has taken over and nothing is in flight any more. */
  get _hasTakenOver() {
    const run = this.view;
    return run?.taken_over_by === run?.you && run?.phase === "paused";
  }

  /** Load the names of the agent's tools. */
  async _loadTools() {
    this.tools = []; // so that this runs once
    const { store, view: run } = this;
    const agents = await this.attempt(async () => store?.api.get("/v1/agents"));
    const agent = agents?.items.find((/** @type {any} */ item) => item.name === (run?.speaker || run?.agent));
    this.tools = agent?.tools.filter((/** @type {string} */ name) => name !== "plan") ?? [];
    this.tool = this.tools?.[0] ?? "";
  }

  /** @param {string} verb @param {object} [body] */
  async _send(verb, body) {
    const store = this.store;
    return this.attempt(async () => store?.send(verb, body));
  }

  render() {
    const run = this.view;
    const isOffered = run && (run.taken_over_by || run.allowed.includes("take_over"));
    if (!this.setShown(Boolean(isOffered) && run?.role !== "viewer")) return nothing;
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Take over</h2>
      ${this._hasTakenOver ? this._renderForms() : this._renderOffer()}
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  _renderOffer() {
    const { taken_over_by: person = "", you = "" } = this.view ?? {};
    if (person) {
      const text =
        person === you ? "You take over when the calls in progress have ended." : `${person} has taken over.`;
      return html`<p class="dim">${text}</p>`;
    }
    return html`<p class="dim">Pauses the run; then you write in the agent’s place.</p>
      <div class="row">
        <button @click=${() => void this._send("take_over")}>Take over</button>
      </div>`;
  }

  _renderForms() {
    return html`<div class="group">
        <label for="text">Write as the assistant</label>
        <textarea id="text" rows="2" .value=${live(this.text)} @input=${this._setter("text")}></textarea>
        <div class="row">
          <button ?disabled=${!this.text.trim()} @click=${() => void this._write()}>Write</button>
        </div>
      </div>
      ${this.tools?.length ? this._renderToolForm() : nothing}
      <div class="group">
        <label for="instruction">Hand back, with an instruction if you like</label>
        <textarea
          id="instruction"
          rows="2"
          .value=${live(this.instruction)}
          @input=${this._setter("instruction")}
        ></textarea>
        <div class="row">
          <button class="main" @click=${() => void this._handBack()}>Hand back</button>
        </div>
      </div>`;
  }

  _renderToolForm() {
    return html`<div class="group">
      <label for="tool">Use a tool</label>
      <select id="tool" .value=${live(this.tool)} @change=${this._setter("tool")}>
        ${this.tools?.map((name) => html`<option value=${name}>${humanizeName(name)}</option>`)}
      </select>
      <textarea
        rows="2"
        class="mono"
        aria-label="Arguments, as JSON"
        .value=${live(this.args)}
        @input=${this._setter("args")}
      ></textarea>
      <div class="row"><button @click=${() => void this._useTool()}>Use it</button></div>
    </div>`;
  }

  /** @param {"text" | "instruction" | "tool" | "args"} name */
  _setter(name) {
    return (/** @type {Event} */ event) => {
      this[name] = /** @type {HTMLInputElement} */ (event.target).value;
      if (DRAFT_FIELDS.includes(name)) saveDraft(this._draftName(name), this[name]);
    };
  }

  async _write() {
    if (!(await this._send("write", { text: this.text.trim() }))) return;
    this._clearDraft("text");
    this.renderRoot.querySelector("textarea")?.focus(); // the button is disabled now, and loses it
  }

  async _useTool() {
    let args;
    try {
      args = JSON.parse(this.args);
    } catch (error) {
      this.error = `This is not JSON: ${/** @type {Error} */ (error).message}`;
      return;
    }
    await this._send("use_tool", { tool: this.tool, args });
  }

  async _handBack() {
    const body = { instruction: this.instruction.trim() };
    if (await this._send("hand_back", body)) this._clearDraft("instruction");
  }

  /** @param {"text" | "instruction"} name */
  _clearDraft(name) {
    this[name] = "";
    saveDraft(this._draftName(name), "");
  }
}

customElements.define("midrun-takeover", TakeOver);
