"""Reads of whole journals: few at a time, off the event loop, and no one caller's alone."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from threading import get_ident

import anyio
import httpx2
import pytest

from midrun import Midrun
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.models import Use
from midrun.ports.store import Store
from midrun.server import Limits, Tokens, app
from midrun.server.request_context import HEAVY_READS_MAX_CONCURRENT
from midrun.stores.memory import MemoryStore
from midrun.verify.journal import check_journal
from tests.crash.facts import becomes
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import PATIENCE, PEOPLE, Serve, Served, listening, token_of

FEW = Limits(heavy_reads=3)
HEAVY = ("verify", "boundaries", "export", "commands")


class Gated(MemoryStore):
    """A store that holds reads of whole journals while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.gate.set()
        self.held = 0

    async def read_lines(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[tuple[bytes, bytes]]:
        if after == SEQ_ZERO and limit is None:
            self.held += 1
            await self.gate.wait()
            self.held -= 1
        return await super().read_lines(run, after=after, limit=limit)


@asynccontextmanager
async def served(store: Store, stage: ControllableTools) -> AsyncIterator[Served]:
    """Serve runs of `store`, with few heavy reads at once."""
    async with AsyncExitStack() as stack:
        agent = stage.agent("Done.")
        mid = await stack.enter_async_context(Midrun(store, agents=[agent]))
        auth = Tokens({token_of(name): actor for name, actor in PEOPLE.items()})
        made = app(mid, auth=auth, limits=FEW)
        port = await stack.enter_async_context(listening(made))
        yield Served(mid, made, port, stack)


@pytest.mark.parametrize("what", HEAVY)
async def test_heavy_reads_of_one_caller_are_bounded_and_others_are_answered(what: str) -> None:
    """While three of ann's wait, her fourth is refused, and bob has his list and his own."""
    store, stage = Gated(), ControllableTools()
    with anyio.fail_after(PATIENCE):
        async with served(store, stage) as made, anyio.create_task_group() as tasks:
            ann, bob = await made.client("ann"), await made.client("bob")
            run = await made.mid.start("actor", "Go.", actor=PEOPLE["ann"])
            await run.until("completed")
            path = f"/v1/runs/{run.id}/{what}"
            replies: list[httpx2.Response] = []

            async def read() -> None:
                replies.append(await ann.get(path))

            await ann.get("/v1/runs")  # from now on lists read on from here
            store.gate = anyio.Event()
            for _ in range(FEW.heavy_reads):
                tasks.start_soon(read)
            await becomes(lambda: made.app.heavy_reads == FEW.heavy_reads)
            refused = await ann.get(path)
            assert refused.status_code == 429
            assert refused.headers["Retry-After"]
            assert refused.json()["title"] == "too many heavy reads"
            assert (await bob.get("/v1/runs")).status_code == 200
            assert (await ann.get("/v1/runs")).status_code == 200
            await becomes(lambda: store.held == HEAVY_READS_MAX_CONCURRENT)
            store.gate.set()
            await becomes(lambda: len(replies) == FEW.heavy_reads)
            assert {reply.status_code for reply in replies} == {200}
            assert (await ann.get(path)).status_code == 200


async def test_a_journal_is_verified_off_the_event_loop(
    serve: Serve, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its checks take long for a long journal, and the loop has other callers."""
    made = await serve(stage.agent("Done."))
    run = await made.mid.start("actor", "Go.", actor="olga")
    await run.until("completed")
    threads: list[int] = []

    def noted(*args: object, **options: object) -> object:
        threads.append(get_ident())
        return check_journal(*args, **options)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr("midrun.runs.verification.check_journal", noted)
    assert await made.mid.verify(run.id)
    assert threads
    assert get_ident() not in threads


async def test_long_polls_of_one_caller_count_as_streams(
    serve: Serve, stage: ControllableTools
) -> None:
    """Each holds a connection and a place in the run's feed, as a stream does."""
    made = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(streams=2))
    ann, bob = await made.client("ann"), await made.client("bob")
    run = await made.mid.start("actor", "Go.", actor=PEOPLE["ann"])
    await stage.start("x").wait()
    path, wait = f"/v1/runs/{run.id}?until=completed", {"Prefer": "wait=60"}
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(lambda: ann.get(path, headers=wait))
        await becomes(lambda: made.app.streams == 2)
        refused = await ann.get(path, headers=wait)
        assert (refused.status_code, refused.json()["title"]) == (429, "too many streams")
        assert (await ann.get(f"/v1/runs/{run.id}")).status_code == 200
        assert (await bob.get("/v1/runs")).status_code == 200
        stage.gate("x").set()
    await becomes(lambda: made.app.streams == 0)
