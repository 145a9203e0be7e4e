"""Commands that read: lists, views, feeds, reports, journals, open asks."""

import re
from argparse import Namespace
from contextlib import aclosing
from pathlib import Path
from typing import Final

import anyio
import msgspec

from midrun.cli.follow import PlainFeed, open_feed, print_item
from midrun.cli.hints import format_command, print_worker_hint
from midrun.cli.output import (
    EXIT_CODE_BY_PHASE,
    CommandOutput,
    format_ask,
    format_row,
    format_row_header,
    format_view,
    shorten_ids,
)
from midrun.cli.targets import find_run
from midrun.core.ids import RunId
from midrun.driver.delta import Delta
from midrun.errors import Misconfigured, RunErased
from midrun.events import DeltaEvent
from midrun.ports.audit import AuditEntry
from midrun.ports.environment import read_wall_clock
from midrun.runs.midrun import Midrun
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.text.hidden_characters import escape_hidden
from midrun.tui.styled_text import StyledLine

_UNSAFE_IN_FILE_NAME: Final = re.compile(r"[^\w .()+,=@-]")

CLEAR_SCREEN: Final = "\x1b[H\x1b[J"
WATCH_INTERVAL_S: Final = 2.0


async def ls(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """List runs; with `--watch`, again and again until the command is interrupted."""
    if args.watch and (out.as_json or not out.can_move_cursor):
        raise Misconfigured("ls --watch", "needs a terminal; leave --watch out")
    lines = await _list_runs(midrun, args, out)
    while args.watch:
        out.write_raw(CLEAR_SCREEN)
        for line in _fit_to_screen(lines, out.rows):
            out.write_line(line)
        await anyio.sleep(WATCH_INTERVAL_S)
        lines = await _list_runs(midrun, args, out)
    for line in lines:
        out.write_line(line)
    return 0


def _fit_to_screen(lines: list[StyledLine], rows: int) -> list[StyledLine]:
    """Return the lines that fit; the last row stays empty, for the cursor.

    A list that is taller than the screen would scroll at every repetition.
    """
    room = max(rows - 1, 1)
    if len(lines) <= room:
        return lines
    left = len(lines) - room + 1
    return [*lines[: room - 1], [("dim", f"… {left} more: make the terminal taller")]]


async def _list_runs(
    midrun: AnyMidrun, args: Namespace, out: CommandOutput
) -> list[StyledLine]:
    """Return the lines of the list; write them at once if they are for programs."""
    page = await midrun.runs(
        phase=args.phase,
        agent=args.agent,
        label=args.label,
        search=args.search,
        tenant=args.tenant,
        limit=args.limit,
    )
    if out.as_json:
        for view in page.items:
            out.write_json(view)
        return []
    if not page.items:
        return [[("", _format_no_runs(args))]]
    now, ids = read_wall_clock(), [view.run_id for view in page.items]
    # In a pipe the whole ids are written, without a header: scripts read them.
    if not out.is_terminal:
        return [format_row(view, now) for view in page.items]
    shown = shorten_ids(ids)
    header = format_row_header(out.columns, max(map(len, shown.values())))
    rows = [format_row(view, now, out.columns, shown[view.run_id]) for view in page.items]
    return [header, *rows]


def _format_no_runs(args: Namespace) -> str:
    if args.phase or args.agent or args.label or args.search or args.tenant:
        return f"no matching runs; list all: {format_command(args, 'ls')}"
    start = format_command(args, "run", "AGENT" if args.url else "app.py", '"the task"')
    return f"no runs; start one: {start}"


async def show(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Show the status of a run."""
    view = await (await find_run(midrun, args.run)).view()
    if args.raw:
        text = msgspec.json.format(msgspec.json.encode(view), indent=2).decode()
        out.write_raw(f"{escape_hidden(text)}\n")
        return 0
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


async def artifacts(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """List all versions of the artifacts of a run; with `--save`, write the newest ones."""
    run = await find_run(midrun, args.run)
    shown = await run.artifacts()
    if args.save is not None:
        return await _save_artifacts(run, args.save, out)
    for artifact in shown:
        file = artifact.file
        text = f"{artifact.name}  version {artifact.version}  {file.media_type}  {file.size} B"
        out.write(artifact, text)
    if not shown and not out.as_json:
        out.write_text("the run has no artifacts")
    return 0


async def _save_artifacts(run: AnyRun, folder: Path, out: CommandOutput) -> int:
    """Write the newest version of each artifact into `folder`, under a safe name."""
    newest = {shown.name: shown for shown in await run.artifacts()}
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    taken: set[str] = set()
    for shown in newest.values():
        # A name comes from a tool. It must not lead out of the folder, or to a hidden file.
        plain = _UNSAFE_IN_FILE_NAME.sub("_", shown.name).lstrip(".") or "artifact"
        path = folder / (plain if plain not in taken else f"{len(taken)}-{plain}")
        taken.add(path.name)
        data = (await run.file(shown.file.hash)).data
        await anyio.Path(path).write_bytes(data)
        out.write({"name": shown.name, "path": str(path)}, f"saved {path}")
    return 0


async def verify(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Verify the journal of a run; exit with 1 if a check fails."""
    try:
        run_id = (await find_run(midrun, args.run)).id
    except RunErased as erased:  # then the tombstone is verified
        run_id = RunId(erased.run)
    verdict = await midrun.verify(run_id)
    out.write(verdict, str(verdict))
    return 0 if verdict else 1


async def export(midrun: AnyMidrun, args: Namespace, out: CommandOutput) -> int:
    """Print the stored lines: unchanged into a file, escaped on a terminal."""
    run = await find_run(midrun, args.run)
    if isinstance(midrun, Midrun):  # a server records exports itself
        await midrun.record_audit(AuditEntry(action="export", actor=args.actor, run=run.id))
    for stored in await run.export():
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
