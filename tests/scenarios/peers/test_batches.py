"""A pause in the middle of a batch: nothing is made again, nothing dropped, nobody mixed up."""

import pytest

from midrun import Checkpoint, Completed, ControlRefused, Paused
from midrun.core.transcript import Made
from tests.scenarios.peers.cast import Cast, Use
from tests.unit.runs.conftest import Opener

BATCH = [Use("quick", name="a"), Use("ask", name="b"), Use("quick", name="c")]


def told(cast: Cast) -> list[tuple[str, object]]:
    """Return what the model was told of its calls the last time, in their order."""
    made: tuple[Made, ...] = cast.heard[-1][-1].uses
    return [(call.tool, call.problem or call.result) for call in made]


async def test_the_siblings_of_a_question_are_made_once(opened: Opener) -> None:
    """LangGraph: the calls that were made beside it are made again: charged twice."""
    cast = Cast()
    midrun = await opened(cast.agent(BATCH, cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    assert sorted(cast.completed) == ["a", "c"]
    await run.answer("blue")
    await run.until("completed")
    assert sorted(cast.called) == ["a", "b", "c"]


async def test_the_call_after_the_question_is_made_and_has_its_result(opened: Opener) -> None:
    """Agentfootprint: later siblings are dropped: the history has a call without an answer."""
    cast = Cast()
    midrun = await opened(cast.agent(BATCH, cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await run.until("waiting")
    await run.answer("blue")
    await run.until("completed")
    assert told(cast) == [("quick", "a done"), ("ask", "blue"), ("quick", "c done")]


async def test_the_same_holds_when_somebody_else_resumes_from_the_checkpoint() -> None:
    """LangGraph, Agentfootprint: the same two failures, in the process that resumes."""
    first, second = Cast(), Cast()
    outcome = await first.agent(BATCH, first.says("Done.")).run("go")
    assert isinstance(outcome, Paused)
    checkpoint = Checkpoint.from_json(outcome.checkpoint.to_json())
    ended = await second.agent(BATCH, second.says("Done.")).resume(checkpoint, "blue")
    assert isinstance(ended, Completed)
    assert sorted(first.called) == ["a", "b", "c"]
    assert second.called == []
    assert told(second) == [("quick", "a done"), ("ask", "blue"), ("quick", "c done")]


async def test_two_questions_of_one_batch_are_open_together(opened: Opener) -> None:
    """Agentfootprint: one question for each resume; a second one is an error."""
    cast = Cast()
    batch = [Use("ask", name="a"), Use("quick", name="b"), Use("ask", name="c")]
    midrun = await opened(cast.agent(batch, cast.says("Done.")))
    run = await midrun.start("actor", "go")
    asks = (await run.until("waiting")).asks
    assert [ask.question for ask in asks] == ["What about a?", "What about c?"]
    with pytest.raises(ControlRefused, match="several_asks_open"):
        await run.answer("for whom?")
    await run.answer("for c", ask=asks[1].id)
    assert (await run.view()).phase == "waiting"
    await run.answer("for a", ask=asks[0].id)
    await run.until("completed")
    assert told(cast) == [("ask", "for a"), ("quick", "b done"), ("ask", "for c")]


async def test_an_answer_goes_to_the_call_that_asked(opened: Opener) -> None:
    """Mastra: resume data reaches the wrong one of two suspended calls of the same tool."""
    cast = Cast()
    batch = [Use("ask", name=name) for name in "abc"]
    midrun = await opened(cast.agent(batch, cast.says("Done.")))
    run = await midrun.start("actor", "go")
    asks = (await run.until("waiting")).asks
    for ask in reversed(asks):
        await run.answer(f"to {ask.question}", ask=ask.id)
    await run.until("completed")
    assert told(cast) == [("ask", f"to What about {name}?") for name in "abc"]


async def test_a_pause_in_the_middle_of_a_batch_keeps_every_call(opened: Opener) -> None:
    """Elsewhere a stop inside a batch makes finished calls again, or forgets others."""
    cast = Cast()
    batch = [Use("quick", name="a"), Use("slow", name="b"), Use("ask", name="c")]
    midrun = await opened(cast.agent(batch, cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await cast.start("b").wait()
    await run.pause()
    cast.gate("b").set()
    await run.until("paused")
    await run.resume()
    await run.until("waiting")
    await run.answer("blue")
    await run.until("completed")
    assert sorted(cast.called) == ["a", "b", "c"]
    assert told(cast) == [("quick", "a done"), ("slow", "b done"), ("ask", "blue")]


async def test_a_pause_now_tells_the_agent_of_every_call_how_it_ended(opened: Opener) -> None:
    """Agent Framework: after a break the history has to be repaired by hand."""
    cast = Cast()
    batch = [Use("quick", name="a"), Use("slow", name="b"), Use("pay", amount=5, to="bob")]
    midrun = await opened(cast.agent(batch, cast.says("Done.")))
    run = await midrun.start("actor", "go")
    await cast.start("b").wait()
    await run.pause(now=True)
    await run.until("paused")
    await run.redirect("Leave it")
    await run.until("completed")
    (a, b, pay) = cast.heard[-1][-2].uses
    assert (a.result, b.result, pay.result) == ("a done", None, None)
    assert b.problem.startswith("stopped midway")
    assert pay.problem.startswith("not executed")
    assert cast.called == ["a", "b"]
