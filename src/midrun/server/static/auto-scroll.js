// @ts-check
/**
 * Auto-scroll: while the reader is at the end of the steps, new content keeps the end in sight.
 *
 * The control bar covers the bottom of the window, so the end counts as hidden behind it too.
 * Only `<midrun-run>` scrolls the page that it is in. The transcript alone follows only inside a
 * box of the page that scrolls by itself.
 * The page does not scroll while the reader has scrolled away, has typed something, or has selected
 * text. The field of the docked bar keeps the focus after its text was sent; empty, it counts not.
 *
 * New content changes the height of the steps. A `ResizeObserver` reports that after the layout
 * and before the paint, so a scroll from there is not visible as a jump. Content that the reader
 * unfolds changes the height as well, but no render precedes it.
 */

/** The distance between the end and the control bar. */
const GAP_PX = 14;
const INPUT_TAGS = new Set(["INPUT", "TEXTAREA", "SELECT"]);

export class AutoScroll {
  #steps;
  /** @type {boolean | null} null until all known content has been rendered once */
  #atEnd = null;
  #hasNewContent = false;
  #onChange;
  #resizeObserver = new ResizeObserver(() => this.#onResize());
  /** The last known position of the scroller. */
  #lastTop = 0;
  #updateAtEnd = () => {
    if (this.#atEnd !== null) this.#setAtEnd(this.#hiddenPixels() <= GAP_PX);
  };
  /**
   * Our own scroll is reported one frame later. By then, more content may have moved the end out
   * of sight, although the reader did nothing. So only a reader who scrolls up leaves the end.
   */
  #onScroll = () => {
    const { scrollTop } = findScroller(this.#steps);
    const hasScrolledUp = scrollTop < this.#lastTop;
    this.#lastTop = scrollTop;
    if (!this.#atEnd || hasScrolledUp) this.#updateAtEnd();
  };
  /** A click may unfold a call, which moves the end; look again where it is. */
  #onClick = () => requestAnimationFrame(this.#updateAtEnd);

  /**
   * @param {import("./lit.js").LitElement} steps the element whose end stays in sight
   * @param {() => void} onChange called when the reader comes to the end or leaves it
   */
  constructor(steps, onChange) {
    this.#steps = steps;
    this.#onChange = onChange;
  }

  /** @param {boolean} atEnd */
  #setAtEnd(atEnd) {
    const isChanged = this.#atEnd !== atEnd;
    this.#atEnd = atEnd;
    if (isChanged) this.#onChange();
  }

  /** Whether the reader is at the end, and new content is followed. */
  get isAtEnd() {
    return this.#atEnd === true;
  }

  /** Whether the reader has left the end of content that was shown before. */
  get hasLeftEnd() {
    return this.#atEnd === false;
  }

  /** Scroll to the end, and follow from there. */
  scrollToEnd() {
    this.#scrollBy(this.#hiddenPixels());
    this.#setAtEnd(true);
  }

