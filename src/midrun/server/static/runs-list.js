// @ts-check
/**
 * `<midrun-runs>`: the list of a server's runs; those that need a person come first.
 *
 * Attributes: `base` (URL of the server; by default the one that the script came from) and `token`
 * (by default the browser's session is used). Events: `midrun-open` (a run was chosen; unless its
 * default is prevented, the browser goes to the page of the run), `midrun-title` (a title for the
 * page), `midrun-news` (a run needs a person, has failed or is completed), `midrun-started`,
 * `midrun-sent`, `midrun-signed-out`. Slots: `actions` (beside the buttons above the list) and
 * `empty` (shown while there are no runs).
 */
import { nothing, repeat } from "./lit.js";
import { DEFAULT_BASE, Problem } from "./api.js";
import { FocusElement } from "./focus-element.js";
import { STATUS_STYLES, formatAge, formatCount, formatDate, formatDuration, formatMoney, formatShortId, formatStatus } from "./format.js";
import { icon } from "./icons.js";
import { NewsDetector } from "./notifications.js";
import { RunsStore } from "./runs-store.js";
import { style } from "./runs-style.js";
import { theme } from "./theme.js";
import "./halt.js";
import "./new-run.js";
import { html } from "./template.js";

/** @typedef {import("./runs-store.js").RunRow} RunRow */
/** @typedef {"all" | "attention" | "running" | "paused" | "finished"} FilterName */

/** A button that has just changed its meaning ignores presses for so long: they meant the old one. */
const PRESS_DELAY_MS = 400;
/** The server is asked when the user has not typed for so long. */
const SEARCH_DELAY_MS = 200;

/** The order of the list: rows by `attention`, then by phase, then the rest by start time. */
const ATTENTION_ORDER = ["ask", "cap", "residue"];
const PHASE_ORDER = ["paused", "halted", "pausing", "cancelling", "running", "queued", "failed"];

/** @type {Record<FilterName, {label: string, fits: (row: RunRow) => boolean}>} */
const FILTERS = {
  all: { label: "All", fits: () => true },
  attention: { label: "Needs you", fits: ({ needs_you }) => needs_you },
  running: { label: "Running", fits: hasPhase("queued", "running", "pausing", "cancelling") },
  paused: { label: "Paused", fits: hasPhase("paused", "halted") },
  finished: { label: "Finished", fits: hasPhase("completed", "cancelled", "failed") },
};

export class MidrunRuns extends FocusElement {
  static properties = {
    base: { type: String },
    token: { type: String },
    _filter: { state: true },
    _agent: { state: true },
    _found: { state: true },
    _sheet: { state: true },
    _announcement: { state: true },
  };

  constructor() {
    super();
    this.base = DEFAULT_BASE;
    this.token = "";
    /** @type {FilterName} */
    this._filter = "all";
    this._agent = ""; // only the runs of this agent are shown; "": of every one
    this._search = "";
    /** The ids of the runs that the search found; null without a search. @type {Set<string> | null} */
    this._found = null;
    /** @type {"" | "pause" | "new" | "halt"} */
    this._sheet = "";
    this._announcement = "";
    /** By run: why its last command failed. @type {Map<string, Problem>} */
    this._problems = new Map();
    /** By run: the label of its button, and since when. @type {Map<string, {label: string, at: number}>} */
    this._labels = new Map();
    /** @type {RunsStore | null} */
    this._store = null;
    this._title = "";
    this._newsDetector = new NewsDetector();
    this._onChange = () => this.requestUpdate();
    this._onReconnect = () => this.#dropUnanswered();
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this._tick = undefined;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this._searchTimer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    this.#acquireStore();
    this._tick = setInterval(this._onChange, 1000);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearInterval(this._tick);
    clearTimeout(this._searchTimer);
    this.#releaseStore();
  }

  /** @param {import("./lit.js").Changed} changed */
  willUpdate(changed) {
    const isOtherServer = this.hasUpdated && (changed.has("base") || changed.has("token"));
    if (!isOtherServer || !this.isConnected) return;
    this.#releaseStore();
    this.#acquireStore();
  }

