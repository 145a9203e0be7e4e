"""Controls from the `Run` handle to a tool call and back, on a real store."""

import anyio
import pytest

from midrun import Agent, Call, Completed, ControlRefused, Paused, tool
from midrun.driver.delta import Delta
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.runs.conftest import OpenMidrun


async def test_a_run_calls_its_tools_and_completes(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    agent = tools.agent(["One. ", Use("quick", name="a")], "Done.")
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.output == "Done."
    assert tools.completed == ["a"]


async def test_a_pause_lets_the_tool_finish_and_resume_does_not_make_it_again(
    opened: OpenMidrun,
) -> None:
    """While *pausing*, the view names the call in flight; *paused* comes after its end."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), Use("quick", name="b"), "Done.")
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    receipt = await run.pause(actor="ada")
    assert (receipt.phase, receipt.applied) == ("pausing", False)
    view = await run.view()
    assert [call.tool for call in view.in_flight] == ["slow"]
    tools.gate("a").set()
    await run.until("paused")
    assert tools.called == ["a"]
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    assert outcome.reason == "user"
    await run.resume()
    await run.until("completed")
    assert tools.completed == ["a", "b"]


async def test_pause_now_aborts_the_tool_and_resume_does_not_repeat_it(
    opened: OpenMidrun,
) -> None:
    """The call may have taken effect."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(Use("slow", name="a"), "Told so."))
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause(now=True)
    await run.until("paused")
    assert (tools.stopped, tools.completed) == (["a"], [])
    await run.resume()
    await run.until("completed")
    assert tools.called == ["a"]  # a call that may have taken effect is not repeated


async def test_cancel_undoes_the_call_in_flight_and_releases_resources(
    opened: OpenMidrun,
) -> None:
    """Calls that were done before are kept."""
    tools = ControllableTools()
    agent = tools.agent(
        [Use("draft", name="kept"), Use("lock", name="table")],
        Use("slow_draft", name="midway"),
        "never",
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("midway").wait()
    await run.cancel(reason="enough")
    await run.until("cancelled")
    assert tools.undone == ["midway"]
    assert tools.released == ["table"]
    report = await run.report()
    assert [call.args for call in report.done] == ['{"name":"kept"}']
    assert [call.args for call in report.released] == ['{"name":"table"}']
    assert [call.args for call in report.undone] == ['{"name":"midway"}']


async def test_cancel_all_undoes_finished_calls_in_reverse_order(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    agent = tools.agent(
        Use("draft", name="1"), Use("draft", name="2"), Use("slow", name="x"), "never"
    )
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("x").wait()
    await run.cancel(undo="all")
    await run.until("terminal")
    assert tools.undone == ["2", "1"]


async def test_redirect_now_aborts_the_tool_and_instructs_the_model(opened: OpenMidrun) -> None:
    """The instruction is the last message of the next prompt."""
    tools = ControllableTools()
    prompts: list[str] = []

    def turn(messages: object) -> object:
        last = messages[-1]  # type: ignore[index]  # a transcript
        prompts.append(last.text)
        return Use("slow", name="a") if len(prompts) == 1 else "On the new course."

    agent = tools.agent(turn, turn)
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    receipt = await run.redirect("Use the 2026 figures", when="now")
    assert not receipt.applied
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert prompts[-1] == "Use the 2026 figures"
    assert tools.stopped == ["a"]


async def test_a_refusal_has_a_reason_and_the_phase(opened: OpenMidrun) -> None:
    """An interface can show it as a sentence."""
    tools = ControllableTools()
    midrun = await opened(tools.agent("Done."))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.pause()
    assert (refused.value.reason, refused.value.phase) == ("is_completed", "completed")


async def test_the_feed_has_every_entry_once_and_live_text_in_between(
    opened: OpenMidrun,
) -> None:
    """Entries come in order and without a gap."""
    tools = ControllableTools()
    midrun = await opened(tools.agent(["Let me see. ", Use("slow", name="a")], "Done now."))
    run = await midrun.start("actor", "go")
    seqs: list[int] = []
    texts: list[str] = []
    async for item in run.feed():
        if isinstance(item, Delta):
            texts.append(item.text)
            continue
        seqs.append(item.seq)
        if item.kind == "CallStarted" and len(seqs) > 4:
            tools.gate("a").set()
    assert seqs == list(range(1, len(seqs) + 1))
    assert all(isinstance(text, str) for text in texts)


async def test_a_process_without_agents_controls_a_run_of_another(opened: OpenMidrun) -> None:
    """The two `Midrun`s share the file of the store and nothing else."""
    tools = ControllableTools()
    worker = await opened(tools.agent(Use("slow", name="a"), "Done."))
    controller = await opened()
    run = await worker.start("actor", "go")
    await tools.start("a").wait()
    other = await controller.get(run.id)
    await other.pause(now=True)
    await other.until("paused")
    assert tools.stopped == ["a"]
    with anyio.fail_after(60):
        await other.resume()
        await run.until("completed")


async def test_a_blocking_tool_in_a_thread_saves_its_progress(opened: OpenMidrun) -> None:
    """`save` cannot be awaited in a thread: the progress is stored when it returns."""

    @tool(in_process=True)
    def count(call: Call) -> object:
        """Count to two."""
        call.save(1)  # type: ignore[unused-awaitable]  # in a thread it blocks
        call.note("one")  # type: ignore[unused-awaitable]  # as above
        return 2

    model = ScriptedModel([Use("count"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[count]))
    run = await midrun.start("actor", "go")
    assert isinstance(await run.result(), Completed)
    kinds = [item.kind async for item in run.feed()]
    assert "ProgressSaved" in kinds
