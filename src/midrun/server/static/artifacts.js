// @ts-check
/**
 * `<midrun-artifacts>`: the documents, tables and pictures that tools have shown.
 *
 * The panel lists them and previews the one that was changed last, so a document grows before the
 * viewer's eyes. It emits `midrun-artifact` when one is chosen; `<midrun-artifact-dialog>` of the
 * same element shows it.
 */
import { css, nothing, repeat } from "./lit.js";
import { previewStyle, renderPreview } from "./file-preview.js";
import { FileLoader, downloadFile, formatSize, isPdf, openPdf, previewKind } from "./files.js";
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

/** Ask the element around to show an artifact in its dialog. @param {EventTarget | null} from @param {string} name @param {number} [version] 0: the newest */
export function openArtifact(from, name, version = 0) {
  const options = { detail: { name, version }, bubbles: true, composed: true };
  from?.dispatchEvent(new CustomEvent("midrun-artifact", options));
}

export class Artifacts extends StoreElement {
  static ignoresLive = true;

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
      .preview {
        max-height: 300px;
        padding: 10px 12px;
        border: 1px solid var(--line);
        border-radius: 8px;
        background: var(--bg);
      }
    `,
  ];

  constructor() {
    super();
    this._loader = new FileLoader(this);
    /** @type {Artifact | null} the version that the preview shows */
    this._previewed = null;
    /** @type {"" | "start" | "end"} where the preview is to be scrolled, because its content was replaced */
    this._scrollTarget = "";
    this._followedTo = 0; // where we have scrolled it to
  }

  /**
   * Return the newest version; while it is being loaded, the one before, so that the panel keeps
   * its height.
   * @param {import("./run-store.js").RunStore} store @param {Artifact} newest
   */
  _choosePreviewed(store, newest) {
    const before = this._previewed;
    if (before?.file.hash === newest.file.hash) return newest;
    const isLoaded = previewKind(newest.file) === "none" || this._loader.read(store, newest.file) !== null;
    // This element may show another run by now.
    const isOfRun = this.view?.artifacts.some(({ file }) => file.hash === before?.file.hash);
    if (before && isOfRun && !isLoaded) return before;
    if (before?.name !== newest.name) this._scrollTarget = "start";
    else if (previewKind(newest.file) === "markdown" && !this._isScrolled()) this._scrollTarget = "end";
    this._previewed = newest;
    return newest;
  }

  /** Whether the viewer has scrolled the preview. A finger leaves no pointer on it. */
  _isScrolled() {
    const box = this.renderRoot.querySelector(".preview");
    return box !== null && Math.abs(box.scrollTop - this._followedTo) > 1;
  }

  /** Show the end of a document that has grown, unless the viewer reads it. */
  updated() {
    const [box, target] = [this.renderRoot.querySelector(".preview"), this._scrollTarget];
    this._scrollTarget = "";
    const isRead = this.view?.phase !== "running" || box?.matches(":hover, :focus-within");
    if (!box || !target || (target === "end" && isRead)) return;
    box.scrollTop = target === "end" ? box.scrollHeight : 0;
    this._followedTo = box.scrollTop;
  }

  render() {
    const { store } = this;
    const groups = groupVersions(this.view?.artifacts ?? []);
    if (!store || !this.setShown(groups.size > 0)) return nothing;
    const newest = this._choosePreviewed(store, /** @type {Artifact} */ (this.view?.artifacts.at(-1)));
    const hasPreview = previewKind(newest.file) !== "none";
    return html`<section class="panel" aria-labelledby="title">
      <h2 id="title">Artifacts</h2>
      <ul>
        ${repeat(groups, ([name]) => name, ([name, versions]) => this._renderLine(name, versions))}
      </ul>
      ${hasPreview
        ? html`<div class="preview" tabindex="0" role="region" aria-label=${`Preview of ${newest.name}`}>
            ${renderPreview(newest.file, this._loader.read(store, newest.file))}
          </div>`
        : nothing}
      ${this.error ? html`<p data-tone="stop" role="alert">${this.error}</p>` : nothing}
    </section>`;
  }

  /** @param {string} name @param {Artifact[]} versions */
  _renderLine(name, versions) {
    const { file, at } = versions[versions.length - 1];
    const count = versions.length > 1 ? `${formatCount(versions.length, "version")} · ` : "";
    return html`<li>
      <button class="link" aria-haspopup="dialog" @click=${() => openArtifact(this, name)}>${name}</button>
      <span class="dim">${count}${formatSize(file.size)} · ${formatTimeOfDay(at)}</span>
      ${isPdf(file)
        ? html`<button class="link" aria-label=${`Open ${name} in a new tab`} @click=${() => void this._open(file)}>Open</button>`
        : nothing}
      ${previewKind(file) === "none"
        ? html`<button class="link" aria-label=${`Download ${name}`} @click=${() => void this._download(file)}>Download</button>`
        : nothing}
    </li>`;
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
}

customElements.define("midrun-artifacts", Artifacts);
