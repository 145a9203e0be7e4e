"""Resume goes on where the run was: nothing is entered twice, and nothing starts afresh."""

import sys
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from midrun import CheckpointRefused, Completed, ControlRefused, Failed, Midrun, Paused
from midrun.core.transcript import Transcript
from midrun.models.scripted import Line
from midrun.stops import MaxSteps
from tests.scenarios.peers.cast import Cast, Use
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener

CHILD = Path(__file__).with_name("child.py")


async def test_a_tool_that_asks_is_not_entered_again(opened: Opener) -> None:
    """LangGraph, Strands: it runs again from its first line, and so does what came before."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask", name="a"), cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.answer({"colour": "blue"})
    await run.until("completed")
    assert cast.called == ["a"]
    assert cast.heard[-1][-1].uses[0].result == {"colour": "blue"}


async def test_a_tool_that_needs_a_yes_is_entered_once_and_only_after_it(
    opened: Opener,
) -> None:
    """Pydantic AI: the tool runs as far as its question, and again after the yes."""
    cast = Cast()
    cast.gate("bob").set()
    midrun = await opened(cast.agent(Use("pay", amount=5, to="bob"), "Done."))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    assert cast.called == []
    await run.approve()
    await run.until("completed")
    assert (cast.called, cast.completed) == (["bob"], ["5 to bob"])


async def test_a_tool_that_was_stopped_midway_is_not_made_again(opened: Opener) -> None:
    """LangGraph: resumed after a stop, the tool's effect happens a second time."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.pause(now=True)
    await run.until("paused")
    cast.gate("a").set()
    await run.resume()
    await run.until("completed")
    assert (cast.called, cast.completed) == (["a"], [])
    assert "may have taken effect" in cast.heard[-1][-1].uses[0].problem


async def test_the_model_is_not_asked_again_for_what_it_has_said(opened: Opener) -> None:
    """OpenAI: after a stop the model is asked again, and may ask for the same effect again."""
    cast = Cast()
    turns = cast.says(["On it. ", Use("slow", name="a")]), cast.says("Done.")
    midrun = await opened(cast.agent(*turns))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    await run.pause()
    cast.gate("a").set()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert [len(messages) for messages in cast.heard] == [1, 2]
    assert cast.completed == ["a"]


async def test_a_failed_run_goes_on_as_itself_with_what_it_has_used() -> None:
    """Agentfootprint: after an error there is a new run id and a fresh number of steps."""
    cast = Cast()
    broken = [True]

    def flaky(messages: Transcript) -> Line:
        del messages
        if broken:
            raise ConnectionError(broken.pop())
        return Use("quick", name="b")

    turns = Use("quick", name="a"), flaky, Use("quick", name="c"), "never"
    agent = cast.agent(*turns, stop=MaxSteps(4))  # the one that failed counts
    failed = await agent.run("go")
    assert isinstance(failed, Failed)
    paused = await agent.resume(failed.checkpoint)
    assert isinstance(paused, Paused)
    assert (paused.run_id, paused.reason) == (failed.run_id, "cap")
    assert cast.completed == ["a", "b", "c"]


async def test_a_cap_pauses_with_the_work_kept_and_goes_on_when_raised(opened: Opener) -> None:
    """Pydantic AI, ADK: a limit raises, and the messages so far are gone with it."""
    cast = Cast()
    turns = Use("quick", name="a"), cast.says(Use("quick", name="b")), cast.says("Done.")
    midrun = await opened(cast.agent(*turns, stop=MaxSteps(1)))
    run = await midrun.start("actor", "go")
    view = await run.until("paused")
    assert (view.reason, [(cap.name, cap.used, cap.cap) for cap in view.caps]) == (
        "cap",
        [("steps", 1, 1)],
    )
    with pytest.raises(ControlRefused, match="cap_reached"):
        await run.resume()
    await run.resume(caps={"steps": 9})
    await run.until("completed")
    assert cast.called == ["a", "b"]
    assert cast.heard[0][-1].uses[0].result == "a done"


