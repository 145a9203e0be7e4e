// @ts-check
/**
 * Files of a run: their kind of preview, their content, and their download.
 *
 * A file may come from a person, a model or a tool. It is never opened as a document of this
 * origin: text is rendered as text, pictures without scripts are shown as `data:` images, a PDF is
 * handed to the browser's own viewer in another tab, and everything else is a download. The server refuses a request without the proof of the session,
 * so the content is fetched by script and no address of a file stands in the page.
 */
import { Problem } from "./api.js";

/** @typedef {import("./types.js").FileRef} FileRef */
/** @typedef {import("./run-store.js").RunStore} RunStore */
/** @typedef {"image" | "markdown" | "table" | "text" | "none"} PreviewKind */
/**
 * The content of a file for a preview: text (`isCut`: only its beginning) or the address of an
 * image; `problem` says why there is none.
 * @typedef {{text: string, isCut: boolean, url: string, problem: string}} FileContent
 */

/** A longer text is shown up to here. */
const TEXT_MAX_BYTES = 200_000;
/** A larger picture is offered as a download only. */
const IMAGE_MAX_BYTES = 10 * 1024 * 1024;
/** Contents that one element keeps. */
const CONTENTS_MAX = 16;
/** Pictures that cannot have scripts. */
const IMAGE_TYPES = new Set(["image/avif", "image/gif", "image/jpeg", "image/png", "image/webp"]);
const TEXT_TYPES = /^(text\/|application\/(json|xml|x-ndjson|yaml|toml|javascript|sql)$|image\/svg\+xml$)|\+(json|xml)$/;

const PDF_TYPE = "application/pdf";
/** The first bytes of every PDF. */
const PDF_MAGIC = "%PDF-";
/** How long the address of a file is valid that another tab or the disk gets. */
const ADDRESS_VALID_MS = 60_000;

/** Tell whether a file can be opened in another tab. @param {FileRef} file */
export const isPdf = ({ media_type }) => media_type.split(";")[0] === PDF_TYPE;

/** Return a size in the largest unit: "820 bytes", "2.1 kB", "10 MB". @param {number} bytes */
export function formatSize(bytes) {
  if (bytes < 1000) return `${bytes} byte${bytes === 1 ? "" : "s"}`;
  const [size, unit] = bytes < 1_000_000 ? [bytes / 1000, "kB"] : [bytes / 1_000_000, "MB"];
  return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${unit}`;
}

/** Return how a file is shown. @param {FileRef} file @returns {PreviewKind} */
export function previewKind({ name, media_type, size }) {
  const type = media_type.split(";")[0];
  if (IMAGE_TYPES.has(type)) return size <= IMAGE_MAX_BYTES ? "image" : "none";
  if (type === "text/markdown" || (type === "text/plain" && /\.(md|markdown)$/i.test(name))) return "markdown";
  if (type === "text/csv" || type === "text/tab-separated-values") return "table";
  return TEXT_TYPES.test(type) ? "text" : "none";
}

/** Tell whether two versions can be compared line by line. @param {FileRef} a @param {FileRef} b */
export const isComparable = (a, b) =>
  [a, b].every((file) => ["markdown", "table", "text"].includes(previewKind(file)));

/** Fetch a file. @param {RunStore} store @param {FileRef} file @returns {Promise<Blob>} */
async function fetchFile(store, { hash }) {
  const reply = await store.api.getStream(`${store.path}/files/${encodeURIComponent(hash)}`);
  return reply.blob();
}

/** Loads the contents that an element shows, and renders the element again when one has come. */
export class FileLoader {
  #host;
  /** @type {Map<string, FileContent | null>} by kind and hash; null: it is being loaded */
  #contents = new Map();

  /** @param {import("./lit.js").LitElement} host */
  constructor(host) {
    this.#host = host;
  }

  /** Return the content of a file; null while it is being loaded. @param {RunStore} store @param {FileRef} file */
  read(store, file) {
    const key = `${previewKind(file)} ${file.hash}`;
    const known = this.#contents.get(key);
    if (known !== undefined) return known;
    this.#contents.set(key, null);
    if (this.#contents.size > CONTENTS_MAX) this.#contents.delete([...this.#contents.keys()][0]);
    void loadContent(store, file).then((content) => {
      this.#contents.set(key, content);
      this.#host.requestUpdate();
    });
    return null;
  }

  /** Forget the contents that could not be loaded, so that they are tried again. */
  retry() {
    for (const [key, content] of this.#contents) if (content?.problem) this.#contents.delete(key);
    this.#host.requestUpdate();
  }
}

/** @param {RunStore} store @param {FileRef} file @returns {Promise<FileContent>} */
async function loadContent(store, file) {
  const content = { text: "", isCut: false, url: "", problem: "" };
  try {
    const blob = await fetchFile(store, file);
    if (previewKind(file) === "image") return { ...content, url: await readDataUrl(blob, file) };
    return { ...content, text: await blob.slice(0, TEXT_MAX_BYTES).text(), isCut: blob.size > TEXT_MAX_BYTES };
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    return { ...content, problem: error.message };
  }
}

/** Return a picture as a `data:` address of its own type. @param {Blob} blob @param {FileRef} file @returns {Promise<string>} */
function readDataUrl(blob, { media_type }) {
  return new Promise((resolve) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.readAsDataURL(new Blob([blob], { type: media_type.split(";")[0] }));
  });
}

/** Save a file to the viewer's disk. @param {RunStore} store @param {FileRef} file */
export async function downloadFile(store, file) {
  const blob = await fetchFile(store, file);
  const link = document.createElement("a");
  // Without a type the browser saves the bytes under the name, whatever they are.
  link.href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  link.download = file.name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), ADDRESS_VALID_MS);
  return true;
}

/**
 * Open a PDF in another tab. Its address has the type of a PDF whatever the bytes are, so the
 * browser never renders them as a page of this origin; the new tab knows nothing of ours.
 * @param {RunStore} store @param {FileRef} file
 */
export async function openPdf(store, file) {
  const blob = await fetchFile(store, file);
  const start = await blob.slice(0, PDF_MAGIC.length).text();
  if (start !== PDF_MAGIC) throw new Problem({ status: 415, title: `“${file.name}” is not a PDF. Download it instead.` });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([blob], { type: PDF_TYPE }));
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), ADDRESS_VALID_MS);
  return true;
}
