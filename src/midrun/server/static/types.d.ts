/* The types of the server's JSON. `make docs` generates this file from the OpenAPI document.
 * Times are RFC 3339, durations are in seconds. */

/** An agent whose runs can be started here; `parameters` has a JSON Schema by tool. */
export interface AgentLine {
  name: string;
  tools: string[];
  parameters: Record<string, any>;
  stop: string;
  framework: string;
  undeclared_tools: number;
}

/** The agents of this server, and the files that can be sent to their runs. */
export interface Agents {
  items: AgentLine[];
  uploads: UploadLimits;
}

/** One version of an artifact that a tool has shown; `Run.file` reads `file.hash`. */
export interface ArtifactView {
  call: string;
  name: string;
  version: number;
  file: FileRef;
  seq: number;
  at: string;
}

/** An open ask: a question, an approval or an unsure call that a person must settle. */
export interface AskView {
  id: string;
  kind: "approval" | "child" | "question" | "unsure";
  of: "approval" | "child" | "question" | "unsure" | null;
  question: string;
  data: any;
  call: string;
  tool: string;
  args: any;
  why: string;
  hidden: string;
  audience: string;
  expires_at: string | null;
  declinable: boolean;
  title: string;
  files: FileRef[];
  takes_files: boolean;
}

/** One button; `consequence` describes the effect of pressing it now. */
export interface Button {
  enabled: boolean;
  command: string;
  label: string;
  consequence: string;
  undo: string[];
  irreversible: string[];
  unsure: string[];
  release: string[];
  undo_count: number;
  caps: Record<string, number>;
}

/** One call of a turn. Arguments and result are JSON as text, cut if they are long. */
export interface CallLine {
  id: string;
  kind: "child" | "model" | "tool";
  tool: string;
  args: string;
  why: string;
  style: "done" | "dropped" | "failed" | "held" | "left_open" | "needs_you" | "not_started" | "queued" | "running" | "stopped" | "undone";
  result: string;
  error: string;
  attempts: number;
  started_at: string | null;
  by_person: boolean;
  child: string;
  title: string;
  files: FileRef[];
}

/** A call in flight, or the undo or release of a call. */
export interface CallView {
  id: string;
  tool: string;
  since: string;
  attempt: number;
  action: string;
  why: string;
  unstoppable: boolean;
  not_responding: boolean;
  title: string;
}

/** A cap and the amount used; cost in dollars, time in seconds. */
export interface CapView {
  name: string;
  used: number;
  cap: number;
  raised: number;
}

/** A piece of live output between two journal entries. */
export interface Delta {
  run: string;
  call: string;
  kind: "args" | "not_responding" | "note" | "text" | "thinking";
  text: string;
  tool: string;
  opening: boolean;
  seq: null;
}

/** A call that had an effect on the world, or may have had one. */
export interface EffectView {
  id: string;
  tool: string;
  args: string;
  stage: string;
  can_undo: boolean;
  holds_resource: boolean;
  release: string;
  undo: string;
  note: string;
  why: string;
  title: string;
}

/** The text of one entry, the same on every surface. */
export interface EntryText {
  who: string;
  sentence: string;
  short: string;
  tone: "bad" | "detail" | "go" | "good" | "hold" | "person" | "quiet" | "stop" | "undo" | "wait" | "work";
}

/** An entry on the wire. `data` is the entry, `text` describes it for people. */
export interface FeedEvent {
  seq: number;
  type: string;
  ts: string;
  run_id: string;
  by: string;
  epoch: number | null;
  hash: string;
  text: EntryText;
  data: any;
}

/** A file beside the journal: the store has its bytes under `hash`, their SHA-256 in hex. */
export interface FileRef {
  name: string;
  media_type: string;
  size: number;
  hash: string;
}

/** A topic that is held while the agent answers something else. */
export interface FrameView {
  id: string;
  goal: string;
  position: string;
  held_at: string;
  expires_at: string;
}

/** An operator's halt. `scope` is `all`, `agent:NAME`, `label:LABEL` or `run:ID`. */
export interface HaltRecord {
  scope: string;
  by: string;
  reason: string;
  at: string;
  tenant: string | null;
}

/** A redirect or a message that waits for a step boundary; `withdraw(seq)` removes it. */
export interface PendingView {
  seq: number;
  kind: string;
  text: string;
  by: string;
  when: string;
  urgency: string;
  files: FileRef[];
}

/** The phase of a run. */
export type Phase = "cancelled" | "cancelling" | "completed" | "failed" | "halted" | "paused" | "pausing" | "queued" | "running" | "waiting";

/** One item of the agent's own plan. */
export interface PlanItem {
  text: string;
  state: "done" | "dropped" | "failed" | "queued" | "running";
}

/** One plan item as it is shown; `tool` is the last tool that was used for it. */
export interface PlanRow {
  text: string;
  style: "done" | "dropped" | "failed" | "held" | "left_open" | "needs_you" | "not_started" | "queued" | "running" | "stopped" | "undone";
  tool: string;
}

