"""Promise 6: nothing is redone.

A call whose end is in the journal is never made again. One that was in flight when its process
died is *unknown*: made again under its key if that is declared safe, settled by its own check
if it has one, and put to a person otherwise. It is never quietly repeated, nor dropped.
"""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from midrun.core.transcript import Made
from midrun.models import ScriptedModel
from midrun.ports.outside import Outside
from tests.promises.crashing import LATER, an_hour_later, child
from tests.promises.seen import engine, entries, recorded, true, turns
from tests.promises.speaker import Line, Speaker
from tests.promises.world import World
from tests.runtime.conftest import LEASE, Opener
from tests.runtime.stage import Stage, Use


@asynccontextmanager
async def after_a_crash(
    path: Path, folder: Path, script: str, stop_at: str
) -> AsyncIterator[tuple[Run, World]]:
    """Kill a process in the middle of a call, and give its run where another one takes it."""
    with child("drive", path, folder, script, stop_at) as talk:
        run_id = talk.hear()
        talk.kill()
    world = World(folder)
    agents = [world.agent(script)]
    with anyio.fail_after(20):
        async with Midrun(f"sqlite:///{path}", agents=agents, outside=LATER) as midrun:
            yield await midrun.get(run_id), world
            assert await midrun.verify(run_id)


async def made(run: Run) -> list[Made]:
    """Return what the model is told of the tool calls of `run`."""
    return [one for turn in await turns(run) for one in turn.uses]


async def attempts(run: Run) -> list[int]:
    """Return the attempts of the tool calls of `run`."""
    started = await entries(run, CallStarted)
    return [start.attempt for start in started if start.call_kind == "tool"]


# ── after a crash ─────────────────────────────────────────────────────────────────────────


async def test_a_call_whose_end_is_journaled_is_not_made_again_after_a_crash(
    path: Path, tmp_path: Path
) -> None:
    """Nor is the one that only looks counted as done: it is looked again, under its key."""
    async with after_a_crash(path, tmp_path, "look", "look:after") as (run, world):
        await run.until("completed")
        assert world.told() == ["charge a", "look b", "look b"]
        assert len(set(world.keys())) == 2
        assert await attempts(run) == [1, 1, 2]
        (lost,) = await entries(run, CallUnknown)
        assert lost.why == "orphaned"


@pytest.mark.parametrize("point", ["fetch:before", "fetch:after"])
async def test_an_idempotent_call_is_made_again_under_the_same_key(
    path: Path, tmp_path: Path, point: str
) -> None:
    """Whether the first one arrived nobody here knows; the far end knows the key."""
    async with after_a_crash(path, tmp_path, "fetch", point) as (run, world):
        await run.until("completed")
        assert world.told() == ["fetch a"] * (1 + (point == "fetch:after"))
        assert len(set(world.keys())) == 1
        assert await attempts(run) == [1, 2]
        assert not (await run.view()).asks


async def test_a_check_that_finds_the_effect_settles_the_call(
    path: Path, tmp_path: Path
) -> None:
    """What it found is the result; the call is not made again, and nobody is asked."""
    async with after_a_crash(path, tmp_path, "checked", "checked:after") as (run, world):
        await run.until("completed")
        assert world.told() == ["checked a"]
        assert await attempts(run) == [1]
        (settled,) = await entries(run, CallSettled)
        assert (settled.happened, settled.by) == (True, "check:checked")
        assert [one.result for one in await made(run)] == ["found a"]


async def test_a_check_that_finds_nothing_has_the_call_made(path: Path, tmp_path: Path) -> None:
    """Under its key, as another attempt."""
    async with after_a_crash(path, tmp_path, "checked", "checked:before") as (run, world):
        await run.until("completed")
        assert world.told() == ["checked a"]
        assert await attempts(run) == [1, 2]
        (settled,) = await entries(run, CallSettled)
        assert settled.happened is False
        assert [one.result for one in await made(run)] == ["did a"]


async def test_otherwise_a_person_is_asked_and_nothing_happens_meanwhile(
    path: Path, tmp_path: Path
) -> None:
    """The ask says which call with which arguments, and takes no other kind of answer."""
    async with after_a_crash(path, tmp_path, "charge", "charge:after") as (run, world):
        await run.until("waiting")
        outcome = await run.result()
        assert isinstance(outcome, Paused)
        (ask,) = outcome.asks
        assert (outcome.reason, ask.kind, ask.tool) == ("unsure", "unsure", "charge")
        assert ask.args == {"name": "a"}
        assert world.told() == ["charge a"]
        with pytest.raises(ControlRefused, match="not_an_outcome"):
            await run.answer("perhaps")
        with pytest.raises(ControlRefused, match="not_an_approval"):
            await run.approve()
        assert (await run.view()).phase == "waiting"


