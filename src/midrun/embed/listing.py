"""Lists of runs, each as people look at it."""

from midrun.driver.journal import load
from midrun.embed.view import view_of
from midrun.handles.view import RunView
from midrun.ports.store import Page, Query, Store


async def views(store: Store, query: Query) -> Page[RunView]:
    """Return the runs of a page; each is read by itself, and shown as of then."""
    page = await store.runs(query)
    found = [
        view_of(await load(store, row.run), started_at=row.started_at) for row in page.items
    ]
    return Page(items=tuple(found), cursor=page.cursor)
