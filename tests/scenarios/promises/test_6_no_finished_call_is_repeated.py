"""Promise 6: no finished call is repeated.

A call whose outcome is unknown is repeated with its key if its tool declares that safe. Else
its check decides, or a person does.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import NOT_DONE, Agent, Call, ControlRefused, Failed, Midrun, Paused, Run, tool
from midrun.core.entries import (
    AskClosed,
    CallDone,
    CallSettled,
    CallStarted,
    CallUnknown,
    LateResult,
)
from midrun.core.ids import Micros
from midrun.core.retries import CHECK_DENIALS_MAX
from midrun.core.transcript import CallResult
from midrun.driver import tool_calls
from midrun.errors import OutcomeUnknown
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.stops import MaxTokens
from midrun.testing.controllable_tools import ControllableTools
from tests.scenarios.promises.killable_process import (
    ONE_HOUR_AHEAD,
    EffectsFile,
    read_clock_one_hour_ahead,
    start_process,
)
from tests.scenarios.promises.tools import charge_and_die, fetch_and_die
from tests.support.gated_model import RESERVATION, GatedModel, GatedReply
from tests.support.run_journal import (
    get_worker,
    read_entries,
    read_turns,
    wait_for_entry,
    yield_until,
)
from tests.support.store_choice import get_store_url
from tests.unit.runs.conftest import LONG_LEASE, OpenMidrun


@asynccontextmanager
async def kill_during_call(
    path: Path, folder: Path, script: str, stop_at: str
) -> AsyncIterator[tuple[Run, EffectsFile]]:
    """Kill a process in a call, and yield its run in a worker that takes it over."""
    with start_process("drive", path, folder, script, stop_at) as process:
        run_id = process.read_line()
        process.kill()
    effects = EffectsFile(folder)
    agents = [effects.agent(script)]
    with anyio.fail_after(60):
        async with Midrun(get_store_url(path), agents=agents, outside=ONE_HOUR_AHEAD) as midrun:
            yield await midrun.get(run_id), effects
            assert await midrun.verify(run_id)


async def read_uses(run: Run) -> list[CallResult]:
    """Return the tool calls of the run as the model sees them."""
    return [use for turn in await read_turns(run) for use in turn.uses]


async def read_attempts(run: Run) -> list[int]:
    """Return the attempt numbers of all starts of tool calls."""
    started = await read_entries(run, CallStarted)
    return [start.attempt for start in started if start.call_kind == "tool"]


async def test_a_finished_call_is_not_repeated_after_a_crash(
    path: Path, tmp_path: Path
) -> None:
    """The read-only call that was in flight is repeated, with its key."""
    async with kill_during_call(path, tmp_path, "look", "look:after") as (run, effects):
        await run.until("completed")
        assert effects.read_effects() == ["charge a", "look b", "look b"]
        assert len(set(effects.read_keys())) == 2
        assert await read_attempts(run) == [1, 1, 2]
        (unknown,) = await read_entries(run, CallUnknown)
        assert unknown.why == "orphaned"


@pytest.mark.parametrize("point", ["fetch:before", "fetch:after"])
async def test_an_idempotent_call_is_repeated_with_the_same_key(
    path: Path, tmp_path: Path, point: str
) -> None:
    """Whether the first attempt arrived is unknown; the remote service recognises the key."""
    async with kill_during_call(path, tmp_path, "fetch", point) as (run, effects):
        await run.until("completed")
        assert effects.read_effects() == ["fetch a"] * (1 + (point == "fetch:after"))
        assert len(set(effects.read_keys())) == 1
        assert await read_attempts(run) == [1, 2]
        assert not (await run.view()).asks


async def test_a_check_that_finds_the_effect_settles_the_call(
    path: Path, tmp_path: Path
) -> None:
    """The value of the check is the result; the call is not repeated, no person is asked."""
    async with kill_during_call(path, tmp_path, "checked", "checked:after") as (run, effects):
        await run.until("completed")
        assert effects.read_effects() == ["checked a"]
        assert await read_attempts(run) == [1]
        (settled,) = await read_entries(run, CallSettled)
        assert (settled.happened, settled.by) == (True, "check:checked")
        assert [one.result for one in await read_uses(run)] == ["found a"]


async def test_a_check_that_finds_no_effect_has_the_call_repeated(
    path: Path, tmp_path: Path
) -> None:
    """It is another attempt, with the same key."""
    async with kill_during_call(path, tmp_path, "checked", "checked:before") as (run, effects):
        await run.until("completed")
        assert effects.read_effects() == ["checked a"]
        assert await read_attempts(run) == [1, 2]
        (settled,) = await read_entries(run, CallSettled)
        assert settled.happened is False
        assert [one.result for one in await read_uses(run)] == ["did a"]


async def test_without_a_check_a_person_is_asked_and_the_run_waits(
    path: Path, tmp_path: Path
) -> None:
    """The ask names the call and its arguments, and accepts only an outcome."""
    async with kill_during_call(path, tmp_path, "charge", "charge:after") as (run, effects):
        await run.until("waiting")
        outcome = await run.result()
        assert isinstance(outcome, Paused)
        (ask,) = outcome.asks
        assert (outcome.reason, ask.kind, ask.tool) == ("unsure", "unsure", "charge")
        assert ask.args == {"name": "a"}
        assert effects.read_effects() == ["charge a"]
        with pytest.raises(ControlRefused, match="not_an_outcome"):
            await run.answer("perhaps")
        with pytest.raises(ControlRefused, match="not_an_approval"):
            await run.approve()
        assert (await run.view()).phase == "waiting"


@pytest.mark.parametrize(
    ("answer", "point", "expected"),
    [
        ("yes", "charge:after", ["charge a"]),
        ("no", "charge:before", ["charge a"]),
        ("unknown", "charge:after", ["charge a"]),
        ("unknown", "charge:before", []),
    ],
)
async def test_the_answer_of_a_person_settles_an_unknown_call(
    path: Path, tmp_path: Path, answer: str, point: str, expected: list[str]
) -> None:
    """Yes: it counts as done. No: it is repeated, with its key. Unknown: the model is told."""
    async with kill_during_call(path, tmp_path, "charge", point) as (run, effects):
        await run.until("waiting")
        await run.answer(answer, actor="ada")
        await run.until("completed")
        assert effects.read_effects() == expected
        assert await read_attempts(run) == ([1, 2] if answer == "no" else [1])
        (settled,) = await read_entries(run, CallSettled)
        assert settled.by == "ada"
        assert settled.happened is {"yes": True, "no": False, "unknown": None}[answer]
        (one,) = await read_uses(run)
        assert bool(one.problem) is (answer == "unknown")
        assert one.result == ("charged a" if answer == "no" else None)
        unsure = [call.tool for call in (await run.report()).unsure]
        assert unsure == (["charge"] if answer == "unknown" else [])


async def test_a_resume_does_not_repeat_an_unknown_call(path: Path, tmp_path: Path) -> None:
    """The question stays open after the resume. A redirect closes it without a repetition."""
    async with kill_during_call(path, tmp_path, "charge", "charge:after") as (run, effects):
        await run.until("waiting")
        await run.pause()
        await run.resume()
        assert (await run.view()).phase == "waiting"
        await run.redirect("Never mind; go on")
        await run.until("completed")
        assert effects.read_effects() == ["charge a"]
        (one,) = await read_uses(run)
        assert "unknown" in one.problem
        assert [call.tool for call in (await run.report()).unsure] == ["charge"]


async def test_the_late_result_of_the_old_worker_closes_the_question(
    path: Path, opened: OpenMidrun
) -> None:
    """A worker without its lease decides nothing, but the store accepts its late results."""
    gate, tools, calls = threading.Event(), ControllableTools(), []

    @tool(in_process=True)
    def charge(call: Call) -> str:
        """Charge a card, slowly."""
        calls.append(call.attempt)
        anyio.from_thread.run_sync(tools.start("charge").set)
        gate.wait()
        return "charged"

    def agent() -> Agent:
        return Agent("actor", model=ScriptedModel([Use("charge"), "Done."]), tools=[charge])

    slow = await opened(agent())
    run_id = (await slow.start("actor", "go")).id
    await tools.start("charge").wait()
    outside = Environment(clock=read_clock_one_hour_ahead, lease=LONG_LEASE)
    try:
        async with Midrun(get_store_url(path), agents=[agent()], outside=outside) as other:
            run = await other.get(run_id)
            view = await run.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
            gate.set()
            await run.until("completed")
            (late,) = await read_entries(run, LateResult)
            assert (late.result, late.epoch) == ("charged", 1)
            assert [closed.why for closed in await read_entries(run, AskClosed)] == ["evidence"]
            assert [one.result for turn in await read_turns(run) for one in turn.uses] == [
                "charged"
            ]
    finally:
        gate.set()
    assert calls == [1]


@pytest.mark.parametrize(
    "value", [object(), float("nan"), {"when": {1, 2}}, "\ud800", lambda: None, b"bytes"]
)
async def test_a_call_whose_result_is_not_json_still_counts_as_done(
    opened: OpenMidrun, value: object
) -> None:
    """Its effect has happened and must not be repeated because the result cannot be stored."""
    calls: list[int] = []

    @tool
    async def act(call: Call) -> object:
        """Return a value that cannot be stored."""
        calls.append(call.attempt)
        return value

    model = GatedModel(GatedReply("", "", Use("act")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[act]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert calls == [1]
    done = next(end for end in await read_entries(run, CallDone) if end.reply is None)
    assert done.encoding_error
    (one,) = model.transcripts[1][-1].uses
    assert "not JSON" in str(one.result)
    assert not one.problem
    assert [call.tool for call in (await run.report()).done] == ["act"]


async def test_a_tool_that_raised_is_not_retried(opened: OpenMidrun) -> None:
    """The model is told and decides, also if the `__str__` of the exception raises."""
    calls: list[int] = []

    class Unprintable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("this exception has no text")

    @tool
    async def act(call: Call) -> str:
        """Fail."""
        calls.append(call.attempt)
        raise Unprintable

    model = GatedModel(GatedReply("", "", Use("act")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[act]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert calls == [1]
    assert "Unprintable" in model.transcripts[1][-1].uses[0].problem


async def test_an_aborted_call_is_not_repeated_after_a_restart(
    path: Path, opened: OpenMidrun
) -> None:
    """Aborted is not unknown, so no person is asked."""
    tools = ControllableTools()
    script = (Use("slow", name="a"), "Done.")
    async with Midrun(get_store_url(path), agents=[tools.agent(*script)]) as first:
        run = await first.start("actor", "go")
        await tools.start("a").wait()
        await run.pause(now=True)
        await run.until("paused")
    midrun = await opened(tools.agent(*script))
    found = await midrun.get(run.id)
    await found.resume()
    await found.until("completed")
    assert tools.called == ["a"]
    (problem,) = [one.problem for turn in await read_turns(found) for one in turn.uses]
    assert "stopped midway" in problem


async def test_a_worker_that_shuts_down_lets_its_call_finish(
    path: Path, opened: OpenMidrun
) -> None:
    """The next worker continues after that call."""
    tools = ControllableTools()
    script = (Use("slow", name="a"), Use("quick", name="b"), "Done.")
    address = get_store_url(path)
    async with (
        anyio.create_task_group() as group,
        Midrun(address, agents=[tools.agent(*script)]) as first,
    ):
        run = await first.start("actor", "go")
        await tools.start("a").wait()
        group.start_soon(_open_gate_during_shutdown, first, tools.gate("a"))
    midrun = await opened(tools.agent(*script))
    found = await midrun.get(run.id)
    await found.until("completed")
    assert tools.completed == ["a", "b"]
    assert tools.called == ["a", "b"]
    assert not await read_entries(found, CallUnknown)


async def _open_gate_during_shutdown(midrun: Midrun, gate: anyio.Event) -> None:
    await yield_until(lambda: get_worker(midrun)._shutting_down)
    gate.set()


async def test_a_check_that_raises_fails_the_run_and_is_repeated_on_resume(
    opened: OpenMidrun,
) -> None:
    tools = ControllableTools()
    broken, checks = [True], []

    async def find(call: Call, args: dict[str, str]) -> object:
        del call, args
        checks.append(True)
        if broken[0]:
            raise OSError("no connection")
        return NOT_DONE

    gate = threading.Event()

    @tool(check=find, in_process=True)
    def charge(call: Call, name: str) -> str:
        """Charge a card, slowly."""
        if call.attempt == 1:
            anyio.from_thread.run_sync(tools.start(name).set)
            gate.wait()
            raise OSError("it did not work")
        tools.completed.append(name)
        return "charged"

    model = ScriptedModel([Use("charge", name="a"), "Done."])
    agent = Agent("actor", model=model, tools=[charge])
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await tools.start("a").wait()
    await run.pause()
    await run.force_pause()
    gate.set()
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "check_failed"
    assert "no connection" in outcome.error
    assert (tools.completed, len(checks)) == ([], 3)
    broken[0] = False
    await run.resume()
    await run.until("completed")
    assert tools.completed == ["a"]
    await wait_for_entry(run, CallSettled)


@pytest.fixture
def retry_waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the attempts before which a call waits; the waits themselves take no time."""
    attempts: list[int] = []

    def wait_no_time(now: Micros, attempt: int, *, chance: float) -> Micros:
        del chance
        attempts.append(attempt)
        return now

    monkeypatch.setattr(tool_calls, "compute_retry_at", wait_no_time)
    return attempts


