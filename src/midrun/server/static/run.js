// @ts-check
/**
 * `<midrun-run>`: one run with its steps, control bar, asks, caps, effects, timeline and report.
 *
 * Attributes: `run`, `base`, `token`, `global-keys` as for `<midrun-controls>`.
 * Slots: `header` (below the task), `side` (at the end of the right column).
 * Events, besides those of every element: `midrun-title` (a title for the page), `midrun-news` (the
 * run needs a person, has failed or is completed), `midrun-started` (another run was started here;
 * unless its default is prevented, this element shows that run).
 */
import { css, nothing } from "./lit.js";
import { scrollIntoSight } from "./auto-scroll.js";
import { FINISHED_PHASES, formatCount, formatShortId } from "./format.js";
import { renderFiles } from "./file-view.js";
import { NewsDetector } from "./notifications.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import "./artifact-dialog.js";
import "./artifacts.js";
import "./asks.js";
import "./caps.js";
import "./controls.js";
import "./effects.js";
import "./held-topics.js";
import "./plan.js";
import "./report.js";
import "./result.js";
import "./steps.js";
import "./takeover.js";
import "./thread.js";
import "./timeline.js";
import "./tips.js";
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

const GUIDES = "https://github.com/midrun/midrun/blob/main/docs/guides";
/** Hosts whose tools are known only when they are called. */
const UNLISTED_FRAMEWORKS = new Set(["function", "langgraph"]);

/** A longer task is cut, and shown in full on request. */
const TASK_MAX_CHARS = 240;
const TASK_MAX_LINES = 4;

