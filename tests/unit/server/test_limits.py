"""Limits per caller: rates, pending messages, quotas, heavy reads and long polls."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from threading import get_ident

import anyio
import httpx2
import pytest

from midrun import Midrun, connect
from midrun.core.entries import Record
from midrun.core.ids import SEQ_ZERO, RunId, Seq
from midrun.errors import ServerRefused
from midrun.models import Use
from midrun.ports.store import Store
from midrun.server import Limits, Quota, app
from midrun.server.request_context import HEAVY_READS_MAX_CONCURRENT
from midrun.stores.memory import MemoryStore
from midrun.testing.controllable_tools import ControllableTools
from midrun.verify.journal import check_journal
from tests.support.conditions import wait_until
from tests.unit.server.conftest import (
    ACTORS,
    TIMEOUT_S,
    RunningServer,
    StartServer,
    make_token,
    make_tokens,
    serve_on_loopback,
)
from tests.unit.server.http_calls import expect_status, start_run


async def test_the_rate_of_changes_is_limited_per_caller(
    serve: StartServer, stage: ControllableTools
) -> None:
    limits = Limits(rate=0.001, burst=2)
    server = await serve(stage.agent("Done."), limits=limits)
    ann, bob = await server.client("ann"), await server.client("bob")
    body = {"agent": "actor", "input": "Go."}
    codes = [(await ann.post("/v1/runs", json=body)).status_code for _ in range(3)]
    assert codes == [201, 201, 429]
    assert (await bob.post("/v1/runs", json=body)).status_code == 201
    assert (await ann.get("/v1/runs")).status_code == 200


async def test_pending_redirects_are_limited(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(pending=2))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    for text in ("one", "two"):
        expect_status(
            await client.post(f"{run_path}/redirect", json={"instruction": text}), 202
        )
    third = await client.post(f"{run_path}/redirect", json={"instruction": "three"})
    assert expect_status(third, 429).json()["type"] == "urn:midrun:problem:too-many-pending"


async def test_concurrent_messages_do_not_exceed_the_limit_of_pending_ones(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A repeat of an accepted message is answered with 200, although the limit is reached."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(pending=3))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("x").wait()
    replies: dict[int, int] = {}

    async def say(number: int) -> None:
        body, key = {"text": f"{number}", "urgency": "later"}, {"Idempotency-Key": f"{number}"}
        reply = await client.post(f"{run_path}/messages", json=body, headers=key)
        replies[number] = reply.status_code

    for accepted_status in (202, 200):
        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(say, number)
        assert sorted(replies.values()) == [accepted_status] * 3 + [429] * 9
    assert len((await client.get(run_path)).json()["pending"]) == 3


async def test_two_servers_share_the_limit_of_pending_messages(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A server learns only from the journal which messages the other has accepted."""
    first = await serve(stage.agent(Use("slow", name="x"), "Done."))
    second = await serve()
    clients = [await first.client(), await second.client()]
    run_path = await start_run(clients[0])
    await stage.start("x").wait()
    replies: list[int] = []

    async def send(number: int) -> None:
        client, redirect = clients[number % 2], {"instruction": f"{number}"}
        message = {"text": f"{number}", "urgency": "later"}
        path, body = ("messages", message) if number % 3 else ("redirect", redirect)
        replies.append((await client.post(f"{run_path}/{path}", json=body)).status_code)

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(send, number)
    pending = (await clients[0].get(run_path)).json()["pending"]
    assert (replies.count(202), replies.count(429)) == (8, 22)
    assert len(pending) == 8


# ── quotas ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("quota", "excess"),
    [
        (Quota(open_runs=1), "open_runs is at 1 of 1"),
        (Quota(runs_per_day=1), "runs_per_day is at 1 of 1"),
        (Quota(tokens_per_day=0), "tokens_per_day is at"),
        (Quota(cost_per_day=0.0), "cost_per_day is at"),
        (Quota(stored_bytes=10, open_runs=9), "stored_bytes is at"),
    ],
)
async def test_a_user_whose_quota_is_used_up_starts_nothing(
    serve: StartServer, stage: ControllableTools, quota: Quota, excess: str
) -> None:
    held = stage.agent(Use("slow", name="held"), "Done.")
    server = await serve(held, limits=Limits(quota=quota))
    first = await server.mid.start("actor", "Go.", actor="ann")
    await stage.start("held").wait()
    ann = await server.client("ann")
    body = {"agent": "actor", "input": "Go."}
    problem = expect_status(await ann.post("/v1/runs", json=body), 429).json()
    assert problem["type"] == "urn:midrun:problem:quota-used-up"
    assert excess in problem["detail"]
    expect_status(await ann.post(f"/v1/runs/{first.id}/fork", json={}), 429)
    async with connect(server.url, token=make_token("ann")) as remote:
        with pytest.raises(ServerRefused, match=r"An operator can raise the quota\.$"):
            await remote.start("actor", "Go.")
    expect_status(await (await server.client("olga")).post("/v1/runs", json=body), 201)


