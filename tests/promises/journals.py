"""Looking at what stands in a journal."""

from typing import TypeVar

from midrun import Midrun, Run
from midrun.core.entries import Record
from midrun.core.facts.fact import Fact
from midrun.core.ids import RunId

E = TypeVar("E", bound=Fact)


async def records(midrun: Midrun, run: Run) -> list[Record]:
    """Return everything that stands in the journal of `run`."""
    return list(await midrun.store.read(RunId(run.id)))


async def entries(midrun: Midrun, run: Run, kind: type[E]) -> list[E]:
    """Return the entries of one kind, in order."""
    return [r.entry for r in await records(midrun, run) if isinstance(r.entry, kind)]


async def kinds(midrun: Midrun, run: Run, after: int = 0) -> list[str]:
    """Return the names of the entries after `after`."""
    return [type(r.entry).__name__ for r in await records(midrun, run) if r.seq > after]
