"""`tool(final=True)`: the result of a tool is the answer of the run."""

from pathlib import Path

import pytest

from midrun import Agent, Completed, Midrun, Misconfigured, ModelRetry, tool
from midrun.core.entries import AnswerGiven, AskOpened, CallStarted, RunPaused
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from tests.support.run_journal import read_entries, read_kinds, read_turns, wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


@tool(final=True)
async def submit(total: int) -> dict[str, int]:
    """Submit the bill."""
    if total < 0:
        raise ModelRetry("The total must not be negative.")
    return {"total": total}


@tool(final=True)
async def tell(text: str) -> str:
    """Tell the user."""
    return text


@tool(final=True, approve=True)
async def publish(text: str) -> str:
    """Publish a text."""
    return f"published {text}"


def make_agent(*turns: object, **options: object) -> Agent:
    """Return an agent with final tools; a model call beyond `turns` fails the run."""
    tools = options.pop("tools", [submit, tell, publish])
    model = ScriptedModel(list(turns))  # type: ignore[arg-type]  # checked there
    return Agent("clerk", model=model, tools=tools, **options)  # type: ignore[arg-type]


async def test_the_result_ends_the_run_without_another_model_call(opened: OpenMidrun) -> None:
    """It is journaled as the answer, and is part of the conversation."""
    run = await (await opened(make_agent(Use("submit", total=7)))).start("clerk", "go")
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert (outcome.output, outcome.value) == ('{"total":7}', {"total": 7})
    assert (await read_kinds(run))[-3:] == ["CallDone", "AnswerGiven", "RunCompleted"]
    assert [start.call_kind for start in await read_entries(run, CallStarted)] == [
        "model", "tool"
    ]  # fmt: skip
    last = (await read_turns(run))[-1]
    assert (last.role, last.text) == ("assistant", '{"total":7}')


async def test_a_text_is_the_answer_as_it_is() -> None:
    outcome = await make_agent(Use("tell", text="Hello.")).run("go")
    assert isinstance(outcome, Completed)
    assert (outcome.output, outcome.value) == ("Hello.", None)


async def test_a_failed_call_does_not_end_the_run() -> None:
    outcome = await make_agent(Use("submit", total=-1), Use("submit", total=1)).run("go")
    assert isinstance(outcome, Completed)
    assert outcome.value == {"total": 1}


async def test_a_withheld_result_does_not_end_the_run() -> None:
    """The model reads that, as for any other tool."""

    async def refuse(*_: object) -> None:
        raise ValueError("not for users")

    outcome = await make_agent(Use("tell", text="x"), "Done.", after_tool=refuse).run("go")
    assert isinstance(outcome, Completed)
    assert outcome.output == "Done."