  #acquireStore() {
    this._store = RunsStore.acquire(this.base, this.token);
    this._store.addEventListener("change", this._onChange);
    this._store.addEventListener("reconnected", this._onReconnect);
  }

  #releaseStore() {
    this._store?.removeEventListener("change", this._onChange);
    this._store?.removeEventListener("reconnected", this._onReconnect);
    this._store?.release();
    this._store = null;
  }

  updated() {
    const store = this._store;
    if (!store) return;
    if (store.isSignedOut) this.emit("midrun-signed-out", null);
    const count = store.rows.filter(FILTERS.attention.fits).length;
    const title = count ? `(${count}) Runs` : "Runs";
    if (title !== this._title) this.emit("midrun-title", (this._title = title));
    for (const { run_id, phase, attention, parent, task, status } of store.rows) {
      if (!parent && this._newsDetector.isNews(run_id, phase, attention === "cap")) {
        this.emit("midrun-news", { run: run_id, word: status.word, task });
      }
    }
  }

  render() {
    const store = this._store;
    if (!store) return nothing;
    const filter = this._filter;
    const found = this._found;
    const fitting = store.rows.filter((row) => FILTERS[filter].fits(row) && (!found || found.has(row.run_id)));
    const shown = nestRows(fitting.filter(({ agent }) => !this._agent || agent === this._agent).sort(compareRows));
    return html`
      <div class="head row">
        <h1 tabindex="-1">Runs</h1>
        ${this.#renderConnection()}
        <span class="actions row"><slot name="actions"></slot>${this.#renderActions()}</span>
      </div>
      <midrun-halts
        .store=${store}
        @midrun-lifted=${(/** @type {CustomEvent<string>} */ { detail }) =>
          (this._announcement = `Lifted the halt: ${detail}.`)}
      ></midrun-halts>
      ${this.#renderSheet()}
      <p class="announcement" role="status">${this._announcement}</p>
      ${store.rows.length ? this.#renderFilters() : nothing}
      ${store.rows.length ? this.#renderTable(shown) : this.#renderEmpty()}
      ${store.olderCursor && !found && ["all", "finished"].includes(filter)
        ? html`<button class="older" @click=${() => store.loadOlder()}>Show older runs</button>`
        : nothing}
    `;
  }

  #renderConnection() {
    const store = this._store;
    if (!store?.lostAt) return nothing;
    const since = store.lostAt.toLocaleTimeString();
    return html`<span class="badge lost" data-tone="dim" data-border="dashed">Connection lost</span>
      <span class="dim">as of ${since}; runs may still be working. Reconnecting.</span>`;
  }

  #renderActions() {
    const store = this._store;
    if (!store?.hasRole("user")) return nothing;
    const pausable = store.pausableRows();
    return html`
      <button
        id="pause"
        ?disabled=${!pausable.length}
        aria-expanded=${this._sheet === "pause"}
        @click=${() => this.#toggle("pause")}
      >
        Pause all
      </button>
      ${store.hasRole("operator")
        ? html`<button id="halt" aria-expanded=${this._sheet === "halt"} @click=${() => this.#toggle("halt")}>
            Halt…
          </button>`
        : nothing}
      <button id="new" class="main" aria-expanded=${this._sheet === "new"} @click=${() => this.#toggle("new")}>
        New run
      </button>
    `;
  }

  /** @param {"pause" | "new" | "halt"} name */
  #toggle(name) {
    this._sheet = this._sheet === name ? "" : name;
    this._announcement = "";
  }

  /** Close the open sheet; the focus returns to the button that opened it. */
  async #close() {
    const opener = this._sheet;
    if (!opener) return;
    this._sheet = "";
    await this.updateComplete;
    /** @type {HTMLElement | null} */ (this.renderRoot.querySelector(`#${opener}`))?.focus();
  }

  #renderSheet() {
    const close = () => this.#close();
    switch (this._sheet) {
      case "pause":
        return this.#renderPauseSheet();
      case "new":
        return html`<midrun-new-run
          .store=${this._store}
          @midrun-done=${close}
          @midrun-started=${() => (this._announcement = "Started.")}
        ></midrun-new-run>`;
      case "halt":
        return html`<midrun-halt-sheet .store=${this._store} @midrun-done=${close}></midrun-halt-sheet>`;
      default:
        return nothing;
    }
  }

  #renderPauseSheet() {
    const runs = formatCount(this._store?.pausableRows().length ?? 0, "run");
    return html`<section class="panel sheet" aria-label="Pause all">
      <p>
        <strong>Pause ${runs}?</strong> Each stops as soon as it can and keeps all its work.
        A paused run spends nothing and can be resumed.
      </p>
      <div class="row">
        <button class="main" @click=${this.#pauseAll}>Pause ${runs}</button>
        <button @click=${() => this.#close()}>Back</button>
      </div>
    </section>`;
  }

  #pauseAll = async () => {
    const store = this._store;
    this._sheet = "";
    if (!store) return;
    const rows = store.pausableRows();
    this._announcement = `Pausing ${formatCount(rows.length, "run")} …`;
    const refused = await store.pauseAll(rows);
    this._announcement =
      `Asked ${formatCount(rows.length - refused, "run")} to pause.` +
      (refused ? ` ${formatCount(refused, "run")} could not be paused any more.` : "");
  };

  #renderFilters() {
    const rows = this._store?.rows ?? [];
    const names = /** @type {FilterName[]} */ (Object.keys(FILTERS));
    return html`<div class="row chips" role="group" aria-label="Which runs to show">
      ${names.map(
        (name) =>
          html`<button
            class="chip"
            aria-pressed=${this._filter === name}
            @click=${() => (this._filter = name)}
          >
            ${FILTERS[name].label} <span class="mono">${rows.filter(FILTERS[name].fits).length}</span>
          </button>`,
      )}
      <input
        type="search"
        class="search"
        placeholder="Search runs"
        aria-label="Search runs by task, agent, label or result"
        maxlength="500"
        @input=${this.#onSearchInput}
      />
      ${this.#renderAgentFilter(rows)}
    </div>`;
  }

  #onSearchInput = (/** @type {Event} */ event) => {
    this._search = /** @type {HTMLInputElement} */ (event.target).value.trim();
    clearTimeout(this._searchTimer);
    if (this._search) this._searchTimer = setTimeout(() => void this.#find(this._search), SEARCH_DELAY_MS);
    else this._found = null;
  };

  /** Ask the server; a reply is ignored if the user has typed on. @param {string} text */
  async #find(text) {
    try {
      const found = await this._store?.search(text);
      if (found && text === this._search) this._found = found;
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (text === this._search) this._announcement = `Cannot search: ${error.message}`;
    }
  }

  /** Render the choice of an agent where there are several. @param {RunRow[]} rows */
  #renderAgentFilter(rows) {
    const agents = [...new Set(rows.map(({ agent }) => agent))].sort();
    if (agents.length < 2) return nothing;
    const change = (/** @type {Event} */ event) => {
      this._agent = /** @type {HTMLSelectElement} */ (event.target).value;
    };
    return html`<select class="agents" aria-label="Agent" @change=${change}>
      <option value="" .selected=${!this._agent}>All agents</option>
      ${agents.map((name) => html`<option value=${name} .selected=${name === this._agent}>${name}</option>`)}
    </select>`;
  }

  /** @param {RunRow[]} shown */
  #renderTable(shown) {
    if (!shown.length) return html`<p class="dim no-runs">No runs match this filter${this._found ? " and search" : ""}.</p>`;
    return html`<div class="scroll">
      <table>
        <thead>
          <tr>
            <th scope="col">State</th>
            <th scope="col">Task</th>
            <th scope="col">Started</th>
            <th scope="col">At work</th>
            <th scope="col">Progress</th>
            <th scope="col">Cost</th>
            <th scope="col"><span class="visually-hidden">Quick action</span></th>
          </tr>
        </thead>
        <tbody>
          ${repeat(shown, (row) => row.run_id, (row) => this.#renderRow(row))}
        </tbody>
      </table>
    </div>`;
  }

  /** @param {RunRow} row */
  #renderRow(row) {
    const store = /** @type {RunsStore} */ (this._store);
    const { style, note } = row.status;
    const [tone, border] = STATUS_STYLES[style] ?? ["dim", "solid"];
    const problem = this._problems.get(row.run_id);
    const isNested = row.parent && store.rows.some(({ run_id }) => run_id === row.parent);
    return html`<tr data-run=${row.run_id} class=${isNested ? "child" : ""}>
      <td class="state">
        <span class="badge" data-tone=${tone} data-border=${border}>
          ${icon(style, style === "running")}${formatStatus(row.status, store.session.name)}
        </span>
        <div class="note dim">${note}</div>
      </td>
      <td class="task">
        <a href=${`${this.base}/runs/${row.run_id}`} @click=${(/** @type {MouseEvent} */ event) => this.#open(event, row)}
          >${row.task || "(no task)"}</a
        >
        ${row.output ? html`<div class="preview">${row.output}</div>` : nothing}
        <div class="dim about">
          ${row.agent} · <code title=${row.run_id}>${formatShortId(row.run_id)}</code>${row.parent
            ? html` · part of <code>${formatShortId(row.parent)}</code>`
            : nothing}
        </div>
        ${problem ? html`<div class="problem" role="alert">${problem.message}</div>` : nothing}
      </td>
      <td class="figure" data-label="Started" title=${formatDate(row.started_at)}>${formatStart(row)}</td>
      <td class="figure" data-label="At work">${formatDuration(store.elapsed(row))}</td>
      <td class="figure" data-label="Progress">${row.position || "–"}</td>
      <td class=${row.cost_usd ? "figure" : "figure unknown"} data-label="Cost">${row.cost_usd ? formatMoney(row.cost_usd) : "–"}</td>
      <td class="action">${this.#renderQuickAction(row)}</td>
    </tr>`;
  }

  /** Render the one button of a row: answer, pause or resume. @param {RunRow} row */
  #renderQuickAction(row) {
    const { button } = row;
    const isAsking = row.phase === "waiting" && row.attention === "ask";
    if (isAsking && row.needs_you) {
      const name = `Answer: ${row.task}`;
      return html`<a
        class="button"
        aria-label=${name}
        href=${`${this.base}/runs/${row.run_id}`}
        @click=${(/** @type {MouseEvent} */ event) => this.#open(event, row)}
        >Answer…</a
      >`;
    }
    const role = Object.keys(button.caps).length ? "operator" : "user"; // only operators raise caps
    const isOffered = button.command === "pause" || button.command === "resume";
    if (!button.enabled || !isOffered || !this._store?.hasRole(role)) return nothing;
    const shown = this._labels.get(row.run_id);
    if (shown?.label !== button.label) {
      const at = shown ? performance.now() : -PRESS_DELAY_MS; // the first label counts at once
      this._labels.set(row.run_id, { label: button.label, at });
    }
    return html`<button
      title=${button.consequence}
      aria-label=${`${button.label}: ${row.task}`}
      @click=${() => this.#pressQuickAction(row)}
    >
      ${button.label}
    </button>`;
  }

  /** Announce a run that was chosen, unless its link opens another tab. @param {MouseEvent} event @param {RunRow} row */
  #open(event, row) {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    if (!this.emit("midrun-open", row.run_id)) event.preventDefault();
  }

  /** @param {RunRow} row */
  async #pressQuickAction(row) {
    const shown = this._labels.get(row.run_id);
    if (shown && performance.now() - shown.at < PRESS_DELAY_MS) return;
    this._problems.delete(row.run_id);
    try {
      const { command } = row.button;
      await this._store?.sendCommand(row, row.button);
      this.emit("midrun-sent", { run: row.run_id, control: command, applied: true });
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      this._problems.set(row.run_id, error);
    }
    this.requestUpdate();
  }

  /** Remove the messages that the server did not answer, now that it does. */
  #dropUnanswered() {
    for (const [run, { status }] of this._problems) if (!status) this._problems.delete(run);
  }

  #renderEmpty() {
    if (!this._store?.isLoaded) return html`<p class="dim no-runs">Loading runs …</p>`;
    const mayStart = this._store.hasRole("user");
    return html`<slot name="empty"><section class="empty">
      <h2>No runs yet.</h2>
      <p class="dim">
        A run is one agent at work on one task. You can watch it here, and pause, redirect, ask or cancel it at any time.
      </p>
      ${mayStart && this._sheet !== "new"
        ? html`<button class="main" @click=${() => this.#toggle("new")}>Start the first run</button>`
        : nothing}
      ${mayStart ? html`<p class="dim">From a shell: <code>midrun run app.py "the task"</code></p>` : nothing}
    </section></slot>`;
  }

  static styles = [theme, style];
}

/** @param {...string} phases @returns {(row: RunRow) => boolean} */
function hasPhase(...phases) {
  return (row) => phases.includes(row.phase);
}

/** Return a row's place in the order of the list; smaller comes first. @param {RunRow} row */
function rankOf(row) {
  const attention = ATTENTION_ORDER.indexOf(row.attention);
  if (attention >= 0) return attention;
  const phase = PHASE_ORDER.indexOf(row.phase);
  return ATTENTION_ORDER.length + (phase >= 0 ? phase : PHASE_ORDER.length);
}

/** Compare rows by rank, then by start time, newest first. @param {RunRow} a @param {RunRow} b */
const compareRows = (a, b) => rankOf(a) - rankOf(b) || b.started_at.localeCompare(a.started_at);

/** Put child runs below their parents, where these are shown. @param {RunRow[]} rows in order */
function nestRows(rows) {
  const shown = new Set(rows.map(({ run_id }) => run_id));
  /** @type {Map<string, RunRow[]>} */
  const children = new Map();
  for (const row of rows) {
    if (shown.has(row.parent)) children.set(row.parent, [...(children.get(row.parent) ?? []), row]);
  }
  /** @type {(row: RunRow) => RunRow[]} */
  const expand = (row) => [row, ...(children.get(row.run_id) ?? []).flatMap(expand)];
  return rows.filter(({ parent }) => !shown.has(parent)).flatMap(expand);
}

/** Say how long ago a run was started. @param {RunRow} row */
function formatStart({ started_at }) {
  const seconds = (Date.now() - Date.parse(started_at)) / 1000;
  return seconds < 5 ? "just now" : `${formatAge(seconds)} ago`;
}

customElements.define("midrun-runs", MidrunRuns);