export class MidrunRun extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    globalKeys: { type: Boolean, attribute: "global-keys" },
    isTaskExpanded: { state: true },
    isAway: { state: true },
  };

  static styles = [
    theme,
    css`
      :host {
        display: grid;
        grid-template-columns: minmax(0, 1fr);
        container-type: inline-size;
      }
      .page {
        display: grid;
        grid-template: auto 1fr / minmax(0, 1fr) 320px;
        gap: 14px 28px;
        width: 100%;
        max-width: 1560px;
        margin: 0 auto;
      }
      .title {
        grid-column: 1 / -1;
        display: flex;
        flex-wrap: wrap;
        align-items: baseline;
        gap: 4px 12px;
      }
      .facts {
        display: flex;
        flex-wrap: wrap;
        gap: 2px 14px;
        width: 100%;
        font-size: 13px;
        color: var(--dim);
      }
      .facts a {
        color: inherit;
      }
      .title midrun-file {
        --picture-height: 110px;
        --preview-height: 240px;
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
      .side {
        display: flex;
        flex-direction: column;
        gap: 14px;
        min-width: 0;
      }
      .side {
        position: sticky;
        top: 12px;
        align-self: start;
        max-height: calc(100vh - 24px);
        overflow: auto;
        scrollbar-width: thin;
        scrollbar-color: var(--line) transparent;
        /* Room for focus rings, which overflow would cut off. Not below: there it would make the
           page longer than the bar is low, and the bar would move at the end of the page. */
        margin: -4px -4px 0;
        padding: 4px;
      }
      .dock {
        position: sticky;
        bottom: 0;
        z-index: 1;
        margin-top: auto;
      }
      .dock {
        background: var(--bg); /* nothing shows beside its round corners */
      }
      .newest {
        position: absolute;
        bottom: calc(100% + 10px);
        left: 50%;
        translate: -50%;
        padding: 4px 14px;
        border-radius: 999px;
        background: var(--bg);
        box-shadow: 0 2px 10px rgb(0 0 0 / 0.16);
        font-size: 13px;
      }
      midrun-plan {
        display: none;
      }
      @container (min-width: 1200px) {
        .page:has(> midrun-plan:not([hidden])) {
          --in-rail: none; /* the transcript leaves out what only the rail needs to show */
          --rail-width: 230px;
          grid-template-columns: var(--rail-width) minmax(0, 1fr) 320px;
        }
        /* The dock extends below the rail, so that no button moves when the plan appears. */
        .page:has(> midrun-plan:not([hidden])) .dock {
          margin-left: calc(-1 * (var(--rail-width) + 28px));
        }
        midrun-plan:not([hidden]) {
          display: block;
          position: sticky;
          top: 12px;
          align-self: start;
          max-height: calc(100vh - 24px - 150px); /* the dock is below it */
          overflow: auto;
        }
      }
      @container (min-width: 1480px) {
        .page {
          grid-template-columns: minmax(0, 1fr) 360px;
        }
        .page:has(> midrun-plan:not([hidden])) {
          --rail-width: 280px;
          grid-template-columns: var(--rail-width) minmax(0, 1fr) 360px;
        }
      }
      @container (max-width: 860px) {
        /* One column: the parts of both columns are children of the page, in another order. */
        .page {
          display: flex;
          flex-direction: column;
        }
        .main,
        .side {
          display: contents;
        }
        midrun-report,
        midrun-result,
        midrun-steps,
        midrun-artifacts,
        .finished midrun-effects {
          order: 1;
        }
        .finished midrun-asks,
        .finished midrun-steps {
          order: 2;
        }
        .page:not(.finished) > .side > :not(midrun-asks, midrun-frames, midrun-artifacts),
        .finished > .side > :not(midrun-asks, midrun-frames, midrun-effects) {
          order: 2;
        }
        midrun-timeline {
          order: 3;
        }
        .dock {
          order: 4;
        }
        .waiting .newest {
          display: none; /* nothing new comes, and it would cover the buttons of the ask */
        }
      }
        `,
  ];

  constructor() {
    super();
    this.globalKeys = false;
    this.isTaskExpanded = false;
    this.isAway = false; // the viewer has scrolled away from the newest text
    this._title = "";
    this._shownPhase = ""; // of the run, when it was rendered last
    this._newsDetector = new NewsDetector();
    this.addEventListener("midrun-started", (event) => {
      if (!event.defaultPrevented) this.run = event.detail;
    });
  }

  /** Focus our heading. While a run is loading, the control bar is all there is. */
  refocus() {
    if (this.view) return super.refocus();
    const bar = /** @type {StoreElement | null} */ (this.renderRoot.querySelector("midrun-controls"));
    void bar?.updateComplete.then(() => bar.refocus());
  }

  updated() {
    const run = this.view;
    if (!run) return;
    if (run.phase === "completed" && this._shownPhase && this._shownPhase !== "completed") this._showResult();
    this._shownPhase = run.phase;
    const { style, word } =
      this.store?.connection === "lost" ? { style: "lost", word: "Connection lost" } : run.status;
    const title = `${TITLE_SYMBOLS[style] ?? ""} ${word} — ${run.task.split("\n")[0]}`;
    if (title !== this._title) this.emit("midrun-title", title);
    this._title = title;
    if (this._newsDetector.isNews(run.run_id, run.phase, run.reason === "cap")) {
      this.emit("midrun-news", { run: run.run_id, word: run.status.word, task: run.task });
    }
  }

  /** Scroll to the result of a run that has just been completed. A reader who has scrolled away stays there. */
  _showResult() {
    const result = /** @type {import("./result.js").Result | null} */ (this.renderRoot.querySelector("midrun-result"));
    if (!this._steps?.isAtEnd) return;
    void result?.updateComplete.then(() => {
      if (!result.hidden) scrollIntoSight(result);
    });
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

  /** Open an artifact that a part of this element names. @param {CustomEvent<{name: string, version: number}>} event */
  _openArtifact({ detail }) {
    const dialog = this.renderRoot.querySelector("midrun-artifact-dialog");
    void /** @type {import("./artifact-dialog.js").ArtifactDialog | null} */ (dialog)?.show(detail.name, detail.version);
  }

  /** Put the text of a tip into the composer. @param {CustomEvent<{text: string, isQuestion: boolean}>} event */
  _takeSuggestion({ detail }) {
    const bar = this.renderRoot.querySelector("midrun-controls");
    /** @type {import("./controls.js").MidrunControls | null} */ (bar)?.openComposer(detail.isQuestion, detail.text);
  }

  get _steps() {
    return /** @type {import("./steps.js").Steps | null} */ (this.renderRoot.querySelector("midrun-steps"));
  }

  render() {
    const { store, view: run } = this;
    if (!store) return nothing;
    if (!run) return html`<midrun-controls .store=${store}></midrun-controls>`; // loading, deleted, refused
    const isFinished = FINISHED_PHASES.has(run.phase);
    const state = isFinished ? "finished" : run.phase === "waiting" ? "waiting" : "";
    return html`<div class=${`page ${state}`} @midrun-artifact=${this._openArtifact}>
      <div class="title">
        ${this._renderTask(run.task)} ${renderFacts(store, run)} ${renderFiles(store, filesOfTask(store))}
        <slot name="header"></slot>
      </div>
      <midrun-plan
        .store=${store}
        @midrun-item=${(/** @type {CustomEvent<number>} */ { detail }) => this._steps?.showItem(detail)}
      ></midrun-plan>
      <div class="main">
        ${run.phase === "completed" ? nothing : renderReport(store)}
        ${isFinished ? html`${renderResult(store)}${renderArtifacts(store)}` : nothing}
        ${run.phase === "completed" ? renderReport(store) : nothing}
        <midrun-steps .store=${store} @followed=${() => (this.isAway = this._steps?.hasLeftEnd ?? false)}></midrun-steps>
        ${isFinished ? nothing : renderResult(store)}
        <midrun-timeline .store=${store}></midrun-timeline>
        <div class="dock">
          ${this.isAway && !isFinished
            ? html`<button class="newest" @click=${() => this._steps?.scrollToEnd()}>↓ Newest</button>`
            : nothing}
          <midrun-controls
            .store=${store}
            docked
            ?global-keys=${this.globalKeys}
            @sent=${() => isFinished || this._steps?.scrollToEnd()}
          ></midrun-controls>
        </div>
      </div>
      <div class="side">
        <midrun-asks .store=${store}></midrun-asks>
        <midrun-frames .store=${store}></midrun-frames>
        ${isFinished ? nothing : renderArtifacts(store)}
        <midrun-tips .store=${store} @midrun-suggestion=${this._takeSuggestion}></midrun-tips>
        <midrun-caps .store=${store}></midrun-caps>
        <midrun-effects .store=${store}></midrun-effects>
        <midrun-takeover .store=${store}></midrun-takeover>
        <midrun-thread .store=${store}></midrun-thread>
        <slot name="side"></slot>
      </div>
      <midrun-artifact-dialog .store=${store}></midrun-artifact-dialog>
    </div>`;
  }
}

