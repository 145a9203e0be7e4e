"""Promise 6, where no process of ours died: results, errors, time-outs, takeovers, shutdowns.

Whatever ends a call, its end is known or it is asked for, and the call is not made again.
"""

import threading
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun import NOT_DONE, Agent, Call, Failed, Midrun, tool
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
from midrun.driver import tool_calls
from midrun.errors import OutcomeUnknown
from midrun.models import ScriptedModel
from midrun.ports.environment import Environment
from midrun.stops import MaxTokens
from tests.scenarios.promises.blocking import charge_and_die, fetch_and_die
from tests.scenarios.promises.crashing import an_hour_later
from tests.scenarios.promises.seen import engine, entries, recorded, true, turns
from tests.scenarios.promises.speaker import RESERVED, Line, Speaker
from tests.support.store_choice import kept_at
from tests.unit.runs.conftest import LEASE, Opener
from tests.unit.runs.stage import ControllableTools, Use


async def test_a_slow_worker_that_is_not_dead_saves_somebody_the_question(
    path: Path, opened: Opener
) -> None:
    """Taken over, it may decide nothing any more, but what it knows is evidence."""
    gate, stage, calls = threading.Event(), ControllableTools(), []

    @tool(in_process=True)
    def charge(call: Call) -> str:
        """Charge a card, slowly."""
        calls.append(call.attempt)
        anyio.from_thread.run_sync(stage.start("charge").set)
        gate.wait()
        return "charged"

    def agent() -> Agent:
        return Agent("actor", model=ScriptedModel([Use("charge"), "Done."]), tools=[charge])

    slow = await opened(agent())
    run_id = (await slow.start("actor", "go")).id
    await stage.start("charge").wait()
    outside = Environment(clock=an_hour_later, lease=LEASE)
    try:
        async with Midrun(kept_at(path), agents=[agent()], outside=outside) as other:
            run = await other.get(run_id)
            view = await run.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
            gate.set()
            await run.until("completed")
            (late,) = await entries(run, LateResult)
            assert (late.result, late.epoch) == ("charged", 1)
            assert [closed.why for closed in await entries(run, AskClosed)] == ["evidence"]
            assert [one.result for turn in await turns(run) for one in turn.uses] == ["charged"]
    finally:
        gate.set()
    assert calls == [1]


