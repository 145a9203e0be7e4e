// @ts-check
/** `<midrun-takeover>`: a person writes in the agent's place, and hands back. */
import { css, live, nothing } from "./lit.js";
import { keep, kept } from "./drafts.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** What is long enough to be worth keeping. */
const DRAFTS = ["text", "instruction"];

export class TakeOver extends StoreElement {
  static quiet = true;

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
      .part {
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
    if (!this.hasUpdated) [this.text, this.instruction] = DRAFTS.map((name) => kept(this._key(name)));
  }

  updated() {
    if (this._drives && this.tools === null) void this._learn();
  }

  /** Under which name a draft is kept. @param {string} name */
  _key(name) {
    return `${this.store?.id} ${name}`;
  }

  get _drives() {
    const run = this.view;
    return run?.wheel === run?.you && run?.phase === "paused";
  }

  /** Find out which tools the agent has. */
  async _learn() {
    this.tools = [];
    const { store, view: run } = this;
    const known = await this.attempt(async () => store?.api.get("/v1/agents"));
    const agent = known?.items.find((/** @type {any} */ item) => item.name === run?.agent);
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
    const may = run && (run.wheel || run.allowed.includes("take_over"));
    if (!this.shown(Boolean(may) && run?.role !== "viewer")) return nothing;
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Take over</h2>
      ${this._drives ? this._wheel() : this._offer()}
      ${this.error ? html`<p class="error" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  _offer() {
    const { wheel = "", you = "" } = this.view ?? {};
    if (wheel) {
      const who = wheel === you ? "You take" : `${wheel} has taken`;
      return html`<p class="dim">${who} over${wheel === you ? " once nothing is in flight" : ""}.</p>`;
    }
    return html`<p class="dim">Pauses the run, and you write in the agent’s place.</p>
      <div class="row">
        <button @click=${() => void this._send("take_over")}>Take over</button>
      </div>`;
  }

  _wheel() {
    return html`<div class="part">
        <label for="text">Write as the assistant</label>
        <textarea id="text" rows="2" .value=${live(this.text)} @input=${this._set("text")}></textarea>
        <div class="row">
          <button ?disabled=${!this.text.trim()} @click=${() => void this._write()}>Write</button>
        </div>
      </div>
      ${this.tools?.length ? this._toolBox() : nothing}
      <div class="part">
        <label for="instruction">Hand back, with an instruction if you like</label>
        <textarea
          id="instruction"
          rows="2"
          .value=${live(this.instruction)}
          @input=${this._set("instruction")}
        ></textarea>
        <div class="row">
          <button class="main" @click=${() => void this._handBack()}>Hand back</button>
        </div>
      </div>`;
  }

  _toolBox() {
    return html`<div class="part">
      <label for="tool">Use a tool</label>
      <select id="tool" .value=${live(this.tool)} @change=${this._set("tool")}>
        ${this.tools?.map((name) => html`<option value=${name}>${name}</option>`)}
      </select>
      <textarea
        rows="2"
        class="mono"
        aria-label="Arguments, as JSON"
        .value=${live(this.args)}
        @input=${this._set("args")}
      ></textarea>
      <div class="row"><button @click=${() => void this._use()}>Use it</button></div>
    </div>`;
  }

  /** @param {"text" | "instruction" | "tool" | "args"} name */
  _set(name) {
    return (/** @type {Event} */ event) => {
      this[name] = /** @type {HTMLInputElement} */ (event.target).value;
      if (DRAFTS.includes(name)) keep(this._key(name), this[name]);
    };
  }

  async _write() {
    if (!(await this._send("write", { text: this.text.trim() }))) return;
    this._forget("text");
    this.renderRoot.querySelector("textarea")?.focus(); // there is nothing to press any more
  }

  async _use() {
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
    if (await this._send("hand_back", body)) this._forget("instruction");
  }

  /** What was sent is a draft no longer. @param {"text" | "instruction"} name */
  _forget(name) {
    this[name] = "";
    keep(this._key(name), "");
  }
}

customElements.define("midrun-takeover", TakeOver);
