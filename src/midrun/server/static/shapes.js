// @ts-check
/**
 * What the server shows, as types. `GET /v1/openapi.json` says the same for machines.
 * Times are RFC 3339.
 *
 * @typedef {{enabled: boolean, command: string, label: string, consequence: string,
 *   undo: string[], never: string[], unsure: string[], release: string[],
 *   undoes: number, caps: Record<string, number>}} Offer
 * @typedef {{look: string, word: string, by: string, note: string, said: string}} Sign
 * @typedef {{name: string, used: number, cap: number, raised: number}} Cap
 * @typedef {{id: string, goal: string, place: string, held_at: string, expires_at: string}} Frame
 * @typedef {{id: string, ref: string, kind: string, of: string | null, question: string, data: any, call: string,
 *   tool: string, args: any, why: string, hidden: string, audience: string, expires_at: string | null,
 *   declinable: boolean, may_decide: boolean}} Ask
 * @typedef {{id: string, tool: string, since: string, attempt: number, form: string, why: string,
 *   unstoppable: boolean, not_responding: boolean}} Flight
 * @typedef {{id: string, tool: string, args: string, stage: string, can_undo: boolean, held: boolean, release: string,
 *   undo: string, note: string, why: string}} Effect
 * @typedef {{seq: number, kind: string, text: string, by: string, when: string,
 *   urgency: string}} Pending
 * @typedef {{text: string, look: string, tool: string}} Row
 *
 * @typedef {object} Run
 * @property {string} run_id
 * @property {number} seq
 * @property {number} control_rev
 * @property {string} agent
 * @property {string} task
 * @property {string} phase
 * @property {Sign} sign
 * @property {string} since_by
 * @property {string} since_at
 * @property {string} since_reason
 * @property {string} reason
 * @property {string | null} hold_until
 * @property {boolean} hold_now
 * @property {number} step
 * @property {string} place
 * @property {boolean} plan_held the plan is a held thought's, and the run is at no step of it
 * @property {Row[]} rows
 * @property {number} turns
 * @property {string} goal
 * @property {string} wheel
 * @property {number} elapsed
 * @property {string} started_at
 * @property {string} changed_at
 * @property {{tokens: number, cost_usd: number, reserved_tokens: number,
 *   reserved_usd: number}} usage
 * @property {Cap[]} caps
 * @property {Frame[]} frames
 * @property {number} frames_max
 * @property {Ask[]} asks
 * @property {Pending[]} pending
 * @property {Flight[]} in_flight
 * @property {Effect[]} effects
 * @property {{pause: Offer, redirect: Offer, cancel: Offer}} controls
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
 * @property {string} silent_since when the worker that is not heard of was heard of last
 * @property {{by: string, reason: string, scope: string} | null} halt the latch that it is under
 * @property {number} workers
 *
 * @typedef {{id: string, kind: string, tool: string, args: string, why: string, look: string,
 *   result: string, error: string, attempts: number, started_at: string | null,
 *   by_hand: boolean, child: string}} CallLine
 * @typedef {{number: number, role: string, kind: string, by: string, text: string,
 *   thinking: string, interrupted: boolean, earlier: boolean, item: number, look: string,
 *   calls: CallLine[]}} Turn
 *
 * @typedef {{seq: number, type: string, ts: string, run_id: string, by: string,
 *   data: any}} Happened one event of the feed
 * @typedef {{call: string, kind: string, text: string, tool: string, opening: boolean}} Delta
 *   `opening`: it is everything so far
 *
 * @typedef {{call: string, tool: string, args: string, note: string, why: string}} Deed
 * @typedef {{phase: string, task: string, done: Deed[], undoing: Deed[], undone: Deed[],
 *   not_undone: Deed[], released: Deed[], stopped: Deed[], unsure: Deed[], failed: Deed[],
 *   never_started: Deed[], still_held: Deed[], partial: string}} Report
 *
 * @typedef {{seq: number, phase: string, applied: boolean, already: string, by: string,
 *   words?: string}} Receipt
 */

export {};
