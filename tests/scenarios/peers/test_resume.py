"""Resume, compared with other frameworks: a run continues, and no call is made twice.

The docstrings name the framework and the failure that was seen there.
"""

import sys
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from anyio.streams.text import TextReceiveStream

from midrun import CheckpointRefused, Completed, ControlRefused, Failed, Midrun, Paused
from midrun.core.transcript import Transcript
from midrun.models import Use
from midrun.models.scripted import Line
from midrun.stops import MaxSteps
from tests.scenarios.peers.toolkit import PeerToolkit
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

REMOTE_CONTROL = Path(__file__).with_name("remote_control.py")


async def test_a_tool_that_asks_is_called_once(opened: OpenMidrun) -> None:
    """LangGraph, Strands: after the answer the tool runs again from its first line."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("ask", name="a"), toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.answer({"colour": "blue"})
    await run.until("completed")
    assert toolkit.called == ["a"]
    assert toolkit.prompts[-1][-1].uses[0].result == {"colour": "blue"}


async def test_a_tool_that_needs_approval_is_called_once_after_it(opened: OpenMidrun) -> None:
    """Pydantic AI: the tool runs up to its question, and again after the approval."""
    toolkit = PeerToolkit()
    toolkit.gate("bob").set()
    midrun = await opened(toolkit.agent(Use("pay", amount=5, to="bob"), "Done."))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    assert toolkit.called == []
    await run.approve()
    await run.until("completed")
    assert (toolkit.called, toolkit.completed) == (["bob"], ["5 to bob"])


async def test_an_aborted_call_is_not_repeated_by_a_resume(opened: OpenMidrun) -> None:
    """LangGraph: resumed after a stop, the tool's effect happens a second time."""
    toolkit = PeerToolkit()
    midrun = await opened(
        toolkit.agent(Use("slow", name="a"), toolkit.record_then_say("Done."))
    )
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.pause(now=True)
    await run.until("paused")
    toolkit.gate("a").set()
    await run.resume()
    await run.until("completed")
    assert (toolkit.called, toolkit.completed) == (["a"], [])
    assert "may have taken effect" in toolkit.prompts[-1][-1].uses[0].problem


async def test_a_finished_model_call_is_not_repeated_after_a_pause(opened: OpenMidrun) -> None:
    """OpenAI: the model is called again after a stop, and may ask for the same effect again."""
    toolkit = PeerToolkit()
    turns = (
        toolkit.record_then_say(["On it. ", Use("slow", name="a")]),
        toolkit.record_then_say("Done."),
    )
    midrun = await opened(toolkit.agent(*turns))
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    await run.pause()
    toolkit.gate("a").set()
    await run.until("paused")
    await run.resume()
    await run.until("completed")
    assert [len(messages) for messages in toolkit.prompts] == [1, 2]
    assert toolkit.completed == ["a"]


async def test_a_failed_run_keeps_its_id_and_its_step_count_on_resume() -> None:
    """Agentfootprint: after an error there is a new run id and the step count starts again."""
    toolkit = PeerToolkit()
    broken = [True]

    def flaky(messages: Transcript) -> Line:
        del messages
        if broken:
            raise ConnectionError(broken.pop())
        return Use("quick", name="b")

    turns = Use("quick", name="a"), flaky, Use("quick", name="c"), "never"
    agent = toolkit.agent(*turns, stop=MaxSteps(4))  # the failed step counts
    failed = await agent.run("go")
    assert isinstance(failed, Failed)
    paused = await agent.resume(failed.checkpoint)
    assert isinstance(paused, Paused)
    assert (paused.run_id, paused.reason) == (failed.run_id, "cap")
    assert toolkit.completed == ["a", "b", "c"]


async def test_a_cap_pauses_the_run_and_a_raised_cap_continues_it(opened: OpenMidrun) -> None:
    """Pydantic AI, ADK: a limit raises, and the messages so far are lost."""
    toolkit = PeerToolkit()
    turns = (
        Use("quick", name="a"),
        toolkit.record_then_say(Use("quick", name="b")),
        toolkit.record_then_say("Done."),
    )
    midrun = await opened(toolkit.agent(*turns, stop=MaxSteps(1)))
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
    assert toolkit.called == ["a", "b"]
    assert toolkit.prompts[0][-1].uses[0].result == "a done"