@pytest.mark.parametrize("quota", [Quota(open_runs=3), Quota(runs_per_day=3)])
async def test_starts_at_the_same_moment_do_not_exceed_a_quota(
    serve: StartServer, stage: ControllableTools, quota: Quota
) -> None:
    """Each request passes the first check before the others have started their runs."""
    held = stage.agent(Use("slow", name="held"), "Done.")
    server = await serve(held, limits=Limits(quota=quota))
    ann = await server.client("ann")
    codes: list[int] = []

    async def start() -> None:
        response = await ann.post("/v1/runs", json={"agent": "actor", "input": "Go."})
        codes.append(response.status_code)
        if response.status_code != 201:
            assert response.json()["type"] == "urn:midrun:problem:quota-used-up"
            assert response.json()["used"] == 3

    async with anyio.create_task_group() as tasks:
        for _ in range(9):
            tasks.start_soon(start)
    assert sorted(codes) == [201] * 3 + [429] * 6


async def test_a_repeated_request_finds_its_run_although_the_quota_is_used_up(
    serve: StartServer, stage: ControllableTools
) -> None:
    quota = Quota(runs_per_day=1)
    server = await serve(stage.agent("Done."), limits=Limits(quota=quota))
    ann = await server.client("ann")
    body, key = {"agent": "actor", "input": "Go."}, {"Idempotency-Key": "k"}
    first = expect_status(await ann.post("/v1/runs", json=body, headers=key), 201)
    again = expect_status(await ann.post("/v1/runs", json=body, headers=key), 201)
    assert again.json()["run_id"] == first.json()["run_id"]
    expect_status(await ann.post("/v1/runs", json=body), 429)


