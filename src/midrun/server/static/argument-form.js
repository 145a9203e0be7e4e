// @ts-check
/**
 * A form for the arguments of a call: one field for each argument.
 *
 * The kind of a field follows from the JSON Schema of the tool, where the server knows it, and
 * else from the value. Objects are groups of fields, lists have one item per line or per group.
 * JSON is left for values of which neither tells the kind, and for texts with hidden characters.
 */
import { css, live, nothing } from "./lit.js";
import { humanizeName } from "./call-text.js";
import { editable, exact, html } from "./template.js";

/** @typedef {Record<string, unknown>} Args */
/** @typedef {"check" | "choice" | "number" | "line" | "text" | "lines" | "group" | "groups" | "json"} FieldKind */
/**
 * The parts of a JSON Schema that a form needs.
 * @typedef {{type?: string | string[], enum?: unknown[], properties?: Record<string, Schema>,
 *   required?: string[], items?: Schema, anyOf?: Schema[], $ref?: string,
 *   $defs?: Record<string, Schema>, description?: string, default?: unknown}} Schema
 */
/**
 * `isOptional`: an empty field leaves the argument out. `path` names the field within the form.
 * @typedef {{path: string, label: string, value: unknown, schema: Schema, isOptional: boolean,
 *   set: (value: unknown) => void}} Field
 */

/** Longer texts get a larger field. */
const ONE_LINE_MAX_CHARS = 60;
/** Names of arguments that are usually long texts; their fields are large from the start. */
const LONG_NAMES = /body|content|text|message|description|instruction|prompt|markdown|code|query_?sql/i;

export const formStyle = css`
  .arguments,
  .arguments fieldset {
    display: grid;
    gap: 10px;
  }
  .arguments fieldset {
    padding: 8px 10px 10px;
    border: 1px solid var(--line);
    border-radius: 8px;
  }
  .arguments label,
  .arguments legend {
    font-weight: 600;
  }
  .arguments label {
    display: grid;
    gap: 3px;
  }
  .arguments small {
    color: var(--dim);
    font-size: 12.5px;
    font-weight: 400;
  }
  .arguments label.check {
    display: flex;
    align-items: center;
    gap: 8px;
  }
  .arguments textarea.json {
    font: 12.5px var(--mono);
  }
  .arguments textarea {
    field-sizing: content;
    max-height: 320px;
  }
  .arguments :is(input, textarea, select):invalid {
    border-color: var(--stop);
  }
  .arguments .link {
    justify-self: start;
  }
`;

/** Tell whether arguments can be edited as fields. @param {unknown} args */
export const isEditable = (args) => isObject(args) && Object.keys(args).length > 0;

/** @param {unknown} value @returns {value is Args} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Return the arguments with which a form for a schema begins. @param {Schema} schema @returns {Args} */
export function startArguments(schema) {
  const names = Object.keys(schema.properties ?? {});
  return Object.fromEntries(names.map((name) => [name, startValue(resolve(schema.properties?.[name], schema), schema)]));
}

/** Return the arguments without those that were left empty. @param {Args} args */
export const withoutEmpty = (args) => Object.fromEntries(Object.entries(args).filter(([, value]) => value !== undefined));

/** @param {Schema} schema @param {Schema} root @returns {unknown} */
function startValue(schema, root) {
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (typeOf(schema) === "boolean") return false;
  if (typeOf(schema) === "object" && schema.properties) return startArguments({ ...schema, $defs: root.$defs });
  return undefined;
}

/** Return a schema without its reference, or its choice between null and one type. @param {Schema | undefined} schema @param {Schema} root @returns {Schema} */
function resolve(schema, root) {
  const { $ref, anyOf, ...own } = schema ?? {};
  const named = $ref?.startsWith("#/$defs/") ? root.$defs?.[$ref.slice("#/$defs/".length)] : undefined;
  if (named) return { ...resolve(named, root), ...own };
  const kinds = anyOf?.filter(({ type }) => type !== "null") ?? [];
  return kinds.length === 1 ? { ...resolve(kinds[0], root), ...own } : { anyOf, ...own };
}

/** @param {Schema} schema */
function typeOf({ type }) {
  const types = (Array.isArray(type) ? type : [type]).filter((one) => one !== "null");
  return types.length === 1 ? types[0] : undefined;
}

/** @param {unknown} value */
const isPlainText = (value) => typeof value === "string" && exact(value) === value;

