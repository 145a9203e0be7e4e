// @ts-check
/**
 * `<midrun-artifact-dialog>`: one artifact in full, with the choice of a version, the lines that
 * the version has changed, and its download.
 *
 * It stays open while the run goes on: the newest version is replaced by a newer one, and a
 * version that the viewer has chosen stays.
 */
import { css, nothing } from "./lit.js";
import { groupVersions } from "./artifacts.js";
import { previewStyle, renderDifference, renderPreview } from "./file-preview.js";
import { FileLoader, downloadFile, formatSize, isComparable, isPdf, openPdf, previewKind } from "./files.js";
import { formatTimeOfDay } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").ArtifactView} Artifact one version */

export class ArtifactDialog extends StoreElement {
  static ignoresLive = true;

  static properties = {
    ...StoreElement.properties,
    shownName: { state: true },
    shownVersion: { state: true },
    isDifference: { state: true },
  };

  static styles = [
    theme,
    previewStyle,
    css`
      :host {
        display: contents;
      }
      dialog {
        width: min(960px, 94vw);
        max-height: 92vh;
        padding: 16px;
        border: 1px solid var(--edge);
        border-radius: var(--round);
        background: var(--bg);
        color: var(--fg);
      }
      dialog::backdrop {
        background: rgb(0 0 0 / 0.45);
      }
      .inside {
        display: grid;
        grid-template-columns: minmax(0, 1fr);
        gap: 12px;
      }
      .inside h2 {
        font-size: 18px;
        letter-spacing: normal;
        text-transform: none;
        color: var(--fg);
        overflow-wrap: anywhere;
      }
      .inside .preview {
        max-height: 64vh;
      }
      select {
        width: auto;
      }
      .close {
        margin-left: auto;
      }
      [aria-pressed="true"] {
        border-color: var(--run);
        color: var(--run);
        font-weight: 600;
      }
    `,
  ];

  constructor() {
    super();
    this.shownName = ""; // the artifact in the dialog; "": it is closed
    this.shownVersion = 0; // 0: the newest one, also when there is a newer one
    this.isDifference = false; // the dialog shows the changed lines
    this._loader = new FileLoader(this);
  }

  /** Open the dialog. @param {string} name @param {number} [version] by default the newest one */
  async show(name, version = 0) {
    this.shownName = name;
    this.shownVersion = version;
    this.isDifference = false;
    this._loader.retry();
    await this.updateComplete;
    const dialog = this.renderRoot.querySelector("dialog");
    if (dialog && !dialog.open) dialog.showModal();
  }

  render() {
    return this._renderDialog(groupVersions(this.view?.artifacts ?? []).get(this.shownName));
  }

  /** @param {Artifact[] | undefined} versions */
  _renderDialog(versions) {
    if (!versions) return nothing;
    const newest = versions[versions.length - 1];
    const shown = versions.find(({ version }) => version === this.shownVersion) ?? newest;
    return html`<dialog aria-labelledby="name" @close=${this._onClose}>
      <div class="inside">
        <div class="row">
          <h2 id="name">${shown.name}</h2>
          <button class="close" @click=${() => this.renderRoot.querySelector("dialog")?.close()}>Close</button>
        </div>
        <div class="row">
          ${versions.length > 1 ? this._renderVersions(versions, shown) : nothing}
          ${this._renderDownload(shown)}
          <span class="dim">${formatSize(shown.file.size)} · ${formatTimeOfDay(shown.at)}</span>
        </div>
        <div class="preview" tabindex="0" role="region" aria-label="Content">${this._renderContent(versions, shown)}</div>
        ${this.error ? html`<p data-tone="stop" role="alert">${this.error}</p>` : nothing}
      </div>
    </dialog>`;
  }

  /** Render the choice of a version, and of its changes. @param {Artifact[]} versions @param {Artifact} shown */
  _renderVersions(versions, shown) {
    const change = (/** @type {Event} */ event) => {
      this.shownVersion = Number(/** @type {HTMLSelectElement} */ (event.target).value);
    };
    const before = versionBefore(versions, shown);
    const toggle = () => (this.isDifference = !this.isDifference);
    return html`<label
        >Version
        <select @change=${change}>
          ${versions.toReversed().map(
            ({ version }) => html`<option value=${version} .selected=${version === shown.version}>
              ${version}${version === versions.length ? " (newest)" : ""}
            </option>`,
          )}
        </select>
      </label>
      ${before && isComparable(before.file, shown.file)
        ? html`<button aria-pressed=${String(this.isDifference)} @click=${toggle}>
            Changes since version ${before.version}
          </button>`
        : nothing}`;
  }

  /** @param {Artifact[]} versions @param {Artifact} shown */
  _renderContent(versions, shown) {
    const store = /** @type {import("./run-store.js").RunStore} */ (this.store);
    const before = versionBefore(versions, shown);
    const content = this._read(store, shown);
    if (!this.isDifference || !before || !isComparable(before.file, shown.file)) return renderPreview(shown.file, content);
    return renderDifference(this._read(store, before), content);
  }

  /** @param {import("./run-store.js").RunStore} store @param {Artifact} artifact */
  _read(store, { file }) {
    return previewKind(file) === "none" ? null : this._loader.read(store, file);
  }

  /** @param {Artifact} artifact */
  _renderDownload({ name, file }) {
    return html`${isPdf(file)
        ? html`<button aria-label=${`Open ${name} in a new tab`} @click=${() => void this._open(file)}>Open</button>`
        : nothing}
      <button aria-label=${`Download ${name}`} @click=${() => void this._download(file)}>Download</button>`;
  }

  /** @param {import("./types.js").FileRef} file */
  async _open(file) {
    const { store } = this;
    if (store) await this.attempt(() => openPdf(store, file), "Open");
  }

  /** @param {import("./types.js").FileRef} file */
  async _download(file) {
    const { store } = this;
    if (store) await this.attempt(() => downloadFile(store, file), "Download");
  }

  _onClose() {
    this.shownName = "";
  }
}

/** @param {Artifact[]} versions @param {Artifact} shown */
const versionBefore = (versions, shown) => versions[versions.indexOf(shown) - 1];

customElements.define("midrun-artifact-dialog", ArtifactDialog);
