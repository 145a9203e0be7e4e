"""The feed: every entry once, in order, over any number of connections."""

import asyncio
import socket
from contextlib import AsyncExitStack, aclosing

import anyio
import httpx2
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Run, tool
from midrun.core.entries import ENTRY_TYPES
from midrun.models import ScriptedModel, Use
from midrun.server import Limits
from midrun.server.events import EVENT_TYPES
from tests.unit.runs.stage import ControllableTools
from tests.unit.server.conftest import Serve, Served, token_of
from tests.unit.server.defences import is_guarded
from tests.unit.server.listening import Heard, heard


async def _chain(served: Served, run: Run) -> list[tuple[str, str]]:
    """Return seq and hash of every entry, as the store has them."""
    pairs = await served.mid.store.read_lines(run.id)
    return [(str(seq), link.hex()) for seq, (_, link) in enumerate(pairs, 1)]


def _durable(events: list[Heard]) -> list[tuple[str, str]]:
    found = []
    for event in events:
        if event.id is not None:
            assert isinstance(event.data, dict)
            assert event.id == str(event.data["seq"])
            found.append((event.id, str(event.data["hash"])))
    return found


def test_every_kind_of_entry_has_a_type_of_its_own() -> None:
    """An entry without an event would be a gap that no client can see."""
    assert set(EVENT_TYPES) == set(ENTRY_TYPES)
    assert len(set(EVENT_TYPES.values())) == len(ENTRY_TYPES)


