// @ts-check
/** `<midrun-effects>`: the calls of a run that changed something outside, and their undo. */
import { css, nothing } from "./lit.js";
import { FINISHED_PHASES } from "./format.js";
import { artifactsOfCall } from "./artifacts.js";
import { renderFiles } from "./file-view.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { fieldStyle, formatCall, parseJson, renderJsonText } from "./call-text.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").EffectView} Effect */

/** By state of the undo. */
const UNDO_LABELS = /** @type {Record<string, string>} */ ({
  started: "being undone",
  failed: "undo failed; will be retried",
  unknown: "undo interrupted; will be retried",
  done: "undone",
  gave_up: "could not be undone",
});

/** The newest effects are shown; the others on request. Each is rendered again with every entry. */
const SHOWN_COUNT = 30;

export class Effects extends StoreElement {
  static ignoresLive = true;

  static properties = { ...StoreElement.properties, isAllShown: { state: true } };

  constructor() {
    super();
    this.isAllShown = false;
  }

  static styles = [
    theme,
    fieldStyle,
    css`
      ul {
        display: grid;
        gap: 8px;
        padding: 0;
        list-style: none;
      }
      li {
        min-width: 0;
        overflow-wrap: anywhere;
      }
      summary {
        display: grid;
        grid-template-columns: 12px minmax(0, 1fr);
        gap: 0 6px;
        list-style: none;
      }
      summary::-webkit-details-marker {
        display: none;
      }
      summary::before {
        content: "›";
        color: var(--dim);
      }
      details[open] > summary::before {
        content: "⌄";
      }
      summary .dim {
        grid-column: 2;
        font-size: 12.5px;
      }
      details[open] > summary {
        margin-bottom: 6px;
      }
    `,
  ];

  /** Return the newest versions of the artifacts that an effect is about. @param {Effect} effect */
  _filesOf({ id, args }) {
    return artifactsOfCall(this.view?.artifacts ?? [], id, parseJson(args)).map(({ file }) => file);
  }

  render() {
    const all = this.view?.effects ?? [];
    const isFinished = FINISHED_PHASES.has(this.view?.phase ?? "");
    const effects = this.isAllShown ? all : all.slice(-SHOWN_COUNT);
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Changes</h2>
      ${effects.length < all.length
        ? html`<button class="link" @click=${() => (this.isAllShown = true)}>Show all ${all.length}</button>`
        : nothing}
      ${effects.length
        ? html`<ul>
            ${effects.map(
              (effect) => html`<li>
                <details>
                  <summary>
                    <span>${formatCall(effect)}</span><span class="dim">${formatState(effect, isFinished)}</span>
                  </summary>
                  ${renderJsonText(effect.args)} ${renderFiles(this.store, this._filesOf(effect))}
                </details>
              </li>`,
            )}
          </ul>`
        : html`<p class="dim">${isFinished ? "None." : "None so far."}</p>`}
    </section>`;
  }
}

/** By state of the release of a held resource. */
const RELEASE_LABELS = /** @type {Record<string, string>} */ ({
  started: "being released",
  failed: "release failed; will be retried",
  unknown: "release interrupted; will be retried",
  done: "released",
  gave_up: "could not be released",
});

/** Return the state of an effect with its note. @param {Effect} effect @param {boolean} isFinished the run's end */
function formatState(effect, isFinished) {
  const cleanup = UNDO_LABELS[effect.undo] ?? RELEASE_LABELS[effect.release];
  const state = cleanup ?? (isFinished ? formatFinal(effect) : formatOptions(effect));
  return [state, effect.note].filter(Boolean).join(" — ");
}

/** Say how an effect of a run that goes on can be reversed. @param {Effect} effect */
function formatOptions({ stage, can_undo, holds_resource }) {
  const end = holds_resource ? "released when the run ends" : "cannot be undone";
  const option = can_undo ? "can be undone" : end;
  return stage === "started" ? `in progress; ${option}` : option;
}

/** Describe an effect that a finished run has left; the note of a failed call says more. */
function formatFinal(/** @type {Effect} */ { stage, note }) {
  return stage === "done" || !note ? "kept" : "";
}

customElements.define("midrun-effects", Effects);
