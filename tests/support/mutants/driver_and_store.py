"""Faults in the simulated shell, the store and the world: what the core relies on."""

from collections.abc import Iterable

from msgspec.structs import replace

from midrun.codec import snapshot
from midrun.core.entries import CallStarted, Entry
from midrun.core.ids import CallId, RunId
from midrun.core.state import State
from midrun.stores import validation
from tests.support.mutants.replacements import Mutant, Planted, in_place_of, together
from tests.support.simulate import dispatcher, driver, journal, universe
from tests.support.simulate.dispatcher import Door
from tests.support.simulate.environment import Scene
from tests.support.simulate.journal import Batch
from tests.support.simulate.scheduler import Steps
from tests.support.simulate.world import World


def _gapped() -> Planted:
    return in_place_of(Scene, "gap", True)  # noqa: FBT003 - the value of an attribute


class _Keys:
    """Undo keys that are new every time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, run: RunId, call: CallId, action: str) -> str:
        self.count += 1
        return f"{action} {run} {call} {self.count}"


def _no_tombstone(world: World, key: str, undo_key: str) -> bool:
    done = _UNDO(world, key, undo_key)
    world.buried.discard(key)
    return done


_UNDO = World.undo


def _gap_in_the_feed(scene: Scene) -> Steps:
    """Replay to the head, then subscribe a moment later."""
    seen = 0
    while True:
        yield scene.changed(seen)
        found = scene.desk.records(after=seen)
        scene.fed += found
        yield None
        seen = scene.desk.state.seq


def _acts_first(self: Door, batch: Batch) -> bool:
    """Let calls out before it is known that their start is in the journal."""
    if not any(isinstance(entry, CallStarted) for entry in batch.entries):
        return _COMMIT(self, batch)
    self.leave(batch)
    with in_place_of(Door, "leave", lambda _, __: None):
        return _COMMIT(self, batch)


_COMMIT = Door.commit


def _stays_away(self: driver.Driver, door_: Door) -> Steps:
    yield from _DRIVE(self, door_)
    if self.process.lapsed:
        yield lambda: False


_DRIVE = driver.Driver._drive


def _without_frames(state: State) -> bytes:
    return snapshot.encode_snapshot(replace(state, frames=(), pending=()))


def _no_halts(run: RunId, head: object, halts: Iterable[object]) -> None:
    del run, head, halts


def _has_calls(entries: Iterable[Entry]) -> bool:
    return any(isinstance(entry, CallStarted) for entry in entries)


SHELL = (
    Mutant(
        name="fresh_undo_key",
        wrong="every attempt of an undo has a key of its own",
        plant=lambda: in_place_of(dispatcher, "make_undo_key", _Keys()),
    ),
    Mutant(
        name="no_last_look",
        seed=194,
        wrong="a process that lost its lease does not look again before it acts",
        plant=lambda: in_place_of(Door, "may_act", lambda _: True),
        limit=12000,
        strategy="targeted+pct",
    ),
    Mutant(
        name="acts_before_it_is_journaled",
        wrong="a call leaves before its start is in the journal",
        plant=lambda: in_place_of(Door, "commit", _acts_first),
    ),
    Mutant(
        name="self_fence_forgets_to_reclaim",
        wrong="a process that finds its lease lapsed waits for somebody to take over",
        plant=lambda: in_place_of(driver.Driver, "_drive", _stays_away),
    ),
    Mutant(
        name="latch_not_checked",
        seed=100,
        wrong="the store lets calls start under a latch",
        plant=lambda: in_place_of(validation, "check_halts", _no_halts),
    ),
    Mutant(
        name="halt_ignores_undo",
        seed=1018,
        wrong="an undo starts under a latch",
        plant=lambda: together(
            in_place_of(journal, "START_ENTRY_TYPES", (CallStarted,)),
            in_place_of(validation, "has_starts", _has_calls),
        ),
        limit=6000,
    ),
    Mutant(
        name="feed_gap",
        wrong="a reader that reconnects misses what came in between",
        plant=lambda: in_place_of(universe, "reader", _gap_in_the_feed),
    ),
    Mutant(
        name="snapshot_forgets",
        wrong="a snapshot does not hold everything the journal means",
        plant=lambda: in_place_of(journal, "encode_snapshot", _without_frames),
        limit=12000,
    ),
    Mutant(
        name="no_tombstone_and_gap",
        seed=678,
        wrong="an effect that arrives after its undo is not refused",
        plant=lambda: together(in_place_of(World, "undo", _no_tombstone), _gapped()),
        limit=20000,
        rules=("W3", "I28", "I33"),
    ),
    Mutant(
        name="gate_to_wire_gap",
        wrong="a process that froze between the gate and the wire acts when it wakes",
        plant=_gapped,
        limit=12000,
        strategy="targeted+pct",
        rules=("W1",),
        documented=True,
    ),
)