/** Return the kind of field for a value. @param {Field} field @returns {FieldKind} */
function chooseField({ value, schema, path }) {
  if (schema.enum?.length && (value === undefined || schema.enum.includes(value))) return "choice";
  if (typeof value === "boolean") return "check";
  if (typeof value === "number") return "number";
  if (isPlainText(value)) return chooseTextField(String(value), path);
  if (Array.isArray(value)) return chooseListField(value, schema);
  if (isObject(value)) return Object.keys(value).length ? "group" : "json";
  if (value !== undefined && value !== null) return "json";
  return chooseEmptyField(schema, path);
}

/** @param {string} text @param {string} path @returns {FieldKind} */
const chooseTextField = (text, path) =>
  text.length > ONE_LINE_MAX_CHARS || text.includes("\n") || (!text && LONG_NAMES.test(path)) ? "text" : "line";

/** @param {unknown[]} values @param {Schema} schema @returns {FieldKind} */
function chooseListField(values, { items = {} }) {
  const areLines = values.every((one) => (isPlainText(one) && !String(one).includes("\n")) || typeof one === "number");
  if (areLines && (values.length || ["string", "number", "integer"].includes(typeOf(items) ?? ""))) return "lines";
  return values.length && values.every(isEditable) ? "groups" : "json";
}

/** Return the kind of field for an argument without a value. @param {Schema} schema @param {string} path @returns {FieldKind} */
function chooseEmptyField(schema, path) {
  switch (typeOf(schema)) {
    case "string":
      return chooseTextField("", path);
    case "number":
    case "integer":
      return "number";
    case "array":
      return chooseListField([], schema);
    default:
      return "json";
  }
}

/**
 * Render the form. `kinds` keeps the kind of each field from the first time that it is rendered:
 * another element would take the focus from a person who types.
 * @param {Args} args @param {Map<string, FieldKind>} kinds @param {(args: Args) => void} change
 * @param {Schema} [schema] of the arguments
 */
export function renderArgumentForm(args, kinds, change, schema = {}) {
  return html`<div class="arguments">${new Form(kinds, schema).renderObject(args, schema, "", change)}</div>`;
}

class Form {
  #kinds;
  #root;

  /** @param {Map<string, FieldKind>} kinds @param {Schema} root */
  constructor(kinds, root) {
    this.#kinds = kinds;
    this.#root = root;
  }

  /** Render the fields of an object, in the order of its schema. @param {Args} args @param {Schema} schema @param {string} path @param {(args: Args) => void} change @returns {unknown[]} */
  renderObject(args, schema, path, change) {
    const names = [...new Set([...Object.keys(schema.properties ?? {}).filter((name) => name in args), ...Object.keys(args)])];
    return names.map((name) =>
      this.#renderField({
        path: `${path}/${name}`,
        label: /^[a-z]\w*$/i.test(name) ? humanizeName(name) : exact(name),
        value: args[name],
        schema: resolve(schema.properties?.[name], this.#root),
        isOptional: Boolean(schema.properties?.[name]) && !schema.required?.includes(name),
        set: (value) => change({ ...args, [name]: value }),
      }),
    );
  }

  /** @param {Field} field @returns {unknown} */
  #renderField(field) {
    const { path, label, value, schema, set } = field;
    const kind = this.#kinds.get(path) ?? chooseField(field);
    this.#kinds.set(path, kind);
    const hint = schema.description ? html`<small>${schema.description}</small>` : nothing;
    switch (kind) {
      case "group":
        return html`<fieldset>
          <legend>${label}</legend>
          ${hint}${this.renderObject(/** @type {Args} */ (value), schema, path, set)}
        </fieldset>`;
      case "groups":
        return this.#renderGroups(field, /** @type {Args[]} */ (value));
      case "check":
        return html`<label class="check">
            <input type="checkbox" .checked=${live(Boolean(value))} @change=${(/** @type {Event} */ event) => set(read(event).checked)} />
            ${label}
          </label>
          ${hint}`;
      case "json":
        return html`<label>${label}, as JSON ${hint} ${renderJsonField(field)}</label>`;
      default:
        return html`<label>${label} ${hint} ${renderInput(kind, field)}</label>`;
    }
  }

  /** Render a list of objects. @param {Field} field @param {Args[]} items @returns {unknown} */
  #renderGroups({ path, label, schema, set }, items) {
    const itemSchema = resolve(schema.items, this.#root);
    return html`<fieldset>
      <legend>${label}</legend>
      ${items.map(
        (item, at) => html`<fieldset>
          <legend>${at + 1}</legend>
          ${this.renderObject(item, itemSchema, `${path}/${at}`, (next) => set(items.with(at, next)))}
          <button type="button" class="link" @click=${() => set(items.toSpliced(at, 1))}>Remove</button>
        </fieldset>`,
      )}
    </fieldset>`;
  }
}

