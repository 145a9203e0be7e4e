"""The local worker and its limits on the number of runs that it drives at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from midrun import Agent, File, Midrun
from midrun.codec import snapshot as snapshots
from midrun.core.controls import Pause, Withdraw
from midrun.core.evolve import fold
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head, build_head
from midrun.core.state import State
from midrun.core.values import Phase, Spend
from midrun.driver.journal_writer import load_run_state, load_run_to_drive
from midrun.errors import JournalCorrupt, NoRoom, StoreDamaged
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment, read_wall_clock
from midrun.ports.store import OwnerUsage, RunRow, Snapshot, Store
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from midrun.testing.scenario import LEASED_RUN, given
from midrun.testing.store_suite.fixtures import ManualClock, create_run, make_started
from midrun.testing.worker_suite import EngineSuite, OpenMidrun
from midrun.workers import local, quotas
from midrun.workers.concurrency_limits import ConcurrencyLimiter, Fleet
from midrun.workers.quotas import QuotaLimiter, parse_quota_rules
from tests.support.conditions import wait_until


class TestLocalWorker(EngineSuite):
    """The local worker passes the conformance suite."""

    @pytest.fixture
    async def opened(self, tmp_path: Path) -> AsyncIterator[OpenMidrun]:
        @asynccontextmanager
        async def open_midrun(*agents: Agent) -> AsyncIterator[Midrun]:
            environment = Environment(lease=timedelta(seconds=30))
            url = f"sqlite:///{tmp_path / 'runs.db'}"
            async with Midrun(url, agents=agents, outside=environment) as midrun:
                yield midrun

        with anyio.fail_after(60):
            yield open_midrun


async def test_a_run_whose_row_is_unreadable_does_not_stop_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweep tries the run once and tries it again in the next sweep."""
    monkeypatch.setattr(local, "SWEEP_S", 0.01)
    damaged_run, tries, sweeps = RunId("run_x"), 0, 0
    get_row, list_due = MemoryStore.get_row, MemoryStore.list_due

    async def raise_for_damaged_run(store: MemoryStore, run: RunId) -> RunRow:
        nonlocal tries
        if run == damaged_run:
            tries += 1
            raise StoreDamaged("memory", "a torn page")
        return await get_row(store, run)

    async def count_sweep(store: MemoryStore, *, limit: int) -> object:
        nonlocal sweeps
        sweeps += tries > 0  # counted from the first try on
        return await list_due(store, limit=limit)

    monkeypatch.setattr(MemoryStore, "get_row", raise_for_damaged_run)
    monkeypatch.setattr(MemoryStore, "list_due", count_sweep)
    tools = ControllableTools()
    agent = tools.agent("Done.")
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent]) as midrun:
            await create_run(midrun.store, damaged_run)
            await wait_until(lambda: sweeps > 5)
            run = await midrun.start(agent, "go")
            await run.until("completed")


