"""Commands that look: lists, views, feeds, reports, journals."""

from argparse import Namespace
from contextlib import aclosing

from midrun.cli.follow import INDENT, Reading
from midrun.cli.hints import say_who_drives, typed
from midrun.cli.output import CODES, Sayer, ask_line, view_lines
from midrun.cli.tables import row_line
from midrun.cli.targets import find
from midrun.ports.environment import wall
from midrun.runs.protocols import AnyMidrun, AnyRun


async def ls(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """List runs."""
    page = await midrun.runs(
        phase=args.phase, agent=args.agent, label=args.label, limit=args.limit
    )
    for view in page.items:
        say.say(view, row_line(view, wall(), say.columns))
    if not page.items and not say.as_json:
        say.text(_none(args))
    return 0


def _none(args: Namespace) -> str:
    if args.phase or args.agent or args.label:
        return f"no such runs; see all: {typed(args, 'ls')}"
    start = typed(args, "run", "app.py", '"the task"')
    return f"no runs; start one: {start}"


async def show(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Show where a run stands."""
    view = await (await find(midrun, args.run)).view()
    say.say(view, *view_lines(view, wall()))
    await say_who_drives(midrun, view, args, say)
    return 0


async def feed(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Print what happened, and go on if asked to: until the run has ended, or failed."""
    run = await find(midrun, args.run)
    view = await run.view()
    if args.after >= view.seq and (not args.follow or view.phase == "failed"):
        return CODES[view.phase] if args.follow else 0
    failed = False
    reading = Reading(run.id, after=args.after)
    async with aclosing(run.feed(after=args.after if say.as_json else 0)) as items:
        async for item in items:
            if say.as_json:
                say.json(item)
            else:
                for text in reading.lines(item):
                    say.prose(text, indent=INDENT)
            if item.seq is None:
                continue
            if not args.follow and item.seq >= view.seq:
                return 0
            failed = failed or item.kind == "RunFailed"
            if args.follow and failed and await _rests_failed(run, item.seq):
                break
    return CODES.get((await run.view()).phase, 0)


async def _rests_failed(run: AnyRun, seq: int) -> bool:
    """Tell whether a run has failed for now: nothing more comes by itself."""
    view = await run.view()
    return view.phase == "failed" and seq >= view.seq


async def report(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Say what became of everything."""
    told = await (await find(midrun, args.run)).report()
    if say.as_json:
        say.json(told)
    else:
        say.prose(str(told))
    return 0


async def verify(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Check a journal."""
    verdict = await midrun.verify((await find(midrun, args.run)).id)
    say.say(verdict, str(verdict))
    return 0 if verdict else 1


async def export(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Print the stored lines: byte for byte into a file, as text on a terminal."""
    for stored in await (await find(midrun, args.run)).export():
        if say.on_terminal:
            say.text(stored.decode())
        else:
            say.raw(stored.decode() + "\n")
    return 0


async def asks(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """List what runs wait for."""
    waiting = await midrun.asks()
    for ask in waiting:
        say.say(ask, ask_line(ask))
    if not waiting and not say.as_json:
        say.text("nobody is waited for")
    elif not say.as_json and say.on_terminal:
        say.line([("dim", f"decide with: {typed(args, 'answer|approve|decline', 'ASK')}")])
    return 0
