// @ts-check
/**
 * `<midrun-report>`: the outcome of a finished run's calls: kept, undone, not undone.
 *
 * In a page where it stands alone, it also shows the result of a completed run and the error of a
 * failed one. Slot `empty`: shown there until the run has ended.
 */
import { css, nothing } from "./lit.js";
import { scrollIntoSight } from "./auto-scroll.js";
import { FINISHED_PHASES, formatTimeOfDay } from "./format.js";
import { icon } from "./icons.js";
import { StoreElement, copyToClipboard } from "./store-element.js";
import { theme } from "./theme.js";
import { fieldStyle, formatCall, renderRaw } from "./call-text.js";
import { renderMarkdown } from "./markdown-text.js";
import "./result.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").Report} Report */
/** @typedef {import("./types.js").ReportedCall} ReportedCall */

/** The lists below the columns: field of the report, and title. */
const OTHER_LISTS = /** @type {[keyof Report, string][]} */ ([
  ["undoing", "Being undone"],
  ["released", "Released"],
  ["stopped", "Stopped midway"],
  ["unsure", "Unknown whether it happened"],
  ["failed", "Failed"],
  ["never_started", "Never started"],
  ["still_held", "Could not be released"],
]);

export class ReportPanel extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    notice: { state: true },
  };

  static styles = [
    theme,
    fieldStyle,
    css`
      .columns {
        display: grid;
        grid-template-columns: repeat(3, minmax(0, 1fr));
        gap: 12px;
      }
      h3 {
        display: flex;
        align-items: center;
        gap: 6px;
        font-size: 14px;
      }
      li {
        overflow-wrap: anywhere;
      }
      .list {
        display: grid;
        gap: 4px;
      }
      .list h3 {
        color: var(--dim);
        font-size: 13px;
      }
      .panel {
        background: var(--bg);
      }
      :host {
        scroll-margin: 10px;
        container-type: inline-size;
      }
      @container (max-width: 520px) {
        .columns {
          grid-template-columns: 1fr;
        }
      }
    `,
  ];

  constructor() {
    super();
    this.notice = "";
    this._wasUnfinished = false; // this page has shown the run before it was finished
  }

  updated() {
    const run = this.view;
    if (!run) return;
    if (!FINISHED_PHASES.has(run.phase)) this._wasUnfinished = true;
    else if (this._wasUnfinished && !this.hidden) {
      this._wasUnfinished = false;
      scrollIntoSight(this); // the run has just finished before the viewer's eyes
    }
  }

  /** Scroll to the report and focus its heading, where screen readers start. */
  reveal() {
    this.scrollIntoView({ block: "start" });
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector("h2"))?.focus({ preventScroll: true });
  }

  render() {
    const { store, view: run } = this;
    const report = store?.report;
    const isAlone = this.isStandalone;
    if (isAlone && run?.phase === "failed") return this._renderResult();
    if (!store || !run || !report || !hasContent(run, report, isAlone)) return this.renderWithoutContent();
    this.setShown(true);
    const hasResidue = run.controls.pause.command === "retry_undo";
    return html`${isAlone ? this._renderResult() : nothing}<section class="panel" aria-labelledby="title">
      <h2 id="title" tabindex="-1">Report</h2>
      ${run.phase === "completed"
        ? renderList("Done and kept", report.done, "Nothing that would need undoing.")
        : html`<div class="columns">
            ${renderColumn("Done and kept", "completed", "ok", renderKept(run, report), "Nothing that would need undoing.")}
            ${renderColumn("Undone", "undo", "hold", renderCalls(report.undone))}
            ${renderColumn("Could not be undone", "failed", "stop", renderCalls(report.not_undone))}
          </div>`}
      ${OTHER_LISTS.map(([name, title]) => renderList(title, /** @type {ReportedCall[]} */ (report[name])))}
      ${report.partial
        ? html`<details>
            <summary>Partial work</summary>
            ${renderMarkdown(report.partial)}
          </details>`
        : nothing}
      ${this._renderLastCall()} ${renderRaw(report)}
      <div class="row">
        <button @click=${() => void this._copy()}>Copy as Markdown</button>
        ${hasResidue && run.role === "operator"
          ? html`<button @click=${() => void this.attempt(() => store.send("accept_residue"))}>
              Leave it as it is
            </button>`
          : nothing}
        <span class="dim">${this.notice || this.error}</span>
      </div>
    </section>`;
  }

  /** Render the result or the error of the run, which `<midrun-run>` shows elsewhere. */
  _renderResult() {
    this.setShown(true);
    return html`<midrun-result .store=${this.store}></midrun-result>`;
  }

  /** State the time after which no call was made except for undo and release. */
  _renderLastCall() {
    const events = this.store?.events ?? [];
    const at = events.findLastIndex((event) => event.type === "run.cancelling");
    if (at < 0 || this.view?.phase !== "cancelled") return nothing;
    const cleanup = events.slice(at).filter((event) => event.type === "undo.started");
    const kinds = ["undo", "release"].filter((kind) => cleanup.some(({ data }) => data.action === kind));
    const exceptions = kinds.map((kind) => (kind === "undo" ? "undoing" : "releasing")).join(" and ");
    return html`<p class="dim">
      No model or tool calls were made after
      <span class="mono">${formatTimeOfDay(events[at].ts)}</span>${exceptions ? ` except ${exceptions}` : ""}.
    </p>`;
  }

  async _copy() {
    const store = this.store;
    const text = await this.attempt(async () => store?.api.getMarkdown(`${store.path}/report`));
    if (text) this.notice = (await copyToClipboard(text)) ? "Copied." : "The browser does not allow copying.";
  }
}

