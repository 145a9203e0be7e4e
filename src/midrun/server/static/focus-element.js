// @ts-check
/** The base class of all our elements: a re-render does not lose the focus; events are typed. */
import { LitElement } from "./lit.js";

/** @typedef {import("./midrun.js").MidrunEvents} MidrunEvents */

/** Events whose default a listener can prevent: then the page itself shows the run. */
const CANCELABLE_EVENTS = new Set(["midrun-open", "midrun-started"]);

export class FocusElement extends LitElement {
  /**
   * Dispatch an event to the page; return false if a listener has prevented its default.
   * @template {keyof MidrunEvents} Name @param {Name} name @param {MidrunEvents[Name]} detail
   */
  emit(name, detail) {
    const options = { detail, bubbles: true, composed: true, cancelable: CANCELABLE_EVENTS.has(name) };
    return this.dispatchEvent(new CustomEvent(name, options));
  }

  /**
   * Render. A browser moves the focus to the body when its element is removed or disabled; then
   * it is given to something close, so that the next Tab goes on from there.
   * @param {import("./lit.js").Changed} changed
   */
  update(changed) {
    const focused = /** @type {HTMLElement | null} */ (this.shadowRoot?.activeElement);
    const row = focused?.closest("tr");
    super.update(changed);
    if (!focused || this._holdsFocus) return;
    // An element that was only moved within the tree has lost its focus too.
    if (focused.isConnected) focused.focus({ preventScroll: true });
    if (!this._holdsFocus) this.refocus(row?.isConnected ? row.querySelector("a") : null);
  }

  /** Whether the focus is inside this element, on something that can receive keys. */
  get _holdsFocus() {
    const at = this.shadowRoot?.activeElement;
    return Boolean(at) && !at?.matches(":disabled");
  }

  /**
   * Focus the nearest element that is left: `nearest`, else our heading, else the control bar
   * of the run, else the element that contains us.
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
