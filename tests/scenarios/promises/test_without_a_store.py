"""Runs without a store, and their checkpoints.

A paused or failed run is only in its checkpoint. With a key, a checkpoint is signed; a
checkpoint that must not be resumed is refused with a reason.
"""

import json
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import (
    Agent,
    Checkpoint,
    CheckpointRefused,
    Completed,
    ControlRefused,
    Failed,
    Midrun,
    Paused,
    is_paused,
    pause_here,
    tool,
)
from midrun.core.entries import RunImported
from midrun.core.ids import Micros
from midrun.core.run_head import build_head
from midrun.core.values import Phase
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import read_wall_clock
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.log_agent import act, append_line, get_script, log_agent, read_log
from tests.scenarios.promises.models import BAD_REQUEST, FailingModel
from tests.scenarios.promises.other_process import run_in_other_process
from tests.support.gated_model import repeat_results
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import OpenMidrun

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))


async def run_to_question(log: str) -> Paused:
    """Run the agent until it asks; return the outcome."""
    outcome = await log_agent(*get_script("ask_async", log)).run("go")
    assert is_paused(outcome)
    return outcome


async def make_signed_checkpoint(log: str, path: Path) -> Checkpoint:
    """Return the signed checkpoint of a waiting run in a store that is closed."""
    agent = log_agent(*get_script("ask_async", log))
    async with Midrun(get_store_url(path), agents=[agent], key=KEY) as midrun:
        run = await midrun.start("logger", "go")
        outcome = await run.result()
        assert is_paused(outcome)
        return outcome.checkpoint


# ── run ───────────────────────────────────────────────────────────────────────────────────


async def test_an_agent_runs_without_a_store(log: str) -> None:
    outcome = await log_agent(*get_script("act", log)).run("go")
    assert isinstance(outcome, Completed)
    assert outcome.output == "act: second done"
    assert read_log(log) == ["did first", "did second"]


async def test_a_run_without_a_store_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    await run_to_question(str(tmp_path / "log.txt"))
    assert list(home.iterdir()) == []


async def test_a_stop_condition_of_the_run_replaces_that_of_the_agent(log: str) -> None:
    outcome = await log_agent(*get_script("act", log)).run("go", stop=MaxSteps(1))
    assert isinstance(outcome, Paused)
    assert (outcome.reason, read_log(log)) == ("cap", ["did first"])


async def test_runs_of_one_agent_are_independent(log: str) -> None:
    agent = log_agent(*get_script("ask_async", log))
    one, two = await agent.run("one"), await agent.run("two")
    assert isinstance(one, Paused)
    assert isinstance(two, Paused)
    assert one.run_id != two.run_id
    second = await agent.resume(two.checkpoint, "2")
    first = await agent.resume(one.checkpoint, "1")
    assert isinstance(first, Completed)
    assert isinstance(second, Completed)
    assert (first.output, second.output) == ("ask_async: 1", "ask_async: 2")


async def test_an_exception_of_the_caller_is_not_wrapped(opened: OpenMidrun) -> None:
    """Callers catch their own exceptions by type."""
    del opened
    with pytest.raises(KeyError, match="mine"):
        async with Midrun("memory://", agents=[log_agent("Done.")]):
            raise KeyError("mine")


async def test_a_cancelled_caller_stops_its_run() -> None:
    """The cause can be a timeout around the run, or Ctrl-C."""
    tools = ControllableTools()
    agent = tools.agent(Use("slow", name="a"), "Done.", grace=timedelta(milliseconds=50))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "go")
            await tools.start("a").wait()
            tasks.cancel_scope.cancel()
    assert (tools.stopped, tools.completed) == (["a"], [])


async def test_a_cancelled_caller_has_its_run_cleaned_up() -> None:
    """No process can continue it later, so it is undone and released at once."""
    tools = ControllableTools()
    agent = tools.agent(
        Use("lock", name="a"), Use("draft", name="b"), Use("slow_draft", name="c")
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "go")
            await tools.start("c").wait()
            tasks.cancel_scope.cancel()
    assert (tools.undone, tools.released) == (["c"], ["a"])


# ── resume ────────────────────────────────────────────────────────────────────────────────


async def test_resume_passes_an_instruction_to_the_agent(log: str) -> None:
    paused = await log_agent(*get_script("ask_async", log)).run("go")
    assert isinstance(paused, Paused)
    prompt: list[str] = []

    def record_prompt(messages: object) -> str:
        prompt.extend(turn.text for turn in messages if turn.role == "user")  # type: ignore[attr-defined]  # a transcript
        return "On it."

    agent = log_agent(get_script("ask_async", log)[0], record_prompt)
    again = await agent.resume(paused.checkpoint, instruction="Never mind, just list them")
    assert isinstance(again, Completed)
    assert prompt == ["go", "Never mind, just list them"]
    assert read_log(log) == ["asked Refund?"]


