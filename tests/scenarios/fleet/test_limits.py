"""Concurrency limits and quotas that all processes on a store share."""

from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from midrun import Actor, Agent, Call, File, Midrun, Run, tool
from midrun.errors import FileRefused, NoRoom
from midrun.models import ScriptedModel, Use
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from midrun.workers import local, quotas
from midrun.workers.concurrency_limits import PROBES_PER_SWEEP, Fleet
from midrun.workers.quotas import parse_quota_rules
from tests.scenarios.fleet.slow_agent import make_slow_agent
from tests.support.store_choice import get_store_url

PATIENCE = 60

pytestmark = pytest.mark.parametrize(
    "store_path", ["sqlite", pytest.param("postgres", marks=pytest.mark.once)], indirect=True
)


async def open_processes(
    stack: AsyncExitStack, path: Path, tools: ControllableTools, fleet: Fleet, count: int = 3
) -> list[Midrun]:
    """Open `count` `Midrun`s on one store; each stands for a process."""
    return [
        await stack.enter_async_context(
            Midrun(get_store_url(path), agents=[make_slow_agent(tools)], fleet=fleet)
        )
        for _ in range(count)
    ]


async def sweep_all(processes: list[Midrun]) -> None:
    """Let each worker sweep once more, so that every run that can start has started."""
    for midrun in processes:
        assert midrun._service.worker
        midrun._service.worker._limiter.begin_sweep(full=True)
        await midrun._service.worker._start_unheld_runs()
        await anyio.wait_all_tasks_blocked()


async def wait_for_length(names: list[str], size: int) -> None:
    """Wait until `names` has `size` items."""
    while len(names) < size:  # noqa: ASYNC110 - tools append to it
        await anyio.sleep(0.001)


async def test_all_processes_together_drive_no_more_than_the_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a run rests in one process, each process may take the next run at once.

    The periodic sweep is switched off: notifications must suffice.
    """
    monkeypatch.setattr(local, "SWEEP_S", 3600.0)
    tools, fleet = ControllableTools(), Fleet(limits={"agent:actor": 2})
    async with AsyncExitStack() as stack:
        processes = await open_processes(stack, path, tools, fleet)
        runs: list[Run] = [await processes[n % 3].start("actor", f"t{n}") for n in range(9)]
        for done in range(1, 8):
            await wait_for_length(tools.called, done + 1)
            await sweep_all(processes)
            assert len(tools.called) == done + 1
            tools.gate(next(n for n in tools.called if n not in tools.completed)).set()
            await wait_for_length(tools.completed, done)
        for n in range(9):
            tools.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")
    assert sorted(tools.called) == [f"t{n}" for n in range(9)]


async def test_a_limit_of_one_process_does_not_limit_the_others(path: Path) -> None:
    """`here` limits the runs of one process."""
    tools, fleet = ControllableTools(), Fleet(here={"all": 1})
    async with AsyncExitStack() as stack:
        processes = await open_processes(stack, path, tools, fleet, 2)
        runs = [await processes[0].start("actor", f"t{n}") for n in range(3)]
        await wait_for_length(tools.called, 2)
        await sweep_all(processes)
        assert len(tools.called) == 2
        for n in range(3):
            tools.gate(f"t{n}").set()
        for run in runs:
            await run.until("completed")


async def test_a_queued_run_is_cancelled_although_the_limit_is_reached(path: Path) -> None:
    """A limit holds only runs back that would start calls."""
    tools, fleet = ControllableTools(), Fleet(limits={"all": 1})
    async with AsyncExitStack() as stack:
        one, two = await open_processes(stack, path, tools, fleet, 2)
        first = await one.start("actor", "a")
        await tools.start("a").wait()
        second = await two.start("actor", "b")
        await sweep_all([one, two])
        assert (await second.view()).phase == "queued"
        await second.cancel()
        await second.until("cancelled")
        tools.gate("a").set()
        await first.until("completed")
    assert tools.called == ["a"]


async def test_a_process_that_was_fenced_takes_its_own_runs_again_at_the_limit(
    path: Path,
) -> None:
    """In the store they still have its lease and count for the limit, so no other can."""
    many = 2 * PROBES_PER_SWEEP
    tools, fleet = ControllableTools(), Fleet(limits={"agent:actor": many})
    async with AsyncExitStack() as stack:
        (one,) = await open_processes(stack, path, tools, fleet, 1)
        runs = [await one.start("actor", f"t{n}") for n in range(many)]
        await wait_for_length(tools.called, many)
        last = await one.start("actor", "last")
        await sweep_all([one])
        assert one._service.worker
        one._service.worker._limiter.limit_reached(
            NoRoom(last.id, "agent:actor", many)
        )  # the store has refused a lease
        one._service.worker._fence_loops()
        for run in runs:
            assert [ask.kind for ask in (await run.until("waiting")).asks] == ["unsure"]
            await run.answer("yes")
            await run.until("completed")
        tools.gate("last").set()
        await last.until("completed")


def make_reader(texts: list[str]) -> Agent:
    """Return an agent that looks at pages without end, and shows each as an artifact."""

    @tool(read_only=True)
    async def look(call: Call, page: int) -> str:
        try:
            await call.show("page.txt", "text/plain", f"{page} " * 2_000)
        except FileRefused as refused:
            texts.append(str(refused))
        return "nothing"

    words = "I read one page after the other. " * 3
    model = ScriptedModel(lambda m: [words, Use("look", page=m.assistant_turn_count)])
    return Agent("reader", model=model, tools=[look], stop=MaxSteps(40))


async def test_runs_of_a_user_pause_where_the_quota_of_spend_is_used_up(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They pause before their next model call, in all processes, and say why.

    A resume is compared with the quota again. An operator has no quota. No measurement is used
    twice, however slow the machine is.
    """
    monkeypatch.setattr(quotas, "QUICK_MEASURE_S", PATIENCE)
    ann, url = Actor(name="ann"), get_store_url(path)
    fleet = Fleet(quotas=parse_quota_rules(["user.tokens_per_day=300"]))
    reader = make_reader([])
    async with (
        Midrun(url, agents=[reader], fleet=fleet) as one,
        Midrun(url, agents=[reader], fleet=fleet) as two,
    ):
        runs = [
            await one.start(reader, "a", actor=ann),
            await two.start(reader, "b", actor=ann),
        ]
        for run in runs:
            view = await run.until("paused")
            assert (view.reason, view.step < 40) == ("cap", True)
            assert "the quota of user ann is used up, tokens_per_day is at" in view.status.note
        steps = (await runs[0].view()).step
        await runs[0].resume()
        assert (await runs[0].until("paused")).step == steps
        free = await one.start(reader, "c", actor=Actor(name="olga", role="operator"))
        assert [cap.name for cap in (await free.until("paused")).caps] == ["steps"]
        assert (await free.view()).step == 40


