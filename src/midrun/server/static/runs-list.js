// @ts-check
/**
 * `<midrun-runs>`: the runs of a server, those that need a person first.
 *
 * Attributes: `base` (where the server is; this script's own unless given) and `token` (unless the
 * cookie of a session does). Events: `midrun-title`, with what a page may call itself, and
 * `midrun-news`, with a run that needs a person, has failed or is completed.
 */
import { nothing, repeat } from "./lit.js";
import { HOME, Problem } from "./api.js";
import { FocusElement } from "./focus-element.js";
import { icon } from "./icons.js";
import { Newsworthy } from "./newsworthy.js";
import { CHIPS, attentionFirst, named, step } from "./runs-order.js";
import { RunsStore } from "./runs-store.js";
import { style } from "./runs-style.js";
import { theme } from "./theme.js";
import { LOOKS, clock, money, signed } from "./words.js";
import "./halt.js";
import "./new-run.js";
import { html } from "./template.js";

/** @typedef {import("./runs-store.js").Line} Line */
/** @typedef {import("./runs-order.js").Chip} Chip */

const SETTLE_MS = 400; // a button that has just changed its meaning was not meant

export class MidrunRuns extends FocusElement {
  static properties = {
    base: {},
    token: {},
    _chip: { state: true },
    _sheet: { state: true },
    _said: { state: true },
  };

  constructor() {
    super();
    this.base = HOME;
    this.token = "";
    /** @type {Chip} */
    this._chip = "all";
    /** @type {"" | "pause" | "new" | "halt"} */
    this._sheet = "";
    this._said = "";
    /** By run: what went wrong with what was pressed last. @type {Map<string, Problem>} */
    this._problems = new Map();
    /** @type {Map<string, {label: string, at: number}>} */
    this._flips = new Map();
    /** @type {RunsStore | null} */
    this._store = null;
    this._title = "";
    this._news = new Newsworthy();
    this._changed = () => this.requestUpdate();
    this._returned = () => this.#forgive();
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._tick = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    this._store = RunsStore.joined(this.base, this.token);
    this._store.addEventListener("change", this._changed);
    this._store.addEventListener("returned", this._returned);
    this._tick = setInterval(this._changed, 1000);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearInterval(this._tick);
    this._store?.removeEventListener("change", this._changed);
    this._store?.removeEventListener("returned", this._returned);
    this._store?.left();
    this._store = null;
  }

  updated() {
    const store = this._store;
    if (!store) return;
    if (store.signedOut) this.#tell("midrun-signed-out", undefined);
    const count = store.lines.filter(CHIPS.attention.fits).length;
    const title = count ? `(${count}) Runs` : "Runs";
    if (title !== this._title) this.#tell("midrun-title", (this._title = title));
    for (const { run_id, phase, attention, parent, task, work } of store.lines) {
      if (!parent && this._news.isNews(run_id, phase, attention === "cap")) {
        this.#tell("midrun-news", { run: run_id, word: work.sign.word, task });
      }
    }
  }

  /** @param {string} name @param {unknown} detail */
  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  render() {
    const store = this._store;
    if (!store) return nothing;
    const chip = this._chip;
    const shown = store.lines.filter(CHIPS[chip].fits).sort(attentionFirst);
    return html`
      <div class="head row">
        <h1 tabindex="-1">Runs</h1>
        ${this.#connection()}
        <span class="push row">${this.#actions()}</span>
      </div>
      <midrun-halts
        .store=${store}
        @midrun-lifted=${(/** @type {CustomEvent<string>} */ { detail }) =>
          (this._said = `Lifted the halt: ${detail}.`)}
      ></midrun-halts>
      ${this.#sheet()}
      <p class="said" role="status">${this._said}</p>
      ${store.lines.length ? this.#chips() : nothing}
      ${store.lines.length ? this.#table(shown) : this.#empty()}
      ${store.older && ["all", "finished"].includes(chip)
        ? html`<button class="older" @click=${() => store.loadOlder()}>Show older runs</button>`
        : nothing}
    `;
  }

