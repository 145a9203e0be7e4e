"""Which process drives which runs: limits, fairness, versions of an agent, and checkpoints."""

import logging
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from midrun import Agent, CheckpointRefused, Midrun, Misconfigured, Run, ask_human, is_paused
from midrun.cli.parser import build_parser
from midrun.cli.run_commands import build_worker
from midrun.cli.settings import resolve_settings
from midrun.core.entries import LeaseTaken
from midrun.core.ids import RunId
from midrun.errors import RunNotFound
from midrun.models import ScriptedModel, Use
from midrun.ports.store import Snapshot
from midrun.testing.controllable_tools import ControllableTools
from midrun.workers import concurrency_limits, local
from midrun.workers.concurrency_limits import Fleet
from tests.scenarios.fleet.slow_agent import make_slow_agent
from tests.support.conditions import wait_until


async def sweep(midrun: Midrun) -> None:
    """Let the worker sweep once more, so that every run that can start has started."""
    assert midrun._service.worker
    await midrun._service.worker._start_unheld_runs()
    await anyio.wait_all_tasks_blocked()


async def test_a_limit_of_an_agent_leaves_further_runs_queued(path: Path) -> None:
    """They are started as soon as there is a free place."""
    tools = ControllableTools()
    fleet = Fleet(limits={"agent:actor": 2})
    async with Midrun(
        f"sqlite:///{path}", agents=[make_slow_agent(tools)], fleet=fleet
    ) as midrun:
        runs = [await midrun.start("actor", f"t{n}") for n in range(5)]
        await tools.start("t0").wait()
        await tools.start("t1").wait()
        await sweep(midrun)
        assert sorted(tools.called) == ["t0", "t1"]
        assert [(await run.view()).phase for run in runs[2:]] == ["queued"] * 3
        for n in range(5):
            tools.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")


async def test_a_limit_of_a_label_counts_the_runs_of_all_agents(path: Path) -> None:
    """The label stands for a shared resource, such as a licence."""
    tools = ControllableTools()
    agents = [make_slow_agent(tools, "one"), make_slow_agent(tools, "two")]
    fleet = Fleet(limits={"label:licence": 1})
    async with Midrun(f"sqlite:///{path}", agents=agents, fleet=fleet) as midrun:
        first = await midrun.start("one", "a", labels=["licence"])
        await tools.start("a").wait()
        second = await midrun.start("two", "b", labels=["licence", "more"])
        third = await midrun.start("two", "c")
        await tools.start("c").wait()
        await sweep(midrun)
        assert "b" not in tools.called
        for name in "abc":
            tools.gate(name).set()
        for run in (first, second, third):
            await run.until("completed")


async def test_a_process_cancels_a_queued_run_although_its_limit_is_reached(path: Path) -> None:
    """A limit holds only runs back that would start calls."""
    tools = ControllableTools()
    fleet = Fleet(limits={"all": 1})
    async with Midrun(
        f"sqlite:///{path}", agents=[make_slow_agent(tools)], fleet=fleet
    ) as midrun:
        first = await midrun.start("actor", "a")
        await tools.start("a").wait()
        second = await midrun.start("actor", "b")
        await second.cancel()
        await second.until("cancelled")
        tools.gate("a").set()
        await first.until("completed")
    assert tools.called == ["a"]


async def test_a_child_run_needs_no_place_of_its_own(path: Path) -> None:
    """Parent and child would wait for each other for ever."""
    tools = ControllableTools()
    inner = tools.agent(Use("quick", name="inner"), "Found.", name="inner")
    outer = Agent(
        "outer",
        model=ScriptedModel([Use("inner", task="look"), "Done."]),
        tools=[inner.as_tool()],
    )
    fleet = Fleet(limits={"all": 1})
    async with Midrun(f"sqlite:///{path}", agents=[outer], fleet=fleet) as midrun:
        run = await midrun.start("outer", "go")
        await run.until("completed")
    assert tools.completed == ["inner"]


