// @ts-check
/**
 * `<midrun-artifacts>`: the documents, tables and pictures that tools have shown, in all versions.
 *
 * The panel lists them and previews the one that was changed last, so a document grows before the
 * viewer's eyes. A dialog shows one of them in full, with the choice of a version, the lines that
 * it changed, and the download.
 */
import { css, nothing, repeat } from "./lit.js";
import { previewStyle, renderDifference, renderPreview } from "./file-preview.js";
import { FileLoader, downloadFile, formatSize, isComparable, previewKind } from "./files.js";
import { formatCount, formatTimeOfDay } from "./format.js";
import { StoreElement } from "./store-element.js";
import { theme } from "./theme.js";
import { html } from "./template.js";

/** @typedef {import("./types.js").ArtifactView} Artifact one version */
/** The newest version of each artifact comes last. @typedef {Map<string, Artifact[]>} VersionsByName */

/** Group versions by name, in the order in which the names came up. @param {Artifact[]} artifacts @returns {VersionsByName} */
export function groupVersions(artifacts) {
  /** @type {VersionsByName} */
  const groups = new Map();
  for (const artifact of artifacts) groups.set(artifact.name, [...(groups.get(artifact.name) ?? []), artifact]);
  return groups;
}

/**
 * Return the newest versions of the artifacts that a call has shown, or that its arguments name.
 * @param {Artifact[]} artifacts @param {string} call @param {unknown} args
 */
export function artifactsOfCall(artifacts, call, args) {
  const texts = new Set(listTexts(args));
  return [...groupVersions(artifacts)].flatMap(([name, versions]) => {
    const shown = versions.findLast((version) => version.call === call);
    if (shown) return [shown];
    return texts.has(name) ? versions.slice(-1) : [];
  });
}

/** @param {unknown} value @returns {string[]} */
function listTexts(value) {
  if (typeof value === "string") return [value];
  return typeof value === "object" && value ? Object.values(value).flatMap(listTexts) : [];
}

export class Artifacts extends StoreElement {
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
      ul {
        display: grid;
        gap: 4px;
        padding: 0;
        list-style: none;
      }
      li {
        display: flex;
        flex-wrap: wrap;
        align-items: baseline;
        gap: 0 8px;
      }
      li .link {
        text-align: start;
        overflow-wrap: anywhere;
      }
      .panel .preview {
        max-height: 300px;
        padding: 10px 12px;
        border: 1px solid var(--line);
        border-radius: 8px;
        background: var(--bg);
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
    `,
  ];

  constructor() {
    super();
    this.shownName = ""; // the artifact in the dialog; "": it is closed
    this.shownVersion = 0; // 0: the newest one, also when there is a newer one
    this.isDifference = false; // the dialog shows the changed lines
    this._loader = new FileLoader(this);
  }

  get _groups() {
    return groupVersions(this.view?.artifacts ?? []);
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
    const { store } = this;
    const groups = this._groups;
    if (!store || !groups.size) return this.renderWithoutContent();
    this.setShown(true);
    const newest = /** @type {Artifact} */ (this.view?.artifacts.at(-1));
    const hasPreview = previewKind(newest.file) !== "none";
    return html`<section class="panel" aria-labelledby="title">
        <h2 id="title">Artifacts</h2>
        ${this.renderConnection()}
        <ul>
          ${repeat(groups, ([name]) => name, ([name, versions]) => this._renderLine(name, versions))}
        </ul>
        ${hasPreview
          ? html`<div class="preview" tabindex="0" role="region" aria-label=${`Preview of ${newest.name}`}>
              ${renderPreview(newest.file, this._loader.read(store, newest.file))}
            </div>`
          : nothing}
        ${this.error ? html`<p data-tone="stop" role="alert">${this.error}</p>` : nothing}
      </section>
      ${this._renderDialog(groups.get(this.shownName))}`;
  }

  /** @param {string} name @param {Artifact[]} versions */
  _renderLine(name, versions) {
    const { file, at } = versions[versions.length - 1];
    const count = versions.length > 1 ? `${formatCount(versions.length, "version")} · ` : "";
    return html`<li>
      <button class="link" aria-haspopup="dialog" @click=${() => void this.show(name)}>${name}</button>
      <span class="dim">${count}${formatSize(file.size)} · ${formatTimeOfDay(at)}</span>
      ${previewKind(file) === "none" ? this._renderDownload(versions[versions.length - 1]) : nothing}
    </li>`;
  }

  /** @param {Artifact[] | undefined} versions */
  _renderDialog(versions) {
    if (!versions) return html`<dialog aria-label="Artifact"></dialog>`;
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
    return html`<button aria-label=${`Download ${name}`} @click=${() => void this._download(file)}>Download</button>`;
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

customElements.define("midrun-artifacts", Artifacts);