async def find_nothing(call: Call, args: dict[str, str]) -> object:
    """Report that the call was not done."""
    del call, args
    return NOT_DONE


async def test_a_call_whose_check_finds_nothing_is_retried_after_a_wait(
    opened: OpenMidrun, retry_waits: list[int]
) -> None:
    """Only the first retry is made at once; else a service that is down is called in a loop."""

    @tool(check=find_nothing)
    async def charge(call: Call, name: str) -> str:
        """Time out three times, then charge a card."""
        if call.attempt < 4:
            raise OutcomeUnknown(f"{name} timed out")
        return "charged"

    model = ScriptedModel([Use("charge", name="a"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[charge]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert [
        one.attempt for one in await read_entries(run, CallStarted) if one.call == "c2"
    ] == [
        1,
        2,
        3,
        4,
    ]
    assert retry_waits == [1, 2]  # the first retry is made at once


async def test_a_call_whose_check_never_finds_an_effect_is_given_up(
    opened: OpenMidrun, retry_waits: list[int]
) -> None:
    """Its outcome is known, so the agent is told and no person is asked."""

    @tool(check=find_nothing)
    async def charge() -> str:
        """Time out each time."""
        raise OutcomeUnknown("timed out")

    turns = [Use("charge"), lambda messages: messages[-1].uses[0].problem]
    agent = Agent("actor", model=ScriptedModel(turns), tools=[charge])  # type: ignore[arg-type]  # a list of turns and cues
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("completed")
    made = [one for one in await read_entries(run, CallStarted) if one.call == "c2"]
    assert len(made) == CHECK_DENIALS_MAX
    assert retry_waits == [*range(1, CHECK_DENIALS_MAX)]
    assert isinstance(view.output, str)
    assert view.output.startswith(f"not executed: tried {CHECK_DENIALS_MAX} times")


async def test_the_model_call_of_a_lost_lease_is_closed_and_its_reservation_is_kept(
    path: Path, opened: OpenMidrun
) -> None:
    """The next worker makes another attempt; the provider may bill the first as well."""
    first = GatedModel(GatedReply("The first half", gate="half"))
    second = GatedModel("Done.")
    slow = await opened(Agent("actor", model=first, stop=MaxTokens(10_000)))
    run_id = (await slow.start("actor", "go")).id
    await first.reached("half").wait()
    agents = [Agent("actor", model=second, stop=MaxTokens(10_000))]
    outside = Environment(clock=read_clock_one_hour_ahead, lease=LONG_LEASE)
    async with Midrun(get_store_url(path), agents=agents, outside=outside) as other:
        run = await other.get(run_id)
        usage = (await run.until("completed")).usage
        assert [start.attempt for start in await read_entries(run, CallStarted)] == [1, 2]
        assert (usage.tokens, usage.reserved_tokens) == (7, RESERVATION.tokens)
    await yield_until(lambda: first.closed_gates == ["half"])


async def test_a_person_is_asked_about_a_blocking_tool_that_was_killed_after_its_effect(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """The tool's own process was killed, as by the operating system; the worker lives."""
    effect = tmp_path / "effect"
    model = ScriptedModel([Use("charge_and_die", effect=str(effect)), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[charge_and_die]))
    run = await midrun.start("actor", "go")
    (ask,) = (await run.until("waiting")).asks
    assert (ask.kind, ask.tool) == ("unsure", "charge_and_die")
    await run.answer("yes")
    await run.until("completed")
    assert effect.read_text() == "done\n"


async def test_the_model_is_told_when_an_idempotent_blocking_tool_was_killed(
    opened: OpenMidrun, tmp_path: Path
) -> None:
    """An automatic retry would be killed again, without end."""
    effect = tmp_path / "effect"
    model = GatedModel(GatedReply("", "", Use("fetch_and_die", effect=str(effect))), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[fetch_and_die]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert effect.read_text() == "done\n"
    assert "SIGKILL" in model.transcripts[1][-1].uses[0].problem


@pytest.mark.parametrize(
    ("read_only", "problem"), [(False, "stopped midway"), (True, "timed out after 0.02 s")]
)
async def test_a_tool_that_timed_out_is_not_repeated(
    opened: OpenMidrun, read_only: bool, problem: str
) -> None:
    """A read-only one would time out again, without end. The model is told."""
    calls: list[int] = []

    @tool(timeout=timedelta(milliseconds=20), read_only=read_only)
    async def hang(call: Call) -> str:
        """Wait without end."""
        calls.append(call.attempt)
        await anyio.sleep_forever()
        return "never"

    model = GatedModel(GatedReply("", "", Use("hang")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[hang]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert calls == [1]
    assert problem in model.transcripts[1][-1].uses[0].problem
