/* The types of the elements and their events. They are the public interface of the scripts. */
import type { Phase } from "./types.js";

/** The status of the run on display. `word` is its status in words. */
export interface RunState {
  run: string;
  phase: Phase;
  word: string;
  /** Whether this viewer can decide something that the run waits for. */
  needsYou: boolean;
}

/** A control that the server has accepted. */
export interface SentControl {
  run: string;
  /** `pause`, `resume`, `redirect`, `say`, `cancel`, `approve`, `decline`, `edit`, `answer` … */
  control: string;
  /** False if it changed nothing, because the run was in that state already. */
  applied: boolean;
}

/** A run that needs a person, has failed or is completed. */
export interface RunNews {
  run: string;
  word: string;
  task: string;
}

/** By event: its `detail`. All of them bubble and leave shadow roots. */
export interface MidrunEvents {
  "midrun-state": RunState;
  "midrun-sent": SentControl;
  "midrun-signed-out": null;
  /** The id of a run that was chosen in the list. Prevent the default to show it yourself. */
  "midrun-open": string;
  /** The id of a run that was started here. Prevent the default to show it yourself. */
  "midrun-started": string;
  "midrun-title": string;
  "midrun-news": RunNews;
}

interface ServerElement extends HTMLElement {
  /** URL of the server; by default the one that the script came from. */
  base: string;
  /** By default the session of the browser is used. */
  token: string;
}

interface RunElement extends ServerElement {
  /** The id of the run. */
  run: string;
}

interface ElementClass<Element> {
  new (): Element;
  prototype: Element;
}

/** `<midrun-run>`: everything about a run, and its control bar. */
export interface MidrunRun extends RunElement {
  /** Whether P, R, S, C and A work wherever the focus is; attribute `global-keys`. */
  globalKeys: boolean;
}
export const MidrunRun: ElementClass<MidrunRun>;

/** `<midrun-controls>`: the control bar, with the open questions. */
export interface MidrunControls extends RunElement {
  /** As for `<midrun-run>`. */
  globalKeys: boolean;
  /** Whether the bar is at the lower edge: rows that come and go are above its buttons. */
  docked: boolean;
}
export const MidrunControls: ElementClass<MidrunControls>;

/** `<midrun-asks>`: the questions and approvals that wait for a person. */
export interface MidrunAsks extends RunElement {}
export const MidrunAsks: ElementClass<MidrunAsks>;

/** `<midrun-transcript>`: the words of the run, its calls and its result. */
export interface MidrunTranscript extends RunElement {}
export const MidrunTranscript: ElementClass<MidrunTranscript>;

/** `<midrun-report>`: the result of a finished run, and the outcome of its calls. */
export interface MidrunReport extends RunElement {}
export const MidrunReport: ElementClass<MidrunReport>;

/** `<midrun-runs>`: the list of all runs. */
export interface MidrunRuns extends ServerElement {}
export const MidrunRuns: ElementClass<MidrunRuns>;

/** Exchange a credential, `Code …` or `Bearer …`, for a session of this browser. */
export function signIn(credential: string, base?: string): Promise<{ name: string; role: string }>;

/** End the session of this browser. */
export function signOut(base?: string): Promise<void>;

/** By tag: its element. */
export interface MidrunElements {
  "midrun-asks": MidrunAsks;
  "midrun-controls": MidrunControls;
  "midrun-report": MidrunReport;
  "midrun-run": MidrunRun;
  "midrun-runs": MidrunRuns;
  "midrun-transcript": MidrunTranscript;
}

type CustomEvents = { [Name in keyof MidrunEvents]: CustomEvent<MidrunEvents[Name]> };

declare global {
  interface HTMLElementTagNameMap extends MidrunElements {}
  interface HTMLElementEventMap extends CustomEvents {}
  interface DocumentEventMap extends CustomEvents {}
}