async def test_other_calls_of_the_reply_end_first_and_the_first_result_counts(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    uses = [Use("slow", name="one"), Use("tell", text="first"), Use("tell", text="second")]
    agent = make_agent(uses, tools=[*tools.tools(), tell], max_parallel=2)
    run = await (await opened(agent)).start("clerk", "go")
    await tools.start("one").wait()
    assert await read_entries(run, AnswerGiven) == []
    tools.gate("one").set()
    view = await run.until("completed")
    assert (view.output, tools.completed) == ("first", ["one"])


@pytest.mark.parametrize(
    ("decision", "output"), [("approve", "published x"), ("decline", "Ok.")]
)
async def test_a_final_call_waits_for_its_approval(
    opened: OpenMidrun, decision: str, output: str
) -> None:
    agent = make_agent(Use("publish", text="x"), "Ok.")
    run = await (await opened(agent)).start("clerk", "go")
    await run.until("waiting")
    await getattr(run, decision)()
    assert (await run.until("completed")).output == output


async def test_a_message_waits_while_another_call_of_the_reply_needs_a_person(
    opened: OpenMidrun,
) -> None:
    """Then the run has its answer, answers the message, and keeps the answer of the task."""
    agent = make_agent([Use("tell", text="Hello."), Use("publish", text="x")], "To you, too.")
    run = await (await opened(agent)).start("clerk", "go")
    await wait_for_entry(run, AskOpened)
    await run.say("Good day")
    await run.decline()
    view = await run.until("completed")
    assert view.output == "Hello."
    kinds = await read_kinds(run)
    assert "FramePushed" not in kinds
    assert kinds.index("AnswerGiven") < kinds.index("MessageTaken")


async def test_a_paused_run_ends_in_another_process_without_a_model_call(path: Path) -> None:
    store, tools = get_store_url(path), ControllableTools()
    uses = [Use("tell", text="Hello."), Use("slow", name="one")]
    agent = make_agent(uses, tools=[*tools.tools(), tell])
    async with Midrun(store, agents=[agent]) as midrun:
        run = await midrun.start("clerk", "go")
        await tools.start("one").wait()
        await run.pause()
        tools.gate("one").set()
        await run.until("paused")
    async with Midrun(store, agents=[make_agent(tools=[*tools.tools(), tell])]) as midrun:
        run = await midrun.get(run.id)
        await run.resume()
        assert (await run.until("completed")).output == "Hello."


async def test_a_redirect_discards_the_answer(opened: OpenMidrun) -> None:
    tools = ControllableTools()
    uses = [Use("tell", text="Hello."), Use("slow", name="one")]
    agent = make_agent(uses, "Moin.", tools=[*tools.tools(), tell])
    run = await (await opened(agent)).start("clerk", "go")
    await tools.start("one").wait()
    await run.redirect("Say it in another language")
    tools.gate("one").set()
    assert (await run.until("completed")).output == "Moin."
    assert await read_entries(run, AnswerGiven) == []


async def test_a_final_tool_answers_a_side_question_and_the_run_goes_on(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    agent = make_agent(
        Use("slow", name="one"), Use("tell", text="Soon."), "Done.",
        tools=[*tools.tools(), tell],
    )  # fmt: skip
    run = await (await opened(agent)).start("clerk", "go")
    await tools.start("one").wait()
    await run.say("When?")
    tools.gate("one").set()
    assert (await run.until("completed")).output.endswith("Done.")
    assert [given.text for given in await read_entries(run, AnswerGiven)] == ["Soon."]


async def test_a_final_tool_that_a_person_calls_does_not_end_the_run(
    opened: OpenMidrun,
) -> None:
    """The person acts in place of the agent, and hands the run back."""
    tools = ControllableTools()
    agent = make_agent(Use("slow", name="one"), "Done.", tools=[*tools.tools(), tell])
    run = await (await opened(agent)).start("clerk", "go")
    await tools.start("one").wait()
    await run.take_over(actor="ada")
    tools.gate("one").set()
    await run.until("paused")
    await run.use_tool("tell", {"text": "by hand"}, actor="ada")
    await wait_for_entry(run, RunPaused, 2)
    await run.hand_back(actor="ada")
    assert (await run.until("completed")).output == "Done."
    assert await read_entries(run, AnswerGiven) == []


def test_declarations_that_contradict_it_are_refused() -> None:
    with pytest.raises(Misconfigured, match="Cannot set final with approve='queue'"):
        tool(tell.fn, final=True, approve="queue")
    with pytest.raises(Misconfigured, match="final must be a bool"):
        tool(tell.fn, final="yes")  # type: ignore[call-overload]
    with pytest.raises(Misconfigured, match="an output and the final tool 'submit'"):
        make_agent(output=int)


def test_it_changes_neither_the_version_of_a_tool_nor_the_fingerprint() -> None:
    """A paused run may be resumed by an agent that declares it."""
    plain = tool(tell.fn)
    assert plain.traits.version == tell.traits.version
    assert make_agent(tools=[plain]).fingerprint == make_agent(tools=[tell]).fingerprint
