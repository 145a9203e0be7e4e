// @ts-check
/**
 * `<midrun-run>`: a run, whole: its steps, its control bar, what it needs from people, and
 * everything that happened.
 *
 * Attributes: `run`, `base`, `token`, `global-keys` as for `<midrun-controls>`.
 * Events: `midrun-title` (what a page may call itself), `midrun-signed-out` (the server wants to
 * know who asks), `midrun-news` (it needs a person, has failed or is completed), `midrun-started` (another run was started from here; unless its default is
 * prevented, this element shows that one).
 */
import { css, nothing } from "./lit.js";
import { Newsworthy } from "./newsworthy.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import "./asks.js";
import "./caps.js";
import "./controls.js";
import "./effects.js";
import "./frames.js";
import "./report.js";
import "./steps.js";
import "./takeover.js";
import "./thread.js";
import "./timeline.js";
import { html } from "./template.js";

const GLYPHS = /** @type {Record<string, string>} */ ({
  queued: "○",
  running: "▶",
  pausing: "⏸",
  paused: "⏸",
  waiting: "✋",
  cancelling: "■",
  cancelled: "■",
  completed: "✓",
  failed: "⚠",
  halted: "⛔",
  halting: "⛔",
  lost: "⚠",
});

/** Letters and lines of a task that are shown without being asked for. */
const LONG = 240;
const LINES = 4;

export class MidrunRun extends StoreElement {
  static quiet = true;

  static properties = {
    ...StoreElement.properties,
    globalKeys: { type: Boolean, attribute: "global-keys" },
    whole: { state: true },
  };

  static styles = [
    theme,
    css`
      :host {
        container-type: inline-size;
      }
      .page {
        display: grid;
        grid-template: auto auto 1fr / minmax(0, 1fr) 300px;
        gap: 16px 20px;
        max-width: 1080px;
        margin: 0 auto;
      }
      .title {
        grid-column: 1 / -1;
        display: flex;
        flex-wrap: wrap;
        align-items: baseline;
        gap: 4px 12px;
      }
      h1 {
        font-size: 20px;
        line-height: 1.3;
        overflow-wrap: anywhere;
        white-space: pre-line;
      }
      .cut {
        display: -webkit-box;
        -webkit-box-orient: vertical;
        -webkit-line-clamp: 4;
        overflow: hidden;
      }
      .main,
      .aside {
        display: grid;
        gap: 14px;
        align-content: start;
        min-width: 0;
      }
      .main {
        grid-area: 2 / 1 / span 2;
      }
      midrun-asks {
        grid-area: 2 / 2;
        align-self: start;
      }
      .aside {
        grid-area: 3 / 2;
      }
      midrun-asks[hidden] ~ .aside {
        grid-area: 2 / 2 / span 2;
      }
      midrun-controls {
        position: sticky;
        bottom: 10px;
        z-index: 1;
      }
      @container (max-width: 860px) {
        .page {
          grid-template: none / minmax(0, 1fr);
        }
        .main,
        .aside,
        midrun-asks,
        midrun-asks[hidden] ~ .aside {
          grid-area: auto;
        }
      }
    `,
  ];

  constructor() {
    super();
    this.globalKeys = false;
    this.whole = false; // whether a long task is shown to its end
    this._title = "";
    this._news = new Newsworthy();
    this.addEventListener("midrun-started", (event) => {
      if (!event.defaultPrevented) this.run = /** @type {CustomEvent<string>} */ (event).detail;
    });
  }

  /** Of another run, which is still to come, there is only a bar. */
  refocus() {
    if (this.view) return super.refocus();
    const bar = /** @type {StoreElement | null} */ (this.renderRoot.querySelector("midrun-controls"));
    void bar?.updateComplete.then(() => bar.refocus());
  }

  updated() {
    if (this.store?.problem?.status === 401) this._tell("midrun-signed-out", "");
    const run = this.view;
    if (!run) return;
    const { look, word } =
      this.store?.link === "lost" ? { look: "lost", word: "Connection lost" } : run.sign;
    const title = `${GLYPHS[look] ?? ""} ${word} — ${run.task.split("\n")[0]}`;
    if (title !== this._title) this._tell("midrun-title", title);
    this._title = title;
    if (this._news.isNews(run.run_id, run.phase, run.reason === "cap")) {
      this._tell("midrun-news", { run: run.run_id, word: run.sign.word, task: run.task });
    }
  }

  /** @param {string} name @param {string | import("./newsworthy.js").News} detail */
  _tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  /** The task; a long one is cut for the eye, until somebody wants to read it. @param {string} task */
  _task(task) {
    if (task.length <= LONG && task.split("\n").length <= LINES) return html`<h1>${task}</h1>`;
    return html`<h1 class=${this.whole ? "" : "cut"}>${task}</h1>
      <button
        class="link"
        aria-expanded=${String(this.whole)}
        @click=${() => (this.whole = !this.whole)}
      >
        ${this.whole ? "Show less" : "Show the whole task"}
      </button>`;
  }

  render() {
    const { store, view: run } = this;
    if (!store) return nothing;
    if (!run) return html`<midrun-controls .store=${store}></midrun-controls>`;
    return html`<div class="page">
      <div class="title">
        ${this._task(run.task)}
        <code class="dim">${run.run_id}</code>
        <span class="dim">${run.agent}</span>
      </div>
      <midrun-asks .store=${store}></midrun-asks>
      <div class="main">
        <midrun-report .store=${store}></midrun-report>
        <midrun-steps .store=${store}></midrun-steps>
        <midrun-controls .store=${store} ?global-keys=${this.globalKeys}></midrun-controls>
        <midrun-timeline .store=${store}></midrun-timeline>
      </div>
      <div class="aside">
        <midrun-frames .store=${store}></midrun-frames>
        <midrun-caps .store=${store}></midrun-caps>
        <midrun-effects .store=${store}></midrun-effects>
        <midrun-takeover .store=${store}></midrun-takeover>
        <midrun-thread .store=${store}></midrun-thread>
      </div>
    </div>`;
  }
}

customElements.define("midrun-run", MidrunRun);