async def test_resume_without_an_answer_to_the_question_is_refused(log: str) -> None:
    paused = await run_to_question(log)
    with pytest.raises(ControlRefused) as refused:
        await log_agent(*get_script("ask_async", log)).resume(paused.checkpoint)
    assert refused.value.reason == "answer_needed"


async def test_resume_with_an_answer_to_no_question_is_refused() -> None:
    failing = Agent("actor", model=FailingModel(BAD_REQUEST))
    failed = await failing.run("go")
    assert isinstance(failed, Failed)
    with pytest.raises(ControlRefused) as refused:
        await Agent("actor", model=FailingModel("Done.")).resume(failed.checkpoint, "yes")
    assert refused.value.reason == "no_such_ask"


async def test_a_failed_run_continues_in_another_process(log: str, tmp_path: Path) -> None:
    """It continues from its last boundary; finished calls are not repeated."""
    turns = get_script("act", log)
    broken = log_agent(turns[0], turns[1])  # the script ends too early
    outcome = await broken.run("go")
    assert isinstance(outcome, Failed)
    assert outcome.code == "script_ended"
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    resumed = await run_in_other_process("resume", "act", log, saved, "null", "")
    assert resumed["output"] == "act: second done"
    assert read_log(log) == ["did first", "did second"]


async def test_a_run_can_be_paused_and_resumed_several_times(log: str) -> None:
    """Each checkpoint has the whole journal."""
    questions = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?", "Three?")]
    outcome = await log_agent(*questions, repeat_results).run("go")
    for answer in ("1", "2", "3"):
        assert isinstance(outcome, Paused)
        text = outcome.checkpoint.to_json()
        outcome = await log_agent(*questions, repeat_results).resume(
            Checkpoint.from_json(text), answer
        )
    assert isinstance(outcome, Completed)
    assert outcome.output == "ask_async: 3"
    assert read_log(log) == ["asked One?", "asked Two?", "asked Three?"]


async def test_without_a_store_a_second_resume_of_a_checkpoint_is_not_refused(log: str) -> None:
    """A store refuses it, see below."""
    paused = await run_to_question(log)
    agent = log_agent(*get_script("ask_async", log))
    outcomes = [await agent.resume(paused.checkpoint, n) for n in (1, 2)]
    assert [type(outcome) for outcome in outcomes] == [Completed, Completed]


# ── signatures ────────────────────────────────────────────────────────────────────────────