async def test_many_runs_of_one_agent_do_not_delay_the_runs_of_another(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest runs come first, but each agent gets its share."""
    monkeypatch.setattr(local, "SWEEP_MAX_RUNS", 4)
    tools = ControllableTools()
    agents = [make_slow_agent(tools, "flood"), make_slow_agent(tools, "other")]
    async with Midrun(f"sqlite:///{path}", agents=agents, engine=None) as creating:
        flood = [await creating.start("flood", f"f{n}") for n in range(8)]
        other = await creating.start("other", "o")
    fleet = Fleet(limits={"agent:flood": 1})
    async with Midrun(f"sqlite:///{path}", agents=agents, fleet=fleet) as midrun:
        await tools.start("o").wait()
        tools.gate("o").set()
        await (await midrun.get(other.id)).until("completed")
        for n in range(8):
            tools.gate(f"f{n}").set()
        for run in flood:
            await (await midrun.get(run.id)).until("completed")


def make_versions(tools: ControllableTools) -> tuple[Agent, Agent]:
    """Return an old and a new version of one agent."""
    old = tools.agent(Use("slow", name="a"), "Old.", instructions="Be brief.")
    new = tools.agent(Use("slow", name="a"), "New.", instructions="Be thorough.")
    return old, new


async def test_each_version_of_an_agent_drives_its_own_runs(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a rolling deployment the new version skips runs of the old one, and logs it once."""
    tools = ControllableTools()
    old, new = make_versions(tools)
    async with Midrun(f"sqlite:///{path}", agents=[old], engine=None) as creating:
        run = await creating.start("actor", "go")
    same = Fleet(versions="same")
    address = f"sqlite:///{path}"
    with caplog.at_level(logging.WARNING, logger="midrun"):
        async with Midrun(address, agents=[new], fleet=same) as newer:
            await sweep(newer)
            await wait_until(lambda: "agent_mismatch" in caplog.text)
            assert (await (await newer.get(run.id)).view()).phase == "queued"
            async with Midrun(address, agents=[old], fleet=same) as older:
                tools.gate("a").set()
                view = await (await older.get(run.id)).until("completed")
    assert view.output == "Old."
    assert caplog.text.count("agent_mismatch") == 1


async def test_the_list_of_logged_version_mismatches_is_bounded(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long-lived worker meets more and more runs of other versions."""
    monkeypatch.setattr(concurrency_limits, "LOGGED_MISMATCHES_MAX", 2)
    old, new = make_versions(ControllableTools())
    async with Midrun(f"sqlite:///{path}", agents=[old], engine=None) as creating:
        runs = [await creating.start("actor", f"t{n}") for n in range(5)]
    same = Fleet(versions="same")
    async with Midrun(f"sqlite:///{path}", agents=[new], fleet=same) as newer:
        await wait_until(lambda: all(f"drive run {run.id} here" in caplog.text for run in runs))
        assert newer._service.worker
        assert len(newer._service.worker._limiter._logged_mismatches) == 2


async def test_another_version_continues_a_run_by_default(path: Path) -> None:
    """As after a restart with changed code: finished calls are data and are not repeated."""
    tools = ControllableTools()
    tools.gate("a").set()
    old, new = make_versions(tools)
    async with AsyncExitStack() as stack:
        creating = Midrun(f"sqlite:///{path}", agents=[old], engine=None)
        run: Run = await (await stack.enter_async_context(creating)).start("actor", "go")
        newer = await stack.enter_async_context(Midrun(f"sqlite:///{path}", agents=[new]))
        assert (await (await newer.get(run.id)).until("completed")).output == "New."


async def test_the_journal_records_that_another_version_took_the_run(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on it is a run of the new version, also for workers with versions="same"."""
    tools, address, same = ControllableTools(), f"sqlite:///{path}", Fleet(versions="same")
    old, new = make_versions(tools)
    async with Midrun(address, agents=[old], engine=None) as creating:
        run = await creating.start("actor", "go")
    async with Midrun(address, agents=[new], fleet=same) as strict:
        await wait_until(lambda: "agent_mismatch" in caplog.text)
        async with Midrun(address, agents=[new], fleet=Fleet(versions="any")) as lenient:
            await tools.start("a").wait()
            await (await lenient.get(run.id)).pause(now=True)
            await (await lenient.get(run.id)).until("paused")
        tools.gate("a").set()
        handle = await strict.get(run.id)
        taken = [r.entry for r in await strict.store.read(RunId(run.id))]
        prints = [entry.agent_fingerprint for entry in taken if isinstance(entry, LeaseTaken)]
        assert prints == [new.fingerprint]
        checkpoint = await handle.checkpoint()
        assert checkpoint.agent_fingerprint == new.fingerprint
        await handle.resume()
        assert (await handle.until("completed")).output == "New."
    async with Midrun(address, agents=[old], fleet=same) as older:
        entries = [r.entry for r in await older.store.read(RunId(run.id))]
    assert [e.agent_fingerprint for e in entries if isinstance(e, LeaseTaken)] == [*prints, ""]


@pytest.mark.parametrize(
    "limits", [{"": 1}, {"agent": 1}, {"agent:": 1}, {"run:x": 1}, {"all": 0}]
)
def test_an_invalid_limit_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(Misconfigured, match="limit"):
        Fleet(limits=limits)


def test_an_invalid_value_of_versions_is_refused() -> None:
    with pytest.raises(Misconfigured, match="'any' or 'same'"):
        Fleet(versions="newest")  # type: ignore[arg-type]  # an invalid value


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_the_command_line_sets_limits_and_versions(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--limit` is for all processes, `--here` for this one; both can be repeated."""
    options = ["--limit", "agent:clerk=10", "--limit", "label:a=b=2", "--here", "all=200"]
    store = ["--store", f"sqlite:///{tmp_path}/runs.db"]
    args = build_parser().parse_args(
        [command, "app.py", *store, *options, "--versions", "same"]
    )
    monkeypatch.delenv(
        "MIDRUN_POSTGRES", raising=False
    )  # `resolve_settings` removes it; monkeypatch restores it
    resolve_settings(args)
    assert build_worker(args, ())._fleet == Fleet(
        limits={"agent:clerk": 10, "label:a=b": 2}, here={"all": 200}, versions="same"
    )


@pytest.mark.parametrize(
    "option", ["agent:clerk", "agent:clerk=", "agent:clerk=ten", "clerk=3"]
)
def test_an_invalid_limit_on_the_command_line_is_refused(option: str, tmp_path: Path) -> None:
    """The store is not opened."""
    store = ["--store", f"sqlite:///{tmp_path}/runs.db"]
    args = build_parser().parse_args(["worker", "app.py", *store, "--limit", option])
    with pytest.raises(Misconfigured, match="clerk"):
        build_worker(args, ())


def miss_run_once(midrun: Midrun) -> None:
    """Let the next read of the run fail, as just before another process imports it."""
    store, load = midrun.store, midrun.store.load_snapshot

    async def raise_not_found(run: RunId) -> Snapshot | None:
        setattr(store, "load_snapshot", load)  # noqa: B010 - once
        raise RunNotFound(run)

    setattr(store, "load_snapshot", raise_not_found)  # noqa: B010 - only for this store


async def test_of_two_processes_that_resume_a_checkpoint_one_wins(tmp_path: Path) -> None:
    """The other is refused; a repeated request with the same id finds the run."""
    model = ScriptedModel([Use("ask_human", question="Which?"), "So be it."])
    agent = Agent("asker", model=model, tools=[ask_human])
    paused = await agent.run("Go.")
    assert is_paused(paused)
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    with anyio.fail_after(60):
        async with (
            Midrun(address, agents=[agent]) as one,
            Midrun(address, agents=[agent]) as two,
        ):
            first = await one.resume(paused.checkpoint, "this", request_id="a")
            miss_run_once(two)
            with pytest.raises(CheckpointRefused, match="stale_checkpoint"):
                await two.resume(paused.checkpoint, "that", request_id="b")
            miss_run_once(two)
            again = await two.resume(paused.checkpoint, "this", request_id="a")
            assert again.id == first.id
            assert (await again.until("completed")).output == "So be it."
            assert await two.verify(first.id)
