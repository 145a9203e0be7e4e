// @ts-check
/** The actions on a finished run: retry its undo, run it again, fork it, copy its report. */
import { nothing } from "./lit.js";
import { copyToClipboard } from "./store-element.js";
import { html } from "./template.js";

/** @typedef {import("./controls.js").MidrunControls} MidrunControls */
/** @typedef {import("./run-store.js").Run} Run */

/** @param {MidrunControls} bar @param {Run} run */
export function renderFinishedActions(bar, run) {
  const { pause } = run.controls;
  const mayAct = run.role !== "viewer";
  return html`<div class="row finished">
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
    ${mayAct
      ? html`<button id="again" class=${pause.command === "retry_undo" ? "" : "main"} @click=${() => void runAgain(bar, run)}>
            Run again
          </button>
          <button
            id="fork"
            @click=${() => bar.openComposer(false)}
          >
            Continue<span class="more"> from here</span>…
          </button>`
      : nothing}
    <button @click=${() => void copyResult(bar, run)}>
      ${run.phase === "completed" ? "Copy result" : "Copy report"}
    </button>
  </div>`;
}

/** Start a new run of the same agent with the same task. @param {MidrunControls} bar @param {Run} run */
async function runAgain(bar, run) {
  const body = { agent: run.agent, input: run.task, labels: run.labels, thread_id: run.thread };
  const started = await bar.attempt(async () => bar.store?.api.post("/v1/runs", body));
  if (started) bar.openRun(started.run_id);
}

/** Copy the output of a completed run, the report of a cancelled one. @param {MidrunControls} bar @param {Run} run */
async function copyResult(bar, run) {
  const text = await bar.attempt(async () =>
    run.phase === "completed" ? run.output : bar.store?.api.getMarkdown(`${bar.store.path}/report`),
  );
  if (text) bar.notice = (await copyToClipboard(text)) ? "Copied." : "The browser does not allow copying.";
}
