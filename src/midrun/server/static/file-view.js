// @ts-check
/**
 * `<midrun-file>`: one file of a run. A picture is shown at once, a text when it is unfolded, and
 * everything else is offered as a download.
 *
 * Contents are loaded when the element comes into view, so a long run loads only what is read.
 */
import { css, nothing } from "./lit.js";
import { previewStyle, renderPreview } from "./file-preview.js";
import { FileLoader, downloadFile, formatSize, isPdf, openPdf, previewKind } from "./files.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").FileRef} FileRef */

export class FileView extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    file: { attribute: false },
    isInView: { state: true },
    isOpen: { state: true },
  };

  static styles = [
    theme,
    previewStyle,
    css`
      :host {
        display: grid;
        grid-template-columns: minmax(0, 1fr);
        gap: 4px;
        max-width: 640px;
        font-size: 13px;
      }
      .preview {
        max-height: var(--preview-height, 420px);
      }
      .preview img {
        max-height: var(--picture-height, 320px);
        border: 1px solid var(--line);
      }
      .placeholder {
        height: var(--picture-height, 160px);
        border: 1px dashed var(--line);
        border-radius: 6px;
      }
      .name {
        overflow-wrap: anywhere;
      }
    `,
  ];

  constructor() {
    super();
    /** @type {FileRef | null} */
    this.file = null;
    this.isInView = false;
    this.isOpen = false;
    this._loader = new FileLoader(this);
    this._observer = new IntersectionObserver((entries) => {
      if (entries.some(({ isIntersecting }) => isIntersecting)) this.isInView = true;
    });
  }

  connectedCallback() {
    super.connectedCallback();
    this._observer.observe(this);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    this._observer.disconnect();
  }

  render() {
    const { store, file } = this;
    if (!store || !file) return nothing;
    const kind = previewKind(file);
    const name = html`<span class="name">${file.name}</span> <span class="dim">${formatSize(file.size)}</span>`;
    const download = html`<button class="link" aria-label=${`Download ${file.name}`} @click=${() => void this._download()}>
      Download
    </button>`;
    const error = this.error ? html`<span data-tone="stop" role="alert">${this.error}</span>` : nothing;
    if (kind === "none") return html`<div class="row">${name} ${isPdf(file) ? this._renderOpen(file) : nothing} ${download} ${error}</div>`;
    if (kind === "image") {
      const picture = this.isInView
        ? html`<div class="preview">${renderPreview(file, this._loader.read(store, file))}</div>`
        : html`<div class="placeholder"></div>`;
      return html`${picture}<div class="row">${name} ${download} ${error}</div>`;
    }
    return html`<details ?open=${this.isOpen} @toggle=${this._onToggle}>
        <summary>${name}</summary>
        ${this.isOpen
          ? html`<div class="preview" tabindex="0" role="region" aria-label=${file.name}>
              ${renderPreview(file, this._loader.read(store, file))}
            </div>`
          : nothing}
        ${download} ${error}
      </details>`;
  }

  /** @param {FileRef} file */
  _renderOpen(file) {
    return html`<button class="link" aria-label=${`Open ${file.name} in a new tab`} @click=${() => void this._open()}>Open</button>`;
  }

  async _open() {
    const { store, file } = this;
    if (store && file) await this.attempt(() => openPdf(store, file), "Open");
  }

  /** @param {Event} event */
  _onToggle(event) {
    this.isOpen = /** @type {HTMLDetailsElement} */ (event.target).open;
  }

  async _download() {
    const { store, file } = this;
    if (store && file) await this.attempt(() => downloadFile(store, file), "Download");
  }
}

/**
 * Render files below the text or the call that they belong to.
 * @param {import("./run-store.js").RunStore | null} store @param {FileRef[] | undefined} files
 */
export const renderFiles = (store, files) =>
  files?.length ? files.map((file) => html`<midrun-file .store=${store} .file=${file}></midrun-file>`) : nothing;

customElements.define("midrun-file", FileView);
