"""Requests on their way to the writer, and the gates where they gather."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from midrun.core.ids import RunId, Seq
from midrun.stores.hop import Home, Loop, Signal
from midrun.stores.sqlite.connect import DAMAGE
from midrun.stores.sqlite.standings import Standings

T = TypeVar("T")


class Torn(Exception):
    """A request failed after its first write: its transaction must not be committed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Request(Generic[T]):
    """One write on its way: what to do, and what came of it."""

    __slots__ = ("_failure", "_value", "done", "gate", "told", "work")

    def __init__(
        self,
        work: Callable[[Standings], T],
        told: Callable[[T], tuple[RunId, Seq]] | None,
        gate: "Gate",
    ) -> None:
        self.work = work
        self.told = told
        self.gate = gate
        self.done = False
        self._value: T
        self._failure: Exception | None = None

    def attempt(self, at: Standings) -> None:
        """Carry it out in a transaction. A refusal is an outcome, an error of the file not."""
        self._failure = None
        before = at.db.total_changes()
        try:
            self._value = self.work(at)
        except DAMAGE:
            raise
        except Exception as failure:
            if at.db.total_changes() != before:
                raise Torn(failure) from failure
            self._failure = failure

    def fail(self, failure: Exception) -> None:
        """Have it end with `failure`."""
        self._failure = failure

    def changes(self) -> list[tuple[RunId, Seq]]:
        """Return what watchers should hear once it is committed."""
        return [self.told(self._value)] if self.told and self._failure is None else []

    def result(self) -> T:
        """Return what came of it, or raise why nothing did."""
        if self._failure is not None:
            raise self._failure
        return self._value


class Pending(Protocol):
    """A request of whatever result."""

    gate: "Gate"
    done: bool

    def attempt(self, at: Standings) -> None: ...
    def fail(self, failure: Exception) -> None: ...
    def changes(self) -> list[tuple[RunId, Seq]]: ...


class Gate:
    """Where the requests of one turn of an event loop gather, to be answered together."""

    __slots__ = ("group", "loop", "open", "quick", "waiting")

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.group: list[Pending] = []
        self.open = True
        self.quick = True
        self.waiting: Signal | None = None

    def signal(self) -> Signal:
        """Return what wakes those who wait; made in their loop, once somebody has to."""
        if self.waiting is None:
            self.waiting = Signal(Home.here())
        return self.waiting
