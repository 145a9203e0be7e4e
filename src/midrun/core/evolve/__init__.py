"""`evolve` and `fold`: from entries to state. Pure, and the same cost at every length."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from midrun.core.entries import (
    Asked,
    Entry,
    LeaseTaken,
    Record,
    RequestNoted,
    RunCancelled,
    RunLifted,
    RunPaused,
    RunStarted,
)
from midrun.core.evolve import asks, calls, controls, conversation, lifecycle, undo
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.state import Arms, Heard, State
from midrun.core.transitions import FOLLOWS
from midrun.core.values import Phase
from midrun.errors import JournalCorrupt

ARMS: Final[Arms] = {
    **lifecycle.ARMS,
    **controls.ARMS,
    **calls.ARMS,
    **undo.ARMS,
    **asks.ARMS,
    **conversation.ARMS,
}


FULFILMENTS: Final = frozenset({LeaseTaken, RunPaused, RunCancelled})
"""Entries that only carry out a wish: whoever comes too late still learns whose it was."""


def evolve(state: State, entry: Entry, at: Micros) -> State:
    """Return the state after `entry`, which the store stamped with `at`.

    Raises:
        JournalCorrupt: `entry` cannot follow the state's phase.
    """
    kind = type(entry)
    seq = Seq(state.seq + 1)
    phase = _following(state, kind, seq)
    # A gap in which nobody drove the run is not work, whoever still held the lease.
    idle = not state.leased or kind is LeaseTaken
    now = max(state.at, at)
    worked = state.worked if idle else state.worked + now - state.at
    after = replace(state, seq=seq, at=now, worked=worked)
    if phase is not state.phase:
        after = replace(after, phase=phase)
        if kind not in FULFILMENTS:
            after = replace(after, since=seq, since_by=getattr(entry, "by", ""))
    if isinstance(entry, Asked):
        after = _heard(after, entry)
    return ARMS[kind](after, entry)


def _following(state: State, kind: type[Entry], seq: Seq) -> Phase:
    phase = FOLLOWS[kind].get(state.phase)
    first = state.spec is None
    if phase is None or first != (kind is RunStarted):
        where = "an empty journal" if first else f"phase {state.phase}"
        raise JournalCorrupt(state.run, seq, f"{kind.__name__} cannot follow {where}")
    if kind is RunLifted:
        then = state.then or Phase.QUEUED
        # A driver that has not let go yet still has the run's calls in its hands.
        return Phase.RUNNING if then is Phase.QUEUED and state.leased else then
    return phase


def _heard(state: State, entry: Asked) -> State:
    """Remember that something was asked for, and what its request id was told."""
    if not isinstance(entry, RequestNoted):
        state = replace(state, controls=state.seq)
    if not entry.request:
        return state
    heard = Heard(
        seq=state.seq,
        digest=entry.digest,
        verdict=getattr(entry, "verdict", ""),
        refused=getattr(entry, "refused", False),
        since=getattr(entry, "since", state.seq),
        since_by=getattr(entry, "since_by", entry.by),
    )
    return replace(state, heard=state.heard | {entry.request: heard})


def fold(run: RunId, records: Iterable[Record], state: State | None = None) -> State:
    """Return what a journal means, from its beginning or on top of `state`.

    Raises:
        JournalCorrupt: an entry cannot stand where it stands, or the numbers have a gap.
    """
    state = State(run=run) if state is None else state
    for record in records:
        if record.seq != state.seq + 1:
            raise JournalCorrupt(run, record.seq, f"expected seq {state.seq + 1}")
        state = evolve(state, record.entry, record.at)
    return state


def apply(state: State, entries: Iterable[Entry], at: Micros | None = None) -> State:
    """Return the state after `entries`, stamped with one time as one append would be."""
    for entry in entries:
        state = evolve(state, entry, state.at if at is None else at)
    return state
