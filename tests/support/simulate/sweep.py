"""Many schedules: run them, count how they ended, keep what failed."""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from msgspec import Struct

from tests.support.simulate.failure import told
from tests.support.simulate.setup import Strategy
from tests.support.simulate.universe import Universe
from tests.support.simulate.violation import Violation

CHUNK: Final = 100


class Failure(Struct, frozen=True, kw_only=True):
    """A schedule that showed something it must not; `text` is the whole story."""

    seed: int
    rule: str
    text: str
    crashed: bool = False  # not a rule that was broken, but code that raised


class Sweep(Struct, kw_only=True):
    """What came of a number of schedules."""

    schedules: int = 0
    entries: int = 0
    steps: int = 0
    outcomes: dict[str, int] = {}
    failures: list[Failure] = []

    def add(self, other: "Sweep") -> None:
        """Count what came of others, too."""
        self.schedules += other.schedules
        self.entries += other.entries
        self.steps += other.steps
        self.outcomes = dict(Counter(self.outcomes) + Counter(other.outcomes))
        self.failures = [*self.failures, *other.failures]


def failure_of(seed: int, strategy: Strategy) -> Failure | None:
    """Run one schedule, and return what it must not have shown, if anything."""
    return played(Universe(seed, strategy))


def played(universe: Universe) -> Failure | None:
    """Play a schedule, and return what it must not have shown, if anything."""
    scene = universe.scene
    try:
        universe.run()
    except Violation as violation:
        crashed, rule, problem = False, violation.rule, str(violation)
    except Exception as error:  # noqa: BLE001 - whatever the core raises is a finding
        crashed, rule, problem = True, type(error).__name__, traceback.format_exc()
    else:
        return None
    text = told(scene, problem)
    return Failure(seed=scene.setup.seed, rule=rule, text=text, crashed=crashed)


def swept(seeds: Iterable[int], strategy: Strategy) -> Sweep:
    """Run the schedules of these seeds, one after the other."""
    sweep = Sweep()
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        universe = Universe(seed, strategy)
        failure = played(universe)
        state = universe.scene.desk.state
        sweep.schedules += 1
        sweep.entries += state.seq
        sweep.steps += universe.scene.scheduler.count
        if failure is None:
            outcomes[f"{state.phase} with residue" if state.residue else str(state.phase)] += 1
        else:
            outcomes["failed"] += 1
            sweep.failures = [*sweep.failures, failure]
    sweep.outcomes = dict(outcomes)
    return sweep


def sweeps(seeds: range, strategy: Strategy, processes: int) -> Iterator[Sweep]:
    """Run the schedules of `seeds` in pieces, in this many processes; yield piece by piece."""
    pieces = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if processes <= 1:
        yield from (swept(piece, strategy) for piece in pieces)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(swept, pieces, [strategy] * len(pieces))
