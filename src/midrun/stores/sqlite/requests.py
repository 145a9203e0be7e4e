"""Requests on their way to the writer."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

from msgspec import UNSET, Struct, UnsetType

from midrun.stores.hop import Waiter
from midrun.stores.sqlite.connect import DAMAGE
from midrun.stores.sqlite.standings import Standings

T_co = TypeVar("T_co", covariant=True)


class Torn(Exception):
    """A request failed after its first write: its transaction must not be committed."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(cause)
        self.cause = cause


class Request(Struct, Generic[T_co], eq=False):
    """One write on its way: what to do, who waits for it, and what came of it."""

    work: Callable[[Standings], T_co]
    waiter: Waiter | None = None
    failure: Exception | None = None
    outcome: T_co | UnsetType = UNSET

    def attempt(self, at: Standings) -> None:
        """Carry it out in a transaction. A refusal is an outcome, an error of the file not."""
        self.failure = None
        before = at.db.total_changes()
        try:
            self.outcome = self.work(at)
        except DAMAGE:
            raise
        except Exception as failure:
            if at.db.total_changes() != before:
                raise Torn(failure) from failure
            self.failure = failure

    def result(self) -> T_co:
        """Return what came of it, or raise why nothing did."""
        if self.failure is not None:
            raise self.failure
        assert self.outcome is not UNSET
        return self.outcome


Group: TypeAlias = list[Request[object]]
"""What is committed together."""
