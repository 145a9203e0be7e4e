"""Without a store: an agent in a script, in memory, and nothing kept but what it returns.

A paused or failed run is in its checkpoint and nowhere else. A checkpoint is data; it is signed
where there is a key, and one that must not be resumed is refused by name.
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
from tests.scenarios.promises.faulty import REFUSED, Faulty
from tests.scenarios.promises.office import act, office, script, told, write, written
from tests.scenarios.promises.processes import elsewhere
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import Opener
from tests.unit.runs.stage import ControllableTools

KEY = bytes(range(32))
OTHER_KEY = bytes(range(1, 33))


async def asking(log: str) -> Paused:
    """Return a run that has asked."""
    outcome = await office(*script("ask_async", log)).run("go")
    assert is_paused(outcome)
    return outcome


async def signed(log: str, path: Path) -> Checkpoint:
    """Return the signed checkpoint of a run that has asked, of a store that is gone."""
    agent = office(*script("ask_async", log))
    async with Midrun(kept_at(path), agents=[agent], key=KEY) as midrun:
        run = await midrun.start("office", "go")
        outcome = await run.result()
        assert is_paused(outcome)
        return outcome.checkpoint


# ── running ───────────────────────────────────────────────────────────────────────────────


async def test_a_script_needs_no_store(log: str) -> None:
    """One call, one outcome."""
    outcome = await office(*script("act", log)).run("go")
    assert isinstance(outcome, Completed)
    assert outcome.output == "act: second done"
    assert written(log) == ["did first", "did second"]


async def test_nothing_is_left_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory means in memory."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    await asking(str(tmp_path / "book.txt"))
    assert list(home.iterdir()) == []


async def test_a_run_may_be_given_a_stop_of_its_own(log: str) -> None:
    """In place of the agent's."""
    outcome = await office(*script("act", log)).run("go", stop=MaxSteps(1))
    assert isinstance(outcome, Paused)
    assert (outcome.reason, written(log)) == ("cap", ["did first"])


async def test_several_runs_of_one_agent_do_not_mix(log: str) -> None:
    """An agent holds no run."""
    agent = office(*script("ask_async", log))
    one, two = await agent.run("one"), await agent.run("two")
    assert isinstance(one, Paused)
    assert isinstance(two, Paused)
    assert one.run_id != two.run_id
    second = await agent.resume(two.checkpoint, "2")
    first = await agent.resume(one.checkpoint, "1")
    assert isinstance(first, Completed)
    assert isinstance(second, Completed)
    assert (first.output, second.output) == ("ask_async: 1", "ask_async: 2")


async def test_an_exception_of_the_caller_comes_out_as_it_is(opened: Opener) -> None:
    """Whatever runs inside: people catch their own errors by name."""
    del opened
    with pytest.raises(KeyError, match="mine"):
        async with Midrun("memory://", agents=[office("Done.")]):
            raise KeyError("mine")


async def test_whoever_gives_up_on_a_run_stops_it() -> None:
    """A timeout around it, or Ctrl-C: nothing goes on behind the caller's back."""
    stage = ControllableTools()
    agent = stage.agent(Use("slow", name="a"), "Done.", grace=timedelta(milliseconds=50))
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "go")
            await stage.start("a").wait()
            tasks.cancel_scope.cancel()
    assert (stage.stopped, stage.completed) == (["a"], [])


async def test_whoever_gives_up_on_a_run_has_it_cleaned_up() -> None:
    """Nobody can take it up later: what was in flight is undone now, what it holds released."""
    stage = ControllableTools()
    agent = stage.agent(
        Use("lock", name="a"), Use("draft", name="b"), Use("slow_draft", name="c")
    )
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "go")
            await stage.start("c").wait()
            tasks.cancel_scope.cancel()
    assert (stage.undone, stage.released) == (["c"], ["a"])


# ── going on ──────────────────────────────────────────────────────────────────────────────


async def test_an_instruction_comes_with_the_resumption(log: str) -> None:
    """With a pause at rest it is the next thing that the agent hears."""
    paused = await office(*script("ask_async", log)).run("go")
    assert isinstance(paused, Paused)
    heard: list[str] = []

    def listen(messages: object) -> str:
        heard.extend(turn.text for turn in messages if turn.role == "user")  # type: ignore[attr-defined]  # a transcript
        return "On it."

    agent = office(script("ask_async", log)[0], listen)
    again = await agent.resume(paused.checkpoint, instruction="Never mind, just list them")
    assert isinstance(again, Completed)
    assert heard == ["go", "Never mind, just list them"]
    assert written(log) == ["asked Refund?"]


async def test_a_question_needs_an_answer(log: str) -> None:
    """To resume without one changes nothing, and says so."""
    paused = await asking(log)
    with pytest.raises(ControlRefused) as refused:
        await office(*script("ask_async", log)).resume(paused.checkpoint)
    assert refused.value.reason == "answer_needed"


