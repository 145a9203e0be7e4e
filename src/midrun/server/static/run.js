// @ts-check
/**
 * `<midrun-run>`: one run with its steps, control bar, asks, caps, effects, timeline and report.
 *
 * Attributes: `run`, `base`, `token`, `global-keys` as for `<midrun-controls>`.
 * Events: `midrun-title` (a title for the page), `midrun-signed-out` (the server requires a
 * sign-in), `midrun-news` (the run needs a person, has failed or is completed), `midrun-started`
 * (another run was started here; unless its default is prevented, this element shows that run).
 */
import { css, nothing } from "./lit.js";
import { NewsDetector } from "./notifications.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import "./asks.js";
import "./caps.js";
import "./controls.js";
import "./effects.js";
import "./held-topics.js";
import "./report.js";
import "./steps.js";
import "./takeover.js";
import "./thread.js";
import "./timeline.js";
import { html } from "./template.js";

/** By style: the symbol in the page's title. */
const TITLE_SYMBOLS = /** @type {Record<string, string>} */ ({
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

/** A longer task is cut, and shown in full on request. */
const TASK_MAX_CHARS = 240;
const TASK_MAX_LINES = 4;

export class MidrunRun extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    globalKeys: { type: Boolean, attribute: "global-keys" },
    isTaskExpanded: { state: true },
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
      .cut-task {
        display: -webkit-box;
        -webkit-box-orient: vertical;
        -webkit-line-clamp: 4;
        overflow: hidden;
      }
      .main,
      .sidebar {
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
      .sidebar {
        grid-area: 3 / 2;
      }
      midrun-asks[hidden] ~ .sidebar {
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
        .sidebar,
        midrun-asks,
        midrun-asks[hidden] ~ .sidebar {
          grid-area: auto;
        }
      }
    `,
  ];

  constructor() {
    super();
    this.globalKeys = false;
    this.isTaskExpanded = false;
    this._title = "";
    this._newsDetector = new NewsDetector();
    this.addEventListener("midrun-started", (event) => {
      if (!event.defaultPrevented) this.run = /** @type {CustomEvent<string>} */ (event).detail;
    });
  }

  /** Focus our heading. While a run is loading, the control bar is all there is. */
  refocus() {
    if (this.view) return super.refocus();
    const bar = /** @type {StoreElement | null} */ (this.renderRoot.querySelector("midrun-controls"));
    void bar?.updateComplete.then(() => bar.refocus());
  }

  updated() {
    if (this.store?.problem?.status === 401) this._emit("midrun-signed-out", "");
    const run = this.view;
    if (!run) return;
    const { style, word } =
      this.store?.connection === "lost" ? { style: "lost", word: "Connection lost" } : run.status;
    const title = `${TITLE_SYMBOLS[style] ?? ""} ${word} — ${run.task.split("\n")[0]}`;
    if (title !== this._title) this._emit("midrun-title", title);
    this._title = title;
    if (this._newsDetector.isNews(run.run_id, run.phase, run.reason === "cap")) {
      this._emit("midrun-news", { run: run.run_id, word: run.status.word, task: run.task });
    }
  }

  /** @param {string} name @param {string | import("./notifications.js").News} detail */
  _emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail, bubbles: true, composed: true }));
  }

  /** Render the task; a long one is cut, with a button that shows all of it. @param {string} task */
  _renderTask(task) {
    const isShort = task.length <= TASK_MAX_CHARS && task.split("\n").length <= TASK_MAX_LINES;
    if (isShort) return html`<h1>${task}</h1>`;
    return html`<h1 class=${this.isTaskExpanded ? "" : "cut-task"}>${task}</h1>
      <button
        class="link"
        aria-expanded=${String(this.isTaskExpanded)}
        @click=${() => (this.isTaskExpanded = !this.isTaskExpanded)}
      >
        ${this.isTaskExpanded ? "Show less" : "Show the whole task"}
      </button>`;
  }

  render() {
    const { store, view: run } = this;
    if (!store) return nothing;
    if (!run) return html`<midrun-controls .store=${store}></midrun-controls>`;
    return html`<div class="page">
      <div class="title">
        ${this._renderTask(run.task)}
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
      <div class="sidebar">
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
