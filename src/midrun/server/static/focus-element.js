// @ts-check
/** The base of every element of ours: what it draws takes nobody's focus away. */
import { LitElement } from "./lit.js";

export class FocusElement extends LitElement {
  /** Draw; the focus that was on something that is gone stays near. @param {import("./lit.js").Changed} changed */
  update(changed) {
    const had = /** @type {HTMLElement | null} */ (this.shadowRoot?.activeElement);
    const row = had?.closest("tr");
    super.update(changed);
    if (!had || this._hasFocus) return;
    if (had.isConnected) had.focus({ preventScroll: true }); // it was moved
    if (!this._hasFocus) this.refocus(row?.isConnected ? row.querySelector("a") : null);
  }

  /** Whether the focus is on something of ours that can keep it. */
  get _hasFocus() {
    const at = this.shadowRoot?.activeElement;
    return Boolean(at) && !at?.matches(":disabled");
  }

  /**
   * Take the focus where there is no button of ours for it: to what is nearest, else our title,
   * else the bar of the run, or whoever has us.
   * @param {HTMLElement | null} [nearest]
   */
  refocus(nearest) {
    const root = this.renderRoot;
    const near = nearest ?? root.querySelector("h1, h2") ?? root.querySelector("section");
    if (near instanceof HTMLElement && !this.hidden) {
      if (near !== nearest) near.tabIndex = -1;
      near.focus({ preventScroll: true });
      return;
    }
    const around = /** @type {Document | ShadowRoot} */ (this.getRootNode());
    const bar = around.querySelector("midrun-controls");
    const next = bar ?? (around instanceof ShadowRoot ? around.host : null);
    if (next instanceof FocusElement && next !== this) next.refocus();
  }
}
