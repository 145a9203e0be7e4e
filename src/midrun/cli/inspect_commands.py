"""Commands that read: lists, views, feeds, reports, journals, open asks."""

from argparse import Namespace
from contextlib import aclosing

from midrun.cli.follow import PlainFeed, open_feed, print_item
from midrun.cli.hints import format_command, print_worker_hint
from midrun.cli.output import (
    EXIT_CODE_BY_PHASE,
    CommandOutput,
    format_ask,
    format_row,
    format_view,
)
from midrun.cli.targets import find_run
from midrun.driver.delta import Delta
from midrun.events import DeltaEvent
from midrun.ports.environment import read_wall_clock
from midrun.runs.protocols import AnyMidrun, AnyRun


async def ls(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """List runs."""
    page = await midrun.runs(
        phase=args.phase, agent=args.agent, label=args.label, limit=args.limit
    )
    for view in page.items:
        out.write(view, format_row(view, read_wall_clock(), out.columns))
    if not page.items and not out.as_json:
        out.write_text(_format_no_runs(args))
    return 0


def _format_no_runs(args: Namespace) -> str:
    if args.phase or args.agent or args.label:
        return f"no matching runs; list all: {format_command(args, 'ls')}"
    start = format_command(args, "run", "app.py", '"the task"')
    return f"no runs; start one: {start}"


async def show(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Show the status of a run."""
    view = await (await find_run(midrun, args.run)).view()
    out.write(view, *format_view(view, read_wall_clock()))
    await print_worker_hint(midrun, view, args, out)
    return 0


async def feed(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Print the feed of a run; with `--follow`, until the run has ended or failed."""
    run = await find_run(midrun, args.run)
    view = await run.view()
    # The feed of a run that has not ended waits for the next entry. If nothing is left to
    # print, it would wait for ever, so this returns before the feed is opened.
    if args.after >= view.seq and (not args.follow or view.phase == "failed"):
        return EXIT_CODE_BY_PHASE[view.phase] if args.follow else 0
    failed = False
    lines = PlainFeed()
    async with aclosing(open_feed(run, args.after, out)) as items:
        async for item in items:
            print_item(item, lines, out)
            if isinstance(item, Delta | DeltaEvent):
                continue
            if not args.follow and item.seq >= view.seq:
                return 0
            # A failed run can be resumed, so its feed does not end by itself. The view is read
            # only after a `RunFailed`, and shows whether the run was resumed since.
            failed = failed or item.kind == "RunFailed"
            if args.follow and failed and await _is_last_entry_of_failed(run, item.seq):
                break
    return EXIT_CODE_BY_PHASE.get((await run.view()).phase, 0)


async def _is_last_entry_of_failed(run: AnyRun, seq: int) -> bool:
    """Tell whether `seq` is the last entry of a run that is still failed."""
    view = await run.view()
    return view.phase == "failed" and seq >= view.seq


async def report(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Print the report of a run."""
    run_report = await (await find_run(midrun, args.run)).report()
    if out.as_json:
        out.write_json(run_report)
    else:
        out.write_wrapped(str(run_report))
    return 0


async def verify(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Verify the journal of a run; exit with 1 if a check fails."""
    verdict = await midrun.verify((await find_run(midrun, args.run)).id)
    out.write(verdict, str(verdict))
    return 0 if verdict else 1


async def export(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Print the stored lines: unchanged into a file, escaped on a terminal."""
    for stored in await (await find_run(midrun, args.run)).export():
        if out.is_terminal:
            out.write_text(stored.decode())
        else:
            out.write_raw(stored.decode() + "\n")
    return 0


async def asks(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """List the open asks of all runs."""
    waiting = await midrun.asks()
    for ask in waiting:
        out.write(ask, format_ask(ask))
    if not waiting and not out.as_json:
        out.write_text("no run waits for a decision")
    elif not out.as_json and out.is_terminal:
        out.write_line(
            [("dim", f"decide with: {format_command(args, 'answer|approve|decline', 'ASK')}")]
        )
    return 0
