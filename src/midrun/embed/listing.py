"""Lists of runs, each as people look at it; one that cannot be read is shown as that."""

from midrun.core.signs import Sign
from midrun.core.words import line
from midrun.driver.journal import load
from midrun.embed.view import heard, open_asks, view_of
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.handles.view import OpenAsk, RunView
from midrun.ports.store import Page, Query, RunRow, Store

MANY = 200
"""How many runs are looked at between two looks at the store."""


async def views(store: Store, query: Query) -> Page[RunView]:
    """Return the runs of a page; each is read by itself, and shown as of then."""
    page = await store.runs(query)
    found = [await _view(store, row) for row in page.items]
    return Page(items=tuple(found), cursor=page.cursor)


async def _view(store: Store, row: RunRow) -> RunView:
    try:
        state = await load(store, row.run)
    except (JournalCorrupt, JournalTooNew) as error:
        return _unread(row, str(error))
    return await heard(store, row, view_of(state, started_at=row.started_at))


def _unread(row: RunRow, error: str) -> RunView:
    """Return what the store knows of a run without its journal."""
    head = row.head
    return RunView(
        run_id=row.run,
        seq=row.seq,
        control_rev=row.seq,
        agent=head.agent,
        task=head.task,
        phase=head.phase,
        sign=Sign(look="lost", word="Cannot be read", note=line(error)),
        step=head.step,
        started_at=row.started_at,
        changed_at=row.changed_at,
        error=error,
        labels=head.labels,
        thread=head.thread,
        parent=head.parent,
    )


async def asked(store: Store) -> tuple[OpenAsk, ...]:
    """Return everything that runs wait for somebody to decide, where that can be read."""
    found: tuple[OpenAsk, ...] = ()
    cursor = ""
    while True:
        page = await store.runs(Query(attention=True, limit=MANY, cursor=cursor))
        for row in page.items:
            if row.head.asks:
                try:
                    found += open_asks(await load(store, row.run))
                except (JournalCorrupt, JournalTooNew):
                    continue
        cursor = page.cursor
        if not cursor:
            return found
