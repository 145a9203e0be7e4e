"""Latches: what lifting one means for the runs that it held."""

from midrun.core.controls import Lift
from midrun.core.values import Actor, Phase
from midrun.driver.control import bring
from midrun.driver.journal import load
from midrun.embed.desk import Desk
from midrun.errors import JournalCorrupt, JournalTooNew
from midrun.ports.store import Query


async def let_go(desk: Desk, by: Actor) -> None:
    """Let every halted run go on that no latch covers any more, and whose journal is sound."""
    store = desk.store
    halts = tuple(await store.halts())
    cursor = ""
    while True:
        page = await store.runs(Query(phases=(Phase.HALTED,), limit=200, cursor=cursor))
        for row in page.items:
            head = row.head
            if any(h.covers(row.run, head.agent, head.labels) for h in halts):
                continue
            try:
                ruled = await bring(store, await load(store, row.run), Lift(by=by), desk.now)
            except (JournalCorrupt, JournalTooNew):
                continue  # it is left alone until it can be read
            if ruled.entries:
                desk.hear(row.run, ruled.after)
        cursor = page.cursor
        if not cursor:
            return
