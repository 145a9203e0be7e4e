"""What gets lost on the way: replies, connections, the server itself. Nothing is done twice."""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from socket import socket

import anyio
import pytest

from midrun import Agent, ask_human
from midrun.client.transport import Backoff
from midrun.errors import ServerUnreachable
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.ports.store import RunQuery
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.values import FeedEntry, Receipt
from midrun.server import Limits
from tests.unit.client.conftest import Connected, Serve, Served
from tests.unit.client.proxy import Proxy, proxied
from tests.unit.runs.stage import ControllableTools

Control = Callable[[AnyRun], Awaitable[Receipt]]


async def _behind(
    stack: AsyncExitStack, served: Served, connected: Connected, patience: float = 30.0
) -> tuple[Proxy, AnyMidrun]:
    proxy = await stack.enter_async_context(proxied(served.port))
    return proxy, await connected(served, port=proxy.port, patience=patience)


async def _kinds(served: Served, run: AnyRun) -> list[str]:
    return [type(record.entry).__name__ for record in await served.mid.store.read(run.id)]


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
    serve: Serve,
    connected: Connected,
    stage: ControllableTools,
    control: Control,
    kind: str,
    applied: bool,
) -> None:
    """The server had done it; the client asks again, and gets the receipt of the first."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    proxy, mid = await _behind(stack, served, connected)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    proxy.lose = 2
    receipt = await control(run)
    assert proxy.lost == 2
    assert (receipt.already, receipt.applied, receipt.by) == (None, applied, "olga")
    kinds = await _kinds(served, run)
    assert kinds.count(kind) == 1
    assert kinds[receipt.seq - 1] == kind


async def test_a_start_and_a_fork_whose_reply_is_lost_make_one_run_each(
    stack: AsyncExitStack, serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """Nobody pays for a run that nobody knows of."""
    served = await serve(stage.agent("Done.", "Done again."))
    proxy, mid = await _behind(stack, served, connected)
    proxy.lose = 1
    run = await mid.start("actor", "go")
    await run.until("completed")
    proxy.lose = 1
    forked = await run.fork(instruction="And now?")
    await forked.until("completed")
    assert proxy.lost == 2
    rows = (await served.mid.store.list_runs(RunQuery())).items
    assert {row.run for row in rows} == {run.id, forked.id}


async def test_an_answer_and_a_checkpoint_whose_reply_is_lost_go_on_once(
    stack: AsyncExitStack, serve: Serve, connected: Connected
) -> None:
    """A second answer would be refused, and a second resumption stale: neither is seen."""
    model = ScriptedModel([Use("ask_human", question="?"), "Done."])
    served = await serve(Agent("asker", model=model, tools=[ask_human]))
    proxy, mid = await _behind(stack, served, connected)
    for way in ("answer", "checkpoint"):
        run = await mid.start("asker", way)
        await run.until("waiting")
        checkpoint = await run.checkpoint()
        proxy.lose = 1
        if way == "answer":
            await run.answer("yes", ask="a1")
        else:
            await mid.resume(checkpoint, "yes")
        await run.until("completed")
        assert (await _kinds(served, run)).count("AskAnswered") == 1
    assert proxy.lost == 2


async def test_a_refusal_whose_reply_is_lost_is_the_same_refusal(
    stack: AsyncExitStack, serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """What the first attempt was told is on record."""
    served = await serve(stage.agent("Done."))
    proxy, mid = await _behind(stack, served, connected)
    run = await mid.start("actor", "go")
    await run.until("completed")
    proxy.lose = 1
    with pytest.raises(Exception, match="is_completed"):
        await run.pause()


async def test_a_feed_that_is_cut_again_and_again_has_every_entry_once(
    stack: AsyncExitStack, serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """Also where it is cut within an event: that one comes again, whole."""
    turns = [Use("slow", name="a"), *(Use("quick", name=str(n)) for n in range(12)), "Done."]
    served = await serve(stage.agent(*turns))
    proxy, mid = await _behind(stack, served, connected)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    items: list[FeedEntry] = []
    proxy.cut_after = 3000  # the head of a response and the longest entry fit, and little more
    async for item in run.feed():
        if isinstance(item, FeedEntry):
            items.append(item)
            proxy.cut_after = 3000 + 97 * len(items) % 1000
            stage.gate("a").set()
    records = await served.mid.store.read(run.id)
    assert [(i.seq, i.at, i.entry) for i in items] == [(r.seq, r.at, r.entry) for r in records]
    assert proxy.connections > 5


async def test_one_who_knew_more_than_the_journal_is_given_all_of_it(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """Its store was restored from a backup: what was seen of it is not what it is now."""
    served = await serve(stage.agent("Done."))
    run = await (await connected(served)).start("actor", "go")
    await run.until("completed")
    seqs = [item.seq async for item in run.feed(999) if isinstance(item, FeedEntry)]
    assert seqs == [record.seq for record in await served.mid.store.read(run.id)]


async def test_whoever_waits_or_watches_outlives_a_server_that_is_away(
    stack: AsyncExitStack, serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """A restart of the server is a pause for its clients, and nothing else."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    proxy, mid = await _behind(stack, served, connected)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    seqs: list[int] = []
    watching, ended = anyio.Event(), anyio.Event()

    async def watch() -> None:
        async for item in run.feed():
            if isinstance(item, FeedEntry):
                seqs.append(item.seq)
                watching.set()

    async def wait() -> None:
        await run.until("completed")
        ended.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        tasks.start_soon(wait)
        await watching.wait()
        await proxy.down()
        for _ in range(4):  # both have knocked
            proxy.knocked = anyio.Event()
            await proxy.knocked.wait()
        stage.gate("a").set()
        proxy.up = True
        await ended.wait()
    assert seqs == list(range(1, len(seqs) + 1))


