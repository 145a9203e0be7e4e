// @ts-check
/**
 * `<midrun-text>`: text of an agent, rendered as Markdown. Every node is made with
 * `createElement` and text; no markup is parsed, so none in the text can take effect.
 *
 * A streamed text is rendered again with every piece. Blocks that have not changed keep their
 * nodes, so a selection in them stays, and only the last block is made anew.
 */
import { css } from "./lit.js";
import { BlockReader } from "./markdown.js";
import { parseInline } from "./markdown-inline.js";
import { exact, html, readable } from "./template.js";
import { theme } from "./theme.js";

/** @typedef {import("./markdown.js").Block} Block */
/** @typedef {import("./markdown-inline.js").Inline} Inline */
/**
 * A block and its node. `inside` are the blocks in it; `isOpen`: its text was still arriving.
 * @typedef {{block: Block, node: HTMLElement, inside: Rendered[], isOpen: boolean}} Rendered
 */

/** The rank of the first heading: the page and its sections have those before. */
const FIRST_HEADING_RANK = 3;
const LAST_HEADING_RANK = 6;
/** How long a copy button says so. */
const COPIED_SHOWN_MS = 2_000;

const style = css`
  :host {
    font: 15px/1.6 var(--sans) !important;
    overflow-wrap: anywhere;
    min-width: 0;
  }
  .text,
  h3,
  h4,
  h5,
  h6 {
    white-space: pre-wrap;
    unicode-bidi: plaintext;
  }
  .blocks {
    display: grid;
    grid-template-columns: minmax(0, 1fr);
    gap: 10px;
  }
  h3,
  h4,
  h5,
  h6 {
    margin: 6px 0 0;
    font-size: 15px;
    line-height: 1.35;
  }
  .h1 {
    font-size: 21px;
  }
  .h2 {
    font-size: 18px;
  }
  .h3 {
    font-size: 16px;
  }
  .blocks > :first-child {
    margin-top: 0;
  }
  ul,
  ol {
    display: grid;
    gap: 4px;
    padding-inline-start: 26px;
  }
  li > .blocks,
  blockquote > .blocks {
    gap: 6px;
  }
  blockquote {
    margin: 0;
    padding: 2px 0 2px 14px;
    border-left: 3px solid var(--line);
    color: var(--dim);
  }
  hr {
    width: 100%;
    margin: 4px 0;
    border: 0;
    border-top: 1px solid var(--line);
  }
  a {
    color: var(--run);
    text-underline-offset: 2px;
  }
  code,
  pre {
    font: 13px/1.55 var(--mono);
  }
  .inline {
    padding: 1px 5px;
    border: 1px solid var(--line);
    border-radius: 5px;
    background: var(--panel);
    font-size: 0.88em;
    white-space: break-spaces;
  }
  .code {
    border: 1px solid var(--line);
    border-radius: 10px;
    background: var(--panel);
    overflow: hidden;
  }
  .code-head {
    display: flex;
    align-items: center;
    justify-content: space-between;
    gap: 8px;
    padding: 4px 6px 4px 12px;
    border-bottom: 1px solid var(--line);
    font: 12px/1.4 var(--sans);
    color: var(--dim);
  }
  .code-head button {
    min-height: var(--target, 26px);
    padding: 1px 10px;
    border-width: 1px;
    border-radius: 6px;
    background: var(--bg);
    color: var(--fg);
    font-size: 12px;
  }
  .code pre {
    max-height: 480px;
    padding: 10px 12px;
    overflow: auto;
    white-space: pre;
    overflow-wrap: normal;
    tab-size: 4;
  }
  .code pre:focus-visible,
  .table:focus-visible {
    outline-offset: -3px;
  }
  .table {
    max-width: 100%;
    overflow-x: auto;
    border: 1px solid var(--line);
    border-radius: 10px;
  }
  table {
    width: 100%;
    border-collapse: collapse;
    font-size: 14px;
    line-height: 1.45;
    overflow-wrap: break-word;
    font-variant-numeric: tabular-nums;
  }
  th,
  td {
    min-width: 64px;
    padding: 7px 12px;
    text-align: start;
    vertical-align: top;
    unicode-bidi: plaintext;
  }
  th {
    background: var(--panel);
    font-weight: 600;
  }
  tr + tr > *,
  tbody > tr > * {
    border-top: 1px solid var(--line);
  }
  .right {
    text-align: end;
  }
  .center {
    text-align: center;
  }
  /* The end of the text so far: the last block, and in a list the last block of its last item. */
  :host([data-open])
    .blocks
    > :last-child:is(p, h3, h4, h5, h6):not(.blocks > :not(:last-child) *, li:not(:last-child) *)::after {
    display: inline-block;
    width: 8px;
    height: 1em;
    margin-left: 2px;
    vertical-align: text-bottom;
    background: currentColor;
    opacity: 0.6;
    content: "";
  }
  @media (prefers-reduced-motion: no-preference) {
    :host([data-open]) .blocks > :last-child::after {
      animation: blink 1s steps(2, start) infinite;
    }
    @keyframes blink {
      to {
        opacity: 0;
      }
    }
  }
  @media (pointer: coarse) {
    .code-head button {
      min-height: 44px;
    }
  }
`;

