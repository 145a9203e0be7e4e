// @ts-check
/** The runtime's own words have names between asterisks, as models read them: *Write a memo*. */
import { nothing } from "./lit.js";
import { html } from "./template.js";

export const MARKED = /\*([^*\n]+)\*/g;
/** How the runtime begins what it says before a reply; the rest is the agent's own. */
const LEAD = /^(Back to|Dropped|Switching:) \*/;

/** Return words of the runtime, drawn. @param {string} text */
export function emphatic(text) {
  return text.split(MARKED).map((part, at) => (at % 2 ? html`<em>${part}</em>` : part));
}

/** Return what an agent says, with what the runtime said first. @param {string} text */
export function led(text) {
  if (!LEAD.test(text)) return text;
  const end = text.indexOf("\n");
  const [lead, rest] = end < 0 ? [text, ""] : [text.slice(0, end), text.slice(end)];
  return html`${emphatic(lead)}${rest || nothing}`;
}
