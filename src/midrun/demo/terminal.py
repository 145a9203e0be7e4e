"""Show the demo in the terminal, with its control bar."""

from contextlib import suppress

from midrun.demo.launch import Demo, OnOpened
from midrun.errors import RunNotFound
from midrun.runs.midrun import Midrun
from midrun.runs.values import RunView
from midrun.text.report import Report
from midrun.tui.session import attend
from midrun.tui.stderr_capture import StderrCapture
from midrun.tui.styled_text import Hints


async def show_demo(
    demo: Demo, on_opened: OnOpened, hints: Hints
) -> tuple[RunView | None, Report]:
    """Show the demo with its bar until the run ends or the user leaves.

    Return the view of the run after this process has stood down from it, and its report. The
    view is None if the run was in memory and ended with its `Midrun`.
    """
    with StderrCapture() as spill:
        async with demo.build_midrun() as mid:
            run, found = await demo.find_or_start_run(mid)
            on_opened("", found, await run.view())
            await attend(
                run, actor=demo.actor, driven_here=True, stderr_capture=spill, hints=hints
            )
            report = await run.report()
    # A view from before this point would say "running", because this process drove the run.
    # Only the store knows whether another worker has taken it meanwhile.
    async with Midrun(demo.store, engine=None) as mid:
        with suppress(RunNotFound):
            return await (await mid.get(run.id)).view(), report
    return None, report
