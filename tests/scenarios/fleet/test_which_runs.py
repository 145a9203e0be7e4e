"""Which runs a process takes, and how many at once: limits, turns, versions."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun, Misconfigured, Run
from midrun.cli.parser import build_parser
from midrun.cli.run_commands import build_worker
from midrun.cli.targets import resolve_settings
from midrun.core.entries import LeaseTaken
from midrun.core.ids import RunId
from midrun.models import ScriptedModel, Use
from midrun.testing.controllable_tools import ControllableTools
from midrun.workers import concurrency_limits, local
from midrun.workers.concurrency_limits import Fleet
from tests.crash.facts import becomes
from tests.scenarios.fleet.acting import slow
from tests.unit.runs.conftest import verify_all

PATIENCE = 60


@pytest.fixture
async def path(kept: Path) -> AsyncIterator[Path]:
    """Give the store's path; afterwards every journal is verified."""
    with anyio.fail_after(PATIENCE):
        yield kept
        await verify_all(kept)


async def settled(midrun: Midrun) -> None:
    """Have the engine look once more, so that whatever could start has started."""
    assert midrun._worker
    await midrun._worker._start_unheld_runs()
    await anyio.wait_all_tasks_blocked()


async def test_no_more_runs_of_an_agent_are_driven_than_it_has_room_for(path: Path) -> None:
    """The others wait, queued, and are taken up as soon as there is room."""
    stage = ControllableTools()
    fleet = Fleet(limits={"agent:actor": 2})
    async with Midrun(f"sqlite:///{path}", agents=[slow(stage)], fleet=fleet) as midrun:
        runs = [await midrun.start("actor", f"t{n}") for n in range(5)]
        await stage.start("t0").wait()
        await stage.start("t1").wait()
        await settled(midrun)
        assert sorted(stage.called) == ["t0", "t1"]
        assert [(await run.view()).phase for run in runs[2:]] == ["queued"] * 3
        for n in range(5):
            stage.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")


async def test_a_limit_of_a_label_holds_whatever_the_agent(path: Path) -> None:
    """For what they share outside: a licence, an account, a machine."""
    stage = ControllableTools()
    agents = [slow(stage, "one"), slow(stage, "two")]
    fleet = Fleet(limits={"label:licence": 1})
    async with Midrun(f"sqlite:///{path}", agents=agents, fleet=fleet) as midrun:
        first = await midrun.start("one", "a", labels=["licence"])
        await stage.start("a").wait()
        second = await midrun.start("two", "b", labels=["licence", "more"])
        third = await midrun.start("two", "c")
        await stage.start("c").wait()
        await settled(midrun)
        assert "b" not in stage.called
        for name in "abc":
            stage.gate(name).set()
        for run in (first, second, third):
            await run.until("completed")


async def test_what_is_cancelled_does_not_wait_for_room(path: Path) -> None:
    """A limit is for what begins."""
    stage = ControllableTools()
    fleet = Fleet(limits={"all": 1})
    async with Midrun(f"sqlite:///{path}", agents=[slow(stage)], fleet=fleet) as midrun:
        first = await midrun.start("actor", "a")
        await stage.start("a").wait()
        second = await midrun.start("actor", "b")
        await second.cancel()
        await second.until("cancelled")
        stage.gate("a").set()
        await first.until("completed")
    assert stage.called == ["a"]


async def test_a_child_run_does_not_wait_for_the_place_that_its_parent_has(path: Path) -> None:
    """They would wait for each other for ever."""
    stage = ControllableTools()
    inner = stage.agent(Use("quick", name="inner"), "Found.", name="inner")
    outer = Agent(
        "outer",
        model=ScriptedModel([Use("inner", task="look"), "Done."]),
        tools=[inner.as_tool()],
    )
    fleet = Fleet(limits={"all": 1})
    async with Midrun(f"sqlite:///{path}", agents=[outer], fleet=fleet) as midrun:
        run = await midrun.start("outer", "go")
        await run.until("completed")
    assert stage.completed == ["inner"]


