// @ts-check
/**
 * Emphasis in text that Midrun itself wrote: it puts the names of topics between asterisks, as
 * in "Back to *Write a memo*", because models read the same text.
 */
import { html } from "./template.js";

const EMPHASIS = /\*([^*\n]+)\*/g;

/** Render text of the runtime with its emphasis. @param {string} text */
export function renderEmphasis(text) {
  // `split` by a pattern with a group: every second part is the group's text.
  return text.split(EMPHASIS).map((part, at) => (at % 2 ? html`<em>${part}</em>` : part));
}
