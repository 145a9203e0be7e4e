"""Threads: conversations of several runs."""

from typing import Final

from midrun.core.fork import bounded, history
from midrun.core.values import Message
from midrun.driver.journal import load
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.ports.store import Query, Store

REMEMBERED: Final = 50
"""How many of the newest runs of a thread a new one is told of."""


async def said_before(store: Store, thread: str) -> tuple[Message, ...]:
    """Return what the runs of a thread said, oldest first, each without what it was told.

    So what an older run says after a newer one has started is not lost to the thread.
    """
    page = await store.runs(Query(thread=thread, limit=REMEMBERED))
    said: list[Message] = []
    for row in reversed(page.items):
        try:
            state = await load(store, row.run)
        except (JournalCorrupt, JournalTooNew):
            lost = f"What was said in run {row.run} cannot be read any more."
            said.append(Message(role="runtime", text=lost))
            continue
        said += history(state, inherited=len(state.started.history))
    return bounded(said)
