"""A typed output under the controls: pause, resume elsewhere, caps, messages, forks."""

from collections.abc import Sequence
from pathlib import Path

import anyio
from msgspec import Struct

from midrun import Agent, Completed, Failed, Midrun, ModelRetry, is_paused
from midrun.agents.output import NO_OUTPUT_TEXT
from midrun.core.entries import CallAborted, CallDone, RunCompleted
from midrun.core.transcript import Turn
from midrun.models import ScriptedModel, Use
from midrun.models.scripted import Line
from midrun.stops import MaxSteps, TextMention
from tests.support.gated_model import GatedModel, GatedReply
from tests.support.run_journal import read_entries, read_turns
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun


class Total(Struct):
    cents: int


def make_agent(*turns: Line, **options: object) -> Agent:
    """Return an agent whose output is a `Total`."""
    options.setdefault("model", ScriptedModel(list(turns)))
    return Agent("adder", output=Total, **options)  # type: ignore[arg-type]  # checked there


def list_problems(turns: Sequence[Turn]) -> list[str]:
    """Return the problems of outputs that the model has read."""
    refused = [use.problem for turn in turns for use in turn.uses if use.problem]
    return refused + [turn.text for turn in turns if turn.kind == "output"]


async def test_an_output_that_is_not_valid_is_tried_again(opened: OpenMidrun) -> None:
    """The value is on the handle, in the view and in the report."""
    midrun = await opened(make_agent(Use("output", cents="many"), Use("output", cents=7)))
    run = await midrun.start("adder", "add")
    view = await run.until("completed")
    assert (view.value, view.output) == ({"cents": 7}, '{"cents":7}')
    outcome = await run.result()
    assert isinstance(outcome, Completed)
    assert outcome.value == {"cents": 7}
    report = await run.report()
    assert report.value == {"cents": 7}
    assert list_problems(await read_turns(run)) == ["output.cents: expected `int`, got `str`"]


async def test_a_pause_between_two_attempts_continues_in_another_process(path: Path) -> None:
    """The attempts are counted in the journal, not in the process."""
    first = GatedModel("No.", GatedReply("Seven", " cents.", gate="second"))
    here = make_agent(model=first, output_retries=1)
    async with Midrun(get_store_url(path), agents=[here]) as midrun:
        run = await midrun.start("adder", "add")
        await first.reached("second").wait()
        await run.pause()
        await run.until("paused")
    second = GatedModel("Ten.")
    there = make_agent(model=second, output_retries=1)
    async with Midrun(get_store_url(path), agents=[there]) as midrun:
        run = await midrun.get(run.id)
        await run.resume()
        outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert "no valid output in 2 attempts" in outcome.error
    texts = [turn.text for turn in second.transcripts[0]]
    assert texts == ["add", "No.", NO_OUTPUT_TEXT, "Seven"]


async def test_a_pause_stops_a_validator_and_keeps_the_text(opened: OpenMidrun) -> None:
    """The reply was complete, but its output was not checked: the step is made again."""
    started, validated = anyio.Event(), []

    async def check(value: Total) -> None:
        validated.append(value.cents)
        if len(validated) == 1:
            started.set()
            await anyio.Event().wait()

    agent = make_agent('{"cents": 1}', '{"cents": 2}', output_validators=[check])
    midrun = await opened(agent)
    run = await midrun.start("adder", "add")
    await started.wait()
    await run.pause()
    await run.until("paused")
    (aborted,) = await read_entries(run, CallAborted)
    assert aborted.text == '{"cents": 1}'
    assert aborted.spent is not None  # the provider had reported it
    await run.resume()
    assert (await run.until("completed")).value == {"cents": 2}


async def test_attempts_count_as_steps_for_caps(opened: OpenMidrun) -> None:
    agent = make_agent(*["No."] * 3, Use("output", cents=1), output_retries=5, stop=MaxSteps(2))
    midrun = await opened(agent)
    run = await midrun.start("adder", "add")
    view = await run.until("paused")
    assert view.step == 2
    await run.resume(caps={"steps": 9})
    assert (await run.until("completed")).value == {"cents": 1}


