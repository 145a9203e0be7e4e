// @ts-check
/** A form for the arguments of a call: one field for each argument, by the type of its value. */
import { css, live } from "./lit.js";
import { editable, exact, html } from "./template.js";

/** @typedef {Record<string, unknown>} Args */
/** @typedef {"check" | "number" | "line" | "text" | "json"} FieldKind */

/** Longer texts get a larger field. */
const ONE_LINE_MAX_CHARS = 60;

export const formStyle = css`
  .arguments {
    display: grid;
    gap: 8px;
  }
  .arguments label {
    display: grid;
    gap: 3px;
    font-weight: 600;
  }
  .arguments label.check {
    display: flex;
    align-items: center;
    gap: 8px;
  }
  .arguments textarea.json {
    font: 12.5px var(--mono);
  }
  .arguments :invalid {
    border-color: var(--stop);
  }
`;

/** Tell whether arguments can be edited as fields. @param {unknown} args */
export const isEditable = (args) =>
  typeof args === "object" && args !== null && !Array.isArray(args) && Object.keys(args).length > 0;

/**
 * Return the kind of field for a value. A value that has no field of its own, and a text with
 * hidden characters, is edited as JSON, where each of them is an escape.
 * @param {unknown} value @returns {FieldKind}
 */
function chooseField(value) {
  if (typeof value === "boolean") return "check";
  if (typeof value === "number") return "number";
  if (typeof value !== "string" || exact(value) !== value) return "json";
  return value.length > ONE_LINE_MAX_CHARS || value.includes("\n") ? "text" : "line";
}

/**
 * Render the form. `kinds` keeps the kind of each field from the first time that it is rendered:
 * another element would take the focus from a person who types.
 * @param {Args} args @param {Map<string, FieldKind>} kinds @param {(args: Args) => void} change
 */
export function renderArgumentForm(args, kinds, change) {
  const set = (/** @type {string} */ key) => (/** @type {unknown} */ value) => change({ ...args, [key]: value });
  return html`<div class="arguments">
    ${Object.entries(args).map(([key, value]) => {
      const kind = kinds.get(key) ?? chooseField(value);
      kinds.set(key, kind);
      return renderField(key, kind, value, set(key));
    })}
  </div>`;
}

/** @param {string} key @param {FieldKind} kind @param {unknown} value @param {(value: unknown) => void} set */
function renderField(key, kind, value, set) {
  const label = exact(key);
  const read = (/** @type {Event} */ event) => /** @type {HTMLInputElement} */ (event.target);
  if (kind === "check") {
    return html`<label class="check">
      <input type="checkbox" .checked=${live(Boolean(value))} @change=${(/** @type {Event} */ event) => set(read(event).checked)} />
      ${label}
    </label>`;
  }
  if (kind === "number") return renderNumberField(label, value, set);
  if (kind === "json") return renderJsonField(label, value, set);
  const onInput = (/** @type {Event} */ event) => set(read(event).value);
  return html`<label
    >${label}
    ${kind === "text"
      ? html`<textarea rows="4" .value=${live(String(value))} @input=${onInput}></textarea>`
      : html`<input type="text" .value=${live(String(value))} @input=${onInput} />`}
  </label>`;
}

/**
 * Render a field for a number. The value is only its first content: "1.0" on the way to "1.05" is
 * the number 1, and writing that back would remove what was typed.
 * @param {string} label @param {unknown} value @param {(value: unknown) => void} set
 */
function renderNumberField(label, value, set) {
  return html`<label
    >${label}
    <input type="number" step="any" required .defaultValue=${live(String(value))} @input=${(/** @type {Event} */ { target }) => {
      const field = /** @type {HTMLInputElement} */ (target);
      const { value: text, valueAsNumber } = field;
      const isRounded = Number.isInteger(valueAsNumber) && !Number.isSafeInteger(valueAsNumber);
      field.setCustomValidity(isRounded ? "This number has too many digits." : "");
      if (text && !isRounded) set(valueAsNumber);
    }} />
  </label>`;
}

/** @param {string} label @param {unknown} value @param {(value: unknown) => void} set */
function renderJsonField(label, value, set) {
  return html`<label
    >${label}, as JSON
    <textarea
      class="json"
      rows="2"
      .defaultValue=${live(editable(value))}
      @input=${(/** @type {Event} */ { target }) => {
        const field = /** @type {HTMLTextAreaElement} */ (target);
        try {
          set(JSON.parse(field.value));
          field.setCustomValidity("");
        } catch {
          field.setCustomValidity("This is not JSON.");
        }
      }}
    ></textarea>
  </label>`;
}

/** Return the label of the first field whose text cannot be used, else "". @param {ParentNode} root */
export function findInvalidField(root) {
  const field = /** @type {HTMLInputElement | null} */ (root.querySelector(".arguments :invalid"));
  return field?.labels?.[0]?.textContent?.trim() ?? (field ? "A field" : "");
}

/** Render the button that switches between fields and JSON. @param {boolean} isRaw @param {() => void} toggle */
export const renderRawToggle = (isRaw, toggle) =>
  html`<button class="link" @click=${toggle}>${isRaw ? "Edit as fields" : "Edit as JSON"}</button>`;