async def test_an_answer_needs_a_question() -> None:
    """An answer to nothing is refused and not lost in silence."""
    failing = Agent("actor", model=Faulty(REFUSED))
    failed = await failing.run("go")
    assert isinstance(failed, Failed)
    with pytest.raises(ControlRefused) as refused:
        await Agent("actor", model=Faulty("Done.")).resume(failed.checkpoint, "yes")
    assert refused.value.reason == "no_such_ask"


async def test_a_failed_run_goes_on_in_another_process(log: str, tmp_path: Path) -> None:
    """From its last boundary: what was done is not done again."""
    turns = script("act", log)
    broken = office(turns[0], turns[1])  # its script ends too early: the third turn fails
    outcome = await broken.run("go")
    assert isinstance(outcome, Failed)
    assert outcome.code == "script_ended"
    saved = tmp_path / "checkpoint.json"
    saved.write_text(outcome.checkpoint.to_json())
    said = await elsewhere("resume", "act", log, saved, "null", "")
    assert said["output"] == "act: second done"
    assert written(log) == ["did first", "did second"]


async def test_it_can_be_parked_again_and_again(log: str) -> None:
    """Each time in another process; each checkpoint has the whole story."""
    questions = [Use("ask_async", log=log, question=q) for q in ("One?", "Two?", "Three?")]
    outcome = await office(*questions, told).run("go")
    for answer in ("1", "2", "3"):
        assert isinstance(outcome, Paused)
        text = outcome.checkpoint.to_json()
        outcome = await office(*questions, told).resume(Checkpoint.from_json(text), answer)
    assert isinstance(outcome, Completed)
    assert outcome.output == "ask_async: 3"
    assert written(log) == ["asked One?", "asked Two?", "asked Three?"]


async def test_nobody_can_know_of_a_second_resumption_without_a_store(log: str) -> None:
    """As the documentation says; with a store it is refused, below."""
    paused = await asking(log)
    agent = office(*script("ask_async", log))
    outcomes = [await agent.resume(paused.checkpoint, n) for n in (1, 2)]
    assert [type(outcome) for outcome in outcomes] == [Completed, Completed]


# ── signatures ────────────────────────────────────────────────────────────────────────────


async def test_a_signed_checkpoint_goes_on_in_another_process_that_has_the_key(
    log: str, path: Path, tmp_path: Path
) -> None:
    """And only there."""
    saved = tmp_path / "checkpoint.json"
    saved.write_text((await signed(log, path)).to_json())
    refused = await elsewhere("resume", "ask_async", log, saved, '"yes"', OTHER_KEY.hex())
    assert (refused["error"], refused["reason"]) == ("checkpoint_refused", "checkpoint_invalid")
    refused = await elsewhere("resume", "ask_async", log, saved, '"yes"', "")
    assert refused["reason"] == "checkpoint_invalid"
    said = await elsewhere("resume", "ask_async", log, saved, '"yes"', KEY.hex())
    assert said["output"] == "ask_async: yes"


async def test_a_signature_cannot_be_left_off(log: str, path: Path) -> None:
    """Or that would be all it takes to forge one."""
    envelope = json.loads((await signed(log, path)).to_json())
    del envelope["mac"], envelope["kid"]
    for forged in ({**envelope, "signed": False}, envelope):
        with pytest.raises(CheckpointRefused) as refused:
            Checkpoint.from_json(json.dumps(forged), key=KEY)
        assert refused.value.reason == "checkpoint_invalid"


async def test_every_field_of_a_signed_checkpoint_is_signed(log: str, path: Path) -> None:
    """Whichever is changed, it is refused."""
    envelope = json.loads((await signed(log, path)).to_json())
    for name, value in envelope.items():
        other = (
            value + 1 if type(value) is int else (not value if value is True else f"{value}x")
        )
        with pytest.raises(CheckpointRefused) as refused:
            Checkpoint.from_json(json.dumps({**envelope, name: other}), key=KEY)
        assert refused.value.reason == "checkpoint_invalid"