async def test_a_stop_condition_does_not_complete_a_run_with_an_invalid_output(
    opened: OpenMidrun,
) -> None:
    """A cap behind it in the same condition is reached all the same."""
    stop = TextMention("cents", then="complete") | MaxSteps(1)
    midrun = await opened(make_agent("Seven cents.", '{"cents": 7}', stop=stop))
    run = await midrun.start("adder", "add")
    assert (await run.until("paused", "completed")).phase == "paused"
    await run.resume("As JSON, please", caps={"steps": 9})
    view = await run.until("completed")
    assert (view.value, view.output) == ({"cents": 7}, '{"cents": 7}')


async def test_without_a_store_the_attempts_continue_from_a_checkpoint() -> None:
    agent = make_agent("No.", "No.", "No.", Use("output", cents=1), output_retries=1)
    failed = await agent.run("add")
    assert isinstance(failed, Failed)
    assert failed.code == "invalid_output"
    assert "no valid output in 2 attempts" in failed.error
    outcome = await agent.resume(failed.checkpoint)
    assert isinstance(outcome, Completed)
    assert outcome.value == {"cents": 1}

    capped = make_agent("No.", Use("output", cents=1), output_retries=1, stop=MaxSteps(1))
    paused = await capped.run("add")
    assert is_paused(paused)
    outcome = await capped.resume(paused.checkpoint, caps={"steps": 5})
    assert isinstance(outcome, Completed)
    assert outcome.value == {"cents": 1}


async def test_a_side_question_is_answered_in_words(opened: OpenMidrun) -> None:
    model = GatedModel(
        GatedReply("I add", " them.", gate="work"),
        "Half of them.",
        GatedReply("", "", Use("output", cents=7)),
    )
    midrun = await opened(make_agent(model=model))
    run = await midrun.start("adder", "add")
    await model.reached("work").wait()
    await run.say("How far are you?", urgency="now")
    view = await run.until("completed")
    assert view.value == {"cents": 7}
    assert list_problems(await read_turns(run)) == []


async def test_a_fork_and_a_thread_see_the_problems_and_the_output(opened: OpenMidrun) -> None:
    turns = [Use("output", cents="x"), Use("output", cents=1), Use("output", cents=2)]
    midrun = await opened(make_agent(*turns))
    first = await midrun.start("adder", "add", thread="t")
    await first.until("completed")
    second = await midrun.start("adder", "add again", thread="t")
    assert (await second.until("completed")).value == {"cents": 2}
    (problem,) = list_problems(await read_turns(second))
    assert problem.endswith("output.cents: expected `int`, got `str`")
    (done,) = await read_entries(first, RunCompleted)
    assert done.value == {"cents": 1}
    fork = await first.fork(instruction="once more")
    assert (await fork.until("completed")).value == {"cents": 2}


async def test_a_parent_gets_the_value_of_its_child(opened: OpenMidrun) -> None:
    child = make_agent(Use("output", cents=7))
    parent = Agent(
        "parent",
        model=ScriptedModel([Use("adder", task="add"), "Done."]),
        tools=[child.as_tool()],
    )
    midrun = await opened(parent)
    run = await midrun.start("parent", "go")
    await run.until("completed")
    results = [entry.result for entry in await read_entries(run, CallDone) if entry.result]
    assert results == [{"cents": 7}]


async def test_a_validator_that_raises_fails_the_run_which_can_be_resumed() -> None:
    raised: list[int] = []

    def check(value: Total) -> None:
        raised.append(value.cents)
        if len(raised) == 1:
            raise KeyError("rate")
        if value.cents < 2:
            raise ModelRetry("at least 2")

    agent = make_agent(
        '{"cents": 1}', '{"cents": 1}', '{"cents": 2}', output_validators=[check]
    )
    failed = await agent.run("add")
    assert isinstance(failed, Failed)
    assert failed.code == "agent_code_failed"
    assert "output validator check: KeyError" in failed.error
    outcome = await agent.resume(failed.checkpoint)
    assert isinstance(outcome, Completed)
    assert (outcome.value, raised) == ({"cents": 2}, [1, 1, 2])