/** @param {Event} event */
const read = (event) => /** @type {HTMLInputElement} */ (event.target);

/** @param {FieldKind} kind @param {Field} field */
function renderInput(kind, field) {
  const { value, schema, isOptional, set } = field;
  if (kind === "number") return renderNumberField(field);
  if (kind === "choice") return renderChoice(field);
  if (kind === "lines") return renderLines(field);
  const text = typeof value === "string" ? value : "";
  const onInput = (/** @type {Event} */ event) => set(read(event).value || (isOptional && schema.default === undefined ? undefined : ""));
  return kind === "text"
    ? html`<textarea rows="4" .value=${live(text)} @input=${onInput}></textarea>`
    : html`<input type="text" .value=${live(text)} @input=${onInput} />`;
}

/** Render the choice between the values of an `enum`. @param {Field} field */
function renderChoice({ value, schema, set }) {
  const values = schema.enum ?? [];
  const onChange = (/** @type {Event} */ event) => {
    const { selectedIndex } = /** @type {HTMLSelectElement} */ (event.target);
    set(values[selectedIndex - (value === undefined ? 1 : 0)]);
  };
  return html`<select @change=${onChange}>
    ${value === undefined ? html`<option selected></option>` : nothing}
    ${values.map((one) => html`<option .selected=${one === value}>${exact(String(one))}</option>`)}
  </select>`;
}

/** Render a list of texts or numbers, one per line. @param {Field} field */
function renderLines({ value, schema, isOptional, set }) {
  const isNumber = /^(number|integer)$/.test(typeOf(schema.items ?? {}) ?? "") || (Array.isArray(value) && value.some((one) => typeof one === "number"));
  const lines = Array.isArray(value) ? value : [];
  return html`<textarea
      rows=${Math.min(Math.max(lines.length, 2), 8)}
      .defaultValue=${live(lines.join("\n"))}
      @input=${(/** @type {Event} */ event) => {
        const field = read(event);
        const texts = field.value.split("\n").filter((line) => line.trim());
        const items = isNumber ? texts.map(Number) : texts;
        const isWrong = isNumber && items.some((one) => !Number.isFinite(one));
        field.setCustomValidity(isWrong ? "Enter one number per line." : "");
        if (!isWrong) set(items.length || !isOptional ? items : undefined);
      }}
    ></textarea>
    <small>One per line</small>`;
}

/**
 * Render a field for a number. The value is only its first content: "1.0" on the way to "1.05" is
 * the number 1, and writing that back would remove what was typed.
 * @param {Field} field
 */
function renderNumberField({ value, schema, isOptional, set }) {
  return html`<input
    type="number"
    step=${typeOf(schema) === "integer" ? "1" : "any"}
    ?required=${!isOptional}
    .defaultValue=${live(value === undefined || value === null ? "" : String(value))}
    @input=${(/** @type {Event} */ event) => {
      const input = read(event);
      const { value: text, valueAsNumber } = input;
      const isRounded = Number.isInteger(valueAsNumber) && !Number.isSafeInteger(valueAsNumber);
      input.setCustomValidity(isRounded ? "This number has too many digits." : "");
      if (text && !isRounded) set(valueAsNumber);
      else if (!text && isOptional) set(undefined);
    }}
  />`;
}

/** @param {Field} field */
function renderJsonField({ value, isOptional, set }) {
  return html`<textarea
    class="json"
    rows="2"
    .defaultValue=${live(value === undefined ? "" : editable(value))}
    @input=${(/** @type {Event} */ event) => {
      const field = read(event);
      try {
        set(!field.value.trim() && isOptional ? undefined : JSON.parse(field.value));
        field.setCustomValidity("");
      } catch {
        field.setCustomValidity("This is not JSON.");
      }
    }}
  ></textarea>`;
}

/** Return the label of the first field whose text cannot be used, else "". @param {ParentNode} root */
export function findInvalidField(root) {
  const field = /** @type {HTMLInputElement | null} */ (root.querySelector(".arguments :is(input, textarea, select):invalid"));
  return field?.labels?.[0]?.firstChild?.textContent?.trim() || field?.labels?.[0]?.textContent?.trim() || (field ? "A field" : "");
}

/** Render the button that switches between fields and JSON. @param {boolean} isRaw @param {() => void} toggle */
export const renderRawToggle = (isRaw, toggle) =>
  html`<button type="button" class="link" @click=${toggle}>${isRaw ? "Edit as fields" : "Edit as JSON"}</button>`;