async def test_a_stream_is_the_journal_with_its_hashes(
    serve: Serve, stage: ControllableTools
) -> None:
    """Whoever kept one event can prove that the journal was cut, or changed."""
    served = await serve(stage.agent(Use("quick", name="a"), "Some words to stream."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    async with heard(client, f"/v1/runs/{run.id}/events") as events:
        found = [event async for event in events]
    assert _durable(found) == await _chain(served, run)
    assert found[-1].event == "stream.end"
    assert found[-1].data == {"phase": "completed", "seq": len(await _chain(served, run))}


async def test_words_come_as_they_are_said_and_have_no_id(
    serve: Serve, stage: ControllableTools
) -> None:
    """`Last-Event-ID` moves over entries only, so a reconnection loses and repeats none."""
    served = await serve(stage.agent(Use("slow", name="a"), "one two three"))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    async with heard(client, f"/v1/runs/{run.id}/events") as events:
        found = [await anext(events)]
        stage.gate("a").set()
        found += [event async for event in events]
    deltas = [event for event in found if event.event == "model.delta"]
    assert all(event.id is None for event in deltas)
    assert _durable(found) == await _chain(served, run)


async def test_nothing_is_lost_or_repeated_over_a_reconnection_at_every_event(
    serve: Serve, stage: ControllableTools
) -> None:
    """I38: what a client has heard over any number of connections is the journal."""
    turns = [Use("slow", name="a"), *(Use("quick", name=str(n)) for n in range(12)), "Done."]
    served = await serve(stage.agent(*turns))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    stage.gate("a").set()
    collected: list[Heard] = []
    last: int | None = None
    while True:
        async with heard(client, f"/v1/runs/{run.id}/events", last=last) as events:
            event = await anext(events)
            while event.id is None and event.event != "stream.end":
                event = await anext(events)
        if event.event == "stream.end":
            break
        collected.append(event)
        assert int(event.id or 0) == (last or 0) + 1, "lost, or repeated"
        last = int(event.id or 0)
        if event.event == "run.completed":
            break
    assert _durable(collected) == await _chain(served, run)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
    over = await client.get(f"/v1/runs/{run.id}/events", headers=headers)
    assert over.status_code == 204, "there is nothing to come back for"


async def test_one_who_knows_more_than_the_journal_starts_again(
    serve: Serve, stage: ControllableTools
) -> None:
    """An id beyond the head is of another journal: a store that was restored, say."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await run.until("terminal")
    async with heard(client, f"/v1/runs/{run.id}/events", last=999) as events:
        found = [event async for event in events]
    assert [event.event for event in found].count("stream.reset") == 1
    assert found[0].event == "stream.reset"
    assert _durable(found) == await _chain(served, run)


async def test_one_who_is_ahead_of_the_other_watchers_is_not_told_to_start_again(
    serve: Serve, stage: ControllableTools
) -> None:
    """They read from another server, say, and this one has not heard of it yet."""
    served = await serve(stage.agent(Use("slow", name="a"), "Done."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    path, head = f"/v1/runs/{run.id}/events", (await run.view()).seq
    async with heard(client, path) as first:
        await anext(first)
        served.app._server.channels._channels[run.id].last_seq = 1
        async with heard(client, path, last=head) as events:
            stage.gate("a").set()
            found = [event async for event in events]
    assert _durable(found) == (await _chain(served, run))[head:]
    assert "stream.reset" not in [event.event for event in found]


async def test_a_page_says_that_there_is_more_whatever_was_read_before(
    serve: Serve, stage: ControllableTools
) -> None:
    """What is kept from an earlier look is not all there is."""
    served = await serve(stage.agent(Use("quick", name="a"), "Done."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    head = (await run.until("terminal")).seq
    path = f"/v1/runs/{run.id}/events"
    for limit in (3, 200):
        page = (await client.get(f"{path}?limit={limit}")).json()
        assert page["more"] is (page["next_after"] < head)


async def test_a_page_and_all_lines_say_the_same_as_the_stream(
    serve: Serve, stage: ControllableTools
) -> None:
    """Three forms, one projection."""
    served = await serve(stage.agent(Use("quick", name="a"), "Done."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await run.until("terminal")
    path = f"/v1/runs/{run.id}/events"
    async with heard(client, path) as events:
        streamed = [event.data async for event in events if event.id is not None]
    lines = (await client.get(path, headers={"Accept": "application/x-ndjson"})).text
    assert [httpx2.Response(200, text=line).json() for line in lines.splitlines()] == streamed
    paged: list[object] = []
    after, more = 0, True
    while more:
        page = (await client.get(f"{path}?after={after}&limit=3")).json()
        paged += page["items"]
        after, more = page["next_after"], page["more"]
    assert paged == streamed
    whole = (await client.get(f"{path}?after=0&limit=200")).json()
    assert (whole["items"], whole["more"]) == (streamed, False)
    only = (await client.get(f"{path}?types=run.created,run.completed")).json()["items"]
    assert [event["type"] for event in only] == ["run.created", "run.completed"]


async def test_a_consumer_that_does_not_read_is_given_up_alone(serve: Serve) -> None:
    """It costs a page of memory, no more; the run and the other watchers do not notice."""

    @tool
    async def big(number: int) -> str:
        """Return a lot."""
        return str(number) * 1_000_000

    model = ScriptedModel([*(Use("big", number=n) for n in range(12)), "Done."])
    limits = Limits(patience=0.3)
    served = await serve(Agent("big", model=model, tools=[big]), limits=limits)
    client = await served.client()
    run = await served.mid.start("big", "Go.", actor="olga")
    with socket.socket() as slow:
        slow.setblocking(False)  # noqa: FBT003 - the name of the standard library's argument
        await _connect(slow, served.port, f"/v1/runs/{run.id}/events")
        while not served.app.streams:
            await checkpoint()
        served.app._server.limits = Limits()  # who reads is not given up on a slow machine
        async with heard(client, f"/v1/runs/{run.id}/events") as events:
            found = [event async for event in events]
        assert _durable(found) == await _chain(served, run)
        while served.app.streams:
            await checkpoint()
        assert b"stream.end" not in await _rest(slow)


async def _connect(sock: socket.socket, port: int, path: str) -> None:
    """Ask for a stream, and read nothing of it."""
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    head = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {token_of('olga')}\r\n\r\n"
    )
    await loop.sock_sendall(sock, head.encode())


async def _rest(sock: socket.socket) -> bytes:
    """Read what was on its way when the server gave up."""
    loop, found = asyncio.get_running_loop(), b""
    while data := await loop.sock_recv(sock, 65536):
        found += data
    return found


async def test_a_quiet_stream_shows_signs_of_life(
    serve: Serve, stage: ControllableTools
) -> None:
    """Proxies cut what says nothing for a minute, and clients cannot tell it from a hang."""
    served = await serve(stage.agent(Use("slow", name="a"), "."), limits=Limits(ping=0.05))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    headers = {"Accept": "text/event-stream"}
    path = f"/v1/runs/{run.id}/events"
    async with client.stream("GET", path, headers=headers) as reply:
        assert is_guarded(reply)
        heard_so_far = b""
        async with aclosing(reply.aiter_raw()) as pieces:
            async for data in pieces:
                heard_so_far += data
                if b"\n\n: ping\n\n" in heard_so_far:
                    break
    assert heard_so_far.startswith(b"retry: 1000\n\n")


async def test_streams_end_when_the_server_stops(
    serve: Serve, stage: ControllableTools
) -> None:
    """An open stream must not keep a process from leaving; its consumer comes back."""
    served = await serve(stage.agent(Use("slow", name="a"), "."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    async with heard(client, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        served.app.close()
        left = [event async for event in events]
    assert "stream.end" not in [event.event for event in left], "the run goes on"
    assert (await run.view()).phase == "running"


async def test_closing_a_stream_does_not_touch_the_run(
    serve: Serve, stage: ControllableTools
) -> None:
    """A closed tab is not a cancel."""
    served = await serve(stage.agent(Use("slow", name="a"), "."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    async with heard(client, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
    while served.app.streams:
        await checkpoint()
    assert (await run.view()).phase == "running"


async def test_streams_of_one_caller_are_bounded(
    serve: Serve, stage: ControllableTools
) -> None:
    """One page that reconnects without closing must not take all there is."""
    served = await serve(stage.agent(Use("slow", name="a"), "."), limits=Limits(streams=1))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    path, headers = f"/v1/runs/{run.id}/events", {"Accept": "text/event-stream"}
    async with heard(client, path) as events:
        await anext(events)
        refused = await client.get(path, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")


async def test_a_list_begins_with_own_runs_however_many_others_have_started(
    serve: Serve, stage: ControllableTools
) -> None:
    """Or somebody's list would be empty whenever others are busy."""
    served = await serve(stage.agent("Done."))
    mine = await served.mid.start("actor", "Mine.", actor="ann")
    for _ in range(51):
        await served.mid.start("actor", "Other.", actor="bob")
    async with heard(await served.client("ann"), "/v1/events") as events:
        snapshot = await anext(events)
    assert isinstance(snapshot.data, list)
    assert [row["run_id"] for row in snapshot.data] == [mine.id]


async def test_the_list_tells_of_every_change_and_of_own_runs_only(
    serve: Serve, stage: ControllableTools
) -> None:
    """I40: a list never contains a run that its reader may not see, however busy it is."""
    served = await serve(stage.agent("Done."))
    ann, bob = await served.client("ann"), await served.client("bob")
    mine = await served.mid.start("actor", "Mine.", actor="ann")
    async with heard(ann, "/v1/events") as events:
        snapshot = await anext(events)
        assert isinstance(snapshot.data, list)
        assert [row["run_id"] for row in snapshot.data] == [mine.id]
        hers: set[object] = set()
        others: set[str] = set()
        for number in range(5):
            body = {"agent": "actor", "input": f"Task {number}."}
            others.add((await bob.post("/v1/runs", json=body)).json()["run_id"])
            hers.add((await ann.post("/v1/runs", json=body)).json()["run_id"])
        seen: set[object] = set()
        ended: set[object] = set()
        while not hers <= ended:
            event = await anext(events)
            assert isinstance(event.data, dict)
            seen.add(event.data["run_id"])
            if event.data["phase"] == "completed":
                ended.add(event.data["run_id"])
    assert seen <= hers | {mine.id}
    assert not seen & others


async def test_many_watchers_each_hear_everything(
    serve: Serve, stage: ControllableTools
) -> None:
    """Events are encoded once and shared; nobody may get somebody else's place."""
    turns = [Use("slow", name="a"), *(Use("quick", name=str(n)) for n in range(20)), "Done."]
    served = await serve(stage.agent(*turns))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    found: dict[int, list[Heard]] = {}

    async def watch(number: int) -> None:
        path = f"/v1/runs/{run.id}/events"
        async with heard(client, path, last=number % 4 or None) as events:
            found[number] = [event async for event in events]

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(watch, number)
        stage.gate("a").set()
    chain = await _chain(served, run)
    for number, events in found.items():
        assert _durable(events) == chain[number % 4 :]


async def test_those_who_stay_hear_everything_when_the_first_watcher_leaves(
    serve: Serve, stage: ControllableTools
) -> None:
    """One of them reads for all; when they go, another takes it over where they were."""
    turns = [Use("slow", name="a"), Use("slow", name="b"), "Some words."]
    served = await serve(stage.agent(*turns))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    path = f"/v1/runs/{run.id}/events"
    async with AsyncExitStack() as leaving:
        first = await leaving.enter_async_context(heard(client, path))
        await anext(first)
        async with heard(client, path) as second:
            found = [await anext(second)]
            assert served.app.streams == 2
            await leaving.aclose()
            while served.app.streams > 1:  # until the server has noticed that it is gone
                await checkpoint()
            stage.gate("a").set()
            await stage.start("b").wait()
            stage.gate("b").set()
            found += [event async for event in second]
    assert _durable(found) == await _chain(served, run)


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
async def test_an_id_that_is_none_of_ours_is_refused(
    serve: Serve, stage: ControllableTools, last: str
) -> None:
    """To guess what was meant is to lose entries."""
    served = await serve(stage.agent("Done."))
    client = await served.client()
    run = await served.mid.start("actor", "Go.", actor="olga")
    reply = await client.get(f"/v1/runs/{run.id}/events", headers={"Last-Event-ID": last})
    assert reply.status_code == 400