@pytest.mark.parametrize(
    "value", [object(), float("nan"), {"when": {1, 2}}, "\ud800", lambda: None, b"bytes"]
)
async def test_a_result_that_is_not_json_is_done_all_the_same(
    opened: Opener, value: object
) -> None:
    """The effect has happened; that its result cannot be kept must not make it happen again."""
    calls: list[int] = []

    @tool
    async def act(call: Call) -> object:
        """Act, and return what cannot be stored."""
        calls.append(call.attempt)
        return value

    model = Speaker(Line("", "", Use("act")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[act]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert calls == [1]
    done = next(end for end in await entries(run, CallDone) if end.reply is None)
    assert done.encoding_error
    (one,) = model.heard[1][-1].uses
    assert "not JSON" in str(one.result)
    assert not one.problem
    assert [deed.tool for deed in (await run.report()).done] == ["act"]


async def test_a_tool_that_raised_is_not_made_again_by_itself(opened: Opener) -> None:
    """The model is told, and decides; an exception with a bad `str` changes nothing of that."""
    calls: list[int] = []

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    @tool
    async def act(call: Call) -> str:
        """Fail."""
        calls.append(call.attempt)
        raise Rude

    model = Speaker(Line("", "", Use("act")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[act]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert calls == [1]
    assert "Rude" in model.heard[1][-1].uses[0].problem


async def test_a_tool_that_was_stopped_midway_is_not_made_again_after_a_restart(
    path: Path, opened: Opener
) -> None:
    """Aborted is not unknown: nobody is asked, and nobody tries again."""
    stage = ControllableTools()
    script = (Use("slow", name="a"), "Done.")
    async with Midrun(kept_at(path), agents=[stage.agent(*script)]) as first:
        run = await first.start("actor", "go")
        await stage.start("a").wait()
        await run.pause(now=True)
        await run.until("paused")
    midrun = await opened(stage.agent(*script))
    found = await midrun.get(run.id)
    await found.resume()
    await found.until("completed")
    assert stage.called == ["a"]
    (problem,) = [one.problem for turn in await turns(found) for one in turn.uses]
    assert "stopped midway" in problem


async def test_a_shutdown_is_not_a_crash(path: Path, opened: Opener) -> None:
    """A process that leaves lets its tool finish, and the next one goes on behind it."""
    stage = ControllableTools()
    script = (Use("slow", name="a"), Use("quick", name="b"), "Done.")
    address = kept_at(path)
    async with (
        anyio.create_task_group() as group,
        Midrun(address, agents=[stage.agent(*script)]) as first,
    ):
        run = await first.start("actor", "go")
        await stage.start("a").wait()
        group.start_soon(_finish_while_leaving, first, stage.gate("a"))
    midrun = await opened(stage.agent(*script))
    found = await midrun.get(run.id)
    await found.until("completed")
    assert stage.completed == ["a", "b"]
    assert stage.called == ["a", "b"]
    assert not await entries(found, CallUnknown)


async def _finish_while_leaving(midrun: Midrun, gate: anyio.Event) -> None:
    await true(lambda: engine(midrun)._shutting_down)
    gate.set()


async def test_a_check_that_cannot_find_out_fails_the_run_resumably(opened: Opener) -> None:
    """It is not taken for an answer; mended, it is asked again on resume."""
    stage = ControllableTools()
    broken, asked = [True], []

    async def find(call: Call, args: dict[str, str]) -> object:
        del call, args
        asked.append(True)
        if broken[0]:
            raise OSError("no connection")
        return NOT_DONE

    gate = threading.Event()

    @tool(check=find, in_process=True)
    def charge(call: Call, name: str) -> str:
        """Charge a card, slowly."""
        if call.attempt == 1:
            anyio.from_thread.run_sync(stage.start(name).set)
            gate.wait()
            raise OSError("it did not work out")
        stage.completed.append(name)
        return "charged"

    model = ScriptedModel([Use("charge", name="a"), "Done."])
    agent = Agent("actor", model=model, tools=[charge])
    midrun = await opened(agent)
    run = await midrun.start("actor", "go")
    await stage.start("a").wait()
    await run.pause()
    await run.force_pause()
    gate.set()
    await run.resume()
    outcome = await run.result()
    assert isinstance(outcome, Failed)
    assert outcome.code == "check_failed"
    assert "no connection" in outcome.error
    assert (stage.completed, len(asked)) == ([], 3)
    broken[0] = False
    await run.resume()
    await run.until("completed")
    assert stage.completed == ["a"]
    await recorded(run, CallSettled)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note each wait of a call before its next check, and let it take no time."""
    noted: list[int] = []

    def no_time(now: Micros, attempt: int, *, chance: float) -> Micros:
        del chance
        noted.append(attempt)
        return now

    monkeypatch.setattr(tool_calls, "compute_retry_at", no_time)
    return noted


async def finds_nothing(call: Call, args: dict[str, str]) -> object:
    """Say of a call that it was not done."""
    del call, args
    return NOT_DONE


async def test_a_far_end_that_is_down_is_given_time_before_a_call_is_made_once_more(
    opened: Opener, waits: list[int]
) -> None:
    """Its check says each time that nothing happened: made again at once, it never ends."""

    @tool(check=finds_nothing)
    async def charge(call: Call, name: str) -> str:
        """Charge a card, where somebody answers."""
        if call.attempt < 4:
            raise OutcomeUnknown(f"{name} timed out")
        return "charged"

    model = ScriptedModel([Use("charge", name="a"), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[charge]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert [one.attempt for one in await entries(run, CallStarted) if one.call == "c2"] == [
        1,
        2,
        3,
        4,
    ]
    assert waits == [1, 2]  # the first time it is made again at once


async def test_a_call_that_is_never_done_is_left_and_the_agent_hears_of_it(
    opened: Opener, waits: list[int]
) -> None:
    """It is nobody's doubt: its own check says each time that nothing happened."""

    @tool(check=finds_nothing)
    async def charge() -> str:
        """Charge a card, where nobody answers."""
        raise OutcomeUnknown("timed out")

    turns = [Use("charge"), lambda messages: messages[-1].uses[0].problem]
    agent = Agent("actor", model=ScriptedModel(turns), tools=[charge])  # type: ignore[arg-type]  # what it says follows from what it heard
    run = await (await opened(agent)).start("actor", "go")
    view = await run.until("completed")
    made = [one for one in await entries(run, CallStarted) if one.call == "c2"]
    assert len(made) == CHECK_DENIALS_MAX
    assert waits == [*range(1, CHECK_DENIALS_MAX)]
    assert view.output == (
        "not executed: tried 8 times, and each time its check found nothing done"
    )


async def test_a_model_that_lost_its_run_is_closed_and_what_it_may_cost_is_kept(
    path: Path, opened: Opener
) -> None:
    """The next driver asks again, as another attempt; the first may be billed all the same."""
    first = Speaker(Line("The first half", gate="half"))
    second = Speaker("Done.")
    slow = await opened(Agent("actor", model=first, stop=MaxTokens(10_000)))
    run_id = (await slow.start("actor", "go")).id
    await first.reached("half").wait()
    agents = [Agent("actor", model=second, stop=MaxTokens(10_000))]
    outside = Environment(clock=an_hour_later, lease=LEASE)
    async with Midrun(kept_at(path), agents=agents, outside=outside) as other:
        run = await other.get(run_id)
        usage = (await run.until("completed")).usage
        assert [start.attempt for start in await entries(run, CallStarted)] == [1, 2]
        assert (usage.tokens, usage.reserved_tokens) == (7, RESERVED.tokens)
    await true(lambda: first.closed == ["half"])


async def test_a_blocking_tool_that_died_behind_its_effect_is_put_to_a_person(
    opened: Opener, tmp_path: Path
) -> None:
    """Its own process was killed, by the system for example; ours is well."""
    effect = tmp_path / "effect"
    model = ScriptedModel([Use("charge_and_die", effect=str(effect)), "Done."])
    midrun = await opened(Agent("actor", model=model, tools=[charge_and_die]))
    run = await midrun.start("actor", "go")
    (ask,) = (await run.until("waiting")).asks
    assert (ask.kind, ask.tool) == ("unsure", "charge_and_die")
    await run.answer("yes")
    await run.until("completed")
    assert effect.read_text() == "done\n"


async def test_a_harmless_tool_that_dies_is_the_models_to_try_again(
    opened: Opener, tmp_path: Path
) -> None:
    """By itself it would die for ever."""
    effect = tmp_path / "effect"
    model = Speaker(Line("", "", Use("fetch_and_die", effect=str(effect))), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[fetch_and_die]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert effect.read_text() == "done\n"
    assert "SIGKILL" in model.heard[1][-1].uses[0].problem


@pytest.mark.parametrize(
    ("read_only", "said"), [(False, "stopped midway"), (True, "timed out after 0.02 s")]
)
async def test_a_tool_that_took_too_long_is_not_made_again(
    opened: Opener, read_only: bool, said: str
) -> None:
    """Not even a harmless one, or it would take too long for ever; the model is told."""
    calls: list[int] = []

    @tool(timeout=timedelta(milliseconds=20), read_only=read_only)
    async def dawdle(call: Call) -> str:
        """Take for ever."""
        calls.append(call.attempt)
        await anyio.sleep_forever()
        return "never"

    model = Speaker(Line("", "", Use("dawdle")), "Done.")
    midrun = await opened(Agent("actor", model=model, tools=[dawdle]))
    run = await midrun.start("actor", "go")
    await run.until("completed")
    assert calls == [1]
    assert said in model.heard[1][-1].uses[0].problem
