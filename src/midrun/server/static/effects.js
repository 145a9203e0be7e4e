// @ts-check
/** `<midrun-effects>`: what the run changed in the world. */
import { css, html, nothing } from "./lit.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";

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
        font: 12.5px var(--mono);
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
                <b>${effect.tool}</b> <span class="args">${effect.args}</span><br />
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
  done: "released",
  gave_up: "could not be released",
});

/** @param {Effect} effect @param {boolean} over whether the run is: then what stays, stays */
function standing(effect, over) {
  const held = RELEASE[effect.release] ?? "released when the run ends";
  const end = effect.held ? held : over ? "kept" : "cannot be undone";
  const can = effect.can_undo && !over ? "can be undone" : end;
  const undo = UNDO[effect.undo] ?? (effect.stage === "started" ? `in progress; ${can}` : can);
  return effect.note ? `${undo} — ${effect.note}` : undo;
}

customElements.define("midrun-effects", Effects);
