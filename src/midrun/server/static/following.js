// @ts-check
/**
 * Following: while the reader is at the end of what was said, the end stays in sight.
 *
 * The control bar lies over the foot of the window, so news would come in behind it. Whoever has
 * scrolled away, writes, or has marked some text is left alone.
 */

/** Pixels between the end and the bar. */
const GAP = 14;
const WRITING = new Set(["INPUT", "TEXTAREA", "SELECT"]);

export class Following {
  #steps;
  /** @type {boolean | null} null until there is something to follow */
  #atEnd = null;
  #news = false;
  #sizes = new ResizeObserver(() => this.#resized());
  #look = () => {
    if (this.#atEnd !== null) this.#atEnd = this.#hidden() <= GAP;
  };
  /** What was clicked may unfold: that is the reader's doing, and not news. */
  #clicked = () => requestAnimationFrame(this.#look);

  /** @param {import("./lit.js").LitElement} steps what is followed */
  constructor(steps) {
    this.#steps = steps;
  }

  start() {
    document.addEventListener("scroll", this.#look, { capture: true, passive: true });
    this.#steps.addEventListener("click", this.#clicked);
    this.#sizes.observe(this.#steps);
    if (this.#bar) this.#sizes.observe(this.#bar);
  }

  stop() {
    document.removeEventListener("scroll", this.#look, { capture: true });
    this.#steps.removeEventListener("click", this.#clicked);
    this.#sizes.disconnect();
    this.#atEnd = null;
  }

  /**
   * Something was drawn.
   * @param {boolean} whole whether all that there is to show is
   * @param {boolean} goesOn whether the run is at work: then whoever has just come reads along
   */
  drew(whole, goesOn) {
    this.#news = true;
    if (this.#atEnd === null && whole) {
      const came = goesOn && scroller(this.#steps).scrollTop === 0;
      this.#atEnd = came || this.#hidden() <= GAP;
    }
    if (this.#bar) this.#sizes.observe(this.#bar); // it may have come later
  }

  /** After the layout and before the paint, so that nobody sees the end jump. */
  #resized() {
    if (!this.#atEnd || !this.#news || isBusy()) return;
    this.#news = false;
    const hidden = this.#hidden();
    if (hidden > 0) scroller(this.#steps).scrollBy({ top: hidden, behavior: "instant" });
  }

  /** How many pixels of the end, with a gap, are behind the bar or below the fold. */
  #hidden() {
    const end = this.#end;
    if (!end) return 0;
    const { top, bottom } = end.getBoundingClientRect();
    const foot = this.#bar?.getBoundingClientRect().top ?? window.innerHeight;
    const over = bottom + GAP - foot;
    return end.matches(".result") ? Math.min(over, top - GAP) : over; // one begins to read at its top
  }

  /** The newest of what was said or done, or the item that it is folded into. */
  get #end() {
    const root = this.#steps.renderRoot;
    const found = [...root.querySelectorAll("[data-turn], .result")];
    const at = (/** @type {Element} */ one) =>
      one.matches(".result") ? Infinity : Number(one.getAttribute("data-turn"));
    const last = found.reduce((a, b) => (at(b) >= at(a) ? b : a), found[0]);
    return last && (last.getClientRects().length ? last : last.closest("li"));
  }

  get #bar() {
    const root = /** @type {Document | ShadowRoot} */ (this.#steps.getRootNode());
    return root.querySelector("midrun-controls");
  }
}

/**
 * Bring something before the reader's eyes, unless it is, or they write or have marked something.
 * @param {Element} element
 */
export function bring(element) {
  if (isBusy()) return;
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "nearest", behavior: still ? "instant" : "smooth" });
}

/** Whether the reader writes, or has marked something. */
function isBusy() {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  const writes = at instanceof HTMLElement && (WRITING.has(at.tagName) || at.isContentEditable);
  return writes || document.getSelection()?.type === "Range";
}

/** Return what scrolls the element. @param {Element} element @returns {Element} */
function scroller(element) {
  /** @type {Node | null} */
  let at = element;
  while (at) {
    at = at instanceof ShadowRoot ? at.host : at.parentNode;
    if (!(at instanceof HTMLElement) || at.scrollHeight <= at.clientHeight) continue;
    if (at !== document.body && /auto|scroll/.test(getComputedStyle(at).overflowY)) return at;
  }
  return document.scrollingElement ?? document.documentElement;
}
