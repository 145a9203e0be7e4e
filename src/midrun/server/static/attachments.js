// @ts-check
/**
 * `<midrun-attachments>`: the files that will be sent with a text, and why a file was not added.
 *
 * Files are chosen, pasted or dropped. Each is checked when it is added, before anything is sent,
 * by the limits of the server. Small files survive a reload of the tab, as the text does.
 */
import { css, nothing } from "./lit.js";
import { loadDraft, saveDraft } from "./drafts.js";
import { formatSize } from "./files.js";
import { FocusElement } from "./focus-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** A file as a request carries it; `data` is base64. @typedef {{name: string, media_type: string, data: string}} FileBody */
/** @typedef {FileBody & {size: number}} Attachment */

/** @typedef {import("./types.js").UploadLimits} UploadLimits */

/** Where the limits cannot be read, the server checks them alone. @type {UploadLimits} */
const NO_LIMITS = { files: Infinity, file_bytes: Infinity, total_bytes: Infinity };
const NAME_MAX_CHARS = 200;
/** Larger files are not kept for a reload: the storage of a tab is small. */
const DRAFT_MAX_CHARS = 1_500_000;
const UNKNOWN_TYPE = "application/octet-stream";
const MEDIA_TYPE = /^[a-z0-9!#$&^_.+-]{1,60}\/[a-z0-9!#$&^_.+-]{1,80}$/;

/** @param {UploadLimits} limits */
export const formatLimits = ({ files, file_bytes, total_bytes }) =>
  `Up to ${files} files, ${formatSize(file_bytes)} each, ${formatSize(total_bytes)} together`;

/** Emits "changed" when a file was added or removed. */
export class Attachments extends FocusElement {
  static properties = {
    draft: { type: String },
    api: { attribute: false },
    items: { state: true },
    problem: { state: true },
  };

  static styles = [
    theme,
    css`
      ul {
        display: flex;
        flex-wrap: wrap;
        gap: 6px;
        padding: 0 0 6px;
        list-style: none;
      }
      li {
        display: flex;
        align-items: center;
        gap: 6px;
        max-width: 100%;
        padding: 0 0 0 10px;
        border: 1px solid var(--line);
        border-radius: 8px;
        background: var(--panel);
        font-size: 13px;
      }
      .name {
        min-width: 0;
        overflow: hidden;
        text-overflow: ellipsis;
        white-space: nowrap;
      }
      .size {
        flex: none;
      }
      li button {
        flex: none;
        min-height: var(--target, 28px);
        min-width: 28px;
        padding: 0;
        border: 0;
        background: none;
        font-size: 16px;
        line-height: 1;
      }
      p {
        padding-bottom: 4px;
        color: var(--stop);
        font-weight: 600;
        overflow-wrap: anywhere;
      }
    `,
  ];

  constructor() {
    super();
    /** The name of the draft that keeps the files. */
    this.draft = "";
    /** The server that takes the files. @type {import("./api.js").Api | null} */
    this.api = null;
    /** @type {Promise<UploadLimits> | null} */
    this._limits = null;
    /** @type {Attachment[]} */
    this.items = [];
    this.problem = "";
    this._restoredDraft = "";
  }

  /** The files for the body of a request. @returns {FileBody[]} */
  get bodies() {
    return this.items.map(({ name, media_type, data }) => ({ name, media_type, data }));
  }

  willUpdate() {
    if (!this.draft || this.draft === this._restoredDraft) return;
    this._restoredDraft = this.draft;
    const text = loadDraft(`${this.draft} files`);
    this.items = text ? JSON.parse(text) : [];
    this.dispatchEvent(new CustomEvent("changed"));
  }

  /** Load the limits of the server, once. @returns {Promise<UploadLimits>} */
  loadLimits() {
    this._limits ??= this.api?.loadAgents().then(
      ({ uploads }) => uploads,
      () => {
        this._limits = null; // asked again next time
        return NO_LIMITS;
      },
    ) ?? null;
    return this._limits ?? Promise.resolve(NO_LIMITS);
  }

  /** Let the viewer choose files. */
  choose() {
    const input = document.createElement("input");
    input.type = "file";
    input.multiple = true;
    input.addEventListener("change", () => void this.add([...(input.files ?? [])]));
    input.click();
  }

  /** Add files; those that break a limit are not added, and the viewer is told. @param {File[]} files */
  async add(files) {
    const problems = [];
    const limits = await this.loadLimits();
    for (const file of files) {
      const problem = this.#findProblem(file, limits);
      if (problem) problems.push(`“${file.name}” was not added: ${problem}.`);
      else this.items = [...this.items, await readAttachment(file)];
    }
    this.problem = problems.join(" ");
    this.#onChanged();
  }

  /** Return why a file cannot be added; "" if it can. @param {File} file @param {UploadLimits} limits */
  #findProblem(file, { files, file_bytes, total_bytes }) {
    if (this.items.length >= files) return `at most ${files} files can be sent at once`;
    if (file.size > file_bytes) return `it has ${formatSize(file.size)}, at most ${formatSize(file_bytes)} are allowed`;
    const total = this.items.reduce((sum, { size }) => sum + size, file.size);
    if (total > total_bytes) return `together the files would have ${formatSize(total)}, at most ${formatSize(total_bytes)} are allowed`;
    return "";
  }

  /** @param {number} index */
  async #remove(index) {
    this.items = this.items.filter((_, at) => at !== index);
    this.problem = "";
    this.#onChanged();
    await this.updateComplete;
    const buttons = this.renderRoot.querySelectorAll("button");
    if (buttons.length) buttons[Math.min(index, buttons.length - 1)].focus();
    else this.dispatchEvent(new CustomEvent("emptied"));
  }

  clear() {
    this.items = [];
    this.problem = "";
    this.#onChanged();
  }

  #onChanged() {
    const text = this.items.length ? JSON.stringify(this.items) : "";
    if (this.draft) saveDraft(`${this.draft} files`, text.length <= DRAFT_MAX_CHARS ? text : "");
    this.dispatchEvent(new CustomEvent("changed"));
  }

  render() {
    return html`${this.problem ? html`<p role="alert">${this.problem}</p>` : nothing}
      ${this.items.length
        ? html`<ul aria-label="Files to send">
            ${this.items.map(
              ({ name, size }, index) => html`<li>
                <span class="name" title=${name}>${name}</span><span class="dim size">${formatSize(size)}</span>
                <button type="button" aria-label=${`Remove ${name}`} @click=${() => void this.#remove(index)}>×</button>
              </li>`,
            )}
          </ul>`
        : nothing}`;
  }
}

/** @param {File} file @returns {Promise<Attachment>} */
async function readAttachment(file) {
  const type = file.type.split(";")[0].toLowerCase();
  const address = await new Promise((/** @type {(text: string) => void} */ resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.readAsDataURL(file);
  });
  const name = file.name.replace(/[\p{C}/\\]/gu, "_").slice(-NAME_MAX_CHARS) || "file";
  const data = address.slice(address.indexOf(",") + 1);
  return { name, media_type: MEDIA_TYPE.test(type) ? type : UNKNOWN_TYPE, data, size: file.size };
}

/** Return the files of a paste or a drop. @param {DataTransfer | null} transfer @returns {File[]} */
export const filesOf = (transfer) => [...(transfer?.files ?? [])];

customElements.define("midrun-attachments", Attachments);
