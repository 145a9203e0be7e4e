"""Promise 2: a pause reaches the call.

A model that is speaking is stopped at once, and what it has said is kept. A tool that is at
work may finish, or is stopped where it has saved its progress; with `now` it is stopped in any
case. Either way it is not made again.
"""

from pathlib import Path

import pytest

from midrun import Agent, Call, tool
from midrun.core.entries import CallAborted, CallDone, CallStarted, ProgressSaved
from midrun.stops import MaxTokens
from tests.scenarios.promises.blocking import crawl_pages, hold
from tests.scenarios.promises.framework import Framework, Provider
from tests.scenarios.promises.seen import entries, kinds, turns
from tests.scenarios.promises.speaker import RESERVED, Line, Speaker
from tests.unit.driver.subprocess.scene import Middle, Watch
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools, Use


async def test_the_stream_is_closed_and_its_text_is_kept(opened: Opener) -> None:
    """The model never gets to its end: nobody opens the gate."""
    model = Speaker(Line("The first half", " and the second.", gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.pause()
    await run.until("paused")
    assert model.closed == ["half"]
    (aborted,) = await entries(run, CallAborted)
    assert aborted.text == "The first half"


async def test_the_model_is_given_its_own_interrupted_words_on_resume(opened: Opener) -> None:
    """So that it can go on from there instead of saying it all again."""
    model = Speaker(Line("The first half", " and the second.", gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    task, said = model.heard[1]
    assert (task.role, task.text) == ("user", "go")
    assert (said.role, said.text, said.interrupted) == ("assistant", "The first half", True)


async def test_a_stream_that_was_closed_may_be_billed_and_counts(opened: Opener) -> None:
    """What was set aside for it is not given back: nobody knows what the provider charges."""
    model = Speaker(Line("The first half", gate="half"), "Done.")
    midrun = await opened(Agent("actor", model=model, stop=MaxTokens(10_000)))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    assert (await run.view()).usage.reserved_tokens == RESERVED.tokens
    await run.pause()
    usage = (await run.until("paused")).usage
    assert (usage.tokens, usage.reserved_tokens) == (RESERVED.tokens, 0)
    await run.resume()
    usage = (await run.until("completed")).usage
    assert usage.tokens == RESERVED.tokens + 7


async def test_the_calls_of_an_unfinished_message_are_never_made(opened: Opener) -> None:
    """It had begun to ask for a call; what it was about to ask for nobody knows."""
    stage = ControllableTools()
    model = Speaker(
        Line("Let me act. ", "", Use("quick", name="half"), gate="half"),
        Line("", "", Use("quick", name="whole")),
        "Done.",
    )
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await model.reached("half").wait()
    await run.pause()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert stage.called == ["whole"]
    assert all(
        made.args == {"name": "whole"} for turn in await turns(run) for made in turn.uses
    )


async def test_a_tool_at_work_finishes_and_its_result_is_used(opened: Opener) -> None:
    """The result is in the journal before *paused* is, and the model gets it on resume."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    assert (stage.completed, stage.stopped) == (["a"], [])
    assert (await kinds(run))[-2:] == ["CallDone", "RunPaused"]
    await run.resume()
    await run.until("completed")
    (made,) = model.heard[1][-1].uses
    assert made.result == "a done"
    assert stage.called == ["a"]


class Crawl:
    """A tool that saves after every page, and stops at each until a test lets it on."""

    def __init__(self) -> None:
        self.stage = ControllableTools()
        self.pages: list[int] = []
        self.given: list[object] = []
        self.keys: list[str] = []

    def agent(self) -> Agent:
        """Return an agent that crawls once."""

        @tool
        async def crawl(call: Call) -> str:
            """Fetch three pages."""
            self.given.append(call.progress)
            self.keys.append(call.key)
            done = call.progress if isinstance(call.progress, int) else 0
            for page in range(done + 1, 4):
                self.pages.append(page)
                await call.save(page)
                self.stage.start(f"page {page}").set()
                await self.stage.gate(f"page {page}").wait()
            return "3 pages"

        model = Speaker(Line("", "", Use("crawl")), "Done.")
        return Agent("actor", model=model, tools=[crawl])


async def test_a_tool_that_saves_stops_at_its_progress_and_goes_on_from_there(
    opened: Opener,
) -> None:
    """Twice, so that the second pause finds what the first left."""
    crawl = Crawl()
    midrun = await opened(crawl.agent())
    run = await midrun.start("actor", "go")
    for page in (1, 2):
        await crawl.stage.start(f"page {page}").wait()
        await run.pause()
        await run.until("paused")
        await run.resume()
    await crawl.stage.start("page 3").wait()
    crawl.stage.gate("page 3").set()
    await run.until("completed")
    assert crawl.pages == [1, 2, 3]
    assert crawl.given == [None, 1, 2]
    assert len(set(crawl.keys)) == 1
    tools = [s for s in await entries(run, CallStarted) if s.call_kind == "tool"]
    assert [start.attempt for start in tools] == [1, 2, 3]
    assert [saved.progress for saved in await entries(run, ProgressSaved)] == [1, 2, 3]
    assert [d.result for d in await entries(run, CallDone) if d.reply is None] == ["3 pages"]


async def test_progress_counts_from_the_moment_it_is_saved(opened: Opener) -> None:
    """Saved after the pause was asked for, it is enough to stop at all the same."""
    stage = ControllableTools()

    @tool
    async def work(call: Call) -> str:
        """Save when the test says so, and go on for ever."""
        stage.start("work").set()
        if call.progress is not None:
            return "from the middle"
        await stage.gate("work").wait()
        await call.save("middle")
        await stage.gate("never").wait()
        return "never"

    model = Speaker(Line("", "", Use("work")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[work]))
    run = await midrun.start("actor", "go")
    await stage.start("work").wait()
    await run.pause()
    stage.gate("work").set()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert model.heard[1][-1].uses[0].result == "from the middle"


async def test_a_blocking_tool_stops_at_its_progress_too(
    opened: Opener, tmp_path: Path
) -> None:
    """Its process is gone when the run is paused, and a new one is given the progress."""
    middle = Middle(tmp_path)
    model = Speaker(Line("", "", Use("crawl_pages", **middle.args)), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[crawl_pages]))
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.hear()
    watch = Watch(pid)
    await run.pause()
    await run.until("paused")
    await watch.end()
    await run.resume()
    await run.until("completed")
    assert model.heard[1][-1].uses[0].result == "went on from page 2"
    assert not middle.effect.exists()


@pytest.mark.parametrize("sharpened", [False, True])
async def test_pause_now_stops_a_tool_that_has_saved_nothing(
    opened: Opener, sharpened: bool
) -> None:
    """At once, or on top of a patient pause; the agent is told, and it is not made again."""
    stage = ControllableTools()
    model = Speaker(Line("", "", Use("slow", name="a")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=stage.tools()))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    if sharpened:
        await run.pause()
        assert (await run.view()).phase == "pausing"
    receipt = await run.pause(now=True)
    assert receipt.already is None
    await run.until("paused")
    assert (stage.stopped, stage.completed) == (["a"], [])
    await run.resume()
    await run.until("completed")
    assert stage.called == ["a"]
    (made,) = model.heard[1][-1].uses
    assert made.problem.startswith("stopped midway")


async def test_pause_now_makes_again_what_only_reads(opened: Opener) -> None:
    """Nothing can be repeated where nothing was changed; it is the same call, under its key."""
    stage = ControllableTools()
    midrun = await opened(stage.agent(Use("read", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause(now=True)
    await run.until("paused")
    assert stage.stopped == ["a"]
    stage.gate("a").set()
    await run.resume()
    await run.until("completed")
    assert (stage.called, stage.completed) == (["a", "a"], ["a"])
    assert len(set(stage.keys)) == 1


async def test_pause_now_kills_a_blocking_tool_and_its_effect_never_comes(
    opened: Opener, tmp_path: Path
) -> None:
    """It waits in front of its effect; let on later, there is nobody to be let on."""
    middle = Middle(tmp_path)
    model = Speaker(Line("", "", Use("hold", **middle.args)), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[hold]))
    run = await midrun.start("actor", "go")
    (pid,) = await middle.fifo.hear()
    watch = Watch(pid)
    await run.pause(now=True)
    await run.until("paused")
    await watch.end()
    middle.gate.open()
    await run.resume()
    await run.until("completed")
    assert not middle.effect.exists()


async def test_pausing_now_closes_the_model_call_of_a_framework_inside_a_tool(
    opened: Opener,
) -> None:
    """The provider sees its connection closed; *paused* is not said before."""
    async with Provider().listening() as provider:
        framework = Framework(provider)

        @tool
        async def delegate() -> None:
            """Have an agent of another framework do it."""
            await framework.run()

        model = Speaker(Line("", "", Use("delegate")), "Done.")
        midrun = await opened(Agent("actor", model=model, tools=[delegate]))
        run = await midrun.start("actor", "go")
        await provider.streaming.wait()
        await run.pause(now=True)
        await run.until("paused")
        assert [node.done() for node in framework.nodes] == [True]
        await provider.closed.wait()
