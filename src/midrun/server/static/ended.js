// @ts-check
/** What may be done with a run that is over: again, further, or take the report along. */
import { nothing } from "./lit.js";
import { html } from "./template.js";

/** @typedef {import("./controls.js").MidrunControls} MidrunControls */
/** @typedef {import("./shapes.js").Run} Run */

/** @param {MidrunControls} bar @param {Run} run */
export function endButtons(bar, run) {
  const { pause } = run.controls;
  const acts = run.role !== "viewer";
  return html`<div class="row">
    ${pause.command === "retry_undo"
      ? html`<button
          class="main"
          id="retry"
          ?disabled=${!pause.enabled}
          title=${pause.consequence}
          @click=${() => void bar._send("retry_undo")}
        >
          ${pause.label}
        </button>`
      : nothing}
    ${acts
      ? html`<button id="again" class=${pause.command === "retry_undo" ? "" : "main"} @click=${() => void again(bar, run)}>
            Run again
          </button>
          <button
            id="fork"
            aria-expanded=${String(bar.sheet === "fork")}
            @click=${() => (bar.sheet = "fork")}
          >
            Continue from here…
          </button>`
      : nothing}
    <button @click=${() => void copy(bar, run)}>
      ${run.phase === "completed" ? "Copy result" : "Copy report"}
    </button>
  </div>`;
}

/** Start the same task anew. @param {MidrunControls} bar @param {Run} run */
async function again(bar, run) {
  const body = { agent: run.agent, input: run.task, labels: run.labels, thread_id: run.thread };
  const made = await bar.attempt(async () => bar.store?.api.post("/v1/runs", body));
  if (made) bar.open(made.run_id);
}

/** @param {MidrunControls} bar @param {Run} run */
async function copy(bar, run) {
  const text = await bar.attempt(async () =>
    run.phase === "completed" ? run.output : bar.store?.api.markdown(`${bar.store.path}/report`),
  );
  if (text) bar.notice = (await copied(text)) ? "Copied." : "The browser does not let us copy.";
}

/** Put text on the clipboard; tell whether that was allowed. @param {string} text */
export async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