async def test_a_run_that_cannot_be_driven_takes_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every sweep finds it again, and must not count it for the limit."""
    monkeypatch.setattr(local, "SWEEP_S", 0.01)
    broken_run, reads, sweeps = RunId("run_x"), 0, 0
    list_due = MemoryStore.list_due

    async def raise_for_broken_run(store: Store, run: RunId) -> tuple[State, Seq]:
        nonlocal reads
        if run == broken_run:
            reads += 1
            raise JournalCorrupt(run, 1, "a torn entry")
        return await load_run_to_drive(store, run)

    async def count_sweep(store: MemoryStore, *, limit: int) -> object:
        nonlocal sweeps
        sweeps += reads > 0  # counted from the first read on
        return await list_due(store, limit=limit)

    monkeypatch.setattr(local, "load_run_to_drive", raise_for_broken_run)
    monkeypatch.setattr(MemoryStore, "list_due", count_sweep)
    agent = ControllableTools().agent("Done.", name="researcher")
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent], fleet=Fleet(here={"all": 1})) as midrun:
            head = Head(phase=Phase.QUEUED, agent=agent.name, task="compare")
            await create_run(midrun.store, broken_run, head=head)
            await wait_until(lambda: sweeps > 5)
            assert reads == 1
            run = await midrun.start(agent, "go")
            await run.until("completed")


def test_a_run_that_is_limited_again_before_its_lease_is_taken_waits() -> None:
    """A run that pauses is exempt from limits. The pause may be withdrawn before the append."""
    limiter = ConcurrencyLimiter(Fleet(limits={"agent:clerk": 1}))
    working = given(*LEASED_RUN).starts("c1")
    pausing = working.when(Pause())
    limiter.add_run(pausing.state.run, build_head(pausing.state))
    assert limiter.get_lease_limits(pausing.state) == {}
    limiter.limit_reached(NoRoom("run_2", "agent:clerk", 1))
    with pytest.raises(NoRoom) as refused:
        limiter.get_lease_limits(pausing.when(Withdraw(seq=pausing.state.seq)).state)
    assert not limiter.limit_reached(refused.value)


async def test_a_run_that_this_process_continues_is_stored_again_only_when_that_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker gets the state with the control, and remembers where the snapshot is."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_MIN_ENTRIES", 12)
    save, saved = MemoryStore.save_snapshot, []

    async def note_snapshot(store: MemoryStore, run: RunId, snapshot: Snapshot) -> None:
        saved.append(snapshot.seq)
        await save(store, run, snapshot)

    monkeypatch.setattr(MemoryStore, "save_snapshot", note_snapshot)
    tools = ControllableTools()
    steps = [Use("quick", name="a"), Use("quick", name="b"), Use("quick", name="c")]
    agent = tools.agent(*steps, Use("slow", name="d"), "Done.")
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent]) as midrun:
            run = await midrun.start(agent, "go")
            await tools.start("d").wait()
            await run.pause()
            tools.gate("d").set()
            await run.until("paused")
            await run.resume()
            await run.until("completed")
            state = await load_run_state(midrun.store, run.id)
            assert (len(saved), state.seq >= 24) == (1, True)


# ── quotas ───────────────────────────────────────────────────────────────────


async def test_a_used_quota_holds_up_model_calls_and_no_control() -> None:
    """In memory; on the other stores, see `tests/scenarios/fleet/test_limits.py`."""
    tools = ControllableTools()
    agent = tools.agent(["I write a draft.", Use("draft", name="a")], "Done.", "Done.")
    fleet = Fleet(quotas=parse_quota_rules(["user.tokens_per_day=1"]))
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[agent], fleet=fleet) as midrun:
            run = await midrun.start(agent, "go", actor="ann")
            paused = await run.until("paused")
            assert (paused.reason, "tokens_per_day is at" in paused.status.note) == (
                "cap",
                True,
            )
            await run.say("How far are you?", actor="ann")
            await run.redirect("Write nothing more.", actor="ann")
            await run.cancel(undo="all", actor="ann")
            await run.until("cancelled")
            assert (tools.completed, tools.undone) == (["a"], ["a"])


async def test_runs_of_another_day_do_not_add_up_in_a_slow_measurement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each is compared with all that it has spent; a quick measurement has none of them."""
    monkeypatch.setattr(quotas, "QUICK_MEASURE_S", 0.0)
    monkeypatch.setattr(quotas, "MEASURE_COST_SHARE", 1e-9)
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for name in ("run_1", "run_2"):
        await create_run(store, RunId(name))
    clock.move(quotas.DAY_MICROS / 1e6 + 1)
    rules = parse_quota_rules(["tenant.tokens_per_day=2000000"])
    limiter = QuotaLimiter(store, rules, clock)
    for run, tokens, used in (
        ("run_1", 1_200_000, ""),
        ("run_2", 1_200_000, ""),
        ("run_1", 2_500_000, "tokens_per_day is at 2500000 of 2000000"),
    ):
        state = fold(RunId(run), await store.read(RunId(run)))
        state = replace(state, meter=replace(state.meter, spent=Spend(tokens=tokens)))
        text = await limiter.find_used_spend(state, state)
        assert text.endswith(used)
        assert bool(text) is bool(used)


async def test_a_parent_is_told_which_quota_its_child_has_used_up() -> None:
    tools = ControllableTools()
    aide = tools.agent("Found.", name="aide")
    model = ScriptedModel([["I let it look.", Use("aide", task="Look")], "Done."])
    parent = Agent("parent", model=model, tools=[aide.as_tool()])
    fleet = Fleet(quotas=parse_quota_rules(["user.tokens_per_day=1"]))
    with anyio.fail_after(60):
        async with Midrun("memory://", agents=[parent], fleet=fleet) as midrun:
            run = await midrun.start(parent, "go", actor="ann")
            (ask,) = (await run.until("waiting")).asks
            assert "is paused (the quota of user ann is used up, tokens_p" in ask.question


class MeasuredStore(MemoryStore):
    """A store that counts measurements; those of the tenant `slow` wait for a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.measured: list[str] = []
        self.gate = anyio.Event()

    async def get_usage(
        self, owner: str, *, since: Micros, sizes: bool = True, tenant: str = ""
    ) -> OwnerUsage:
        self.measured.append(tenant)
        if tenant == "slow":
            await self.gate.wait()
        return await super().get_usage(owner, since=since, sizes=sizes, tenant=tenant)


async def test_a_slow_measurement_delays_no_run_of_another_tenant() -> None:
    store = MeasuredStore()
    limiter = QuotaLimiter(store, parse_quota_rules(["tenant.stored_bytes=9"]), read_wall_clock)
    slow, quick = (replace(make_started(), tenant=tenant) for tenant in ("slow", "quick"))
    files = [File("a.txt", "text/plain", b"text")]
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(limiter.find_storage_problem, slow, files)
        await wait_until(lambda: bool(store.measured))
        with anyio.fail_after(60):
            assert not await limiter.find_storage_problem(quick, files)
        assert store.measured == ["slow", "quick"]  # the second one waits for the first
        store.gate.set()


async def test_a_measurement_is_used_again_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a store that hung for a minute, another use for twenty minutes would be wrong."""
    monkeypatch.setattr(quotas, "QUICK_MEASURE_S", 0.0)
    monkeypatch.setattr(quotas, "MEASURE_COST_SHARE", 1e-9)
    store, files = MeasuredStore(), [File("a.txt", "text/plain", b"text")]
    rules, started = (
        parse_quota_rules(["user.stored_bytes=99"]),
        replace(make_started(), by="ann"),
    )
    for kept_max_s, count in ((60.0, 1), (0.0, 2)):
        monkeypatch.setattr(quotas, "MEASURE_KEPT_MAX_S", kept_max_s)
        limiter = QuotaLimiter(store, rules, read_wall_clock)
        store.measured.clear()
        for _ in range(2):
            assert not await limiter.find_storage_problem(started, files)
        assert len(store.measured) == count
