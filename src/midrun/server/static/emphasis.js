// @ts-check
/**
 * Emphasis in text that Midrun itself wrote: it puts the names of topics between asterisks, as
 * in "Back to *Write a memo*", because models read the same text.
 */
import { nothing } from "./lit.js";
import { html } from "./template.js";

const EMPHASIS = /\*([^*\n]+)\*/g;
/** The first line of a reply where Midrun wrote it; the lines after it are the agent's. */
const RUNTIME_LEAD = /^(Back to|Dropped|Switching:) \*/;

/** Render text of the runtime with its emphasis. @param {string} text */
export function renderEmphasis(text) {
  // `split` by a pattern with a group: every second part is the group's text.
  return text.split(EMPHASIS).map((part, at) => (at % 2 ? html`<em>${part}</em>` : part));
}

/** Render a reply of the agent; only a line that Midrun put before it has emphasis. @param {string} text */
export function renderReply(text) {
  if (!RUNTIME_LEAD.test(text)) return text;
  const end = text.indexOf("\n");
  const [lead, rest] = end < 0 ? [text, ""] : [text.slice(0, end), text.slice(end)];
  return html`${renderEmphasis(lead)}${rest || nothing}`;
}