async def test_of_two_who_resume_one_wins_and_the_other_learns_who(opened: Opener) -> None:
    """Elsewhere both resume, and the rest of the run happens twice."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    other = await (await opened()).get((await midrun.start("actor", "go")).id)
    run = await midrun.get(other.id)
    await cast.start("a").wait()
    await run.pause()
    cast.gate("a").set()
    await run.until("paused")
    await run.resume(actor="ada")
    await cast.start("b").wait()
    second = await other.resume(actor="bob")
    assert (second.already, second.by) == ("already_running", "ada")
    with pytest.raises(ControlRefused, match=r"ada was first .*not_paused"):
        await other.resume("and quickly", actor="bob")
    cast.gate("b").set()
    await run.until("completed")
    assert cast.called == ["a", "b"]


async def test_a_checkpoint_is_resumed_once_where_there_is_a_store(opened: Opener) -> None:
    """Elsewhere whoever holds an old snapshot can have its next steps made once more."""
    cast = Cast()
    turns = Use("ask", name="a"), Use("quick", name="b"), "Done."
    midrun = await opened(cast.agent(*turns))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    checkpoint = await run.checkpoint()
    await midrun.resume(checkpoint, "yes")
    await run.until("completed")
    for who in (midrun, await opened(cast.agent(*turns))):
        with pytest.raises(CheckpointRefused, match="stale_checkpoint"):
            await who.resume(checkpoint, "yes")
    assert cast.called == ["a", "b"]


async def test_the_second_answer_is_refused_with_who_was_first(opened: Opener) -> None:
    """Elsewhere the last answer wins, or the second one starts the tool again."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("ask", name="a"), cast.says("Done.")))
    run = await midrun.start("actor", "go")
    ask = (await run.until("waiting")).asks[0]
    await run.answer("blue", actor="ada")
    with pytest.raises(ControlRefused) as refusal:
        await run.answer("red", ask=ask.id, actor="bob")
    assert refusal.value.by == "ada"
    await run.until("completed")
    assert cast.heard[-1][-1].uses[0].result == "blue"


async def test_a_process_that_drives_nothing_can_pause_and_resume_a_run(
    opened: Opener, path: Path
) -> None:
    """LangGraph, Pydantic AI, Strands, ADK: the signal is an object of the one process."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("slow", name="a"), cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await cast.start("a").wait()
    async with await anyio.open_process(
        [sys.executable, CHILD, kept_at(path), run.id]
    ) as child:
        assert child.stdout
        said = TextReceiveStream(child.stdout)
        await run.until("pausing")
        cast.gate("a").set()
        await run.until("completed")
        assert "".join([text async for text in said]).split() == [
            "pausing",
            "paused",
            "queued",
        ]
    assert cast.heard[-1][-1].text == "Now sum up"


async def test_a_checkpoint_without_its_answer_is_refused_and_stays_good() -> None:
    """Elsewhere a resume without the answer starts the tool again, or the run from the top."""
    cast = Cast()
    agent = cast.agent(Use("ask", name="a"), "Done.")
    paused = await agent.run("go")
    assert isinstance(paused, Paused)
    with pytest.raises(ControlRefused, match="answer_needed"):
        await agent.resume(paused.checkpoint)
    assert isinstance(await agent.resume(paused.checkpoint, "yes"), Completed)
    assert cast.called == ["a"]


async def test_a_long_tool_goes_on_from_where_it_had_saved(opened: Opener) -> None:
    """Elsewhere a long tool cannot be paused: it is waited for, or begins again at the top."""
    cast = Cast()
    midrun = await opened(cast.agent(Use("crawl", pages=3), cast.says("Done.")))
    run = await midrun.start("actor", "go")
    cast.gate("page 0").set()
    await cast.start("page 1").wait()
    await run.pause()
    await run.until("paused")
    for page in range(3):
        cast.gate(f"page {page}").set()
    await run.resume()
    await run.until("completed")
    assert cast.called == ["page 0", "page 1", "page 2"]
    assert cast.heard[-1][-1].uses[0].result == "3 pages"


async def test_a_paused_run_is_there_after_the_process_is_gone(path: Path) -> None:
    """Pydantic AI: histories are kept in memory; what is to outlive it is yours to store."""
    first, second = Cast(), Cast()
    turns = Use("slow", name="a"), Use("quick", name="b"), "Done."
    async with Midrun(kept_at(path), agents=[first.agent(*turns)]) as midrun:
        run = await midrun.start("actor", "go")
        await first.start("a").wait()
        await run.pause()
        first.gate("a").set()
        await run.until("paused")
    async with Midrun(kept_at(path), agents=[second.agent(*turns)]) as midrun:
        again = await midrun.get(run.id)
        assert (await again.view()).phase == "paused"
        await again.resume()
        await again.until("completed")
    assert (first.called, second.called) == (["a"], ["b"])


async def test_a_process_that_leaves_in_the_middle_has_nothing_made_again(path: Path) -> None:
    """Agentfootprint, Mastra: the iteration is played again, so tools must be idempotent."""
    first, second = Cast(), Cast()
    turns = Use("quick", name="a"), Use("slow", name="b"), second.says("Done.")
    soon = timedelta(milliseconds=20)
    async with Midrun(kept_at(path), agents=[first.agent(*turns, grace=soon)]) as midrun:
        run = await midrun.start("actor", "go")
        await first.start("b").wait()
    async with Midrun(kept_at(path), agents=[second.agent(*turns)]) as midrun:
        again = await midrun.get(run.id)
        await again.until("completed")
    assert (first.called, second.called) == (["a", "b"], [])
    assert second.heard[-1][-1].uses[0].problem.startswith("stopped midway")
