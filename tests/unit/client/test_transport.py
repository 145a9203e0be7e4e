"""Lost replies, broken connections and an unreachable server: nothing is done twice."""

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from socket import socket
from typing import TypeAlias

import anyio
import pytest

from midrun import Agent, Midrun, ask_human, tool
from midrun.client.transport import Backoff
from midrun.core import retries
from midrun.core.ids import RunId
from midrun.errors import ServerUnreachable
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.values import FeedEntry, Receipt
from midrun.server import Limits
from midrun.stops import MaxSteps
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.client.conftest import ConnectClient, RunningServer, StartServer
from tests.unit.client.proxy import Proxy, run_proxy

Control = Callable[[AnyRun], Awaitable[Receipt]]


async def _connect_through_proxy(
    stack: AsyncExitStack,
    server: RunningServer,
    connect_client: ConnectClient,
    patience: float = 30.0,
) -> tuple[Proxy, AnyMidrun]:
    proxy = await stack.enter_async_context(run_proxy(server.port))
    return proxy, await connect_client(server, port=proxy.port, patience=patience)


async def _read_entry_kinds(server: RunningServer, run: AnyRun) -> list[str]:
    return [type(record.entry).__name__ for record in await server.mid.store.read(run.id)]


@pytest.mark.parametrize(
    ("control", "kind", "applied"),
    [
        (lambda run: run.say("Hello?"), "MessageReceived", False),
        (lambda run: run.redirect("Left."), "RedirectRequested", False),
        (lambda run: run.pause(), "PauseRequested", False),
        (lambda run: run.cancel(), "CancelRequested", True),
        (lambda run: run.take_over(), "TakenOver", False),
    ],
    ids=["say", "redirect", "pause", "cancel", "take_over"],
)
async def test_a_control_whose_reply_is_lost_is_applied_once(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
    control: Control,
    kind: str,
    applied: bool,
) -> None:
    """The server has applied it; the client repeats the request and gets the first receipt."""
    server = await serve(stage.agent(Use("slow", name="a"), "Done."))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    proxy.replies_to_drop = 2
    receipt = await control(run)
    assert proxy.dropped_replies == 2
    assert (receipt.already, receipt.applied, receipt.by) == (None, applied, "olga")
    kinds = await _read_entry_kinds(server, run)
    assert kinds.count(kind) == 1
    assert kinds[receipt.seq - 1] == kind


async def test_a_start_and_a_fork_whose_reply_is_lost_create_one_run_each(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
) -> None:
    server = await serve(stage.agent("Done.", "Done again."))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client)
    proxy.replies_to_drop = 1
    run = await mid.start("actor", "go")
    await run.until("completed")
    proxy.replies_to_drop = 1
    fork = await run.fork(instruction="And now?")
    await fork.until("completed")
    assert proxy.dropped_replies == 2
    rows = (await server.mid.store.list_runs(RunQuery())).items
    assert {row.run for row in rows} == {run.id, fork.id}


async def test_an_answer_and_a_resume_whose_reply_is_lost_are_applied_once(
    stack: AsyncExitStack, serve: StartServer, connect_client: ConnectClient
) -> None:
    """The repeated answer would be refused, the repeated resume stale; neither is seen."""
    model = ScriptedModel([Use("ask_human", question="?"), "Done."])
    server = await serve(Agent("asker", model=model, tools=[ask_human]))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client)
    for method in ("answer", "checkpoint"):
        run = await mid.start("asker", method)
        await run.until("waiting")
        checkpoint = await run.checkpoint()
        proxy.replies_to_drop = 1
        if method == "answer":
            await run.answer("yes", ask="a1")
        else:
            await mid.resume(checkpoint, "yes")
        await run.until("completed")
        assert (await _read_entry_kinds(server, run)).count("AskAnswered") == 1
    assert proxy.dropped_replies == 2


async def test_a_refusal_whose_reply_is_lost_is_repeated(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
) -> None:
    """The refusal of the first attempt is on record."""
    server = await serve(stage.agent("Done."))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client)
    run = await mid.start("actor", "go")
    await run.until("completed")
    proxy.replies_to_drop = 1
    with pytest.raises(Exception, match="is_completed"):
        await run.pause()


async def test_a_feed_over_a_breaking_connection_has_every_entry_once(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
) -> None:
    """An event that is cut in the middle is sent again as a whole."""
    turns = [Use("slow", name="a"), *(Use("quick", name=str(n)) for n in range(12)), "Done."]
    server = await serve(stage.agent(*turns))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    items: list[FeedEntry] = []
    proxy.cut_after_bytes = 3000  # fits the response headers and the longest entry
    async for item in run.feed():
        if isinstance(item, FeedEntry):
            items.append(item)
            proxy.cut_after_bytes = 3000 + 97 * len(items) % 1000
            stage.gate("a").set()
    records = await server.mid.store.read(run.id)
    assert [(i.seq, i.at, i.entry) for i in items] == [(r.seq, r.at, r.entry) for r in records]
    assert proxy.connections > 5


