"""A person in the loop costs no process.

A tool may stop the run to ask. The run is then nothing but JSON; whenever and wherever somebody
answers, the answer is the result of the tool, which is not entered again.
"""

import json
from pathlib import Path

import pytest

from midrun import Checkpoint, Completed, ControlRefused, Midrun, NotJson, Paused
from midrun.core.entries import AskOpened
from midrun.models import Use
from tests.scenarios.promises.office import carried, office, script, told, written
from tests.scenarios.promises.processes import elsewhere
from tests.scenarios.promises.seen import recorded
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

# ── a question ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asking", ["ask_async", "ask_blocking", "ask_thread"])
async def test_the_answer_in_another_process_is_the_result_of_the_tool(
    asking: str, log: str, tmp_path: Path
) -> None:
    """However the tool runs: in the loop, in a process of its own, in a thread."""
    outcome = await office(*script(asking, log)).run("go")
    assert isinstance(outcome, Paused)
    assert (outcome.phase, outcome.reason) == ("waiting", "question")
    (ask,) = outcome.asks
    assert (ask.kind, ask.tool, ask.question) == ("question", asking, "Refund?")
    assert ask.data == {"severity": "high"}
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    said = await elsewhere("resume", asking, log, saved, json.dumps({"amount": 500}), "")
    assert said == {"phase": "completed", "output": f"{asking}: {{'amount': 500}}"}
    assert written(log) == ["asked Refund?"]  # entered once, ever


async def test_both_halves_can_be_other_processes(log: str, tmp_path: Path) -> None:
    """Nothing but the JSON has to survive from the process that asked."""
    first = await elsewhere("run", "ask_blocking", log, "go")
    assert first["phase"] == "waiting"
    saved = tmp_path / "checkpoint.json"
    saved.write_text(first["checkpoint"])
    second = await elsewhere("resume", "ask_blocking", log, saved, '"no"', "")
    assert second["output"] == "ask_blocking: no"
    assert written(log) == ["asked Refund?"]


async def test_a_checkpoint_is_plain_json(log: str) -> None:
    """It survives a database that keeps JSON in its own layout."""
    outcome = await office(*script("ask_async", log)).run("go")
    assert isinstance(outcome, Paused)
    relaid = json.dumps(json.loads(outcome.checkpoint.to_json()), indent=2)
    again = await office(*script("ask_async", log)).resume(Checkpoint.from_json(relaid), "yes")
    assert isinstance(again, Completed)
    assert again.output == "ask_async: yes"


async def test_with_a_store_another_process_answers_and_drives(
    opened: Opener, path: Path, log: str
) -> None:
    """The process that asked may be gone; a waiting run is nobody's."""
    async with Midrun(kept_at(path), agents=[office(*script("ask_async", log))]) as midrun:
        run = await midrun.start("office", "go")
        await run.until("waiting")
        assert (await midrun.store.get_row(run.id)).holder == ""
    said = await elsewhere("answer", "ask_async", log, path, run.id, '"yes"')
    assert said == {"phase": "completed", "output": "ask_async: yes"}
    assert written(log) == ["asked Refund?"]
    watching = await opened()
    assert (await (await watching.get(run.id)).view()).phase == "completed"


async def test_an_answer_may_be_any_json_also_null_and_false(opened: Opener, log: str) -> None:
    """An answer is data, so an empty one is an answer."""
    for value, shown in (("", ""), (None, "None"), (False, "False"), ([], "[]"), (0, "0")):
        midrun = await opened(office(*script("ask_async", log)))
        run = await midrun.start("office", "go")
        await run.until("waiting")
        await run.answer(value)
        assert (await run.until("completed")).output == f"ask_async: {shown}"


