"""Threads: conversations of several runs."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from midrun.core.fork import bounded, history
from midrun.core.ids import RunId
from midrun.core.values import Message
from midrun.driver.journal import load
from midrun.errors import JournalCorrupt, JournalTooNew, ThreadTaken
from midrun.ports.store import Query, Store

THREAD_RUNS: Final = 50
"""How many of the newest runs of a thread a new one is told of, unless `Midrun` says."""

Sees: TypeAlias = Callable[[RunId], Awaitable[bool]]
"""Tells whether somebody may look at a run."""


async def said_before(
    store: Store, thread: str, sees: Sees | None = None, *, runs: int = THREAD_RUNS
) -> tuple[tuple[Message, ...], bool]:
    """Return what the newest `runs` of a thread said, oldest first, without their history.

    So what an older run says after a newer one has started is not lost to the thread. With
    `sees`, what may not be looked at is left out, whoever joined the thread a moment ago.

    And whether the next one is to begin it: nobody has yet, and with `sees` it matters who.

    Raises:
        ThreadTaken: with `sees`, it has begun with a run that may not be looked at.
    """
    if not thread:
        return (), False
    page = await store.runs(Query(thread=thread, limit=runs))
    begun = page.items[-1].run if page.items and not page.cursor else None
    if begun and sees is not None and not await sees(begun):
        raise ThreadTaken(thread)
    said: list[Message] = []
    for row in reversed(page.items):
        if sees is not None and not await sees(row.run):
            continue
        try:
            state = await load(store, row.run)
        except (JournalCorrupt, JournalTooNew):
            lost = f"What was said in run {row.run} cannot be read any more."
            said.append(Message(role="runtime", text=lost))
            continue
        said += history(state, inherited=len(state.started.history))
    told = bounded(said)
    if page.cursor:
        forgotten = f"What was said in this thread before its newest {runs} runs is left out."
        told = (Message(role="runtime", text=forgotten), *told)
    return told, sees is not None and not page.items
