"""Run many schedules, count their outcomes, and format the failures."""

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
from tests.support.simulate.environment import ControlReply, Environment
from tests.support.simulate.setup import Setup, Strategy
from tests.support.simulate.simulation import Simulation

CHUNK_SCHEDULES: Final = 100


class Failure(Struct, frozen=True, kw_only=True):
    """A failed schedule; `text` has the violation, the parameters and the journal."""

    seed: int
    rule: str
    text: str
    crashed: bool = False  # code raised; no rule was checked


class SweepResult(Struct, kw_only=True):
    """Counts and failures of a number of schedules."""

    schedules: int = 0
    entries: int = 0
    steps: int = 0
    outcomes: dict[str, int] = {}
    failures: list[Failure] = []

    def add(self, other: "SweepResult") -> None:
        """Add the counts and failures of `other`."""
        self.schedules += other.schedules
        self.entries += other.entries
        self.steps += other.steps
        self.outcomes = dict(Counter(self.outcomes) + Counter(other.outcomes))
        self.failures = [*self.failures, *other.failures]


def run_schedule(seed: int, strategy: Strategy) -> Failure | None:
    """Run the schedule of a seed; return its failure, or None."""
    return run_simulation(Simulation(seed, strategy))


def run_simulation(simulation: Simulation) -> Failure | None:
    """Run a schedule; return its failure, or None."""
    env = simulation.env
    try:
        simulation.run()
    except Violation as violation:
        crashed, rule, problem = False, violation.rule, str(violation)
    except Exception as error:  # noqa: BLE001 - each exception of the core is a failure
        crashed, rule, problem = True, type(error).__name__, traceback.format_exc()
    else:
        return None
    text = format_failure(env, problem)
    return Failure(seed=env.setup.seed, rule=rule, text=text, crashed=crashed)


def run_schedules(seeds: Iterable[int], strategy: Strategy) -> SweepResult:
    """Run the schedules of these seeds in this process."""
    sweep = SweepResult()
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        simulation = Simulation(seed, strategy)
        failure = run_simulation(simulation)
        state = simulation.env.journal.state
        sweep.schedules += 1
        sweep.entries += state.seq
        sweep.steps += simulation.env.scheduler.step_count
        if failure is None:
            outcomes[f"{state.phase} with residue" if state.residue else str(state.phase)] += 1
        else:
            outcomes["failed"] += 1
            sweep.failures = [*sweep.failures, failure]
    sweep.outcomes = dict(outcomes)
    return sweep


def run_in_processes(seeds: range, strategy: Strategy, processes: int) -> Iterator[SweepResult]:
    """Run the schedules of `seeds` in several processes; yield a result for each chunk."""
    pieces = [seeds[at : at + CHUNK_SCHEDULES] for at in range(0, len(seeds), CHUNK_SCHEDULES)]
    if processes <= 1:
        yield from (run_schedules(piece, strategy) for piece in pieces)
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(run_schedules, pieces, [strategy] * len(pieces))


def format_failure(env: Environment, problem: str) -> str:
    """Return the text of a failure: problem, command, parameters, journal, replies, effects."""
    setup = env.setup
    parameters = "\n".join(
        f"  {name} = {getattr(setup, name)!r}" for name in Setup.__struct_fields__
    )
    return "\n".join(
        (
            f"FAILED seed {setup.seed}, strategy {setup.strategy}: {problem}",
            f"repeat with: {format_command(setup)}",
            "schedule:",
            parameters,
            f"  script = {env.program.turns!r}",
            "journal:",
            format_journal(env),
            "replies:",
            *(f"  {_format_reply(reply)}" for reply in env.replies),
            f"world: {', '.join(env.world.log)}",
        )
    )


def format_command(setup: Setup) -> str:
    """Return the command that repeats the schedule."""
    seed = f"--schedules 1 --seed {setup.seed} --strategy {setup.strategy}"
    return f"python -m tests.support.simulate {seed} --verbose"


def format_journal(env: Environment) -> str:
    """Return the journal, one entry per line."""
    return "\n".join(
        f"  {seq:3} {_format_entry(entry, epoch)}"
        for seq, (entry, epoch) in enumerate(env.journal.entries_with_epochs, 1)
    )


def _format_entry(entry: Entry, epoch: Epoch | None) -> str:
    fields = msgspec.to_builtins(entry)
    shown = ", ".join(f"{name}={value!r}" for name, value in fields.items() if name != "kind")
    by = "   " if epoch is None else f"@{epoch} "
    return f"{by}{type(entry).__name__}({shown})"


def _format_reply(reply: ControlReply) -> str:
    name = type(reply.control).__name__
    request = f" {reply.control.request_id}" if reply.control.request_id else ""
    if isinstance(reply.verdict, Accepted):
        answer = f"accepted as {reply.entry_seq}"
    elif isinstance(reply.verdict, NoChange):
        answer = f"= {reply.verdict.name}"
    else:
        answer = f"refused {reply.verdict.reason}"
    return (
        f"{name}{request} by {reply.control.by.name} at {reply.seq} ({reply.phase}): {answer}"
    )
