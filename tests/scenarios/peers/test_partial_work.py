"""What a model had said when it was stopped is kept, by a pause as by a cancel."""

import anyio

from midrun import Agent, Paused
from tests.scenarios.peers.cast import Cast, Tapped, Use, entry, first_words, journal
from tests.unit.runs.conftest import Opener


async def test_the_text_so_far_survives_a_cancel(opened: Opener) -> None:
    """LangGraph, OpenAI, ADK: what was streamed is lost; Strands: replaced by a notice."""
    agent = Agent("writer", model=Tapped(["Half a sentence, cut."]))
    midrun = await opened(agent)
    run = await midrun.start(agent, "write")
    said = await first_words(run)
    await run.cancel()
    await run.until("cancelled")
    report = await run.report()
    assert said
    assert report.partial == said
    assert said.strip() in str(report)


async def test_the_text_so_far_survives_a_pause_and_is_marked_as_cut_short(
    opened: Opener,
) -> None:
    """Strands drops it; elsewhere the model is asked again as if it had said nothing."""
    model = Tapped(["Half a sentence, cut.", "And the rest."])
    agent = Agent("writer", model=model)
    midrun = await opened(agent)
    run = await midrun.start(agent, "write")
    said = await first_words(run)
    await run.pause()
    await run.until("paused")
    cut = (await run.result()).checkpoint.state().messages[-1]  # type: ignore[union-attr]  # it is paused
    assert (cut.role, cut.text, cut.interrupted) == ("assistant", said, True)


async def test_the_stream_is_closed_before_the_run_is_said_to_be_paused(opened: Opener) -> None:
    """Strands: the provider's stream is left to the garbage collector, and is paid for."""
    model = Tapped(["Half a sentence, cut."])
    agent = Agent("writer", model=model)
    midrun = await opened(agent)
    run = await midrun.start(agent, "write")
    await first_words(run)
    assert model.streams == ["open"]
    await run.pause()
    await run.until("paused")
    assert model.streams == ["closed"]


async def test_any_run_can_be_paused_whether_or_not_anybody_watches(opened: Opener) -> None:
    """OpenAI: only a run that is streamed can be stopped; Pydantic AI: a stop is for good."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), "Done."))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.pause()
    cast.gate("a").set()
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    await run.resume()
    await run.until("completed")
    assert cast.completed == ["a"]


async def test_paused_is_not_said_while_a_tool_is_at_work(opened: Opener) -> None:
    """OpenHands: PAUSED is reported while tools go on."""
    cast = Cast()
    midrun = await opened(cast.agent([Use("slow", name="a"), Use("slow", name="b")], "Done."))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await cast.start("b").wait()
    await run.pause()
    cast.gate("a").set()
    await entry(run, "CallDone", 2)  # the model's, and that of a
    assert (await run.view()).phase == "pausing"
    cast.gate("b").set()
    await run.until("paused")
    kinds = await journal(run)
    assert kinds.index("RunPaused") > max(n for n, k in enumerate(kinds) if k == "CallDone")


async def test_a_watcher_that_comes_back_after_the_end_is_not_left_waiting(
    opened: Opener,
) -> None:
    """Elsewhere the stream of a run that ended cannot be joined again."""
    cast = Cast()
    midrun = await opened(cast.agent("Done."))
    run = await midrun.start("actor", "go")
    view = await run.until("completed")
    with anyio.fail_after(60):
        missed = [item.seq async for item in run.feed(after=1)]
        nothing = [item async for item in run.feed(after=view.seq)]
    assert missed == list(range(2, view.seq + 1))
    assert nothing == []
