"""Threads: conversations of several runs."""

from typing import Final

from midrun.core.fork import bounded, history
from midrun.core.values import Message
from midrun.driver.journal import load
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.ports.store import Query, Store

THREAD_RUNS: Final = 50
"""The number of runs in the history of a thread, unless `Midrun(thread_runs=…)` sets it."""


async def said_before(
    store: Store, thread: str, *, owner: str = "", runs: int = THREAD_RUNS
) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """Return the messages of the newest `runs` of a thread, and the people who steered them.

    The oldest come first. Each run contributes its own messages, without the history that it
    began with: so a message that an older run writes after a newer one has started is not lost
    to the thread. With an `owner`, runs of others under the same name are not in the thread.
    """
    if not thread:
        return (), ()
    page = await store.runs(Query(thread=thread, owner=owner, limit=runs))
    said: list[Message] = []
    people: list[str] = []
    for row in reversed(page.items):
        try:
            state = await load(store, row.run)
        except (JournalCorrupt, JournalTooNew):
            lost = f"What was said in run {row.run} cannot be read any more."
            said.append(Message(role="runtime", text=lost))
            continue
        said += history(state, inherited=len(state.started.history))
        people += state.steered_by
    told = bounded(said)
    if page.cursor:
        forgotten = f"Messages from before the newest {runs} runs of this thread are left out."
        told = (Message(role="runtime", text=forgotten), *told)
    return told, tuple(people)