export class MarkdownText extends HTMLElement {
  #reader = new BlockReader();
  /** @type {Rendered[]} */
  #rendered = [];
  #top = createElement("div", "blocks");
  #text = "";
  #isOpen = false;

  constructor() {
    super();
    const root = this.attachShadow({ mode: "open" });
    root.adoptedStyleSheets = [theme, style].flatMap(({ styleSheet }) => styleSheet ?? []);
    root.append(this.#top);
  }

  /** The text, and whether more of it follows. @param {{text: string, isOpen?: boolean}} content */
  set content({ text, isOpen = false }) {
    const source = text.replaceAll("\r\n", "\n");
    if (source === this.#text && isOpen === this.#isOpen) return;
    this.#text = source;
    this.#isOpen = isOpen;
    this.toggleAttribute("data-open", isOpen);
    const blocks = this.#reader.read(source, isOpen);
    this.#rendered = renderBlocks(this.#top, this.#rendered, blocks, isOpen);
    rankHeadings(this.#rendered);
  }

  get content() {
    return { text: this.#text, isOpen: this.#isOpen };
  }
}

/** Render a text as Markdown. @param {string} text @param {boolean} [isOpen] whether more follows */
export const renderMarkdown = (text, isOpen = false) =>
  html`<midrun-text .content=${{ text, isOpen }}></midrun-text>`;

/** @param {string} tag @param {string} [className] @param {...(Node | string)} children */
function createElement(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/**
 * Render blocks into a parent, and reuse the nodes of those that were there before.
 * @param {HTMLElement} parent @param {Rendered[]} before @param {Block[]} blocks @param {boolean} isOpen
 * @returns {Rendered[]}
 */
function renderBlocks(parent, before, blocks, isOpen) {
  const rendered = blocks.map((block, at) => {
    const isLastOpen = isOpen && at === blocks.length - 1;
    const old = before[at];
    const made = old && isAlike(old.block, block) ? old : createBlock(block);
    if (made !== old) {
      if (old) old.node.replaceWith(made.node);
      else parent.append(made.node);
    }
    const isSame = made === old && old.isOpen === isLastOpen && isEqual(old.block, block);
    if (!isSame) fillBlock(made, block, isLastOpen);
    return made;
  });
  for (const { node } of before.slice(blocks.length)) node.remove();
  return rendered;
}

/** Tell whether one node can show first `a` and then `b`. @param {Block} a @param {Block} b */
const isAlike = (a, b) => a.kind === b.kind && (a.kind === "code" || a.language === b.language) && a.level === b.level;

/** @param {Block} a @param {Block} b */
const isEqual = (a, b) => a === b || a.source === b.source;

/** Create the node of a block, without its content. @param {Block} block @returns {Rendered} */
function createBlock(block) {
  return { block: { ...block, source: "" }, node: createNode(block), inside: [], isOpen: false };
}

/** @param {Block} block */
function createNode({ kind, level, language }) {
  switch (kind) {
    case "heading":
      return createElement("h3", `h${level}`);
    case "code":
      return createCodeNode();
    case "rule":
      return createElement("hr");
    case "quote":
      return createElement("blockquote", "", createElement("div", "blocks"));
    case "item":
      return createElement("li", "", createElement("div", "blocks"));
    case "list":
      return createListNode(language, level);
    case "table":
      return createTableNode();
    case "row":
      return createElement("tr");
    default:
      return createElement("p", "text");
  }
}

/** @param {string} tag "ul" or "ol" @param {number} first */
function createListNode(tag, first) {
  const list = createElement(tag === "ol" ? "ol" : "ul");
  if (list instanceof HTMLOListElement && first !== 1) list.start = first;
  return list;
}

function createTableNode() {
  const node = createElement("div", "table", createElement("table", "", createElement("thead"), createElement("tbody")));
  makeScrollable(node, "Table");
  return node;
}

/** Let the keyboard scroll a node. @param {HTMLElement} node @param {string} name */
function makeScrollable(node, name) {
  node.tabIndex = 0;
  node.setAttribute("role", "group");
  node.setAttribute("aria-label", name);
}

function createCodeNode() {
  const button = createElement("button", "", "Copy");
  const pre = createElement("pre", "", createElement("code"));
  makeScrollable(pre, "Code");
  button.addEventListener("click", async () => {
    // The text as it is shown: characters that cannot be seen are not pasted into a shell.
    const isCopied = await navigator.clipboard.writeText(pre.textContent ?? "").then(
      () => true,
      () => false,
    );
    button.textContent = isCopied ? "Copied" : "Not allowed";
    setTimeout(() => (button.textContent = "Copy"), COPIED_SHOWN_MS);
  });
  return createElement("div", "code", createElement("div", "code-head", createElement("span"), button), pre);
}

/** Put the content of a block into its node. @param {Rendered} rendered @param {Block} block @param {boolean} isOpen */
function fillBlock(rendered, block, isOpen) {
  const { node } = rendered;
  switch (block.kind) {
    case "paragraph":
    case "heading":
      fillInline(node, block.text, isOpen);
      break;
    case "code":
      setText(node.querySelector("span"), readable(block.language) || "code");
      setText(node.querySelector("code"), exact(block.text));
      break;
    case "quote":
    case "item":
      rendered.inside = renderBlocks(/** @type {HTMLElement} */ (node.firstChild), rendered.inside, withCheckbox(block), isOpen);
      break;
    case "list":
      rendered.inside = renderBlocks(node, rendered.inside, block.children, isOpen);
      break;
    case "table":
      fillTable(rendered, block.children, isOpen);
      break;
    case "row":
      node.replaceChildren(
        ...block.cells.map((text, at) =>
          fillInline(createElement(block.level ? "th" : "td", block.aligns[at]), text, false),
        ),
      );
  }
  rendered.block = block;
  rendered.isOpen = isOpen;
}

/** Put the pieces of a text into a node, one by one: a call has a limit of arguments. @param {HTMLElement} node @param {string} text @param {boolean} isOpen */
function fillInline(node, text, isOpen) {
  node.replaceChildren();
  for (const piece of parseInline(text, isOpen)) node.append(createInline(piece));
  return node;
}

/** @param {Element | null} element @param {string} text */
function setText(element, text) {
  if (element && element.textContent !== text) element.textContent = text;
}

/** Return the blocks of an item; its checkbox is a symbol. @param {Block} block */
function withCheckbox({ kind, children }) {
  const [first, ...others] = children;
  const box = kind === "item" && first?.kind === "paragraph" && /^\[([ xX])\] /.exec(first.text);
  if (!box) return children;
  return [{ ...first, text: `${box[1] === " " ? "☐" : "☑"} ${first.text.slice(4)}` }, ...others];
}

/** @param {Rendered} rendered @param {Block[]} rows @param {boolean} isOpen */
function fillTable(rendered, rows, isOpen) {
  const [head, body] = /** @type {HTMLElement[]} */ ([...(rendered.node.firstElementChild?.children ?? [])]);
  rendered.inside = [
    ...renderBlocks(head, rendered.inside.slice(0, 1), rows.slice(0, 1), isOpen),
    ...renderBlocks(body, rendered.inside.slice(1), rows.slice(1), isOpen),
  ];
}

/** @param {Inline} piece @returns {Node} */
function createInline({ tag, text, href, children }) {
  if (tag === "") return document.createTextNode(readable(text));
  if (tag === "code") return createElement("code", "inline", exact(text));
  const made = createElement(tag);
  for (const child of children) made.append(createInline(child));
  if (made instanceof HTMLAnchorElement) {
    made.href = href;
    made.target = "_blank";
    made.rel = "noopener noreferrer nofollow";
    made.title = href;
    const claimed = otherHost(made.textContent ?? "", href);
    if (claimed) return createElement("span", "", made, ` (${claimed})`);
  }
  return made;
}

/** Return the host of a link whose words name another address; else "". @param {string} words @param {string} href */
function otherHost(words, href) {
  const address = words.trim();
  if (!/^(?:https?:\/\/|www\.)/i.test(address)) return "";
  const url = address.startsWith("www") ? `https://${address}` : address;
  const { host } = new URL(href);
  return URL.canParse(url) && new URL(url).host === host ? "" : host;
}

/** Give the headings ranks without gaps, however many number signs they have. @param {Rendered[]} rendered */
function rankHeadings(rendered) {
  /** @type {number[]} levels of the headings that the current place is below */
  const above = [];
  for (const one of rendered) {
    if (one.block.kind !== "heading") continue;
    while (above.length && above[above.length - 1] >= one.block.level) above.pop();
    above.push(one.block.level);
    const rank = Math.min(FIRST_HEADING_RANK - 1 + above.length, LAST_HEADING_RANK);
    if (one.node.localName === `h${rank}`) continue;
    const ranked = createElement(`h${rank}`, one.node.className, ...one.node.childNodes);
    one.node.replaceWith(ranked);
    one.node = ranked;
  }
}

customElements.define("midrun-text", MarkdownText);
