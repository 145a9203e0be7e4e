// Checks that the elements have all the properties that midrun.d.ts declares for them.
import type * as declared from "../../src/midrun/server/static/midrun.js";
import type { Asks } from "../../src/midrun/server/static/asks.js";
import type { MidrunControls } from "../../src/midrun/server/static/controls.js";
import type { ReportPanel } from "../../src/midrun/server/static/report.js";
import type { MidrunRun } from "../../src/midrun/server/static/run.js";
import type { MidrunRuns } from "../../src/midrun/server/static/runs-list.js";
import type { MidrunTranscript } from "../../src/midrun/server/static/transcript.js";

type Fits<Declared, Defined extends Declared> = Defined;
export type Checked = [
  Fits<declared.MidrunAsks, Asks>,
  Fits<declared.MidrunControls, MidrunControls>,
  Fits<declared.MidrunReport, ReportPanel>,
  Fits<declared.MidrunRun, MidrunRun>,
  Fits<declared.MidrunRuns, MidrunRuns>,
  Fits<declared.MidrunTranscript, MidrunTranscript>,
];
