"""Promise 5, of the report: it says what is left of the work, as the world sees it.

Every call is in one list: done and kept, undone, not undone, stopped midway, unsure, failed,
never started. The partial work is saved.
"""

import threading
from datetime import timedelta
from pathlib import Path

import anyio

from midrun import Agent, Cancelled, Midrun, Report, tool
from midrun.models import ScriptedModel
from tests.scenarios.promises.drafts import ATTEMPTS, Drafts, hasty, names
from tests.scenarios.promises.speaker import Line, Speaker
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use

SHORT = timedelta(milliseconds=500)
"""For what can be stopped it is long, also on a slow machine."""


class Mixed:
    """An agent whose last step has something of everything in flight."""

    def __init__(self) -> None:
        self.drafts = Drafts()
        self.thread = threading.Event()

    def agent(self) -> Agent:
        """Return it."""
        stage, thread = self.drafts.stage, self.thread

        @tool
        async def boom(name: str) -> str:
            """Fail."""
            raise ValueError(name)

        @tool(approve=True)
        async def send(name: str) -> str:
            """Need a person."""
            stage.completed.append(name)
            return name

        @tool(in_process=True)
        def stubborn(name: str) -> str:
            """Wait where nobody can reach it."""
            anyio.from_thread.run_sync(stage.start(name).set)
            thread.wait()
            return name

        script: list[list[str | Use]] = [
            ["Some work first. ", Use("write", name="kept"), Use("boom", name="failed")],
            [
                "And more. ",
                Use("dictate", name="undone"),
                Use("dictate", name="cursed"),
                Use("slow", name="stopped"),
                Use("stubborn", name="unsure"),
                Use("send", name="never"),
                Use("lock", name="table"),
            ],
        ]
        tools = [*stage.tools(), *self.drafts.tools(), boom, send, stubborn]
        return Agent("actor", model=ScriptedModel(script), tools=tools, grace=SHORT)


async def test_the_report_says_what_the_world_saw(path: Path) -> None:
    """Everything at once: kept, undone, not undone, stopped, unsure, failed, never started."""
    mixed = Mixed()
    stage = mixed.drafts.stage
    mixed.drafts.fails["cursed"] = ATTEMPTS
    with anyio.fail_after(60):
        async with Midrun(kept_at(path), agents=[mixed.agent()], outside=hasty()) as midrun:
            run = await midrun.start("actor", "the whole lot")
            for name in ("undone", "cursed", "stopped", "unsure", "table"):
                await stage.start(name).wait()
            try:
                await run.cancel()
                outcome = await run.result()
            finally:
                mixed.thread.set()
            assert isinstance(outcome, Cancelled)
            report = outcome.report
            assert names(report.done) == ["kept"]
            assert names(report.released) == ["table"]
            assert names(report.failed) == ["failed"]
            assert names(report.undone) == stage.undone == ["undone"]
            assert names(report.not_undone) == ["cursed"]
            assert names(report.stopped) == ["stopped"]
            assert names(report.unsure) == ["unsure"]
            assert names(report.never_started) == ["never"]
            assert stage.completed == ["kept", "table"]
            assert stage.released == ["table"]
            assert report.partial == "And more. "
            _is_told(report)
            assert await midrun.verify(run.id)


def _is_told(report: Report) -> None:
    """Hold the Markdown of a report against the report."""
    told = str(report)
    for title, name in (
        ("Done and kept", "kept"),
        ("Undone", "undone"),
        ("Could not be undone", "cursed"),
        ("Stopped midway", "stopped"),
        ("Unsure whether it happened", "unsure"),
        ("Never started", "never"),
    ):
        section = told.split(f"## {title}\n")[1].split("## ", 1)[0]
        assert f'"{name}"' in section


async def test_the_words_of_a_model_that_was_cut_short_are_saved(opened: Opener) -> None:
    """They are in the outcome, the report and the view."""
    model = Speaker(Line("Chapter one. ", "Chapter two.", gate="half"))
    midrun = await opened(Agent("writer", model=model))
    run = await midrun.start("writer", "write a book")
    await model.reached("half").wait()
    await run.cancel()
    outcome = await run.result()
    assert isinstance(outcome, Cancelled)
    assert outcome.report.partial == "Chapter one. "
    assert (await run.view()).output == "Chapter one. "
    assert outcome.report.clean


async def test_a_cancelled_run_that_changed_nothing_has_a_clean_report(opened: Opener) -> None:
    """What only reads leaves nothing to report."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("read", name="a")))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert report.clean
    assert (report.done, report.undone, report.unsure) == ((), (), ())
