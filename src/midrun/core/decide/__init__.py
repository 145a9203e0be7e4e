"""Decide on one input of a run: a control or a driver input.

`decide(state, run_input, now)` is a pure, total function. It returns `Accepted` with the
entries to append, `NoChange` for a no-op, or `Refused` with a reason code. It never raises.

An input passes three checks, in this order:

1. Control: the request id is new, and the revision that the caller saw is current.
   Driver input: its epoch is the current one, and the run is leased.
2. The transition table (`transitions.INPUT_TABLE`) accepts this type of input in this phase.
3. The handler of the input checks everything the table cannot express: open asks, caps,
   calls in flight. It builds the entries.

The handlers are grouped by topic: `controls` (pause, resume, cancel …), `asks`,
`conversation` (messages, frames, take-over), `calls` and `lifecycle` (boundary, end, timers).
`shared` holds the helpers that they have in common.

Invariant: the entries of a decision are valid only directly after `state.seq`. The writer
appends all of them or none, and decides again when another writer was first.
"""

from typing import Final

from msgspec.structs import replace

from midrun.core.controls import Cancel, Control, Pause, Resume, Wish
from midrun.core.decide import asks, calls, controls, conversation, lifecycle
from midrun.core.decide.shared import asked, digest
from midrun.core.decision import Accepted, Already, Refused, Rulings, Verdict
from midrun.core.driver_inputs import Fenced
from midrun.core.entries import RequestNoted
from midrun.core.ids import Micros
from midrun.core.state import State
from midrun.core.transitions import ACCEPTS, Input
from midrun.core.values import Phase

RULINGS: Final[Rulings] = {
    **controls.RULINGS,
    **asks.RULINGS,
    **conversation.RULINGS,
    **calls.RULINGS,
    **lifecycle.RULINGS,
}


def decide(state: State, given: Input, now: Micros) -> Verdict:
    """Decide on one input: entries to append, a no-op, or a refusal.

    The entries must be appended after exactly `state.seq`, all or none. `now` is the store's
    time, because the core has no clock. User data in `run_input` must have passed
    `codec.strict_json`.
    """
    # The times in a journal never decrease. A store clock that was set back must not make
    # a decision that is older than the newest entry.
    now = Micros(max(now, state.at))
    if isinstance(given, Wish):
        return _asked_for(state, given, now)
    # Fencing. A worker that lost its lease may not know it yet. Its inputs carry the old
    # epoch and are refused here. Inputs that need no lease, such as a late result or a timer,
    # do not derive from `LeasedInput`.
    if isinstance(given, Fenced) and (given.epoch != state.epoch or not state.leased):
        reason = "fenced" if given.epoch != state.epoch else "lease_lost"
        return Refused(reason=reason, seq=state.since, by=state.since_by)
    return _ruled(state, given, now)


def _asked_for(state: State, control: Control, now: Micros) -> Verdict:
    """Decide on a control; apply each request id at most once.

    A repeated request id gets the outcome of the first request. The outcome is in the journal,
    so the repeat may reach any process.
    """
    heard = state.heard.get(control.request) if control.request else None
    if heard is None and _is_stale(state, control):
        # This refusal is not recorded. The caller can read the new revision and send the
        # control again under the same request id.
        return Refused(reason="stale_revision", seq=state.control_rev)
    if not control.request:
        return _ruled(state, control, now)
    if heard is None:
        verdict = _ruled(state, control, now)
        if isinstance(verdict, Accepted):
            return verdict
        name = verdict.name if isinstance(verdict, Already) else verdict.reason
        refused = isinstance(verdict, Refused)
        # An accepted control has its own entry, which stores the request id. A no-op or a
        # refusal has none, so `RequestNoted` stores the outcome for a repeat of the request.
        note = RequestNoted(
            verdict=name,
            refused=refused,
            since=verdict.seq,
            since_by=verdict.by,
            **asked(control),
        )
        return replace(verdict, entries=(note,))
    if heard.digest != digest(control):
        return Refused(reason="request_id_reused", seq=heard.seq)
    if heard.refused:
        return Refused(reason=heard.verdict, seq=heard.since, by=heard.since_by)
    name = heard.verdict or "duplicate_request"
    return Already(name=name, seq=heard.since, by=heard.since_by)


def _is_stale(state: State, control: Control) -> bool:
    """Tell whether the control was sent for an older revision of the run.

    Pause and cancel are exempt: a request to stop always counts.
    """
    seen, stops = control.seen, isinstance(control, Pause | Cancel)
    return seen is not None and seen != state.control_rev and not stops


def _ruled(state: State, given: Input, now: Micros) -> Verdict:
    """Look the input up in the transition table, then call its handler."""
    cell = ACCEPTS[type(given)][state.phase]
    if cell.to:
        return RULINGS[type(given)](state, given, now)
    if cell.refused:
        ask = state.ask(getattr(given, "ask", ""))
        # The control is about an ask that is closed. Name the actor who closed it: that tells
        # a late caller more than the actor who led the run into this phase.
        if ask is not None and ask.closed:
            return Refused(reason=cell.refused, seq=ask.closed_seq, by=ask.by)
        return Refused(reason=cell.refused, seq=state.since, by=state.since_by)
    if isinstance(given, Resume) and given.instruction:
        # A no-op would lose the instruction. With a refusal, the caller can send the
        # instruction as a redirect.
        return Refused(reason="not_paused", seq=state.since, by=state.since_by)
    if state.cancel is not None and state.phase is Phase.CANCELLING:
        return Already(name=cell.already, seq=state.cancelled_at, by=state.cancel.by)
    return Already(name=cell.already, seq=state.since, by=state.since_by)