async def test_an_answer_that_is_not_json_is_refused_and_the_ask_stays_open(
    opened: Opener, log: str
) -> None:
    """The path says what to mend; nothing is half applied."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    with pytest.raises(NotJson) as refused:
        await run.answer({"then": [lambda: None]})
    assert "then" in refused.value.path
    assert [ask.kind for ask in (await run.view()).asks] == ["question"]


async def test_ask_human_shows_the_options_and_returns_the_choice(log: str) -> None:
    """The ready-made tool is one like any other."""
    outcome = await office(*script("ask_human", log)).run("go")
    assert isinstance(outcome, Paused)
    (ask,) = outcome.asks
    assert (ask.question, ask.data) == ("Which?", {"options": ["red", "blue"]})
    again = await office(*script("ask_human", log)).resume(carried(outcome), "blue")
    assert isinstance(again, Completed)
    assert again.output == "ask_human: blue"


async def test_the_first_answer_counts_and_the_second_learns_whose_it_was(
    opened: Opener, log: str
) -> None:
    """From whatever process it comes."""
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(office(asks, told))
    other = await opened()
    run = await midrun.start("office", "go")
    one, two = (await run.until("waiting")).asks
    first = await run.answer("red", ask=one.id, actor="ada")
    with pytest.raises(ControlRefused) as refused:
        await (await other.get(run.id)).answer("blue", ask=one.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("already_answered", "ada")
    assert refused.value.seq == first.seq
    await run.answer("green", ask=two.id)
    assert (await run.until("completed")).output == "ask_async: red; ask_async: green"


async def test_who_answers_after_the_end_still_learns_who_was_first(
    opened: Opener, log: str
) -> None:
    """The run went on and ended meanwhile; that is not what closed the ask."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    (ask,) = (await run.until("waiting")).asks
    first = await run.answer("red", actor="ada")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("blue", ask=ask.id, actor="bob")
    assert refused.value.reason in {"already_answered", "ask_closed"}
    assert (refused.value.by, refused.value.seq) == ("ada", first.seq)


@pytest.mark.parametrize("asking", ["ask_careful", "ask_deep"])
async def test_a_question_comes_through_whatever_the_tool_has_around_it(
    asking: str, log: str
) -> None:
    """A handler of errors, or a task group: to ask is not an error."""
    outcome = await office(*script(asking, log)).run("go")
    assert isinstance(outcome, Paused), outcome
    assert [ask.question for ask in outcome.asks] == ["Refund?"]
    again = await office(*script(asking, log)).resume(carried(outcome), "yes")
    assert isinstance(again, Completed)
    assert again.output == f"{asking}: yes"
    assert written(log) == ["asked Refund?"]


# ── calls beside it ───────────────────────────────────────────────────────────────────────


async def test_calls_beside_the_one_that_asks_are_made_once_and_none_is_dropped(
    log: str, tmp_path: Path
) -> None:
    """Those before it, and those after it in the same step."""
    outcome = await office(*script("siblings", log)).run("go")
    assert isinstance(outcome, Paused)
    assert sorted(written(log)) == ["asked Refund?", "did first", "did last"]
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    said = await elsewhere("resume", "siblings", log, saved, '"ok"', "")
    assert said["output"] == "act: first done; ask_async: ok; act: last done"
    assert len(written(log)) == 3


async def test_the_run_waits_only_when_the_calls_beside_it_have_ended(
    opened: Opener, log: str
) -> None:
    """`waiting` says that nothing is in flight; an answer need not wait for that."""
    stage = ControllableTools()
    asking = next(tool for tool in office().tools.values() if tool.name == "ask_async")
    agent = stage.agent([Use("slow", name="a"), Use("ask_async", log=log, question="?")], told)
    agent = type(agent)("actor", model=agent.model, tools=[*agent.tools.values(), asking])
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await recorded(run, AskOpened)
    view = await run.view()
    assert (view.phase, [call.tool for call in view.in_flight]) == ("running", ["slow"])
    await run.answer("yes")
    assert (await run.view()).phase == "running"  # the next step waits for both
    stage.gate("a").set()
    assert (await run.until("completed")).output == "slow: a done; ask_async: yes"


async def test_two_questions_in_one_step_are_answered_by_name(opened: Opener, log: str) -> None:
    """Which one is meant is never guessed; the run goes on when both are answered."""
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(office(asks, told))
    run = await midrun.start("office", "go")
    one, two = (await run.until("waiting")).asks
    with pytest.raises(ControlRefused) as refused:
        await run.answer("which?")
    assert refused.value.reason == "several_asks_open"
    receipt = await run.answer("second", ask=two.id)
    assert receipt.phase == "waiting"
    await run.answer("first", ask=one.id)
    assert (await run.until("completed")).output == "ask_async: first; ask_async: second"
    assert sorted(written(log)) == ["asked One?", "asked Two?"]


async def test_a_paused_run_keeps_the_answer_until_it_is_resumed(
    opened: Opener, log: str
) -> None:
    """Answering is not resuming: whoever paused decides when it goes on."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    await run.until("waiting")
    await run.pause(actor="ada")
    assert (await run.view()).phase == "paused"
    assert (await run.answer("yes")).phase == "paused"
    await run.resume(actor="ada")
    assert (await run.until("completed")).output == "ask_async: yes"
