"""Promise 9: a waiting run needs no process.

A tool that asks a person turns the run into JSON. The answer, later and in any process, is the
result of the tool, which is not called again.
"""

import json
from pathlib import Path

import pytest

from midrun import Checkpoint, Completed, ControlRefused, Midrun, NotJson, Paused
from midrun.core.entries import AskOpened
from midrun.models import Use
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.log_agent import (
    get_script,
    log_agent,
    read_log,
    reload_checkpoint,
)
from tests.scenarios.promises.other_process import run_in_other_process
from tests.support.gated_model import repeat_results
from tests.support.run_journal import wait_for_entry
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

# ── questions ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asking_tool", ["ask_async", "ask_blocking", "ask_thread"])
async def test_the_answer_in_another_process_is_the_result_of_the_tool(
    asking_tool: str, log: str, tmp_path: Path
) -> None:
    """The tool runs in the event loop, in a process of its own, or in a thread."""
    outcome = await log_agent(*get_script(asking_tool, log)).run("go")
    assert isinstance(outcome, Paused)
    assert (outcome.phase, outcome.reason) == ("waiting", "question")
    (ask,) = outcome.asks
    assert (ask.kind, ask.tool, ask.question) == ("question", asking_tool, "Refund?")
    assert ask.data == {"severity": "high"}
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    resumed = await run_in_other_process(
        "resume", asking_tool, log, saved, json.dumps({"amount": 500}), ""
    )
    assert resumed == {"phase": "completed", "output": f"{asking_tool}: {{'amount': 500}}"}
    assert read_log(log) == ["asked Refund?"]  # the tool was called once


async def test_one_process_can_ask_and_another_one_resume(log: str, tmp_path: Path) -> None:
    """Only the JSON of the checkpoint passes between them."""
    first = await run_in_other_process("run", "ask_blocking", log, "go")
    assert first["phase"] == "waiting"
    saved = tmp_path / "checkpoint.json"
    saved.write_text(first["checkpoint"])
    second = await run_in_other_process("resume", "ask_blocking", log, saved, '"no"', "")
    assert second["output"] == "ask_blocking: no"
    assert read_log(log) == ["asked Refund?"]


async def test_a_checkpoint_can_be_formatted_as_other_json(log: str) -> None:
    """A database may store JSON in a layout of its own."""
    outcome = await log_agent(*get_script("ask_async", log)).run("go")
    assert isinstance(outcome, Paused)
    reformatted = json.dumps(json.loads(outcome.checkpoint.to_json()), indent=2)
    again = await log_agent(*get_script("ask_async", log)).resume(
        Checkpoint.from_json(reformatted), "yes"
    )
    assert isinstance(again, Completed)
    assert again.output == "ask_async: yes"


async def test_with_a_store_another_process_answers_and_drives(
    opened: OpenMidrun, path: Path, log: str
) -> None:
    """The process that asked has ended, and the waiting run has no lease."""
    async with Midrun(
        get_store_url(path), agents=[log_agent(*get_script("ask_async", log))]
    ) as midrun:
        run = await midrun.start("logger", "go")
        await run.until("waiting")
        assert (await midrun.store.get_row(run.id)).holder == ""
    resumed = await run_in_other_process("answer", "ask_async", log, path, run.id, '"yes"')
    assert resumed == {"phase": "completed", "output": "ask_async: yes"}
    assert read_log(log) == ["asked Refund?"]
    watching = await opened()
    assert (await (await watching.get(run.id)).view()).phase == "completed"


async def test_an_answer_may_be_any_json_including_null_and_false(
    opened: OpenMidrun, log: str
) -> None:
    for value, text in (("", ""), (None, "None"), (False, "False"), ([], "[]"), (0, "0")):
        midrun = await opened(log_agent(*get_script("ask_async", log)))
        run = await midrun.start("logger", "go")
        await run.until("waiting")
        await run.answer(value)
        assert (await run.until("completed")).output == f"ask_async: {text}"


async def test_an_answer_that_is_not_json_is_refused_and_the_ask_stays_open(
    opened: OpenMidrun, log: str
) -> None:
    """The error has the path of the value."""
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    with pytest.raises(NotJson) as refused:
        await run.answer({"then": [lambda: None]})
    assert "then" in refused.value.path
    assert [ask.kind for ask in (await run.view()).asks] == ["question"]


async def test_ask_human_shows_the_options_and_returns_the_choice(log: str) -> None:
    outcome = await log_agent(*get_script("ask_human", log)).run("go")
    assert isinstance(outcome, Paused)
    (ask,) = outcome.asks
    assert (ask.question, ask.data) == ("Which?", {"options": ["red", "blue"]})
    again = await log_agent(*get_script("ask_human", log)).resume(
        reload_checkpoint(outcome), "blue"
    )
    assert isinstance(again, Completed)
    assert again.output == "ask_human: blue"


