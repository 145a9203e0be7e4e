// @ts-check
/**
 * The script that a page loads. It defines the elements, each of which shows one run or all runs:
 *
 *     <script type="module" src="https://host/static/midrun.js"></script>
 *     <midrun-run run="run_…"></midrun-run>
 *
 * `midrun.d.ts` has their types. The package `@midrun/elements` is this folder, see package.json.
 */
export { signIn, signOut } from "./api.js";
export { Asks as MidrunAsks } from "./asks.js";
export { MidrunControls } from "./controls.js";
export { ReportPanel as MidrunReport } from "./report.js";
export { MidrunRun } from "./run.js";
export { MidrunRuns } from "./runs-list.js";
export { MidrunTranscript } from "./transcript.js";