/** Render the result: above the transcript of a finished run, below that of a failed one. @param {import("./run-store.js").RunStore} store */
const renderResult = (store) => html`<midrun-result .store=${store}></midrun-result>`;

/** Render the report: first after a cancel, below the result of a completed run. @param {import("./run-store.js").RunStore} store */
const renderReport = (store) => html`<midrun-report .store=${store}></midrun-report>`;

/** Render the artifacts: beside the transcript, above that of a finished run. @param {import("./run-store.js").RunStore} store */
const renderArtifacts = (store) => html`<midrun-artifacts .store=${store}></midrun-artifacts>`;

/** Return the files of the task, which is the page's heading. @param {import("./run-store.js").RunStore} store */
function filesOfTask({ turns, events: [first] }) {
  const task = turns.items.find(({ kind, inherited }) => kind === "task" && !inherited);
  return task?.files ?? (first?.type === "run.created" ? first.data.files : []);
}

/**
 * Render the facts below the task: agent, framework, labels, the runs that it came from, its id.
 * @param {import("./run-store.js").RunStore} store @param {import("./run-store.js").Run} run
 */
function renderFacts({ api, events }, run) {
  const [first] = events;
  const origin = first?.type === "run.created" ? (first.data.forked?.run ?? "") : "";
  const link = (/** @type {string} */ id, /** @type {string} */ words) =>
    id ? html`<a href=${`${api.base}/runs/${encodeURIComponent(id)}`}>${words}</a>` : nothing;
  return html`<div class="facts">
    <span>${run.speaker ? `${run.agent}, handed over to ${run.speaker}` : run.agent}</span>
    ${run.framework ? renderHosting(run) : nothing}
    ${run.labels.map((label) => html`<span class="label">${label}</span>`)}
    ${link(run.parent, "part of another run")} ${link(origin, `continues the run ${formatShortId(origin)}`)}
    <code title=${run.run_id}>${formatShortId(run.run_id)}</code>
  </div>`;
}

/** Name the framework of a hosted agent, and the tools that Midrun knows nothing about. @param {import("./run-store.js").Run} run */
function renderHosting({ framework, undeclared_tools: count }) {
  const unlisted = UNLISTED_FRAMEWORKS.has(framework) ? "undeclared tools: no undo, never repeated" : "all tools are declared";
  const tools = count ? `${formatCount(count, "tool")} undeclared: no undo, never repeated` : unlisted;
  const name = ["function", "process"].includes(framework) ? `a-${framework}` : framework;
  const guide = `${GUIDES}/host-${name}.md`;
  return html`<span
    >hosted from ${framework}; <a href=${guide} target="_blank" rel="noopener noreferrer">${tools}</a></span
  >`;
}

customElements.define("midrun-run", MidrunRun);