  #connection() {
    const store = this._store;
    if (!store?.lost) return nothing;
    const since = store.lost.toLocaleTimeString();
    return html`<span class="badge lost" data-tone="dim" data-border="dashed">Connection lost</span>
      <span class="dim">as of ${since}; runs may still be working. Reconnecting.</span>`;
  }

  #actions() {
    const store = this._store;
    if (!store?.may("user")) return nothing;
    const pausable = store.pausable();
    return html`
      <button
        id="pause"
        ?disabled=${!pausable.length}
        aria-expanded=${this._sheet === "pause"}
        @click=${() => this.#toggle("pause")}
      >
        Pause all
      </button>
      ${store.may("operator")
        ? html`<button id="halt" aria-expanded=${this._sheet === "halt"} @click=${() => this.#toggle("halt")}>
            Halt…
          </button>`
        : nothing}
      <button id="new" class="main" aria-expanded=${this._sheet === "new"} @click=${() => this.#toggle("new")}>
        New run
      </button>
    `;
  }

  /** @param {"pause" | "new" | "halt"} name */
  #toggle(name) {
    this._sheet = this._sheet === name ? "" : name;
    this._said = "";
  }

  /** Close what is open; the focus goes back to what opened it. */
  async #close() {
    const opener = this._sheet;
    if (!opener) return;
    this._sheet = "";
    await this.updateComplete;
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(`#${opener}`))?.focus();
  }

  #sheet() {
    const close = () => this.#close();
    switch (this._sheet) {
      case "pause":
        return this.#pauseSheet();
      case "new":
        return html`<midrun-new-run
          .store=${this._store}
          @midrun-done=${close}
          @midrun-started=${() => (this._said = "Started.")}
        ></midrun-new-run>`;
      case "halt":
        return html`<midrun-halt-sheet .store=${this._store} @midrun-done=${close}></midrun-halt-sheet>`;
      default:
        return nothing;
    }
  }

  #pauseSheet() {
    const many = named(this._store?.pausable().length ?? 0);
    return html`<section class="panel sheet" aria-label="Pause all">
      <p>
        <strong>Pause ${many}?</strong> Each stops at its next boundary. Everything is kept, nothing
        is spent while paused, and each can be resumed.
      </p>
      <div class="row">
        <button class="main" @click=${this.#pauseAll}>Pause ${many}</button>
        <button @click=${() => this.#close()}>Back</button>
      </div>
    </section>`;
  }

  #pauseAll = async () => {
    const store = this._store;
    this._sheet = "";
    if (!store) return;
    const lines = store.pausable();
    this._said = `Asking ${named(lines.length)} to pause …`;
    const refused = await store.pauseAll(lines);
    this._said =
      `Asked ${named(lines.length - refused)} to pause.` +
      (refused ? ` ${named(refused)} could not be paused any more.` : "");
  };

  #chips() {
    const lines = this._store?.lines ?? [];
    const names = /** @type {Chip[]} */ (Object.keys(CHIPS));
    return html`<div class="row chips" role="group" aria-label="Which runs to show">
      ${names.map(
        (name) =>
          html`<button
            class="chip"
            aria-pressed=${this._chip === name}
            @click=${() => (this._chip = name)}
          >
            ${CHIPS[name].label} <span class="mono">${lines.filter(CHIPS[name].fits).length}</span>
          </button>`,
      )}
    </div>`;
  }

  /** @param {Line[]} shown */
  #table(shown) {
    if (!shown.length) return html`<p class="dim none">No such runs now.</p>`;
    return html`<div class="scroll">
      <table>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Task</th>
            <th scope="col">Elapsed</th>
            <th scope="col">Step</th>
            <th scope="col">Cost</th>
            <th scope="col"><span class="unseen">Quick action</span></th>
          </tr>
        </thead>
        <tbody>
          ${repeat(shown, (line) => line.run_id, (line) => this.#row(line))}
        </tbody>
      </table>
    </div>`;
  }

  /** @param {Line} line */
  #row(line) {
    const store = /** @type {RunsStore} */ (this._store);
    const { look, word, note, by: who } = line.work.sign;
    const [tone, border] = LOOKS[look] ?? ["dim", "solid"];
    const problem = this._problems.get(line.run_id);
    return html`<tr data-run=${line.run_id}>
      <td class="state">
        <span class="badge" data-tone=${tone} data-border=${border}>
          ${icon(look, look === "running")}${signed(word, who, store.who.name)}
        </span>
        <div class="note dim">${note}</div>
      </td>
      <td class="what">
        <a href=${`${this.base}/runs/${line.run_id}`}>${line.task || "(no task)"}</a>
        <div class="mono dim">${line.run_id} · ${line.agent}${line.parent ? ` · part of ${line.parent}` : ""}</div>
        ${problem ? html`<div class="problem" role="alert">${problem.message}</div>` : nothing}
      </td>
      <td class="mono" data-label="Elapsed">${clock(store.elapsed(line))}</td>
      <td class="mono" data-label="Step">${step(line)}</td>
      <td class="mono" data-label="Cost">${money(line.work.cost_usd)}</td>
      <td class="act">${this.#quick(line)}</td>
    </tr>`;
  }

  /** @param {Line} line */
  #quick(line) {
    const { quick } = line.work;
    const asks = line.phase === "waiting" && line.attention === "ask";
    if (asks && line.work.yours) {
      const name = `Answer: ${line.task}`;
      return html`<a class="button" aria-label=${name} href=${`${this.base}/runs/${line.run_id}`}>Answer…</a>`;
    }
    const role = Object.keys(quick.caps).length ? "operator" : "user"; // raising one is theirs
    const fits = quick.command === "pause" || quick.command === "resume";
    if (!quick.enabled || !fits || !this._store?.may(role)) return nothing;
    const flip = this._flips.get(line.run_id);
    if (flip?.label !== quick.label) {
      const at = flip ? performance.now() : -SETTLE_MS;
      this._flips.set(line.run_id, { label: quick.label, at });
    }
    return html`<button
      title=${quick.consequence}
      aria-label=${`${quick.label}: ${line.task}`}
      @click=${() => this.#press(line)}
    >
      ${quick.label}
    </button>`;
  }

  /** @param {Line} line */
  async #press(line) {
    const flip = this._flips.get(line.run_id);
    if (flip && performance.now() - flip.at < SETTLE_MS) return;
    this._problems.delete(line.run_id);
    try {
      await this._store?.ask(line, line.work.quick);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this._problems.set(line.run_id, error);
    }
    this.requestUpdate();
  }

  /** Say no longer that the server does not answer: it does. */
  #forgive() {
    for (const [run, { status }] of this._problems) if (!status) this._problems.delete(run);
  }

  #empty() {
    if (!this._store?.loaded) return html`<p class="dim none">Looking for runs …</p>`;
    return html`<section class="panel empty">
      <p><strong>No runs yet.</strong></p>
      <p class="dim">Start one here with <em>New run</em>, or from a shell:</p>
      <pre>midrun run app.py "the task"</pre>
    </section>`;
  }

  static styles = [theme, style];
}

customElements.define("midrun-runs", MidrunRuns);
