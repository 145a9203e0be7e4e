"""Plant a fault: replace an attribute or a table cell, and restore it afterwards."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Final, Protocol
from unittest.mock import patch

from msgspec import Struct

from midrun.core import scheduler, session, transitions
from midrun.core.decide import asks, calls, controls, conversation, lifecycle
from midrun.core.entries import Entry
from midrun.core.evolve import EVOLVE_FUNCTIONS
from midrun.core.ids import SEQ_ZERO, Micros
from midrun.core.state import State
from midrun.core.transitions import (
    ADVANCE_TABLE,
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


class AdvanceFunction(Protocol):
    """The type of `scheduler.advance`."""

    def __call__(
        self,
        state: State,
        now: Micros,
        reserve: scheduler.Reserve,
        may_start: scheduler.MayStart,
        *,
        unjournaled_work: bool,
    ) -> tuple[Entry, ...]: ...


DEFAULT_LIMIT_SCHEDULES: Final = 5000


class Mutant(Struct, frozen=True, kw_only=True):
    """A fault: its name, its description, and the function that plants it."""

    name: str
    description: str
    plant: Callable[[], Replacement]
    seed: int = 0  # the search starts here, shortly before a schedule that shows the fault
    limit: int = DEFAULT_LIMIT_SCHEDULES  # of schedules
    strategy: Strategy = "targeted"  # that must find it
    rules: tuple[str, ...] = ()  # if run_input, a violation of another rule does not count
    is_documented_limit: bool = False  # not a fault, but a limit that the documentation states


@contextmanager
def replace_all(*planted: Replacement) -> Iterator[None]:
    """Plant several replacements at once."""
    with ExitStack() as stack:
        for replacement in planted:
            stack.enter_context(replacement)
        yield


def replace_attribute(owner: object, name: str, new: object) -> Replacement:
    """Replace the attribute `name` of a module or class."""
    return patch.object(owner, name, new)


def replace_decide(
    kind: type[Input], new: Callable[[DecideFunction], DecideFunction]
) -> Replacement:
    """Wrap the decide function of this kind of input."""
    name = transitions.get_input_name(kind)
    modules = (controls, asks, conversation, calls, lifecycle)
    owner = next(module for module in modules if hasattr(module, name))
    return patch.object(owner, name, new(getattr(owner, name)))


def drop_entries(kind: type[Input], *without: type[Entry]) -> Replacement:
    """Drop entries of these kinds from the verdicts about an input."""

    def wrap_decide(old: DecideFunction) -> DecideFunction:
        def decide_wrongly(state: State, run_input: Input, now: Micros) -> Verdict:
            verdict = old(state, run_input, now)
            if not isinstance(verdict, Accepted):
                return verdict
            kept = tuple(e for e in verdict.entries if not isinstance(e, without))
            return Accepted(entries=kept) if kept else NoChange(name="forgotten", seq=SEQ_ZERO)

        return decide_wrongly

    return replace_decide(kind, wrap_decide)


def replace_advance(new: Callable[[AdvanceFunction], AdvanceFunction]) -> Replacement:
    """Wrap the function that returns the entries which follow from the journal alone."""
    return patch.object(session, "advance", new(scheduler.advance))


def change_advanced(
    change: Callable[[State, tuple[Entry, ...]], tuple[Entry, ...]],
) -> Replacement:
    """Change the entries that follow from a state."""

    def wrap_advance(old: AdvanceFunction) -> AdvanceFunction:
        return lambda state, now, reserve, may_start, *, unjournaled_work: change(
            state, old(state, now, reserve, may_start, unjournaled_work=unjournaled_work)
        )

    return replace_advance(wrap_advance)


def allow_advance(also: Mapping[Phase, tuple[Phase, ...]]) -> Replacement:
    """Let the entries that follow lead to other phases."""
    wider = {phase: (*ADVANCE_TABLE.get(phase, ()), *to) for phase, to in also.items()}
    return patch.dict(ADVANCE_TABLE, wider)


def replace_evolve(
    kind: type[Entry], new: Callable[[State, State, Entry], State]
) -> Replacement:
    """Wrap the evolve function of an entry; `new` gets the states before and after, and it."""
    old = EVOLVE_FUNCTIONS[kind]

    def fold(state: State, entry: Entry) -> State:
        return new(state, old(state, entry), entry)

    return patch.dict(EVOLVE_FUNCTIONS, {kind: fold})


def allow_entry(kind: type[Entry], also: Mapping[Phase, Phase]) -> Replacement:
    """Allow an entry in phases that do not allow it."""
    return patch.dict(ENTRY_TABLE, {kind: {**ENTRY_TABLE[kind], **also}})


def allow_input(kind: type[Input], also: Mapping[Phase, tuple[Phase, ...]]) -> Replacement:
    """Accept an input in phases that do not accept it."""
    cells = {phase: TableCell(next_phases=to) for phase, to in also.items()}
    return patch.dict(INPUT_TABLE, {kind: {**INPUT_TABLE[kind], **cells}})