async def test_a_repeated_request_with_files_is_answered_when_they_have_filled_the_quota(
    path: Path,
) -> None:
    """Its reply was lost. It stores nothing, so there is nothing to refuse."""
    fleet = Fleet(quotas=parse_quota_rules(["user.stored_bytes=40000"]))
    task, note = (File(name, "text/plain", name[0].encode() * 16_000) for name in ("t", "n"))
    reader, url = make_reader([]), get_store_url(path)
    async with Midrun(url, agents=[reader], engine=None, fleet=fleet) as midrun:
        runs = [
            await midrun.start(reader, "a", files=[task], actor="ann", request_id="r1")
            for _ in range(2)
        ]
        assert runs[0].id == runs[1].id
        receipts = [
            await runs[0].say("Read this.", files=[note], actor="ann", request_id="r2")
            for _ in range(2)
        ]
        assert receipts[0].seq == receipts[1].seq
        with pytest.raises(FileRefused, match="stored_bytes is at"):
            await midrun.start(reader, "a", files=[note], actor="ann", request_id="r3")


async def test_a_used_quota_of_storage_refuses_artifacts_and_files(path: Path) -> None:
    """The tool is told why; the run goes on without the artifact."""
    refusals: list[str] = []
    reader = make_reader(refusals)
    fleet = Fleet(quotas=parse_quota_rules(["tenant:acme.stored_bytes=30000"]))
    ann = Actor(name="ann", tenant="acme")
    async with Midrun(get_store_url(path), agents=[reader], fleet=fleet) as midrun:
        run = await midrun.start(reader, "a", actor=ann)
        assert (await run.until("paused")).step == 40
        shown = len((await run.view()).artifacts)
        assert (0 < shown < 10, shown + len(refusals)) == (True, 40)
        assert (
            "Cannot take the file “page.txt”: the quota of tenant acme has no room for"
            in (refusals[0])
        )
        note = File("note.txt", "text/plain", b"x" * 30_000)
        with pytest.raises(FileRefused, match="stored_bytes is at"):
            await run.say("Read this.", files=[note], actor=ann)
        with pytest.raises(FileRefused, match="stored_bytes is at"):
            await midrun.start(reader, "b", files=[note], actor=ann)
        other = await midrun.start(reader, "c", files=[note], actor="ben")
        await other.until("paused")
