"""Faults in the calls of a worker, in the store and in the external systems."""

from collections.abc import Iterable

from msgspec.structs import replace

from midrun.codec import snapshot
from midrun.core.entries import CallStarted, Entry
from midrun.core.ids import CallId, RunId
from midrun.core.state import State
from midrun.stores import validation
from tests.support.mutants.replacements import (
    Mutant,
    Replacement,
    replace_all,
    replace_attribute,
)
from tests.support.simulate import dispatcher, journal, simulation
from tests.support.simulate.dispatcher import Dispatcher
from tests.support.simulate.environment import Environment
from tests.support.simulate.scheduler import Steps
from tests.support.simulate.world import World


def _plant_start_gap() -> Replacement:
    return replace_attribute(Environment, "has_start_gap", True)  # noqa: FBT003 - the value of an attribute


class _FreshUndoKeys:
    """Makes a new undo key for each attempt."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, run: RunId, call: CallId, action: str) -> str:
        self.count += 1
        return f"{action} {run} {call} {self.count}"


def _undo_without_tombstone(world: World, key: str, undo_key: str) -> bool:
    done = _WORLD_UNDO(world, key, undo_key)
    world.tombstones.discard(key)
    return done


_WORLD_UNDO = World.undo


def _follow_feed_with_gap(env: Environment) -> Steps:
    """Read to the end, but subscribe one step later."""
    seen = 0
    while True:
        yield env.make_growth_condition(seen)
        found = env.journal.read_records(after=seen)
        env.feed_records += found
        yield None
        seen = env.journal.state.seq


def _encode_without_frames(state: State) -> bytes:
    return snapshot.encode_snapshot(replace(state, frames=(), pending=()))


def _ignore_lease() -> Replacement:
    """Ignore both the clock of the heartbeat and the lease in the store."""
    return replace_all(
        replace_attribute(Dispatcher, "may_act", lambda _: True),
        replace_attribute(Dispatcher, "is_lease_stored", lambda _: True),
    )


def _ignore_halts(run: RunId, head: object, halts: Iterable[object]) -> None:
    del run, head, halts


def _has_call_starts(entries: Iterable[Entry]) -> bool:
    return any(isinstance(entry, CallStarted) for entry in entries)


DRIVER_AND_STORE_MUTANTS = (
    Mutant(
        name="fresh_undo_key",
        description="each attempt of an undo has another key",
        plant=lambda: replace_attribute(dispatcher, "make_undo_key", _FreshUndoKeys()),
    ),
    Mutant(
        name="lease_not_checked_before_an_effect",
        seed=4980,
        description="a process does not check its lease right before an effect",
        plant=_ignore_lease,
        limit=12000,
        strategy="targeted+pct",
    ),
    Mutant(
        name="late_start_not_checked",
        seed=5_195_602,
        description="a late start is not checked against the store",
        plant=lambda: replace_attribute(Dispatcher, "is_lease_stored", lambda _: True),
        strategy="mixed",
    ),
    Mutant(
        name="halt_not_checked",
        description="the store accepts starts of calls under a halt",
        plant=lambda: replace_attribute(validation, "check_halts", _ignore_halts),
    ),
    Mutant(
        name="halt_ignores_undo",
        seed=602,
        description="an undo starts under a halt",
        plant=lambda: replace_attribute(validation, "has_starts", _has_call_starts),
        limit=6000,
    ),
    Mutant(
        name="feed_gap",
        description="a reader that reconnects misses entries",
        plant=lambda: replace_attribute(simulation, "follow_feed", _follow_feed_with_gap),
    ),
    Mutant(
        name="snapshot_is_incomplete",
        seed=444,
        description="a snapshot lacks a part of the state",
        plant=lambda: replace_attribute(journal, "encode_snapshot", _encode_without_frames),
        limit=12000,
    ),
    Mutant(
        name="no_tombstone_and_a_start_gap",
        seed=3775,
        description="an effect that arrives after its undo is accepted",
        plant=lambda: replace_all(
            replace_attribute(World, "undo", _undo_without_tombstone), _plant_start_gap()
        ),
        limit=20000,
        rules=("W3", "I28", "I33"),
    ),
    Mutant(
        name="start_gap",
        seed=3818,
        description="a process that froze between its last check and its effect acts later",
        plant=_plant_start_gap,
        limit=12000,
        strategy="targeted+pct",
        rules=("W1",),
        is_documented_limit=True,
    ),
)