async def test_accidents_are_found_without_a_key(log: str) -> None:
    """The chain of hashes ties an unsigned one together too."""
    text = (await asking(log)).checkpoint.to_json()
    for old, new in (("Refund?", "Refuse?"), ('"head_seq":', '"head_seq":1'), ("high", "low")):
        assert old in text
        with pytest.raises(CheckpointRefused) as refused:
            Checkpoint.from_json(text.replace(old, new))
        assert refused.value.reason == "checkpoint_invalid"
    with pytest.raises(CheckpointRefused):
        Checkpoint.from_json(text[: len(text) // 2])


# ── refused by name ───────────────────────────────────────────────────────────────────────


async def test_a_checkpoint_of_another_agent_is_refused(log: str) -> None:
    """Its name is another, or what it can do has changed since."""
    checkpoint = (await asking(log)).checkpoint
    others = (
        ControllableTools().agent("Done.", name="actor"),
        Agent("office", model=ScriptedModel(["Done."]), tools=[act]),
        Agent(
            "office",
            model=ScriptedModel(["Done."]),
            tools=list(office().tools.values()),
            instructions="Be generous",
        ),
    )
    for other in others:
        with pytest.raises(CheckpointRefused) as refused:
            await other.resume(checkpoint, "yes")
        assert refused.value.reason == "agent_mismatch"


async def test_a_checkpoint_that_has_expired_is_refused(log: str) -> None:
    """From the moment that it says."""
    whole = (await asking(log)).checkpoint
    imported = RunImported(checkpoint=whole.run, head=whole.head_hash)
    async with Midrun("memory://") as midrun:
        head = build_head(whole.state())
        await midrun.store.adopt(whole.run, whole.journal, imported, head=head)
        lines = await midrun.store.read_lines(whole.run)
    now = read_wall_clock()

    def until(moment: int) -> Checkpoint:
        return Checkpoint.of(
            whole.run,
            lines,
            agent=whole.agent,
            agent_print=whole.agent_print,
            phase=Phase.WAITING,
            now=now,
            expires=Micros(moment),
        )

    agent = office(*script("ask_async", log))
    with pytest.raises(CheckpointRefused) as refused:
        await agent.resume(until(now - 1), "yes")
    assert refused.value.reason == "checkpoint_expired"
    hour = timedelta(hours=1) // timedelta(microseconds=1)
    assert isinstance(await agent.resume(until(now + hour), "yes"), Completed)


async def test_a_checkpoint_that_the_run_has_left_behind_is_refused_by_a_store(
    opened: Opener, log: str
) -> None:
    """Where there is a store, a run is resumed once, and the second learns where it is."""
    midrun = await opened(office(*script("ask_async", log)))
    run = await midrun.start("office", "go")
    outcome = await run.result()
    assert isinstance(outcome, Paused)
    again = await midrun.resume(outcome.checkpoint, "first")
    assert again.id == run.id
    assert (await again.until("completed")).output == "ask_async: first"
    with pytest.raises(CheckpointRefused) as refused:
        await midrun.resume(outcome.checkpoint, "second")
    assert refused.value.reason == "stale_checkpoint"


async def test_a_store_takes_in_a_run_that_it_has_never_seen_once(
    opened: Opener, log: str
) -> None:
    """From a script into the store: its journal is there from its first entry on."""
    paused = await asking(log)
    one = await opened(office(*script("ask_async", log)))
    two = await opened(office(*script("ask_async", log)))
    text = paused.checkpoint.to_json()
    run = await one.resume(Checkpoint.from_json(text), "yes", actor="ada")
    assert (await run.until("completed")).output == "ask_async: yes"
    assert run.id == paused.run_id
    with pytest.raises(CheckpointRefused) as refused:
        await two.resume(Checkpoint.from_json(text), "no", actor="bob")
    assert refused.value.reason == "stale_checkpoint"
    assert written(log) == ["asked Refund?"]


async def test_a_store_that_refuses_a_checkpoint_has_not_taken_it_in(
    opened: Opener, log: str
) -> None:
    """What does not fit changes nothing: the same checkpoint can be resumed after it."""
    paused = await asking(log)
    midrun = await opened(office(*script("ask_async", log)))
    with pytest.raises(ControlRefused):
        await midrun.resume(paused.checkpoint)
    assert (await midrun.runs()).items == ()
    run = await midrun.resume(paused.checkpoint, "yes")
    await run.until("completed")


# ── what cannot be stored ─────────────────────────────────────────────────────────────────


@tool
async def returns_a_closure(log: str) -> object:
    """Act, and return what no JSON can say."""
    write(log, "acted")
    return {"rows": [1, {"then": lambda: None}]}


@tool
async def asks_with_a_closure() -> str:
    """Ask with what no JSON can say."""
    pause_here("Really?", rows=[1, {"then": lambda: None}])


async def test_a_result_that_is_not_json_is_refused_with_its_path(log: str) -> None:
    """The call was made, and is not made again; the agent is told what could not be kept."""
    model = ScriptedModel([Use("returns_a_closure", log=log), told])
    outcome = await Agent("actor", model=model, tools=[returns_a_closure]).run("go")
    assert isinstance(outcome, Completed)
    assert "result.rows[1].then" in outcome.output
    assert written(log) == ["acted"]


async def test_a_question_that_is_not_json_is_refused_with_its_path() -> None:
    """Nobody is asked what nobody could show."""
    model = ScriptedModel([Use("asks_with_a_closure"), told])
    outcome = await Agent("actor", model=model, tools=[asks_with_a_closure]).run("go")
    assert isinstance(outcome, Completed)
    assert "NotJson" in outcome.output
    assert "rows[1].then" in outcome.output


async def test_a_checkpoint_says_nothing_of_the_run_in_a_log(log: str) -> None:
    """What the run did has no place there by accident."""
    paused = await asking(log)
    assert "Refund" not in repr(paused.checkpoint)
    assert paused.run_id in repr(paused.checkpoint)
