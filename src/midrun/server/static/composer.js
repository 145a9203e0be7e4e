// @ts-check
/** `<midrun-composer>`: what should happen next, in somebody's own words. */
import { css, live, nothing } from "./lit.js";
import { keep, kept } from "./drafts.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

const AT_WORK = new Set(["running", "pausing", "waiting", "queued"]);

/**
 * Emits "closed" when there is nothing more to write; its detail is what the run says to it at
 * once. `mode` is "redirect", or "fork" to go on
 * from a run that is over. What is written survives a reload; opened again for that alone, it is
 * `unasked`, and leaves the focus where it is.
 */
export class Composer extends StoreElement {
  static properties = {
    ...StoreElement.properties,
    mode: { type: String },
    unasked: { attribute: false },
    text: { state: true },
    aside: { state: true },
    when: { state: true },
    busy: { state: true },
  };

  static styles = [
    theme,
    css`
      form {
        display: grid;
        gap: 8px;
      }
      fieldset {
        display: flex;
        flex-wrap: wrap;
        gap: 4px 16px;
      }
      legend {
        float: left;
        margin-right: 12px;
        padding: 0;
        line-height: 24px;
        color: var(--dim);
      }
      .kinds label {
        padding: 2px 12px 2px 8px;
        border: 1px solid var(--edge);
        border-radius: 999px;
      }
      .kinds label:has(:checked) {
        border-color: var(--run);
        font-weight: 600;
        color: var(--run);
      }
      @media (pointer: coarse), (max-width: 560px) {
        .keys {
          display: none;
        }
      }
      label.choice {
        display: flex;
        align-items: center;
        gap: 6px;
        min-height: 24px;
      }
      .error {
        color: var(--stop);
        font-weight: 600;
      }
    `,
  ];

  constructor() {
    super();
    this.mode = "redirect";
    this.unasked = false;
    this.text = "";
    this.aside = false; // a side question: the run answers it, and comes back
    /** @type {"next_step" | "now"} */
    this.when = "next_step";
    this.busy = false;
  }

  get _key() {
    return this.store?.id ?? "";
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    super.willUpdate(changed);
    if (!this.hasUpdated && !this.text) this._restore();
  }

  /** Take up what was written before a reload, and what it was meant for. */
  _restore() {
    this.text = kept(this._key);
    const how = kept(`${this._key} how`);
    this.aside = how === "aside";
    if (how === "now") this.when = "now";
  }

  _keep() {
    const how = this.aside ? "aside" : this.when;
    keep(this._key, this.text);
    keep(`${this._key} how`, this.text && how);
  }

  firstUpdated() {
    if (!this.unasked) this.reach();
  }

  /** Let whoever wants to write go on. */
  reach() {
    this.renderRoot.querySelector("textarea")?.focus();
  }

  /** @param {string} text */
  _write(text) {
    this.text = text;
    this.error = "";
    this._keep();
  }

  /** @param {KeyboardEvent} event */
  _key_down(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this._discard();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      void this._send();
    }
  }

  _discard() {
    this._write("");
    this._close();
  }

  /** @param {string} [said] what the run says to it at once */
  _close(said = "") {
    this.dispatchEvent(new CustomEvent("closed", { detail: said }));
  }

  async _send() {
    const text = this.text.trim();
    const store = this.store;
    if (!store || this.busy) return;
    if (!text) {
      this.error = this._asks ? "Say what you want to know." : "Say what should happen next.";
      return;
    }
    this.busy = true;
    const sent = await this.attempt(() => this._say(store, text));
    this.busy = false;
    if (!sent) return;
    this._write("");
    this._close(sent.command?.receipt.said);
    if (sent.run_id && sent.run_id !== store.id) this.open(sent.run_id);
  }

  /** @param {import("./run-store.js").RunStore} store @param {string} text */
  _say(store, text) {
    if (this.mode === "fork") return store.send("fork", { instruction: text });
    if (this._asks) return store.send("messages", { text, urgency: "next" });
    const offer = this.view?.controls.redirect;
    if (offer?.command === "resume") {
      return store.send("resume", { instruction: text, caps: offer.caps }, { seen: true });
    }
    return store.send("redirect", { instruction: text, when: this.when }, { seen: true });
  }

  get _atWork() {
    return this.mode === "redirect" && AT_WORK.has(this.view?.phase ?? "");
  }

  /** Whether what is written is a side question. */
  get _asks() {
    return this.aside && this._atWork;
  }

  get _verb() {
    if (this.mode === "fork") return "Continue with this";
    if (!this._atWork) return "Resume with this";
    return this._asks ? "Ask" : "Redirect";
  }

  render() {
    return html`<form
      @submit=${(/** @type {Event} */ event) => {
        event.preventDefault();
        void this._send();
      }}
      @keydown=${this._key_down}
    >
      ${this._atWork ? this._kinds() : nothing}
      <label for="text">${this._asks ? "What do you want to know?" : "What should happen next?"}</label>
      <textarea
        id="text"
        rows="2"
        maxlength="100000"
        .value=${live(this.text)}
        @input=${(/** @type {InputEvent} */ event) =>
          this._write(/** @type {HTMLTextAreaElement} */ (event.target).value)}
      ></textarea>
      ${this._atWork && !this.aside ? this._times() : nothing}
      ${this._asks
        ? html`<div class="dim">Answered at the next step; then the run goes on where it was.</div>`
        : nothing}
      ${this.error ? html`<div class="error" role="alert">${this.error}</div>` : nothing}
      <div class="row">
        <button class="main" aria-disabled=${this.busy ? "true" : nothing}>${this._verb}</button>
        <button type="button" @click=${this._discard}>Discard</button>
        <span class="dim keys">Enter sends · Shift+Enter new line · Esc discards</span>
      </div>
    </form>`;
  }

  _kinds() {
    return html`<fieldset class="kinds" aria-label="What kind of words">
      ${this._choice("kind", "New course", !this.aside, () => (this.aside = false))}
      ${this._choice("kind", "Side question", this.aside, () => (this.aside = true))}
    </fieldset>`;
  }

  _times() {
    const [later, now] = [this.when === "next_step", this.when === "now"];
    return html`<fieldset>
      <legend>When</legend>
      ${this._choice("when", "After this step finishes", later, () => (this.when = "next_step"))}
      ${this._choice("when", "Now — stop the current call", now, () => (this.when = "now"))}
    </fieldset>`;
  }

  /** @param {string} name @param {string} label @param {boolean} checked @param {() => void} act */
  _choice(name, label, checked, act) {
    const chosen = () => {
      act();
      this._keep();
    };
    return html`<label class="choice">
      <input type="radio" name=${name} .checked=${live(checked)} @change=${chosen} />${label}
    </label>`;
  }
}

customElements.define("midrun-composer", Composer);
