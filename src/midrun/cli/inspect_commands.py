"""Commands that read: lists, views, feeds, reports, journals, open asks."""

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
        return f"no matching runs; list all: {typed(args, 'ls')}"
    start = typed(args, "run", "app.py", '"the task"')
    return f"no runs; start one: {start}"


async def show(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Show the status of a run."""
    view = await (await find(midrun, args.run)).view()
    say.say(view, *view_lines(view, wall()))
    await say_who_drives(midrun, view, args, say)
    return 0


async def feed(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Print the feed of a run; with `--follow`, until the run has ended or failed."""
    run = await find(midrun, args.run)
    view = await run.view()
    # The feed of a run that has not ended waits for the next entry. If nothing is left to
    # print, it would wait for ever, so this returns before the feed is opened.
    if args.after >= view.seq and (not args.follow or view.phase == "failed"):
        return CODES[view.phase] if args.follow else 0
    failed = False
    reading = Reading(run.id, after=args.after)
    # Sentences need the earlier entries, too; `PlainFeed` leaves those up to `after` out.
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
            # A failed run can be resumed, so its feed does not end by itself. The view is read
            # only after a `RunFailed`, and shows whether the run was resumed since.
            failed = failed or item.kind == "RunFailed"
            if args.follow and failed and await _rests_failed(run, item.seq):
                break
    return CODES.get((await run.view()).phase, 0)


async def _rests_failed(run: AnyRun, seq: int) -> bool:
    """Tell whether `seq` is the last entry of a run that is still failed."""
    view = await run.view()
    return view.phase == "failed" and seq >= view.seq


async def report(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Print the report of a run."""
    run_report = await (await find(midrun, args.run)).report()
    if say.as_json:
        say.json(run_report)
    else:
        say.prose(str(run_report))
    return 0


async def verify(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Verify the journal of a run; exit with 1 if a check fails."""
    verdict = await midrun.verify((await find(midrun, args.run)).id)
    say.say(verdict, str(verdict))
    return 0 if verdict else 1


async def export(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """Print the stored lines: unchanged into a file, escaped on a terminal."""
    for stored in await (await find(midrun, args.run)).export():
        if say.on_terminal:
            say.text(stored.decode())
        else:
            say.raw(stored.decode() + "\n")
    return 0


async def asks(midrun: AnyMidrun, args: Namespace, say: Sayer) -> int:
    """List the open asks of all runs."""
    waiting = await midrun.asks()
    for ask in waiting:
        say.say(ask, ask_line(ask))
    if not waiting and not say.as_json:
        say.text("no run waits for a decision")
    elif not say.as_json and say.on_terminal:
        say.line([("dim", f"decide with: {typed(args, 'answer|approve|decline', 'ASK')}")])
    return 0