/** The answer to a control: it is in the journal, or changed nothing. */
export interface Receipt {
  seq: number;
  phase: Phase;
  applied: boolean;
  already: string | null;
  by: string;
  acknowledgement: string;
}

/** The calls of a run, grouped by outcome. */
export interface Report {
  phase: string;
  task: string;
  run: string;
  agent: string;
  speakers: string[];
  cancelled_by: string;
  cancelled_at: string | null;
  reason: string;
  done: ReportedCall[];
  undoing: ReportedCall[];
  undone: ReportedCall[];
  not_undone: ReportedCall[];
  released: ReportedCall[];
  stopped: ReportedCall[];
  unsure: ReportedCall[];
  failed: ReportedCall[];
  never_started: ReportedCall[];
  still_held: ReportedCall[];
  artifacts: ReportedArtifact[];
  partial: string;
  value: any;
}

/** The newest version of an artifact in the report. */
export interface ReportedArtifact {
  name: string;
  version: number;
  media_type: string;
  size: number;
  hash: string;
}

/** One call in the report. */
export interface ReportedCall {
  call: string;
  tool: string;
  args: string;
  note: string;
  why: string;
  run: string;
  title: string;
}

/** A run in a list, as the viewer sees it now. */
export interface RunListItem {
  run_id: string;
  seq: number;
  head_hash: string;
  phase: Phase;
  agent: string;
  task: string;
  thread: string;
  labels: string[];
  parent: string;
  attention: string;
  asks: number;
  step: number;
  holder: string;
  epoch: number;
  wake_at: string | null;
  started_at: string;
  changed_at: string;
  status: StatusLine;
  button: Button;
  elapsed: number;
  working: boolean;
  cost_usd: number;
  position: string;
  output: string;
  needs_you: boolean;
}

/** The viewer's overlay of a run at `seq`, at the time `now`. */
export interface RunOverlay {
  seq: number;
  now: string;
  you: string;
  role: string;
  status: StatusLine;
  controls: Record<string, Button>;
  decidable_asks: string[];
  elapsed: number;
  working: boolean;
  worker_lost: boolean;
  worker_silent_since: string;
  worker_count: number;
  phase_at: string;
  phase_reason: string;
  halt: HaltRecord | null;
}

/** A change of a run, as the feed sends it to a page. */
export interface RunUpdate {
  seq: number;
  run: any;
  overlay: RunOverlay;
  turns: TurnView[];
}

/** The state of a run at `seq`, as all surfaces show it. */
export interface RunView {
  run_id: string;
  seq: number;
  control_rev: number;
  agent: string;
  task: string;
  phase: Phase;
  status: StatusLine;
  phase_by: string;
  reason: string;
  hold_until: string | null;
  hold_now: boolean;
  step: number;
  position: string;
  plan: PlanItem[];
  plan_rows: PlanRow[];
  turns: number;
  goal: string;
  taken_over_by: string;
  elapsed: number;
  started_at: string;
  changed_at: string;
  usage: Usage;
  stop: string;
  caps: CapView[];
  frames: FrameView[];
  frames_max: number;
  asks: AskView[];
  pending: PendingView[];
  in_flight: CallView[];
  effects: EffectView[];
  artifacts: ArtifactView[];
  controls: Record<string, Button>;
  allowed: string[];
  output: string;
  value: any;
  framework: string;
  undeclared_tools: number;
  error: string;
  labels: string[];
  speaker: string;
  thread: string;
  parent: string;
  started_by: string;
  head_hash: string;
}

/** The actor of a credential. */
export interface SessionActor {
  name: string;
  role: string;
  tenant: string;
  teams: string[];
}

/** The status of a run; the words are complete without the style. */
export interface StatusLine {
  style: "cancelled" | "cancelling" | "completed" | "failed" | "halted" | "halting" | "lost" | "paused" | "pausing" | "queued" | "running" | "waiting";
  word: string;
  by: string;
  note: string;
  announcement: string;
}

/** One message of the run, with the calls it asked for. */
export interface TurnView {
  number: number;
  role: string;
  kind: string;
  by: string;
  agent: string;
  text: string;
  thinking: string;
  interrupted: boolean;
  inherited: boolean;
  item: number;
  style: "done" | "dropped" | "failed" | "held" | "left_open" | "needs_you" | "not_started" | "queued" | "running" | "stopped" | "undone";
  calls: CallLine[];
  files: FileRef[];
}

/** The bounds on the files of one request. */
export interface UploadLimits {
  files: number;
  file_bytes: number;
  total_bytes: number;
}

/** The tokens and the money that the run has used. */
export interface Usage {
  tokens: number;
  cost_usd: number;
  reserved_tokens: number;
  reserved_usd: number;
  input_tokens: number;
  output_tokens: number;
  cached_tokens: number;
  thinking_tokens: number;
  unpriced_tokens: number;
  held_tokens: number;
}
