// @ts-check
/** `<midrun-takeover>`: take over the agent's part of a run, write and use tools, hand back. */
import { css, live, nothing } from "./lit.js";
import { findInvalidField, formStyle, isEditable, renderArgumentForm, renderRawToggle, startArguments, withoutEmpty } from "./argument-form.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { humanizeName, parseJson } from "./call-text.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { editable, html } from "./template.js";

/** @typedef {import("./argument-form.js").Args} Args */

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
    isRaw: { state: true },
    agent: { state: true },
  };

  static styles = [
    theme,
    formStyle,
    css`
      .group {
        display: grid;
        gap: 6px;
      }
      .group + .group {
        padding-top: 10px;
        border-top: 1px solid var(--line);
      }
      .raw {
        font: 12.5px var(--mono);
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
    this.args = "{}"; // of the tool; the form and the JSON editor both write them as JSON
    this.isRaw = false; // the arguments are edited as JSON
    /** @type {import("./types.js").AgentLine | null} */
    this.agent = null;
    this._isLoading = false;
    /** @type {Map<string, import("./argument-form.js").FieldKind>} by argument */
    this._fieldKinds = new Map();
  }

  /** The tools that a person may use. */
  get _tools() {
    return this.agent?.tools.filter((name) => name !== "plan") ?? [];
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    if (!this.hasUpdated) [this.text, this.instruction] = DRAFT_FIELDS.map((name) => loadDraft(this._draftName(name)));
  }

  updated() {
    if (this._hasTakenOver && !this.agent && !this._isLoading) void this._loadTools();
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

  /** Load the agent's tools, with the schemas of their arguments. */
  async _loadTools() {
    this._isLoading = true; // once
    const { store } = this;
    this.agent = (await this.attempt(async () => store?.loadAgent())) ?? null;
    this._chooseTool(this._tools[0] ?? "");
  }

  /** Show the form of a tool, with the arguments that were typed before a reload. @param {string} tool */
  _chooseTool(tool) {
    this.tool = tool;
    this._fieldKinds.clear();
    this.isRaw = false;
    const typed = loadDraft(this._draftName(`arguments of ${tool}`));
    this.args = typed || editable(startArguments(this._schema));
  }

  /** The schema of the chosen tool's arguments. @returns {import("./argument-form.js").Schema} */
  get _schema() {
    return this.agent?.parameters[this.tool] ?? {};
  }

  /** @param {string} args JSON */
  _setArgs(args) {
    this.args = args;
    saveDraft(this._draftName(`arguments of ${this.tool}`), args);
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
        <label for="text">Write in the agent’s place</label>
        <textarea id="text" rows="2" .value=${live(this.text)} @input=${this._setter("text")}></textarea>
        <div class="row">
          <button ?disabled=${!this.text.trim()} @click=${() => void this._write()}>Write</button>
        </div>
      </div>
      ${this._tools.length ? this._renderToolForm() : nothing}
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
      <select id="tool" .value=${live(this.tool)} @change=${(/** @type {Event} */ event) =>
        this._chooseTool(/** @type {HTMLSelectElement} */ (event.target).value)}>
        ${this._tools.map((name) => html`<option value=${name}>${humanizeName(name)}</option>`)}
      </select>
      ${this._renderArguments()}
      <div class="row">
        <button @click=${() => void this._useTool()}>Use it</button>
        ${Object.keys(this._schema.properties ?? {}).length ? renderRawToggle(this.isRaw, () => this._toggleRaw()) : nothing}
      </div>
    </div>`;
  }

  /** Render the arguments as fields, or as JSON if the viewer asks for it. */
  _renderArguments() {
    const args = { ...startArguments(this._schema), .../** @type {Args} */ (parseJson(this.args)) };
    if (!this.isRaw) {
      if (!isEditable(args)) return nothing; // the tool has no arguments
      return html`<div role="group" aria-label=${`Arguments of ${humanizeName(this.tool)}`}>
        ${renderArgumentForm(args, this._fieldKinds, (next) => this._setArgs(editable(withoutEmpty(next))), this._schema)}
      </div>`;
    }
    return html`<textarea
      rows="3"
      class="raw"
      aria-label="Arguments, as JSON"
      .value=${live(this.args)}
      @input=${(/** @type {Event} */ event) => this._setArgs(/** @type {HTMLTextAreaElement} */ (event.target).value)}
    ></textarea>`;
  }

  _toggleRaw() {
    this.isRaw = !this.isRaw;
    this._fieldKinds.clear();
  }

  /** @param {"text" | "instruction"} name */
  _setter(name) {
    return (/** @type {Event} */ event) => {
      this[name] = /** @type {HTMLInputElement} */ (event.target).value;
      saveDraft(this._draftName(name), this[name]);
    };
  }

  async _write() {
    if (!(await this._send("write", { text: this.text.trim() }))) return;
    this._clearDraft("text");
    this.renderRoot.querySelector("textarea")?.focus(); // the button is disabled now, and loses it
  }

  async _useTool() {
    const invalid = findInvalidField(this.renderRoot);
    if (invalid) {
      this.error = `${invalid}: this value cannot be used.`;
      return;
    }
    let args;
    try {
      args = JSON.parse(this.args);
    } catch (error) {
      this.error = `This is not JSON: ${/** @type {Error} */ (error).message}`;
      return;
    }
    if (!(await this._send("use_tool", { tool: this.tool, args }))) return;
    saveDraft(this._draftName(`arguments of ${this.tool}`), "");
    this._chooseTool(this.tool);
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