async def test_a_second_answer_is_refused_and_names_the_first_actor(
    opened: OpenMidrun, log: str
) -> None:
    """The second answer comes from another process."""
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(log_agent(asks, repeat_results))
    other = await opened()
    run = await midrun.start("logger", "go")
    one, two = (await run.until("waiting")).asks
    first = await run.answer("red", ask=one.id, actor="ada")
    with pytest.raises(ControlRefused) as refused:
        await (await other.get(run.id)).answer("blue", ask=one.id, actor="bob")
    assert (refused.value.reason, refused.value.by) == ("already_answered", "ada")
    assert refused.value.seq == first.seq
    await run.answer("green", ask=two.id)
    assert (await run.until("completed")).output == "ask_async: red; ask_async: green"


async def test_an_answer_after_the_completion_names_the_first_actor(
    opened: OpenMidrun, log: str
) -> None:
    """The refusal is about the closed ask, not about the completed run."""
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    run = await midrun.start("logger", "go")
    (ask,) = (await run.until("waiting")).asks
    first = await run.answer("red", actor="ada")
    await run.until("completed")
    with pytest.raises(ControlRefused) as refused:
        await run.answer("blue", ask=ask.id, actor="bob")
    assert refused.value.reason in {"already_answered", "ask_closed"}
    assert (refused.value.by, refused.value.seq) == ("ada", first.seq)


@pytest.mark.parametrize("asking_tool", ["ask_in_try", "ask_in_task"])
async def test_a_question_passes_error_handlers_and_task_groups_of_the_tool(
    asking_tool: str, log: str
) -> None:
    """`except Exception` in a tool does not catch `pause_here`."""
    outcome = await log_agent(*get_script(asking_tool, log)).run("go")
    assert isinstance(outcome, Paused), outcome
    assert [ask.question for ask in outcome.asks] == ["Refund?"]
    again = await log_agent(*get_script(asking_tool, log)).resume(
        reload_checkpoint(outcome), "yes"
    )
    assert isinstance(again, Completed)
    assert again.output == f"{asking_tool}: yes"
    assert read_log(log) == ["asked Refund?"]


# ── other calls of the step ───────────────────────────────────────────────────────────────


async def test_the_other_calls_of_a_step_that_asks_are_made_once(
    log: str, tmp_path: Path
) -> None:
    """There is one before the question and one after it."""
    outcome = await log_agent(*get_script("siblings", log)).run("go")
    assert isinstance(outcome, Paused)
    assert sorted(read_log(log)) == ["asked Refund?", "did first", "did last"]
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    resumed = await run_in_other_process("resume", "siblings", log, saved, '"ok"', "")
    assert resumed["output"] == "act: first done; ask_async: ok; act: last done"
    assert len(read_log(log)) == 3


async def test_the_run_waits_only_after_the_other_calls_of_the_step_have_ended(
    opened: OpenMidrun, log: str
) -> None:
    """The question can be answered before that."""
    tools = ControllableTools()
    ask_async = next(tool for tool in log_agent().tools.values() if tool.name == "ask_async")
    agent = tools.agent(
        [Use("slow", name="a"), Use("ask_async", log=log, question="?")], repeat_results
    )
    agent = type(agent)("actor", model=agent.model, tools=[*agent.tools.values(), ask_async])
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await wait_for_entry(run, AskOpened)
    view = await run.view()
    assert (view.phase, [call.tool for call in view.in_flight]) == ("running", ["slow"])
    await run.answer("yes")
    assert (await run.view()).phase == "running"  # the other call has not ended
    tools.gate("a").set()
    assert (await run.until("completed")).output == "slow: a done; ask_async: yes"


async def test_two_questions_in_one_step_are_answered_by_ask_id(
    opened: OpenMidrun, log: str
) -> None:
    """An answer without an id is refused."""
    asks = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?")]
    midrun = await opened(log_agent(asks, repeat_results))
    run = await midrun.start("logger", "go")
    one, two = (await run.until("waiting")).asks
    with pytest.raises(ControlRefused) as refused:
        await run.answer("which?")
    assert refused.value.reason == "several_asks_open"
    receipt = await run.answer("second", ask=two.id)
    assert receipt.phase == "waiting"
    await run.answer("first", ask=one.id)
    assert (await run.until("completed")).output == "ask_async: first; ask_async: second"
    assert sorted(read_log(log)) == ["asked One?", "asked Two?"]


async def test_a_paused_run_keeps_the_answer_until_it_is_resumed(
    opened: OpenMidrun, log: str
) -> None:
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    run = await midrun.start("logger", "go")
    await run.until("waiting")
    await run.pause(actor="ada")
    assert (await run.view()).phase == "paused"
    assert (await run.answer("yes")).phase == "paused"
    await run.resume(actor="ada")
    assert (await run.until("completed")).output == "ask_async: yes"
