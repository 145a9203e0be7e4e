// @ts-check
/** `<midrun-effects>`: what the run changed in the world. */
import { css, nothing } from "./lit.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { exact, html } from "./template.js";

/** @typedef {import("./shapes.js").Effect} Effect */

const UNDO = /** @type {Record<string, string>} */ ({
  started: "being undone",
  failed: "undo failed; it is tried again",
  unknown: "undo cut short; it is tried again",
  done: "undone",
  gave_up: "could not be undone",
});

/** How many are drawn unless somebody wants all: each costs something with every entry. */
const NEWEST = 30;

export class Effects extends StoreElement {
  static quiet = true;

  static properties = { ...StoreElement.properties, whole: { state: true } };

  constructor() {
    super();
    this.whole = false;
  }

  static styles = [
    theme,
    css`
      ul {
        display: grid;
        gap: 4px;
      }
      .args {
        display: block;
        font: 12.5px var(--mono);
        overflow-wrap: anywhere;
      }
    `,
  ];

  render() {
    const all = this.view?.effects ?? [];
    const over = ["completed", "cancelled"].includes(this.view?.phase ?? "");
    const effects = this.whole ? all : all.slice(-NEWEST);
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Side effects</h2>
      ${effects.length < all.length
        ? html`<button class="link" @click=${() => (this.whole = true)}>Show all ${all.length}</button>`
        : nothing}
      ${effects.length
        ? html`<ul>
            ${effects.map(
              (effect) => html`<li>
                <b>${exact(effect.tool)}</b>
                ${effect.args === "{}" ? nothing : html`<span class="args">${exact(effect.args)}</span>`}
                <span class="dim">${standing(effect, over)}</span>
              </li>`,
            )}
          </ul>`
        : html`<p class="dim">None so far.</p>`}
    </section>`;
  }
}

const RELEASE = /** @type {Record<string, string>} */ ({
  started: "being released",
  failed: "release failed; it is tried again",
  unknown: "release cut short; it is tried again",
  done: "released",
  gave_up: "could not be released",
});

/** @param {Effect} effect @param {boolean} over whether the run is: then what stays, stays */
function standing(effect, over) {
  const become = UNDO[effect.undo] ?? RELEASE[effect.release] ?? (over ? left(effect) : can(effect));
  return [become, effect.note].filter(Boolean).join(" — ");
}

/** What may still become of it. @param {Effect} effect */
function can({ stage, can_undo, held }) {
  const end = held ? "released when the run ends" : "cannot be undone";
  const may = can_undo ? "can be undone" : end;
  return stage === "started" ? `in progress; ${may}` : may;
}

/** What a run that is over has left; of a call that did not end well its note says more. */
function left(/** @type {Effect} */ { stage, note }) {
  return stage === "done" || !note ? "kept" : "";
}

customElements.define("midrun-effects", Effects);
