"""What tests of the promises look at: the journal of a run, and facts that are about to be."""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint

from midrun import Midrun, Run
from midrun.core.entries import CallStarted, CancelRequested, Entry
from midrun.core.transcript import Transcript, Turn
from midrun.driver.journal_writer import load_run_state
from midrun.runs.values import FeedEntry
from midrun.workers.local import LocalWorker

E = TypeVar("E", bound=Entry)

PATIENCE = 60
"""Seconds after which something that should have happened counts as never happening."""


async def journal(run: Run) -> list[Entry]:
    """Return the entries of `run` so far."""
    return [record.entry for record in await run._service.store.read(run.id)]


async def entries(run: Run, kind: type[E]) -> list[E]:
    """Return the entries of one kind, in order."""
    return [entry for entry in await journal(run) if isinstance(entry, kind)]


async def kinds(run: Run) -> list[str]:
    """Return the names of the entries of `run` so far."""
    return [type(entry).__name__ for entry in await journal(run)]


async def recorded(run: Run, kind: type[E], count: int = 1) -> E:
    """Wait until the journal has `count` entries of this kind, and return the last of them."""
    found: list[E] = []
    with anyio.fail_after(PATIENCE):
        async for item in run.feed():
            if isinstance(item, FeedEntry) and isinstance(item.entry, kind):
                found.append(item.entry)
                if len(found) == count:
                    return found[-1]
    raise AssertionError(f"the run ended with {len(found)} {kind.__name__}")


async def turns(run: Run) -> list[Turn]:
    """Return what a model would be given of `run` now."""
    return list(Transcript(await load_run_state(run._service.store, run.id)))


async def starts_after_the_cancel(run: Run) -> list[CallStarted]:
    """Return the starts that should not be there."""
    told = await journal(run)
    at = next(n for n, entry in enumerate(told) if isinstance(entry, CancelRequested))
    return [entry for entry in told[at:] if isinstance(entry, CallStarted)]


def engine(midrun: Midrun) -> LocalWorker:
    """Return what drives the runs of `midrun`, to look inside."""
    assert midrun._worker is not None
    return midrun._worker


async def true(fact: Callable[[], bool]) -> None:
    """Wait for something that happens in this process and tells nobody."""
    with anyio.fail_after(PATIENCE):
        while not fact():
            await checkpoint()


def instructed(turn: Turn, text: str, by: str = "ada") -> bool:
    """Tell whether this is the turn that tells the agent of the instruction."""
    return (turn.role, turn.kind, turn.text, turn.by) == ("user", "instruction", text, by)
