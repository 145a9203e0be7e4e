"""Reading the journal of a run, and waiting for entries and conditions."""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint

from midrun import Midrun, Run
from midrun.core.entries import Entry
from midrun.core.ids import CallId, RunId, make_child_id
from midrun.core.transcript import Transcript, Turn
from midrun.driver.journal_writer import load_run_state
from midrun.runs.values import FeedEntry
from midrun.workers.local import LocalWorker

E = TypeVar("E", bound=Entry)

TIMEOUT_S = 60
"""Seconds before a wait fails."""


async def read_journal(run: Run) -> list[Entry]:
    """Return the entries of a run."""
    return [record.entry for record in await run._service.store.read(run.id)]


async def read_entries(run: Run, kind: type[E]) -> list[E]:
    """Return the entries of one kind."""
    return [entry for entry in await read_journal(run) if isinstance(entry, kind)]


async def read_kinds(run: Run) -> list[str]:
    """Return the names of the kinds of all entries."""
    return [type(entry).__name__ for entry in await read_journal(run)]


async def wait_for_entry(run: Run, kind: type[E], count: int = 1) -> E:
    """Wait until the journal has `count` entries of one kind; return the last of them."""
    found: list[E] = []
    with anyio.fail_after(TIMEOUT_S):
        async for item in run.feed():
            if isinstance(item, FeedEntry) and isinstance(item.entry, kind):
                found.append(item.entry)
                if len(found) == count:
                    return found[-1]
    raise AssertionError(f"the run ended with {len(found)} {kind.__name__}")


async def wait_for_child(midrun: Midrun, run: Run, call: str = "c2") -> Run:
    """Return the child run of a call of `run`, once it exists."""
    child = make_child_id(RunId(run.id), CallId(call))
    while True:
        try:
            return await midrun.get(child)
        except LookupError:
            await checkpoint()


async def read_turns(run: Run) -> list[Turn]:
    """Return the transcript that the model would get now."""
    return list(Transcript(await load_run_state(run._service.store, run.id)))


def get_worker(midrun: Midrun) -> LocalWorker:
    """Return the worker of `midrun`, to check its private state."""
    assert midrun._service.worker is not None
    return midrun._service.worker


async def yield_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition in this process that no event announces."""
    with anyio.fail_after(TIMEOUT_S):
        while not condition():
            await checkpoint()


def is_instruction(turn: Turn, text: str, by: str = "ada") -> bool:
    """Return whether a turn gives this instruction of this actor to the model."""
    return (turn.role, turn.kind, turn.text, turn.by) == ("user", "instruction", text, by)