/**
 * Tell whether the report is shown: always after a cancel; after completion, if the run held
 * resources, and always if the element stands alone.
 * @param {import("./run-store.js").Run} run @param {Report} report @param {boolean} isAlone
 */
function hasContent(run, report, isAlone) {
  if (run.phase === "cancelled" || isAlone) return FINISHED_PHASES.has(run.phase);
  return run.phase === "completed" && report.released.length + report.still_held.length > 0;
}

/** Render the plan items that are done, then the calls. @param {import("./run-store.js").Run} run @param {Report} report */
function renderKept({ plan_rows }, { done }) {
  const items = plan_rows.filter(({ style }) => style === "done").map(({ text }) => html`${text}`);
  return [...items, ...renderCalls(done)];
}

/**
 * @param {string} title @param {string} shape @param {string} tone
 * @param {import("./lit.js").TemplateResult[]} items @param {string} [empty]
 */
function renderColumn(title, shape, tone, items, empty = "Nothing.") {
  return html`<div>
    <h3 data-tone=${items.length ? tone : "dim"}>${icon(shape)}${title}</h3>
    ${items.length
      ? html`<ul>
          ${items.map((item) => html`<li>${item}</li>`)}
        </ul>`
      : html`<p class="dim">${empty}</p>`}
  </div>`;
}

/** @param {string} title @param {ReportedCall[]} calls @param {string} [empty] */
function renderList(title, calls, empty = "") {
  if (!calls.length && !empty) return nothing;
  return html`<div class="list">
    <h3>${title}</h3>
    ${calls.length
      ? html`<ul>
          ${renderCalls(calls).map((call) => html`<li>${call}</li>`)}
        </ul>`
      : html`<p class="dim">${empty}</p>`}
  </div>`;
}

/** Render one line for each call; calls that read the same are counted. @param {ReportedCall[]} calls */
function renderCalls(calls) {
  /** @type {Map<string, {call: ReportedCall, count: number}>} */
  const lines = new Map();
  for (const call of calls) {
    const key = [formatCall(call), call.note, call.why].join("\n");
    const line = lines.get(key);
    if (line) line.count += 1;
    else lines.set(key, { call, count: 1 });
  }
  return [...lines.values()].map(
    ({ call, count }) => html`<span>${formatCall(call)}</span>${count > 1 ? html` <span class="dim">(${count} times)</span>` : nothing}${call.note
        ? html` <span class="dim">— ${call.note}</span>`
        : nothing}${call.why ? html` <span class="dim">(why: ${call.why})</span>` : nothing}`,
  );
}

customElements.define("midrun-report", ReportPanel);