  start() {
    document.addEventListener("scroll", this.#onScroll, { capture: true, passive: true });
    this.#steps.addEventListener("click", this.#onClick);
    this.#resizeObserver.observe(this.#steps);
    if (this.#bar) this.#resizeObserver.observe(this.#bar);
  }

  stop() {
    document.removeEventListener("scroll", this.#onScroll, { capture: true });
    this.#steps.removeEventListener("click", this.#onClick);
    this.#resizeObserver.disconnect();
    this.#atEnd = null;
  }

  /**
   * Record that the steps were rendered.
   * @param {boolean} isComplete whether all turns are loaded
   * @param {boolean} isRunning whether the run is at work; then a page that was just opened, and
   *   has not been scrolled, follows from the start
   * @param {boolean} isFinished whether the run has ended; then nothing is followed any more, and
   *   the page may scroll to the result
   */
  onRendered(isComplete, isRunning, isFinished) {
    this.#hasNewContent = !isFinished;
    if (this.#atEnd === null && isComplete) {
      const scroller = findScroller(this.#steps);
      if (scroller === pageScroller() && !mayScrollPage(this.#steps)) return;
      const follows = isRunning && scroller.scrollTop === 0;
      this.#setAtEnd(follows || this.#hiddenPixels() <= GAP_PX);
    }
    if (this.#bar) this.#resizeObserver.observe(this.#bar); // it may have been added since `start`
  }

  #onResize() {
    // A shorter page moves the reader up. The event follows in the next frame, after `#lastTop`.
    this.#lastTop = Math.min(this.#lastTop, findScroller(this.#steps).scrollTop);
    if (!this.#atEnd || !this.#hasNewContent || isReaderBusy()) return;
    this.#hasNewContent = false;
    this.#scrollBy(this.#hiddenPixels());
  }

  /** @param {number} pixels */
  #scrollBy(pixels) {
    if (pixels <= 0) return;
    const scroller = findScroller(this.#steps);
    scroller.scrollBy({ top: pixels, behavior: "instant" });
    this.#lastTop = scroller.scrollTop;
  }

  /** Return how many pixels of the end, gap included, are behind the bar or below the window. */
  #hiddenPixels() {
    const end = this.#end;
    if (!end) return 0;
    const { bottom } = end.getBoundingClientRect();
    const scroller = findScroller(this.#steps);
    const box = scroller === pageScroller() ? window.innerHeight : scroller.getBoundingClientRect().bottom;
    return bottom + GAP_PX - (this.#bar?.getBoundingClientRect().top ?? box);
  }

  /** The newest turn; if it is folded, the plan item that contains it. */
  get #end() {
    const root = this.#steps.renderRoot;
    const candidates = [...root.querySelectorAll("[data-turn]")];
    const position = (/** @type {Element} */ one) => Number(one.getAttribute("data-turn"));
    const last = candidates.reduce((a, b) => (position(b) >= position(a) ? b : a), candidates[0]);
    return last && (last.getClientRects().length ? last : last.closest("li"));
  }

  get #bar() {
    const root = /** @type {Document | ShadowRoot} */ (this.#steps.getRootNode());
    return root.querySelector("midrun-controls");
  }
}

/**
 * Scroll a part of `<midrun-run>` into view unless the reader types or has selected text.
 * @param {Element} element
 */
export function scrollIntoSight(element) {
  if (isReaderBusy() || !mayScrollPage(element)) return;
  const reduceMotion = matchMedia("(prefers-reduced-motion: reduce)").matches;
  element.scrollIntoView({ block: "nearest", behavior: reduceMotion ? "instant" : "smooth" });
}

/** Tell whether the reader types, or has selected text. */
function isReaderBusy() {
  let at = document.activeElement;
  let isDocked = false; // the field stays where it is while the page scrolls
  while (at?.shadowRoot?.activeElement) {
    isDocked ||= at.matches("midrun-controls[docked]");
    at = at.shadowRoot.activeElement;
  }
  const isField = at instanceof HTMLElement && (INPUT_TAGS.has(at.tagName) || at.isContentEditable);
  const isTyping = isField && !(isDocked && /** @type {HTMLInputElement} */ (at).value === "");
  return isTyping || document.getSelection()?.type === "Range";
}

/** Return the ancestor that scrolls the element, across shadow roots. @param {Element} element @returns {Element} */
function findScroller(element) {
  /** @type {Node | null} */
  let at = element;
  while (at) {
    at = at instanceof ShadowRoot ? at.host : at.parentNode;
    if (!(at instanceof HTMLElement) || at.scrollHeight <= at.clientHeight) continue;
    if (at !== document.body && /auto|scroll/.test(getComputedStyle(at).overflowY)) return at;
  }
  return pageScroller();
}

const pageScroller = () => document.scrollingElement ?? document.documentElement;

/** Tell whether an element is part of `<midrun-run>`, which fills its page. @param {Element} element */
function mayScrollPage(element) {
  let root = element.getRootNode();
  while (root instanceof ShadowRoot) {
    if (root.host.localName === "midrun-run") return true;
    root = root.host.getRootNode();
  }
  return false;
}