async def test_patience_begins_when_the_server_goes_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A run may be silent for an hour before its server is started again."""
    away, began = Backoff(30.0, Environment()), anyio.current_time()
    for now, waits in ((3600, True), (3620, True), (3631, False)):
        monkeypatch.setattr("anyio.current_time", lambda now=now: began + now)
        assert await away.wait() is waits


async def test_a_server_that_stays_away_is_named_and_what_was_asked_can_be_repeated(
    stack: AsyncExitStack, serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """Whether it arrived nobody knows; under its id it is applied once in any case."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    proxy, mid = await _behind(stack, served, connected, patience=0.2)
    run = await mid.start("actor", "go")
    await stage.start("a").wait()
    proxy.lose = 10**6
    with pytest.raises(ServerUnreachable) as away:
        await run.say("Hello?")
    assert f"127.0.0.1:{proxy.port}" in str(away.value)
    assert away.value.request_id in str(away.value)
    assert len(await served.mid.store.read(run.id)) > 5
    with pytest.raises(ServerUnreachable):
        await anext(run.feed())
    with pytest.raises(ServerUnreachable) as looked:
        await run.view()
    assert looked.value.request_id == ""
    proxy.lose = 0
    again = await run.say("Hello?", request_id=away.value.request_id)
    assert again.already == "duplicate_request"
    assert (await _kinds(served, run)).count("MessageReceived") == 1


async def test_nobody_at_the_address_is_said_when_connecting(connected: Connected) -> None:
    """At once, and with what to look at; not at the first control, deep in a program."""
    with socket() as held:  # bound, so that it is nobody else's; nobody listens
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(ServerUnreachable, match="midrun serve"):
            await connected(None, port=port, patience=0.1)  # type: ignore[arg-type]  # there is none


async def test_one_who_asks_too_often_is_slowed_down_and_not_refused(
    serve: Serve, connected: Connected, stage: ControllableTools
) -> None:
    """The server says when to come back, and the client does."""
    served = await serve(stage.agent("Done."), limits=Limits(rate=100.0, burst=2))
    mid = await connected(served)
    runs = [await mid.start("actor", f"{n}") for n in range(4)]
    assert len({run.id for run in runs}) == 4
