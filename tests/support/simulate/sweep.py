"""Many schedules: run them, count how they ended, keep what failed."""

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final

import msgspec
from msgspec import Struct

from midrun.core.entries import Entry
from midrun.core.ids import Epoch
from midrun.core.transitions import Accepted, NoChange
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Scene, Told
from tests.support.simulate.setup import Setup, Strategy
from tests.support.simulate.universe import Universe

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


def told(scene: Scene, problem: str) -> str:
    """Return everything that is needed to understand and repeat a failure."""
    setup = scene.setup
    parameters = "\n".join(
        f"  {name} = {getattr(setup, name)!r}" for name in Setup.__struct_fields__
    )
    return "\n".join(
        (
            f"FAILED seed {setup.seed}, strategy {setup.strategy}: {problem}",
            f"again: {again(setup)}",
            "schedule:",
            parameters,
            f"  script = {scene.program.turns!r}",
            "journal:",
            journal(scene),
            "replies:",
            *(f"  {_reply(one)}" for one in scene.told),
            f"world: {', '.join(scene.world.seen)}",
        )
    )


def again(setup: Setup) -> str:
    """Return the command that shows the failure again."""
    seed = f"--schedules 1 --seed {setup.seed} --strategy {setup.strategy}"
    return f"python -m tests.support.simulate {seed} --verbose"


def journal(scene: Scene) -> str:
    """Return the journal, one entry a line."""
    return "\n".join(
        f"  {seq:3} {_line(entry, epoch)}"
        for seq, (entry, epoch) in enumerate(scene.desk.written, 1)
    )


def _line(entry: Entry, epoch: Epoch | None) -> str:
    fields = msgspec.to_builtins(entry)
    shown = ", ".join(f"{name}={value!r}" for name, value in fields.items() if name != "kind")
    by = "   " if epoch is None else f"@{epoch} "
    return f"{by}{type(entry).__name__}({shown})"


def _reply(one: Told) -> str:
    name = type(one.control).__name__
    request = f" {one.control.request}" if one.control.request else ""
    if isinstance(one.verdict, Accepted):
        answer = f"accepted as {one.first}"
    elif isinstance(one.verdict, NoChange):
        answer = f"= {one.verdict.name}"
    else:
        answer = f"refused {one.verdict.reason}"
    return f"{name}{request} by {one.control.by.name} at {one.seq} ({one.phase}): {answer}"
