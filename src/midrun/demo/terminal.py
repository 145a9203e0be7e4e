"""The demo in the terminal: the run, with its control bar below."""

from midrun.core.report import Report
from midrun.demo.opening import Demo, Opened
from midrun.handles.view import RunView
from midrun.tui.attending import attend
from midrun.tui.hints import Hints
from midrun.tui.spill import Spill


async def show(demo: Demo, opened: Opened, hints: Hints) -> tuple[RunView, Report]:
    """Show the demo with its bar until it is over or somebody leaves; return how it stands."""
    with Spill() as spill:
        async with demo.midrun() as mid:
            run, found = await demo.run(mid)
            opened("", found, await run.view())
            await attend(run, actor=demo.actor, driven_here=True, spill=spill, hints=hints)
            return await run.view(), await run.report()