async def test_a_feed_from_beyond_the_journal_starts_from_the_beginning(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """The store was restored from a backup, for example."""
    server = await serve(stage.agent("Done."))
    run = await (await connect_client(server)).start("actor", "go")
    await run.until("completed")
    seqs = [item.seq async for item in run.feed(999) if isinstance(item, FeedEntry)]
    assert seqs == [record.seq for record in await server.mid.store.read(run.id)]


async def test_feed_and_until_survive_an_outage_of_the_server(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
) -> None:
    server = await serve(stage.agent(Use("slow", name="a"), "Done."))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    seqs: list[int] = []
    watching, completed = anyio.Event(), anyio.Event()

    async def watch() -> None:
        async for item in run.feed():
            if isinstance(item, FeedEntry):
                seqs.append(item.seq)
                watching.set()

    async def wait() -> None:
        await run.until("completed")
        completed.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        tasks.start_soon(wait)
        await watching.wait()
        await proxy.go_down()
        for _ in range(4):  # both have tried to reconnect
            proxy.has_connection = anyio.Event()
            await proxy.has_connection.wait()
        stage.gate("a").set()
        proxy.is_up = True
        await completed.wait()
    assert seqs == list(range(1, len(seqs) + 1))


async def test_the_patience_of_a_client_starts_when_the_server_becomes_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run may be silent for an hour before its server is restarted."""
    backoff, start = Backoff(30.0, Environment()), anyio.current_time()
    for now, waits in ((3600, True), (3620, True), (3631, False)):
        monkeypatch.setattr("anyio.current_time", lambda now=now: start + now)
        assert await backoff.wait() is waits


async def test_an_unreachable_server_is_reported_and_the_request_can_be_repeated(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client does not know whether it arrived; under its request id it is applied once."""
    server = await serve(stage.agent(Use("slow", name="a"), "Done."))
    proxy, mid = await _connect_through_proxy(stack, server, connect_client, patience=0.2)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    proxy.replies_to_drop = 10**6
    with pytest.raises(ServerUnreachable) as unreachable:
        await run.say("Hello?")
    assert f"127.0.0.1:{proxy.port}" in str(unreachable.value)
    assert unreachable.value.request_id in str(unreachable.value)
    assert len(await server.mid.store.read(run.id)) > 5
    with pytest.raises(ServerUnreachable):
        await anext(run.feed())
    with pytest.raises(ServerUnreachable) as failed_read:
        await run.view()
    assert failed_read.value.request_id == ""
    # One warning for each outage, at its beginning: a person must not wait in silence.
    (warning,) = [log.message for log in caplog.records if log.name == "midrun.client"]
    assert warning.endswith("Trying again for 0.2 s.")
    proxy.replies_to_drop = 0
    repeated = await run.say("Hello?", request_id=unreachable.value.request_id)
    assert repeated.already == "duplicate_request"
    assert (await _read_entry_kinds(server, run)).count("MessageReceived") == 1


async def test_connecting_fails_if_no_server_listens(connect_client: ConnectClient) -> None:
    """The error comes before the first control."""
    with socket() as bound:  # no other process gets the port, and none listens on it
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        with pytest.raises(ServerUnreachable, match="midrun serve"):
            await connect_client(None, port=port, patience=0.1)  # type: ignore[arg-type]  # no server


async def test_a_client_over_the_rate_limit_waits_and_repeats_its_request(
    serve: StartServer, connect_client: ConnectClient, stage: ControllableTools
) -> None:
    """The server says when to repeat it."""
    server = await serve(stage.agent("Done."), limits=Limits(rate=100.0, burst=2))
    mid = await connect_client(server)
    runs = [await mid.start("actor", f"{n}") for n in range(4)]
    assert len({run.id for run in runs}) == 4


# ── scenarios in which the first reply to every request is lost ──────────────


DropNextReply: TypeAlias = Callable[[], None]
"""Makes the proxy, if there is one, drop the reply to the next request."""

Scenario: TypeAlias = Callable[[AnyMidrun, ControllableTools, DropNextReply], Awaitable[RunId]]
"""Sends controls to a run, and returns its id."""


async def steer_run(
    mid: AnyMidrun, stage: ControllableTools, drop_next_reply: DropNextReply
) -> RunId:
    """Redirect, withdraw, pause, raise a cap, take over, write, use a tool, hand back."""
    drop_next_reply()
    run = await mid.start("actor", "Go.")
    await stage.start("a").wait()
    drop_next_reply()
    redirect = await run.redirect("Left.")
    drop_next_reply()
    await run.withdraw(redirect.seq)
    drop_next_reply()
    await run.pause()
    stage.gate("a").set()
    await run.until("paused")
    drop_next_reply()
    await run.raise_cap(steps=30)
    drop_next_reply()
    await run.take_over()
    drop_next_reply()
    await run.write("I looked it up.")
    drop_next_reply()
    await run.use_tool("quick", {"name": "by hand"})
    await run.until("paused")
    drop_next_reply()
    await run.hand_back("Go on.")
    await run.until("completed")
    assert stage.completed.count("by hand") == 1
    return run.id


async def decide_asks(
    mid: AnyMidrun, stage: ControllableTools, drop_next_reply: DropNextReply
) -> RunId:
    """Approve with other arguments, decline, and resume after a failure."""
    run = await mid.start("asks", "Go.")
    await run.until("waiting")
    drop_next_reply()
    await run.approve(args={"name": "b"})
    await stage.start("b").wait()
    await run.until("waiting")
    drop_next_reply()
    await run.decline("Not that.")
    await run.until("failed")  # the script has no more turns
    drop_next_reply()
    await run.resume("Once more.")
    await run.until("failed")
    return run.id


async def cancel_and_retry_undo(
    mid: AnyMidrun, stage: ControllableTools, drop_next_reply: DropNextReply
) -> RunId:
    """Cancel, retry an undo that failed, and accept the residue."""
    run = await mid.start("stuck", "Go.")
    await stage.start("x").wait()
    drop_next_reply()
    await run.cancel(undo="all")
    await run.until("cancelled")
    drop_next_reply()
    await run.retry_undo()
    await run.until("cancelled")
    drop_next_reply()
    await run.accept_residue()
    for read in (run.view, run.report, run.export, mid.asks):
        drop_next_reply()
        await read()
    drop_next_reply()
    assert await mid.verify(run.id)
    drop_next_reply()
    assert run.id in await mid.find_ids(run.id[:12])
    drop_next_reply()
    await mid.halt("enough", scope=f"run:{run.id}", actor=None)
    drop_next_reply()
    assert await mid.lift(scope=f"run:{run.id}", actor=None)
    return run.id


def make_agents(stage: ControllableTools) -> list[Agent]:
    """Return the agents of the scenarios."""

    async def fail_to_undo(*_: object) -> None:
        raise RuntimeError("no")

    @tool(undo=fail_to_undo)
    async def draft(name: str) -> str:
        """Write something that cannot be undone."""
        stage.completed.append(name)
        return name

    @tool(approve=True)
    async def gated(name: str) -> str:
        """Act after an approval."""
        stage.start(name).set()
        return name

    stuck_script: list[str | Use] = [Use("draft", name="x"), Use("slow", name="x"), "Done."]
    asks_script = [Use("gated", name="a"), Use("gated", name="c")]
    tools = stage.tools()
    return [
        stage.agent(Use("slow", name="a"), "Done.", "Done.", stop=MaxSteps(20)),
        Agent("asks", model=ScriptedModel(asks_script), tools=[gated]),
        Agent("stuck", model=ScriptedModel(stuck_script), tools=[draft, tools[1]]),
    ]


@pytest.fixture
def retry_undo_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """An undo that fails is repeated without a wait."""
    monkeypatch.setattr(retries, "LONGEST_WAIT_S", 0.001)


@pytest.mark.slow
@pytest.mark.usefixtures("retry_undo_immediately")
@pytest.mark.parametrize("scenario", [steer_run, decide_asks, cancel_and_retry_undo])
async def test_a_scenario_with_every_first_reply_lost_has_the_same_entries(
    stack: AsyncExitStack,
    serve: StartServer,
    connect_client: ConnectClient,
    stage: ControllableTools,
    scenario: Scenario,
) -> None:
    """The journal is compared with that of a local `Midrun`."""
    local_stage = ControllableTools()
    mid = await stack.enter_async_context(Midrun("memory://", agents=make_agents(local_stage)))
    local_run = await scenario(mid, local_stage, lambda: None)
    local_stage.open_all_gates()
    server = await serve(*make_agents(stage))
    proxy = await stack.enter_async_context(run_proxy(server.port))
    requests = 0

    def drop_next_reply() -> None:
        nonlocal requests
        requests += 1
        proxy.replies_to_drop = 1

    remote = await connect_client(server, port=proxy.port)
    remote_run = await scenario(remote, stage, drop_next_reply)
    assert proxy.dropped_replies == requests
    kinds = [
        Counter(type(record.entry).__name__ for record in await each.store.read(run))
        for each, run in ((mid, local_run), (server.mid, remote_run))
    ]
    assert kinds[0] == kinds[1]