@pytest.mark.parametrize(
    ("answer", "point", "told"),
    [
        ("yes", "charge:after", ["charge a"]),
        ("no", "charge:before", ["charge a"]),
        ("unknown", "charge:after", ["charge a"]),
        ("unknown", "charge:before", []),
    ],
)
async def test_what_a_person_says_of_an_unsure_call_decides(
    path: Path, tmp_path: Path, answer: str, point: str, told: list[str]
) -> None:
    """Yes: it counts as done. No: it is made, under its key. Unknown: it is left, and told."""
    async with after_a_crash(path, tmp_path, "charge", point) as (run, world):
        await run.until("waiting")
        await run.answer(answer, actor="ada")
        await run.until("completed")
        assert world.told() == told
        assert await attempts(run) == ([1, 2] if answer == "no" else [1])
        (settled,) = await entries(run, CallSettled)
        assert settled.by == "ada"
        assert settled.happened is {"yes": True, "no": False, "unknown": None}[answer]
        (one,) = await made(run)
        assert bool(one.problem) is (answer == "unknown")
        assert one.result == ("charged a" if answer == "no" else None)
        unsure = [deed.tool for deed in (await run.report()).unsure]
        assert unsure == (["charge"] if answer == "unknown" else [])


async def test_an_unsure_call_is_never_made_again_by_a_resume(
    path: Path, tmp_path: Path
) -> None:
    """Paused and resumed, the question is still there: nobody slips past it."""
    async with after_a_crash(path, tmp_path, "charge", "charge:after") as (run, world):
        await run.until("waiting")
        await run.pause()
        await run.resume()
        assert (await run.view()).phase == "waiting"
        await run.redirect("Never mind; go on")
        await run.until("completed")
        assert world.told() == ["charge a"]
        (one,) = await made(run)
        assert "unknown" in one.problem
        assert [deed.tool for deed in (await run.report()).unsure] == ["charge"]


# ── without a crash ───────────────────────────────────────────────────────────────────────


async def test_a_slow_worker_that_is_not_dead_saves_somebody_the_question(
    path: Path, opened: Opener
) -> None:
    """Taken over, it may decide nothing any more, but what it knows is evidence."""
    gate, stage, calls = threading.Event(), Stage(), []

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
    outside = Outside(clock=an_hour_later, lease=LEASE)
    try:
        async with Midrun(f"sqlite:///{path}", agents=[agent()], outside=outside) as other:
            run = await other.get(run_id)
            view = await run.until("waiting")
            assert [ask.kind for ask in view.asks] == ["unsure"]
            gate.set()
            await run.until("completed")
            (late,) = await entries(run, LateResult)
            assert (late.result, late.epoch) == ("charged", 1)
            assert [closed.why for closed in await entries(run, AskClosed)] == ["evidence"]
            assert [one.result for one in await made(run)] == ["charged"]
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
    stage = Stage()
    script = (Use("slow", name="a"), "Done.")
    async with Midrun(f"sqlite:///{path}", agents=[stage.agent(*script)]) as first:
        run = await first.start("actor", "go")
        await stage.start("a").wait()
        await run.pause(now=True)
        await run.until("paused")
    midrun = await opened(stage.agent(*script))
    found = await midrun.get(run.id)
    await found.resume()
    await found.until("completed")
    assert stage.began == ["a"]
    assert "stopped midway" in (await made(found))[0].problem


async def test_a_shutdown_is_not_a_crash(path: Path, opened: Opener) -> None:
    """A process that leaves lets its tool finish, and the next one goes on behind it."""
    stage = Stage()
    script = (Use("slow", name="a"), Use("quick", name="b"), "Done.")
    address = f"sqlite:///{path}"
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
    assert stage.did == ["a", "b"]
    assert stage.began == ["a", "b"]
    assert not await entries(found, CallUnknown)


async def _finish_while_leaving(midrun: Midrun, gate: anyio.Event) -> None:
    await true(lambda: engine(midrun)._leaving)
    gate.set()


async def test_a_check_that_cannot_find_out_fails_the_run_resumably(opened: Opener) -> None:
    """It is not taken for an answer; mended, it is asked again on resume."""
    stage = Stage()
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
        stage.did.append(name)
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
    assert (stage.did, len(asked)) == ([], 3)
    broken[0] = False
    await run.resume()
    await run.until("completed")
    assert stage.did == ["a"]
    await recorded(run, CallSettled)
