"""Commands that look: lists, views, feeds, reports, journals."""

from argparse import Namespace

from midrun.agents.outcome import ask_views
from midrun.cli.finding import find
from midrun.cli.saying import Sayer, ago, item_line, row_line, view_text
from midrun.core.ids import RunId
from midrun.core.report import report
from midrun.driver.journal import load
from midrun.embed.midrun import Midrun
from midrun.ports.clock import wall
from midrun.ports.store import Query


async def ls(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """List runs."""
    page = await midrun.runs(
        phase=args.phase, agent=args.agent, label=args.label, limit=args.limit
    )
    for row in page.items:
        say.say(row, row_line(say, row, wall()))
    if not page.items and not say.as_json:
        say.text('no runs; start one: midrun run app.py "the task"')
    return 0


async def show(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Show where a run stands."""
    view = await (await find(midrun, args.run)).view()
    say.say(view, view_text(say, view, wall()))
    return 0


async def feed(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Print what happened, and go on if asked to."""
    run = await find(midrun, args.run)
    last = (await run.view()).seq
    async for item in run.feed(after=args.after):
        text = item_line(item)
        if text is not None or say.as_json:
            say.say(item, text or "")
        if not args.follow and item.seq is not None and item.seq >= last:
            break
    return 0


async def report_of(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Say what became of everything."""
    run = await find(midrun, args.run)
    told = report(await load(midrun.store, RunId(run.id)))
    say.say(told, str(told))
    return 0


async def verify(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Check a journal."""
    verdict = await midrun.verify((await find(midrun, args.run)).id)
    say.say(verdict, str(verdict))
    return 0 if verdict else 1


async def export(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """Print the stored lines."""
    run = await find(midrun, args.run)
    for stored, _ in await midrun.store.lines(RunId(run.id)):
        say.text(stored.decode())
    return 0


async def asks(midrun: Midrun, args: Namespace, say: Sayer) -> int:
    """List what runs wait for."""
    del args
    count = 0
    for row in (await midrun.store.runs(Query(attention=True, limit=200))).items:
        state = await load(midrun.store, row.run)
        for ask in ask_views(state):
            count += 1
            say.say(
                {"run": row.run, "ask": ask},
                f"{row.run}/{ask.id}  {ask}  ({ago(wall(), row.changed_at)})",
            )
    if not count and not say.as_json:
        say.text("nobody is waited for")
    return 0
