// @ts-check
/**
 * The script that a page loads. It defines `<midrun-run>`, `<midrun-controls>` and `<midrun-runs>`.
 *
 *     <script type="module" src="https://host/static/midrun.js"></script>
 *     <midrun-run run="run_…"></midrun-run>
 */
import "./controls.js";
import "./run.js";
import "./runs-list.js";
