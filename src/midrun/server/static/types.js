// @ts-check
/**
 * The types of the server's JSON. `GET /v1/openapi.json` describes the same for machines.
 * Times are RFC 3339, durations are in seconds. Field names are those on the wire:
 *
 * - `look` selects an icon and a colour, `tone` is that colour (see `format.js`);
 * - a button is `enabled` or not, and `consequence` says the effect of a press. In the button of
 *   a cancel, `undo`, `irreversible`, `unsure` and `release` list calls; `undo_count` is the number to undo;
 * - a status line has a `word`, the actor it is `by`, a `note`, and `said`: text for screen readers;
 * - a plan's items are `rows`, a held topic is one of `frames`, and `wheel` names the person who
 *   has taken over.
 *
 * @typedef {{enabled: boolean, command: string, label: string, consequence: string,
 *   undo: string[], irreversible: string[], unsure: string[], release: string[],
 *   undo_count: number, caps: Record<string, number>}} Button
 * @typedef {{look: string, word: string, by: string, note: string, said: string}} StatusLine
 * @typedef {{name: string, used: number, cap: number, raised: number}} Cap
 * @typedef {{id: string, goal: string, place: string, held_at: string, expires_at: string}} HeldTopic
 * @typedef {{id: string, ref: string, kind: string, of: string | null, question: string, data: any, call: string,
 *   tool: string, args: any, why: string, hidden: string, audience: string, expires_at: string | null,
 *   declinable: boolean, may_decide: boolean}} Ask
 * @typedef {{id: string, tool: string, since: string, attempt: number, form: string, why: string,
 *   unstoppable: boolean, not_responding: boolean}} InFlightCall
 * @typedef {{id: string, tool: string, args: string, stage: string, can_undo: boolean, held: boolean, release: string,
 *   undo: string, note: string, why: string}} Effect
 * @typedef {{seq: number, kind: string, text: string, by: string, when: string,
 *   urgency: string}} PendingText
 * @typedef {{text: string, look: string, tool: string}} PlanItem
 *
 * @typedef {object} Run
 * @property {string} run_id
 * @property {number} seq
 * @property {number} control_rev
 * @property {string} agent
 * @property {string} task
 * @property {string} phase
 * @property {StatusLine} sign
 * @property {string} since_by
 * @property {string} since_at
 * @property {string} since_reason
 * @property {string} reason
 * @property {string | null} hold_until
 * @property {boolean} hold_now
 * @property {number} step
 * @property {string} place
 * @property {boolean} plan_held the plan belongs to a held topic; the run is at none of its steps
 * @property {PlanItem[]} rows
 * @property {number} turns
 * @property {string} goal
 * @property {string} wheel
 * @property {number} elapsed
 * @property {string} started_at
 * @property {string} changed_at
 * @property {{tokens: number, cost_usd: number, reserved_tokens: number,
 *   reserved_usd: number}} usage
 * @property {Cap[]} caps
 * @property {HeldTopic[]} frames
 * @property {number} frames_max
 * @property {Ask[]} asks
 * @property {PendingText[]} pending
 * @property {InFlightCall[]} in_flight
 * @property {Effect[]} effects
 * @property {{pause: Button, redirect: Button, cancel: Button}} controls
 * @property {string[]} allowed
 * @property {string} output
 * @property {string} error
 * @property {string[]} labels
 * @property {string} thread
 * @property {string} you
 * @property {string} role
 * @property {string} now
 * @property {boolean} working
 * @property {boolean} lost
 * @property {string} silent_since the last sign of life of a worker that is `lost`
 * @property {{by: string, reason: string, scope: string} | null} halt that the run is under
 * @property {number} workers
 *
 * @typedef {{id: string, kind: string, tool: string, args: string, why: string, look: string,
 *   result: string, error: string, attempts: number, started_at: string | null,
 *   by_hand: boolean, child: string}} CallSummary
 * @typedef {{number: number, role: string, kind: string, by: string, text: string,
 *   thinking: string, interrupted: boolean, earlier: boolean, item: number, look: string,
 *   calls: CallSummary[]}} Turn
 *
 * @typedef {{who: string, sentence: string, short: string, tone: string}} EntryText an entry in
 *   words: `short` continues `who`, and `sentence` begins with it
 * @typedef {{seq: number, type: string, ts: string, run_id: string, by: string, text: EntryText,
 *   data: any}} FeedEvent one entry of the journal, as the feed sends it
 * @typedef {{call: string, kind: string, text: string, tool: string, opening: boolean}} Delta
 *   a part of a reply that is being streamed; `opening`: its whole text so far
 *
 * @typedef {{call: string, tool: string, args: string, note: string, why: string}} ReportedCall
 * @typedef {{phase: string, task: string, done: ReportedCall[], undoing: ReportedCall[], undone: ReportedCall[],
 *   not_undone: ReportedCall[], released: ReportedCall[], stopped: ReportedCall[], unsure: ReportedCall[], failed: ReportedCall[],
 *   never_started: ReportedCall[], still_held: ReportedCall[], partial: string}} Report
 *
 * @typedef {{seq: number, phase: string, applied: boolean, already: string, by: string,
 *   said: string}} Receipt
 */

export {};
