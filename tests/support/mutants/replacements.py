"""How a fault is planted: by replacing what has a name, and putting it back."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final
from unittest.mock import patch

from msgspec import Struct

from midrun.core.decide import DECIDE_FUNCTIONS
from midrun.core.entries import Entry
from midrun.core.evolve import EVOLVE_FUNCTIONS
from midrun.core.ids import SEQ_ZERO, Micros
from midrun.core.state import State
from midrun.core.transitions import (
    ENTRY_TABLE,
    INPUT_TABLE,
    Accepted,
    Input,
    NoChange,
    TableCell,
    Verdict,
)
from midrun.core.values import Phase
from tests.support.simulate.setup import Strategy

Replacement = AbstractContextManager[object]
DecideFunction = Callable[[State, Input, Micros], Verdict]

DEFAULT_LIMIT_SCHEDULES: Final = 5000


class Mutant(Struct, frozen=True, kw_only=True):
    """A fault: its name, what it does wrong in a sentence, and how to plant it."""

    name: str
    description: str
    plant: Callable[[], Replacement]
    seed: int = 0  # a schedule near this seed shows the fault: the search starts here
    limit: int = DEFAULT_LIMIT_SCHEDULES  # of schedules within which it must be found
    strategy: Strategy = "targeted"  # the one that the gate hunts it with
    rules: tuple[str, ...] = ()  # only these count: what else it breaks says less
    is_documented_limit: bool = False  # not a fault: a limit that the documentation names


@contextmanager
def replace_all(*planted: Replacement) -> Iterator[None]:
    """Plant several at once."""
    with ExitStack() as stack:
        for one in planted:
            stack.enter_context(one)
        yield


def replace_attribute(owner: object, name: str, new: object) -> Replacement:
    """Replace the attribute `name` of a module or class."""
    return patch.object(owner, name, new)


def replace_decide(
    kind: type[Input], new: Callable[[DecideFunction], DecideFunction]
) -> Replacement:
    """Replace the ruling about inputs of this kind by one made of it."""
    old: DecideFunction = DECIDE_FUNCTIONS[kind]
    return patch.dict(DECIDE_FUNCTIONS, {kind: new(old)})


def drop_entries(kind: type[Input], *without: type[Entry]) -> Replacement:
    """Let a ruling forget entries of some kinds."""

    def forgetful(old: DecideFunction) -> DecideFunction:
        def rule(state: State, given: Input, now: Micros) -> Verdict:
            verdict = old(state, given, now)
            if not isinstance(verdict, Accepted):
                return verdict
            kept = tuple(e for e in verdict.entries if not isinstance(e, without))
            return Accepted(entries=kept) if kept else NoChange(name="forgotten", seq=SEQ_ZERO)

        return rule

    return replace_decide(kind, forgetful)


def replace_evolve(
    kind: type[Entry], new: Callable[[State, State, Entry], State]
) -> Replacement:
    """Let the fold of an entry end differently: `new` gets the state before, after, and it."""
    old = EVOLVE_FUNCTIONS[kind]

    def fold(state: State, entry: Entry) -> State:
        return new(state, old(state, entry), entry)

    return patch.dict(EVOLVE_FUNCTIONS, {kind: fold})


def allow_entry(kind: type[Entry], also: Mapping[Phase, Phase]) -> Replacement:
    """Let an entry stand where it must not."""
    return patch.dict(ENTRY_TABLE, {kind: {**ENTRY_TABLE[kind], **also}})


def allow_input(kind: type[Input], also: Mapping[Phase, tuple[Phase, ...]]) -> Replacement:
    """Let an input be accepted where it must not be."""
    cells = {phase: TableCell(next_phases=to) for phase, to in also.items()}
    return patch.dict(INPUT_TABLE, {kind: {**INPUT_TABLE[kind], **cells}})