async def test_the_key_of_another_run_lets_no_message_of_a_bridge_past_the_quota(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The bridges have request ids of their own; only repeats of these are let through."""
    limits = Limits(quota=Quota(runs_per_day=1))
    server = await serve(stage.agent("Done.", "Done."), limits=limits)
    ann = await server.client("ann")
    key = {"Idempotency-Key": "k", "A2A-Version": "1.0"}
    body = {"agent": "actor", "input": "Go."}
    expect_status(await ann.post("/v1/runs", json=body, headers=key), 201)

    a2a_message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": a2a_message},
    }
    refused = expect_status(await ann.post("/a2a/actor", json=call, headers=key), 200).json()
    assert "quota of user ann is used up" in refused["error"]["message"]
    message = {"id": "m", "role": "user", "content": "Go."}
    segment = {"threadId": "t", "runId": "r", "messages": [message]}
    expect_status(await ann.post("/agui/actor", json=segment, headers=key), 429)


async def test_a_repeated_message_of_a_bridge_finds_its_run_although_the_quota_is_used_up(
    serve: StartServer, stage: ControllableTools
) -> None:
    limits = Limits(quota=Quota(runs_per_day=1))
    server = await serve(stage.agent("Done."), limits=limits)
    ann = await server.client("ann")
    a2a_message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Go."}]}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {"message": a2a_message},
    }
    first, again = [
        expect_status(
            await ann.post("/a2a/actor", json=call, headers={"A2A-Version": "1.0"}), 200
        )
        for _ in range(2)
    ]
    assert again.json()["result"]["task"]["id"] == first.json()["result"]["task"]["id"]


# ── heavy reads and long polls ───────────────────────────────────────────────


LOW_LIMITS = Limits(heavy_reads=3)
HEAVY_ROUTES = ("verify", "boundaries", "export", "commands")


class GatedStore(MemoryStore):
    """A store that blocks reads of whole journals while its gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = anyio.Event()
        self.gate.set()
        self.blocked_reads = 0

    async def read_lines(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[tuple[bytes, bytes]]:
        if after == SEQ_ZERO and limit is None:
            await self._wait_at_gate()
        return await super().read_lines(run, after=after, limit=limit)

    async def read(
        self, run: RunId, *, after: Seq = SEQ_ZERO, limit: int | None = None
    ) -> Sequence[Record]:
        if after == SEQ_ZERO and limit is None:
            await self._wait_at_gate()
        return await super().read(run, after=after, limit=limit)

    async def _wait_at_gate(self) -> None:
        self.blocked_reads += 1
        await self.gate.wait()
        self.blocked_reads -= 1


@asynccontextmanager
async def serve_store(store: Store, stage: ControllableTools) -> AsyncIterator[RunningServer]:
    """Serve the runs of `store`, with few heavy reads at once."""
    async with AsyncExitStack() as stack:
        agent = stage.agent("Done.")
        mid = await stack.enter_async_context(Midrun(store, agents=[agent]))
        asgi_app = app(mid, auth=make_tokens(), limits=LOW_LIMITS)
        port = await stack.enter_async_context(serve_on_loopback(asgi_app))
        yield RunningServer(mid, asgi_app, port, stack)


@pytest.mark.parametrize("route", HEAVY_ROUTES)
async def test_heavy_reads_of_one_caller_are_limited_and_others_are_answered(
    route: str,
) -> None:
    """While three reads of Ann wait, her fourth is refused, and Bob gets his list."""
    store, stage = GatedStore(), ControllableTools()
    with anyio.fail_after(TIMEOUT_S):
        async with serve_store(store, stage) as server, anyio.create_task_group() as tasks:
            ann, bob = await server.client("ann"), await server.client("bob")
            run = await server.mid.start("actor", "Go.", actor=ACTORS["ann"])
            await run.until("completed")
            path = f"/v1/runs/{run.id}/{route}"
            replies: list[httpx2.Response] = []

            async def read() -> None:
                replies.append(await ann.get(path))

            await ann.get("/v1/runs")  # fills the cache: later lists read only newer entries
            store.gate = anyio.Event()
            for _ in range(LOW_LIMITS.heavy_reads):
                tasks.start_soon(read)
            await wait_until(lambda: server.app.heavy_reads == LOW_LIMITS.heavy_reads)
            refused = await ann.get(path)
            assert refused.status_code == 429
            assert refused.headers["Retry-After"]
            assert refused.json()["title"] == "too many heavy reads"
            assert (await bob.get("/v1/runs")).status_code == 200
            assert (await ann.get("/v1/runs")).status_code == 200
            await wait_until(lambda: store.blocked_reads == HEAVY_READS_MAX_CONCURRENT)
            store.gate.set()
            await wait_until(lambda: len(replies) == LOW_LIMITS.heavy_reads)
            assert {reply.status_code for reply in replies} == {200}
            assert (await ann.get(path)).status_code == 200


async def test_a_journal_is_verified_off_the_event_loop(
    serve: StartServer, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks of a long journal take long, and the event loop serves other callers."""
    server = await serve(stage.agent("Done."))
    run = await server.mid.start("actor", "Go.", actor="olga")
    await run.until("completed")
    threads: list[int] = []

    def check_and_record_thread(*args: object, **options: object) -> object:
        threads.append(get_ident())
        return check_journal(*args, **options)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr("midrun.runs.verification.check_journal", check_and_record_thread)
    assert await server.mid.verify(run.id)
    assert threads
    assert get_ident() not in threads


async def test_long_polls_of_one_caller_count_as_streams(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Each holds a connection and a subscription to the run's feed, as a stream does."""
    server = await serve(stage.agent(Use("slow", name="x"), "Done."), limits=Limits(streams=2))
    ann, bob = await server.client("ann"), await server.client("bob")
    run = await server.mid.start("actor", "Go.", actor=ACTORS["ann"])
    await stage.start("x").wait()
    path, wait = f"/v1/runs/{run.id}?until=completed", {"Prefer": "wait=60"}
    async with anyio.create_task_group() as tasks:
        for _ in range(2):
            tasks.start_soon(lambda: ann.get(path, headers=wait))
        await wait_until(lambda: server.app.streams == 2)
        refused = await ann.get(path, headers=wait)
        assert (refused.status_code, refused.json()["title"]) == (429, "too many streams")
        assert (await ann.get(f"/v1/runs/{run.id}")).status_code == 200
        assert (await bob.get("/v1/runs")).status_code == 200
        stage.gate("x").set()
    await wait_until(lambda: server.app.streams == 0)