async def test_the_second_of_two_resumes_is_told_of_the_first(opened: OpenMidrun) -> None:
    """In other frameworks both resume, and the rest of the run happens twice."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("slow", name="a"), Use("slow", name="b"), "Done."))
    remote_run = await (await opened()).get((await midrun.start("actor", "go")).id)
    run = await midrun.get(remote_run.id)
    await toolkit.start("a").wait()
    await run.pause()
    toolkit.gate("a").set()
    await run.until("paused")
    await run.resume(actor="ada")
    await toolkit.start("b").wait()
    second = await remote_run.resume(actor="bob")
    assert (second.already, second.by) == ("already_running", "ada")
    with pytest.raises(ControlRefused, match=r"ada was first .*not_paused"):
        await remote_run.resume("and quickly", actor="bob")
    toolkit.gate("b").set()
    await run.until("completed")
    assert toolkit.called == ["a", "b"]


async def test_a_checkpoint_is_resumed_only_once_with_a_store(opened: OpenMidrun) -> None:
    """In other frameworks the owner of an old snapshot can repeat its next steps."""
    toolkit = PeerToolkit()
    turns = Use("ask", name="a"), Use("quick", name="b"), "Done."
    midrun = await opened(toolkit.agent(*turns))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    checkpoint = await run.checkpoint()
    await midrun.resume(checkpoint, "yes")
    await run.until("completed")
    for one in (midrun, await opened(toolkit.agent(*turns))):
        with pytest.raises(CheckpointRefused, match="stale_checkpoint"):
            await one.resume(checkpoint, "yes")
    assert toolkit.called == ["a", "b"]


async def test_a_second_answer_is_refused_with_the_name_of_the_first_actor(
    opened: OpenMidrun,
) -> None:
    """In other frameworks the last answer wins, or the second one starts the tool again."""
    toolkit = PeerToolkit()
    midrun = await opened(toolkit.agent(Use("ask", name="a"), toolkit.record_then_say("Done.")))
    run = await midrun.start("actor", "go")
    ask = (await run.until("waiting")).asks[0]
    await run.answer("blue", actor="ada")
    with pytest.raises(ControlRefused) as refusal:
        await run.answer("red", ask=ask.id, actor="bob")
    assert refusal.value.by == "ada"
    await run.until("completed")
    assert toolkit.prompts[-1][-1].uses[0].result == "blue"


async def test_a_process_without_agents_can_pause_and_resume_a_run(
    opened: OpenMidrun, path: Path
) -> None:
    """LangGraph, Pydantic AI, Strands, ADK: the stop signal is an object of one process."""
    toolkit = PeerToolkit()
    midrun = await opened(
        toolkit.agent(Use("slow", name="a"), toolkit.record_then_say("Done."))
    )
    run = await midrun.start("actor", "go")
    await toolkit.start("a").wait()
    async with await anyio.open_process(
        [sys.executable, REMOTE_CONTROL, get_store_url(path), run.id]
    ) as child:
        assert child.stdout
        output = TextReceiveStream(child.stdout)
        await run.until("pausing")
        toolkit.gate("a").set()
        await run.until("completed")
        assert "".join([text async for text in output]).split() == [
            "pausing",
            "paused",
            "queued",
        ]
    assert toolkit.prompts[-1][-1].text == "Now sum up"


async def test_a_resume_without_the_answer_is_refused_and_can_be_repeated() -> None:
    """In other frameworks this resume starts the tool again, or the whole run."""
    toolkit = PeerToolkit()
    agent = toolkit.agent(Use("ask", name="a"), "Done.")
    paused = await agent.run("go")
    assert isinstance(paused, Paused)
    with pytest.raises(ControlRefused, match="answer_needed"):
        await agent.resume(paused.checkpoint)
    assert isinstance(await agent.resume(paused.checkpoint, "yes"), Completed)
    assert toolkit.called == ["a"]


async def test_a_long_tool_continues_from_its_saved_progress(opened: OpenMidrun) -> None:
    """In other frameworks a pause waits for a long tool, or the tool starts again."""
    toolkit = PeerToolkit()
    midrun = await opened(
        toolkit.agent(Use("crawl", pages=3), toolkit.record_then_say("Done."))
    )
    run = await midrun.start("actor", "go")
    toolkit.gate("page 0").set()
    await toolkit.start("page 1").wait()
    await run.pause()
    await run.until("paused")
    for page in range(3):
        toolkit.gate(f"page {page}").set()
    await run.resume()
    await run.until("completed")
    assert toolkit.called == ["page 0", "page 1", "page 2"]
    assert toolkit.prompts[-1][-1].uses[0].result == "3 pages"


async def test_a_paused_run_survives_its_process(path: Path) -> None:
    """Pydantic AI: histories are kept in memory; the application must store them."""
    first, second = PeerToolkit(), PeerToolkit()
    turns = Use("slow", name="a"), Use("quick", name="b"), "Done."
    async with Midrun(get_store_url(path), agents=[first.agent(*turns)]) as midrun:
        run = await midrun.start("actor", "go")
        await first.start("a").wait()
        await run.pause()
        first.gate("a").set()
        await run.until("paused")
    async with Midrun(get_store_url(path), agents=[second.agent(*turns)]) as midrun:
        same_run = await midrun.get(run.id)
        assert (await same_run.view()).phase == "paused"
        await same_run.resume()
        await same_run.until("completed")
    assert (first.called, second.called) == (["a"], ["b"])


async def test_a_process_that_closes_during_a_call_causes_no_repeated_call(path: Path) -> None:
    """Agentfootprint, Mastra: the iteration is replayed, so tools must be idempotent."""
    first, second = PeerToolkit(), PeerToolkit()
    turns = Use("quick", name="a"), Use("slow", name="b"), second.record_then_say("Done.")
    grace = timedelta(milliseconds=20)
    async with Midrun(get_store_url(path), agents=[first.agent(*turns, grace=grace)]) as midrun:
        run = await midrun.start("actor", "go")
        await first.start("b").wait()
    async with Midrun(get_store_url(path), agents=[second.agent(*turns)]) as midrun:
        same_run = await midrun.get(run.id)
        await same_run.until("completed")
    assert (first.called, second.called) == (["a", "b"], [])
    assert second.prompts[-1][-1].uses[0].problem.startswith("stopped midway")