async def test_a_signed_checkpoint_can_be_resumed_only_with_its_key(
    log: str, path: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "checkpoint.json"
    saved.write_text((await make_signed_checkpoint(log, path)).to_json())
    refused = await run_in_other_process(
        "resume", "ask_async", log, saved, '"yes"', OTHER_KEY.hex()
    )
    assert (refused["error"], refused["reason"]) == ("checkpoint_refused", "checkpoint_invalid")
    refused = await run_in_other_process("resume", "ask_async", log, saved, '"yes"', "")
    assert refused["reason"] == "checkpoint_invalid"
    resumed = await run_in_other_process("resume", "ask_async", log, saved, '"yes"', KEY.hex())
    assert resumed["output"] == "ask_async: yes"


async def test_a_checkpoint_without_its_signature_is_refused(log: str, path: Path) -> None:
    envelope = json.loads((await make_signed_checkpoint(log, path)).to_json())
    del envelope["mac"], envelope["kid"]
    for forged in ({**envelope, "signed": False}, envelope):
        with pytest.raises(CheckpointRefused) as refused:
            Checkpoint.from_json(json.dumps(forged), key=KEY)
        assert refused.value.reason == "checkpoint_invalid"


async def test_every_field_of_a_signed_checkpoint_is_signed(log: str, path: Path) -> None:
    envelope = json.loads((await make_signed_checkpoint(log, path)).to_json())
    for name, value in envelope.items():
        other = (
            value + 1 if type(value) is int else (not value if value is True else f"{value}x")
        )
        with pytest.raises(CheckpointRefused) as refused:
            Checkpoint.from_json(json.dumps({**envelope, name: other}), key=KEY)
        assert refused.value.reason == "checkpoint_invalid"


async def test_a_damaged_checkpoint_is_refused_without_a_key(log: str) -> None:
    """An unsigned checkpoint has its hash chain, too."""
    text = (await run_to_question(log)).checkpoint.to_json()
    for old, new in (("Refund?", "Refuse?"), ('"head_seq":', '"head_seq":1'), ("high", "low")):
        assert old in text
        with pytest.raises(CheckpointRefused) as refused:
            Checkpoint.from_json(text.replace(old, new))
        assert refused.value.reason == "checkpoint_invalid"
    with pytest.raises(CheckpointRefused):
        Checkpoint.from_json(text[: len(text) // 2])


# ── refused checkpoints ───────────────────────────────────────────────────────────────────


async def test_a_checkpoint_of_another_agent_is_refused(log: str) -> None:
    """The agents differ in name, tools or instructions."""
    checkpoint = (await run_to_question(log)).checkpoint
    others = (
        ControllableTools().agent("Done.", name="actor"),
        Agent("logger", model=ScriptedModel(["Done."]), tools=[act]),
        Agent(
            "logger",
            model=ScriptedModel(["Done."]),
            tools=list(log_agent().tools.values()),
            instructions="Be generous",
        ),
    )
    for other in others:
        with pytest.raises(CheckpointRefused) as refused:
            await other.resume(checkpoint, "yes")
        assert refused.value.reason == "agent_mismatch"


async def test_an_expired_checkpoint_is_refused(log: str) -> None:
    checkpoint = (await run_to_question(log)).checkpoint
    imported = RunImported(checkpoint=checkpoint.run, head=checkpoint.head_hash)
    async with Midrun("memory://") as midrun:
        head = build_head(checkpoint.state())
        await midrun.store.adopt(checkpoint.run, checkpoint.journal, imported, head=head)
        lines = await midrun.store.read_lines(checkpoint.run)
    now = read_wall_clock()

    def make_checkpoint(expires: int) -> Checkpoint:
        return Checkpoint.of(
            checkpoint.run,
            lines,
            agent=checkpoint.agent,
            agent_fingerprint=checkpoint.agent_fingerprint,
            phase=Phase.WAITING,
            now=now,
            expires=Micros(expires),
        )

    agent = log_agent(*get_script("ask_async", log))
    with pytest.raises(CheckpointRefused) as refused:
        await agent.resume(make_checkpoint(now - 1), "yes")
    assert refused.value.reason == "checkpoint_expired"
    hour = timedelta(hours=1) // timedelta(microseconds=1)
    assert isinstance(await agent.resume(make_checkpoint(now + hour), "yes"), Completed)


async def test_a_store_refuses_a_checkpoint_that_was_resumed_before(
    opened: OpenMidrun, log: str
) -> None:
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    run = await midrun.start("logger", "go")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    again = await midrun.resume(outcome.checkpoint, "first")
    assert again.id == run.id
    assert (await again.until("completed")).output == "ask_async: first"
    with pytest.raises(CheckpointRefused) as refused:
        await midrun.resume(outcome.checkpoint, "second")
    assert refused.value.reason == "stale_checkpoint"


async def test_a_store_imports_an_unknown_run_once(opened: OpenMidrun, log: str) -> None:
    """Its journal is stored from the first entry."""
    paused = await run_to_question(log)
    one = await opened(log_agent(*get_script("ask_async", log)))
    two = await opened(log_agent(*get_script("ask_async", log)))
    text = paused.checkpoint.to_json()
    run = await one.resume(Checkpoint.from_json(text), "yes", actor="ada")
    assert (await run.until("completed")).output == "ask_async: yes"
    assert run.id == paused.run_id
    with pytest.raises(CheckpointRefused) as refused:
        await two.resume(Checkpoint.from_json(text), "no", actor="bob")
    assert refused.value.reason == "stale_checkpoint"
    assert read_log(log) == ["asked Refund?"]


async def test_a_refused_checkpoint_is_not_imported(opened: OpenMidrun, log: str) -> None:
    """It can be resumed later."""
    paused = await run_to_question(log)
    midrun = await opened(log_agent(*get_script("ask_async", log)))
    with pytest.raises(ControlRefused):
        await midrun.resume(paused.checkpoint)
    assert (await midrun.runs()).items == ()
    run = await midrun.resume(paused.checkpoint, "yes")
    await run.until("completed")


# ── values that are not JSON ──────────────────────────────────────────────────────────────


@tool
async def returns_a_closure(log: str) -> object:
    """Have an effect, and return a value that is not JSON."""
    append_line(log, "acted")
    return {"rows": [1, {"then": lambda: None}]}


@tool
async def asks_with_a_closure() -> str:
    """Ask with a value that is not JSON."""
    pause_here("Really?", rows=[1, {"then": lambda: None}])


async def test_the_agent_is_told_the_path_of_a_result_that_is_not_json(log: str) -> None:
    """The call was made and is not repeated."""
    model = ScriptedModel([Use("returns_a_closure", log=log), repeat_results])
    outcome = await Agent("actor", model=model, tools=[returns_a_closure]).run("go")
    assert isinstance(outcome, Completed)
    assert "result.rows[1].then" in outcome.output
    assert read_log(log) == ["acted"]


async def test_the_agent_is_told_the_path_of_a_question_that_is_not_json() -> None:
    model = ScriptedModel([Use("asks_with_a_closure"), repeat_results])
    outcome = await Agent("actor", model=model, tools=[asks_with_a_closure]).run("go")
    assert isinstance(outcome, Completed)
    assert "NotJson" in outcome.output
    assert "rows[1].then" in outcome.output


async def test_the_repr_of_a_checkpoint_does_not_show_the_run(log: str) -> None:
    """It could be logged by accident."""
    paused = await run_to_question(log)
    assert "Refund" not in repr(paused.checkpoint)
    assert paused.run_id in repr(paused.checkpoint)
