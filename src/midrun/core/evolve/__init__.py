"""Compute the state of a run from its journal entries.

`evolve(state, entry, at)` returns the state after one entry; `fold` applies it to a whole
journal. Both are pure. A worker that replays a journal therefore gets exactly the state that
the previous worker had.

`evolve` first does the work that is common to all entries: it checks with
`transitions.ENTRY_TABLE` that the entry may follow the current phase, and updates seq, time,
phase and request ids. Then it calls the fold function of the entry's type. The fold functions
are named after their entry (`call_started` for `CallStarted`) and grouped by topic:
`lifecycle`, `controls`, `calls`, `undo`, `asks`, `conversation`.

Invariants: a fold function never refuses an entry because of a rule (`decide` did that before
the append), so old journals stay readable. It raises `JournalCorrupt` only for an entry that
refers to a call, ask or topic that does not exist. The cost of one entry does not grow with
the number of calls and messages.
"""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from midrun.core.entries import (
    Entry,
    LeaseTaken,
    Record,
    RequestEntry,
    RequestNoted,
    RunCancelled,
    RunLifted,
    RunPaused,
    RunStarted,
)
from midrun.core.evolve import asks, calls, controls, conversation, lifecycle, undo
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.state import EvolveFunctions, RequestOutcome, State
from midrun.core.transitions import ENTRY_TABLE
from midrun.core.values import Phase
from midrun.errors import JournalCorrupt

EVOLVE_FUNCTIONS: Final[EvolveFunctions] = {
    **lifecycle.EVOLVE_FUNCTIONS,
    **controls.EVOLVE_FUNCTIONS,
    **calls.EVOLVE_FUNCTIONS,
    **undo.EVOLVE_FUNCTIONS,
    **asks.EVOLVE_FUNCTIONS,
    **conversation.EVOLVE_FUNCTIONS,
}


COMPLETION_ENTRY_TYPES: Final = frozenset({LeaseTaken, RunPaused, RunCancelled})
"""Entries that complete an earlier request. They do not change `phase_since` and `phase_by`:
a refusal such as `is_cancelled` names the actor who requested the cancel."""


def evolve(state: State, entry: Entry, at: Micros) -> State:
    """Return the state after `entry`, which the store stamped with `at`.

    Raises:
        JournalCorrupt: `entry` may not follow the state's phase.
    """
    kind = type(entry)
    seq = Seq(state.seq + 1)
    phase = ENTRY_TABLE[kind].get(state.phase)
    # The table cannot express that `RunStarted` comes first and only once, nor the phase after
    # a halt was lifted.
    if phase is None or not state.seq or kind in _SPECIAL_ENTRY_TYPES:
        phase = _find_special_phase(state, kind, seq)
    # Time counts as work only while a worker holds the lease. `LeaseTaken` on a leased run
    # means that the previous worker died: the gap before it is not work either.
    idle = not state.is_leased or kind is LeaseTaken
    now = max(state.at, at)
    worked = state.worked_micros if idle else state.worked_micros + now - state.at
    after = replace(state, seq=seq, at=now, worked_micros=worked)
    if phase is not state.phase:
        after = replace(after, phase=phase)
        if kind not in COMPLETION_ENTRY_TYPES:
            after = replace(after, phase_since=seq, phase_by=getattr(entry, "by", ""))
    if isinstance(entry, RequestEntry):
        after = _record_request(after, entry)
    return EVOLVE_FUNCTIONS[kind](after, entry)


_SPECIAL_ENTRY_TYPES: Final = frozenset({RunStarted, RunLifted})


def _find_special_phase(state: State, entry_type: type[Entry], seq: Seq) -> Phase:
    phase = ENTRY_TABLE[entry_type].get(state.phase)
    first = not state.seq
    if phase is None or first != (entry_type is RunStarted):
        where = "an empty journal" if first else f"phase {state.phase}"
        raise JournalCorrupt(state.run, seq, f"{entry_type.__name__} cannot follow {where}")
    if entry_type is RunLifted:
        then = state.phase_after_halt or Phase.QUEUED
        # The worker may not have released its lease yet, and may still have calls in flight.
        # Then the run is running again, not queued.
        return Phase.RUNNING if then is Phase.QUEUED and state.is_leased else then
    return phase


def _record_request(state: State, entry: RequestEntry) -> State:
    """Record the seq of the request and the outcome for its request id."""
    # A note about a refused request or a no-op changes nothing, so it does not count as a
    # control that the start of a call must have seen.
    if not isinstance(entry, RequestNoted):
        state = replace(state, last_control_seq=state.seq)
    if not entry.request_id:
        return state
    outcome = RequestOutcome(
        seq=state.seq,
        digest=entry.digest,
        verdict_name=getattr(entry, "verdict", ""),
        refused=getattr(entry, "refused", False),
        since_seq=getattr(entry, "since", state.seq),
        since_by=getattr(entry, "since_by", entry.by),
    )
    return replace(state, requests=state.requests | {entry.request_id: outcome})


def fold(run: RunId, records: Iterable[Record], state: State | None = None) -> State:
    """Return the state after `records`, from the beginning or from `state`.

    Raises:
        JournalCorrupt: an entry may not follow the one before it, or a seq is missing.
    """
    state = State(run=run) if state is None else state
    for record in records:
        if record.seq != state.seq + 1:
            raise JournalCorrupt(run, record.seq, f"expected seq {state.seq + 1}")
        state = evolve(state, record.entry, record.at)
    return state


def apply_entries(state: State, entries: Iterable[Entry], at: Micros | None = None) -> State:
    """Return the state after `entries`, all stamped with the same time."""
    for entry in entries:
        state = evolve(state, entry, state.at if at is None else at)
    return state
