// @ts-check
/**
 * `<midrun-tips>`: what a visitor of the demo can try, with a mark at what they have tried.
 *
 * It is shown for runs with the label `demo`, not for their child runs, until the viewer closes it. A tip with a text puts
 * that text into the line below (`midrun-suggestion`); the viewer sends it.
 */
import { css, nothing } from "./lit.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { icon } from "./icons.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").FeedEvent} FeedEvent */

const DEMO_LABEL = "demo";
const FINISHED_PHASES = new Set(["completed", "cancelled", "failed"]);
const CLOSED_DRAFT_NAME = "tips closed";

/**
 * `isTriedBy` recognizes the entry that shows that it was tried. `text` is a suggestion for the line.
 * @type {{label: string, effect: string, isTriedBy: (event: FeedEvent) => boolean, text?: string, isQuestion?: boolean}[]}
 */
const TIPS = [
  { label: "Pause in mid-sentence", effect: "Resume later: the next word follows.", isTriedBy: ({ type, data }) => type === "run.pausing" && !data.until },
  {
    label: "Ask a side question",
    effect: "It answers, then goes back to its work.",
    isTriedBy: ({ type }) => type.startsWith("message."),
    text: "How hot did it get?",
    isQuestion: true,
  },
  {
    label: "Redirect it",
    effect: "It keeps what it has and follows you.",
    isTriedBy: ({ type }) => type === "redirect.requested",
    text: "Start writing",
  },
  {
    label: "Read a change before you approve it",
    effect: "The public notice, and later the mail: nothing leaves without you.",
    isTriedBy: ({ type, data }) => type === "ask.answered" && data.decision.choice !== "answer",
  },
  { label: "Cancel and undo", effect: "Every change is listed first.", isTriedBy: ({ type }) => type === "run.cancelling" },
];

export class Tips extends StoreElement {
  static ignoresLive = true;

  static properties = { ...StoreElement.properties, isClosed: { state: true } };

  static styles = [
    theme,
    css`
      ul {
        display: grid;
        gap: 6px;
        padding: 0;
        list-style: none;
      }
      li {
        display: grid;
        grid-template-columns: 18px minmax(0, 1fr);
        gap: 0 8px;
      }
      .effect {
        grid-column: 2;
        font-size: 13px;
      }
      .icon {
        margin-top: 2px;
      }
      .head {
        justify-content: space-between;
      }
    `,
  ];

  constructor() {
    super();
    this.isClosed = loadDraft(CLOSED_DRAFT_NAME) !== "";
  }

  render() {
    const run = this.view;
    const isShown = run?.labels.includes(DEMO_LABEL) && !run.parent && run.role !== "viewer" && !this.isClosed;
    if (!this.setShown(Boolean(isShown))) return nothing;
    const events = this.store?.events ?? [];
    const isFinished = FINISHED_PHASES.has(run?.phase ?? "");
    return html`<section class="panel" aria-labelledby="title">
      <div class="row head">
        <h2 id="title">${isFinished ? "Run it again, and try" : "Try this"}</h2>
        <button class="link" aria-label="Close the tips" @click=${() => this._close()}>Close</button>
      </div>
      <ul>
        ${TIPS.map((tip) => this._renderTip(tip, events.some(tip.isTriedBy)))}
      </ul>
    </section>`;
  }

  /** @param {typeof TIPS[number]} tip @param {boolean} isTried */
  _renderTip({ label, effect, text = "", isQuestion = false }, isTried) {
    const suggest = () =>
      this.dispatchEvent(new CustomEvent("midrun-suggestion", { detail: { text, isQuestion }, bubbles: true, composed: true }));
    return html`<li data-tried=${isTried}>
      <span data-tone=${isTried ? "ok" : "dim"}>${icon(isTried ? "completed" : "open")}</span>
      <span
        >${label}${text ? html`: <button class="link" @click=${suggest}>“${text}”</button>` : nothing}${isTried
          ? html`<span class="visually-hidden">, tried</span>`
          : nothing}</span
      >
      <span class="effect dim">${effect}</span>
    </li>`;
  }

  _close() {
    saveDraft(CLOSED_DRAFT_NAME, "yes");
    this.isClosed = true;
  }
}

customElements.define("midrun-tips", Tips);
