// @ts-check
/** `<midrun-report>`: what became of the work: kept, undone, and what could not be. */
import { css, nothing } from "./lit.js";
import { copied } from "./ended.js";
import { bring } from "./following.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { timeOfDay } from "./words.js";
import { exact, html } from "./template.js";

/** @typedef {import("./shapes.js").Report} Report */
/** @typedef {import("./shapes.js").Deed} Deed */

const OVER = new Set(["cancelled", "completed"]);
const BELOW = /** @type {[keyof Report, string][]} */ ([
  ["undoing", "Being undone"],
  ["released", "Released"],
  ["stopped", "Stopped midway"],
  ["unsure", "Unsure whether it happened"],
  ["failed", "Failed"],
  ["never_started", "Never started"],
  ["still_held", "Could not be released"],
]);

export class ReportPanel extends StoreElement {
  static quiet = true;

  static properties = {
    ...StoreElement.properties,
    report: { state: true },
    notice: { state: true },
  };

  static styles = [
    theme,
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
    /** @type {Report | null} */
    this.report = null;
    this.notice = "";
    this._at = -1; // the entry that the report is as of
    this._awaited = false; // whoever looks saw the run before it was over
  }

  updated() {
    const { store, view: run } = this;
    if (!store || !run) return;
    if (!OVER.has(run.phase)) this._awaited = true;
    else if (this._awaited && !this.hidden) {
      this._awaited = false;
      bring(this);
    }
    if (!OVER.has(run.phase) || this._at >= run.seq) return;
    this._at = run.seq;
    void this.attempt(async () => (this.report = await store.api.get(`${store.path}/report`)));
  }

  /** Bring it before the reader's eyes, and let those who do not look begin to read it. */
  reach() {
    this.scrollIntoView({ block: "start" });
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector("h2"))?.focus({ preventScroll: true });
  }

  render() {
    const { store, view: run, report } = this;
    if (!this.shown(Boolean(run && report && isTold(run, report)))) return nothing;
    if (!store || !run || !report) return nothing;
    const residue = run.controls.pause.command === "retry_undo";
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title" tabindex="-1">What happened to the work</h2>
      ${run.phase === "completed"
        ? line("Done and kept", report.done)
        : html`<div class="columns">
            ${column("Done and kept", "completed", "ok", kept(run, report), "Nothing that would need undoing.")}
            ${column("Undone", "undo", "hold", told(report.undone))}
            ${column("Could not be undone", "failed", "stop", told(report.not_undone))}
          </div>`}
      ${BELOW.map(([name, title]) => line(title, /** @type {Deed[]} */ (report[name])))}
      ${report.partial
        ? html`<details>
            <summary>Partial work</summary>
            <pre>${report.partial}</pre>
          </details>`
        : nothing}
      ${this._last()}
      <div class="row">
        <button @click=${() => void this._copy()}>Copy as Markdown</button>
        ${residue && run.role === "operator"
          ? html`<button @click=${() => void this.attempt(() => store.send("accept_residue"))}>
              Leave it as it is
            </button>`
          : nothing}
        <span class="dim">${this.notice || this.error}</span>
      </div>
    </section>`;
  }

  /** From when on nothing was called any more, but for what takes things back. */
  _last() {
    const events = this.store?.events ?? [];
    const at = events.findLastIndex((event) => event.type === "run.cancelling");
    if (at < 0 || this.view?.phase !== "cancelled") return nothing;
    const begun = events.slice(at).filter((event) => event.type === "undo.started");
    const kinds = ["undo", "release"].filter((kind) => begun.some(({ data }) => data.action === kind));
    const but = kinds.map((kind) => (kind === "undo" ? "undoing" : "releasing")).join(" and ");
    return html`<p class="dim">
      No model or tool calls were made after
      <span class="mono">${timeOfDay(events[at].ts)}</span>${but ? ` except ${but}` : ""}.
    </p>`;
  }

  async _copy() {
    const store = this.store;
    const text = await this.attempt(async () => store?.api.markdown(`${store.path}/report`));
    if (text) this.notice = (await copied(text)) ? "Copied." : "The browser does not let us copy.";
  }
}

/**
 * Tell whether there is something to report: of a run that ended by itself, what it gave back.
 * @param {import("./shapes.js").Run} run @param {Report} report
 */
function isTold(run, report) {
  if (run.phase === "cancelled") return true;
  return run.phase === "completed" && report.released.length + report.still_held.length > 0;
}

/** The steps of the plan that stay done, and what was done. @param {import("./shapes.js").Run} run @param {Report} report */
function kept({ rows }, { done }) {
  const steps = rows.filter(({ look }) => look === "done").map(({ text }) => html`${text}`);
  return [...steps, ...told(done)];
}

/**
 * @param {string} title @param {string} shape @param {string} tone
 * @param {import("./lit.js").TemplateResult[]} items @param {string} [empty]
 */
function column(title, shape, tone, items, empty = "Nothing.") {
  return html`<div>
    <h3 data-tone=${tone}>${icon(shape)}${title}</h3>
    ${items.length
      ? html`<ul>
          ${items.map((item) => html`<li>${item}</li>`)}
        </ul>`
      : html`<p class="dim">${empty}</p>`}
  </div>`;
}

/** @param {string} title @param {Deed[]} deeds */
function line(title, deeds) {
  if (!deeds.length) return nothing;
  return html`<p>
    <b>${title}:</b> ${told(deeds).map((deed, at) => html`${at ? "; " : ""}${deed}`)}
  </p>`;
}

/** @param {Deed[]} deeds */
const told = (deeds) =>
  deeds.map(
    ({ tool, args, note, why }) => html`<code>${exact(`${tool} ${args}`)}</code>${note
        ? html` <span class="dim">— ${note}</span>`
        : nothing}${why ? html` <span class="dim">(why: ${why})</span>` : nothing}`,
  );

customElements.define("midrun-report", ReportPanel);