async def test_a_flood_of_one_agents_runs_does_not_keep_the_others_waiting(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest come first, but everybody has a turn."""
    monkeypatch.setattr(local, "SWEEP_MAX_RUNS", 4)
    stage = ControllableTools()
    agents = [slow(stage, "flood"), slow(stage, "other")]
    async with Midrun(f"sqlite:///{path}", agents=agents, engine=None) as creating:
        flood = [await creating.start("flood", f"f{n}") for n in range(8)]
        other = await creating.start("other", "o")
    fleet = Fleet(limits={"agent:flood": 1})
    async with Midrun(f"sqlite:///{path}", agents=agents, fleet=fleet) as midrun:
        await stage.start("o").wait()
        stage.gate("o").set()
        await (await midrun.get(other.id)).until("completed")
        for n in range(8):
            stage.gate(f"f{n}").set()
        for run in flood:
            await (await midrun.get(run.id)).until("completed")


def versions(stage: ControllableTools) -> tuple[Agent, Agent]:
    """Return an old and a new version of one agent."""
    old = stage.agent(Use("slow", name="a"), "Old.", instructions="Be brief.")
    new = stage.agent(Use("slow", name="a"), "New.", instructions="Be thorough.")
    return old, new


async def test_versions_side_by_side_drive_each_their_own_runs(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A rolling deploy: the new one leaves the old one's runs to it, and says so by name."""
    stage = ControllableTools()
    old, new = versions(stage)
    async with Midrun(f"sqlite:///{path}", agents=[old], engine=None) as creating:
        run = await creating.start("actor", "go")
    same = Fleet(versions="same")
    address = f"sqlite:///{path}"
    with caplog.at_level(logging.WARNING, logger="midrun"):
        async with Midrun(address, agents=[new], fleet=same) as newer:
            await settled(newer)
            await becomes(lambda: "agent_mismatch" in caplog.text)
            assert (await (await newer.get(run.id)).view()).phase == "queued"
            async with Midrun(address, agents=[old], fleet=same) as older:
                stage.gate("a").set()
                view = await (await older.get(run.id)).until("completed")
    assert view.output == "Old."
    assert caplog.text.count("agent_mismatch") == 1


async def test_what_was_said_of_runs_is_not_remembered_for_ever(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that leaves others' runs alone meets new ones for as long as it lives."""
    monkeypatch.setattr(concurrency_limits, "LOGGED_MISMATCHES_MAX", 2)
    old, new = versions(ControllableTools())
    async with Midrun(f"sqlite:///{path}", agents=[old], engine=None) as creating:
        runs = [await creating.start("actor", f"t{n}") for n in range(5)]
    same = Fleet(versions="same")
    async with Midrun(f"sqlite:///{path}", agents=[new], fleet=same) as newer:
        await becomes(lambda: all(f"drive run {run.id} here" in caplog.text for run in runs))
        assert newer._worker
        assert len(newer._worker._limiter._logged_mismatches) == 2


async def test_another_version_goes_on_with_a_run_where_that_is_allowed(path: Path) -> None:
    """By default, as after a plain restart: what was done is data, and is not done again."""
    stage = ControllableTools()
    stage.gate("a").set()
    old, new = versions(stage)
    async with AsyncExitStack() as stack:
        creating = Midrun(f"sqlite:///{path}", agents=[old], engine=None)
        run: Run = await (await stack.enter_async_context(creating)).start("actor", "go")
        newer = await stack.enter_async_context(Midrun(f"sqlite:///{path}", agents=[new]))
        assert (await (await newer.get(run.id)).until("completed")).output == "New."


async def test_that_another_version_took_a_run_over_is_journaled(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on it is the new version's, also for those who leave other versions alone."""
    stage, address, same = ControllableTools(), f"sqlite:///{path}", Fleet(versions="same")
    old, new = versions(stage)
    async with Midrun(address, agents=[old], engine=None) as creating:
        run = await creating.start("actor", "go")
    async with Midrun(address, agents=[new], fleet=same) as careful:
        await becomes(lambda: "agent_mismatch" in caplog.text)
        async with Midrun(address, agents=[new], fleet=Fleet(versions="any")) as bold:
            await stage.start("a").wait()
            await (await bold.get(run.id)).pause(now=True)
            await (await bold.get(run.id)).until("paused")
        stage.gate("a").set()
        handle = await careful.get(run.id)
        taken = [r.entry for r in await careful.store.read(RunId(run.id))]
        prints = [entry.agent_print for entry in taken if isinstance(entry, LeaseTaken)]
        assert prints == [new.fingerprint]
        checkpoint = await handle.checkpoint()
        assert checkpoint.agent_print == new.fingerprint
        await handle.resume()
        assert (await handle.until("completed")).output == "New."
    async with Midrun(address, agents=[old], fleet=same) as older:
        entries = [r.entry for r in await older.store.read(RunId(run.id))]
    assert [e.agent_print for e in entries if isinstance(e, LeaseTaken)] == [*prints, ""]


@pytest.mark.parametrize(
    "limits", [{"": 1}, {"agent": 1}, {"agent:": 1}, {"run:x": 1}, {"all": 0}]
)
def test_a_limit_that_would_limit_nothing_is_refused(limits: dict[str, int]) -> None:
    """By name, when it is written down."""
    with pytest.raises(Misconfigured, match="limit"):
        Fleet(limits=limits)


def test_versions_are_any_or_the_same() -> None:
    """Nothing in between is understood."""
    with pytest.raises(Misconfigured, match="'any' or 'same'"):
        Fleet(versions="newest")  # type: ignore[arg-type]  # that is the point


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_a_fleet_can_be_typed(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many limits as one likes, of all processes or of this one."""
    words = ["--limit", "agent:clerk=10", "--limit", "label:a=b=2", "--here", "all=200"]
    store = ["--store", f"sqlite:///{tmp_path}/runs.db"]
    args = build_parser().parse_args([command, "app.py", *store, *words, "--versions", "same"])
    monkeypatch.delenv("MIDRUN_POSTGRES", raising=False)  # it is put back; `settle` takes all
    resolve_settings(args)
    assert build_worker(args, ())._fleet == Fleet(
        limits={"agent:clerk": 10, "label:a=b": 2}, here={"all": 200}, versions="same"
    )


@pytest.mark.parametrize("word", ["agent:clerk", "agent:clerk=", "agent:clerk=ten", "clerk=3"])
def test_a_limit_that_is_typed_wrong_is_refused_by_name(word: str, tmp_path: Path) -> None:
    """Before anything is opened."""
    store = ["--store", f"sqlite:///{tmp_path}/runs.db"]
    args = build_parser().parse_args(["worker", "app.py", *store, "--limit", word])
    with pytest.raises(Misconfigured, match="clerk"):
        build_worker(args, ())
