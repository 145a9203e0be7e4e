"""The feed over HTTP: every entry once and in order, over any number of connections."""

import asyncio
import socket
from contextlib import AsyncExitStack, aclosing

import anyio
import httpx2
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from midrun import Agent, Run, tool
from midrun.core.entries import ENTRY_TYPES
from midrun.models import ScriptedModel, Use
from midrun.server import Limits, feed_routes, run_updates
from midrun.server.events import EVENT_TYPES
from midrun.testing.controllable_tools import ControllableTools
from tests.unit.server.conftest import RunningServer, StartServer, make_token
from tests.unit.server.endpoints import has_security_headers
from tests.unit.server.http_calls import start_run, wait_for_phase
from tests.unit.server.sse_stream import SseEvent, open_event_stream


async def _read_hash_chain(server: RunningServer, run: Run) -> list[tuple[str, str]]:
    """Return seq and hash of every entry in the store."""
    pairs = await server.mid.store.read_lines(run.id)
    return [(str(seq), link.hex()) for seq, (_, link) in enumerate(pairs, 1)]


def _list_seq_and_hash(events: list[SseEvent]) -> list[tuple[str, str]]:
    pairs = []
    for event in events:
        if event.id is not None:
            assert isinstance(event.data, dict)
            assert event.id == str(event.data["seq"])
            pairs.append((event.id, str(event.data["hash"])))
    return pairs


def test_every_entry_type_has_its_own_event_type() -> None:
    """An entry without an event type would be a gap that no client can see."""
    assert set(EVENT_TYPES) == set(ENTRY_TYPES)
    assert len(set(EVENT_TYPES.values())) == len(ENTRY_TYPES)


async def test_a_stream_is_the_journal_with_its_hashes(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A client that kept one event can prove that the journal was cut or changed."""
    server = await serve(stage.agent(Use("quick", name="a"), "Some words to stream."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    async with open_event_stream(client, f"/v1/runs/{run.id}/events") as events:
        received = [event async for event in events]
    assert _list_seq_and_hash(received) == await _read_hash_chain(server, run)
    assert received[-1].event == "stream.end"
    assert received[-1].data == {
        "phase": "completed",
        "seq": len(await _read_hash_chain(server, run)),
    }


async def test_an_event_has_the_same_text_from_whichever_seq_it_is_read(
    serve: StartServer, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It depends on the entries before, which the reader folds from the nearest page."""
    monkeypatch.setattr("midrun.server.events.EVENTS_PAGE_MAX", 4)
    server = await serve(stage.agent(*(Use("draft", name=str(n)) for n in range(5)), "Done."))
    run = await server.mid.start("actor", "Go.", actor="olga")
    await run.until("terminal")
    client = await server.client()
    sentences = [event.sentence async for event in run.events()]
    assert sentences[4] == "the agent called draft (name: “0”)"
    for after in reversed(range(len(sentences))):
        page = await client.get(f"/v1/runs/{run.id}/events?after={after}&limit=1")
        (item,) = page.json()["items"]
        assert item["text"]["sentence"] == sentences[after]
        assert item["text"].keys() == {"who", "sentence", "short", "tone"}


async def test_live_output_has_no_event_id(
    serve: StartServer, stage: ControllableTools
) -> None:
    """`Last-Event-ID` moves over entries only, so a reconnect loses and repeats none."""
    server = await serve(stage.agent(Use("slow", name="a"), "one two three"))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    async with open_event_stream(client, f"/v1/runs/{run.id}/events") as events:
        received = [await anext(events)]
        stage.gate("a").set()
        received += [event async for event in events]
    deltas = [event for event in received if event.event == "model.delta"]
    assert all(event.id is None for event in deltas)
    assert _list_seq_and_hash(received) == await _read_hash_chain(server, run)


async def test_reconnecting_after_every_event_loses_and_repeats_no_entry(
    serve: StartServer, stage: ControllableTools
) -> None:
    """I38: the events of any number of connections together are the journal."""
    turns = [Use("slow", name="a"), *(Use("quick", name=str(n)) for n in range(12)), "Done."]
    server = await serve(stage.agent(*turns))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    stage.gate("a").set()
    collected: list[SseEvent] = []
    last: int | None = None
    while True:
        async with open_event_stream(client, f"/v1/runs/{run.id}/events", last=last) as events:
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
    assert _list_seq_and_hash(collected) == await _read_hash_chain(server, run)
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
    finished = await client.get(f"/v1/runs/{run.id}/events", headers=headers)
    assert finished.status_code == 204, "the run has ended: there is nothing to reconnect for"


async def test_a_last_event_id_beyond_the_journal_resets_the_stream(
    serve: StartServer, stage: ControllableTools
) -> None:
    """The store was restored from a backup, for example."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await run.until("terminal")
    async with open_event_stream(client, f"/v1/runs/{run.id}/events", last=999) as events:
        received = [event async for event in events]
    assert [event.event for event in received].count("stream.reset") == 1
    assert received[0].event == "stream.reset"
    assert _list_seq_and_hash(received) == await _read_hash_chain(server, run)


async def test_a_client_ahead_of_the_shared_channel_is_not_reset(
    serve: StartServer, stage: ControllableTools
) -> None:
    """It read from another server, and this server has not read the newest entries yet."""
    server = await serve(stage.agent(Use("slow", name="a"), "Done."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    path, head = f"/v1/runs/{run.id}/events", (await run.view()).seq
    async with open_event_stream(client, path) as first:
        await anext(first)
        server.app._server.channels._channels[run.id].last_seq = 1
        async with open_event_stream(client, path, last=head) as events:
            stage.gate("a").set()
            received = [event async for event in events]
    assert _list_seq_and_hash(received) == (await _read_hash_chain(server, run))[head:]
    assert "stream.reset" not in [event.event for event in received]


async def test_a_page_of_events_reports_whether_more_follow(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Events that are cached from an earlier request are not all events."""
    server = await serve(stage.agent(Use("quick", name="a"), "Done."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    head = (await run.until("terminal")).seq
    path = f"/v1/runs/{run.id}/events"
    for limit in (3, 200):
        page = (await client.get(f"{path}?limit={limit}")).json()
        assert page["more"] is (page["next_after"] < head)


async def test_pages_and_ndjson_have_the_same_events_as_the_stream(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("quick", name="a"), "Done."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await run.until("terminal")
    path = f"/v1/runs/{run.id}/events"
    async with open_event_stream(client, path) as events:
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
    single_page = (await client.get(f"{path}?after=0&limit=200")).json()
    assert (single_page["items"], single_page["more"]) == (streamed, False)
    filtered = (await client.get(f"{path}?types=run.created,run.completed")).json()["items"]
    assert [event["type"] for event in filtered] == ["run.created", "run.completed"]


@pytest.mark.slow
async def test_a_stream_that_is_not_read_is_closed_and_others_continue(
    serve: StartServer,
) -> None:
    """It costs the server one page of memory; the run and the other streams continue."""

    @tool
    async def big(number: int) -> str:
        """Return a lot."""
        return str(number) * 1_000_000

    model = ScriptedModel([*(Use("big", number=n) for n in range(12)), "Done."])
    limits = Limits(patience=0.3)
    server = await serve(Agent("big", model=model, tools=[big]), limits=limits)
    client = await server.client()
    run = await server.mid.start("big", "Go.", actor="olga")
    with socket.socket() as slow:
        slow.setblocking(False)  # noqa: FBT003 - the name of the standard library's argument
        await _request_stream(slow, server.port, f"/v1/runs/{run.id}/events")
        while not server.app.streams:
            await checkpoint()
        # From here on, a stream that is read stays open on a slow machine.
        server.app._server.limits = Limits()
        async with open_event_stream(client, f"/v1/runs/{run.id}/events") as events:
            received = [event async for event in events]
        assert _list_seq_and_hash(received) == await _read_hash_chain(server, run)
        while server.app.streams:
            await checkpoint()
        assert b"stream.end" not in await _read_rest(slow)


async def _request_stream(sock: socket.socket, port: int, path: str) -> None:
    """Request a stream, and read nothing of it."""
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, ("127.0.0.1", port))
    head = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: text/event-stream\r\n"
        f"Authorization: Bearer {make_token('olga')}\r\n\r\n"
    )
    await loop.sock_sendall(sock, head.encode())


async def _read_rest(sock: socket.socket) -> bytes:
    """Read the bytes that were in transit when the server closed the connection."""
    loop, received = asyncio.get_running_loop(), b""
    while data := await loop.sock_recv(sock, 65536):
        received += data
    return received


async def test_a_quiet_stream_sends_pings(serve: StartServer, stage: ControllableTools) -> None:
    """Proxies close connections that are silent for a minute."""
    server = await serve(stage.agent(Use("slow", name="a"), "."), limits=Limits(ping=0.05))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    headers = {"Accept": "text/event-stream"}
    path = f"/v1/runs/{run.id}/events"
    async with client.stream("GET", path, headers=headers) as reply:
        assert has_security_headers(reply)
        received = b""
        async with aclosing(reply.aiter_raw()) as pieces:
            async for data in pieces:
                received += data
                if b"\n\n: ping\n\n" in received:
                    break
    assert received.startswith(b"retry: 1000\n\n")


async def test_streams_end_when_the_server_stops(
    serve: StartServer, stage: ControllableTools
) -> None:
    """An open stream must not keep a process from exiting; the client reconnects."""
    server = await serve(stage.agent(Use("slow", name="a"), "."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    async with open_event_stream(client, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
        server.app.close()
        rest = [event async for event in events]
    assert "stream.end" not in [event.event for event in rest], "the run continues"
    assert (await run.view()).phase == "running"


async def test_closing_a_stream_does_not_stop_the_run(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent(Use("slow", name="a"), "."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    async with open_event_stream(client, f"/v1/runs/{run.id}/events") as events:
        await anext(events)
    while server.app.streams:
        await checkpoint()
    assert (await run.view()).phase == "running"


async def test_the_streams_of_one_caller_are_limited(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A page that reconnects without closing its streams must not use all of them."""
    server = await serve(stage.agent(Use("slow", name="a"), "."), limits=Limits(streams=1))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    path, headers = f"/v1/runs/{run.id}/events", {"Accept": "text/event-stream"}
    async with open_event_stream(client, path) as events:
        await anext(events)
        refused = await client.get(path, headers=headers)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")


async def test_the_list_stream_begins_with_own_runs_although_others_have_newer_ones(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."))
    own_run = await server.mid.start("actor", "Mine.", actor="ann")
    for _ in range(51):
        await server.mid.start("actor", "Other.", actor="bob")
    async with open_event_stream(await server.client("ann"), "/v1/events") as events:
        snapshot = await anext(events)
    assert isinstance(snapshot.data, list)
    assert [row["run_id"] for row in snapshot.data] == [own_run.id]


async def test_the_list_stream_reports_every_change_of_own_runs_and_no_other(
    serve: StartServer, stage: ControllableTools
) -> None:
    """I40: a list never contains a run that its reader may not see."""
    server = await serve(stage.agent("Done."))
    ann, bob = await server.client("ann"), await server.client("bob")
    own_run = await server.mid.start("actor", "Mine.", actor="ann")
    async with open_event_stream(ann, "/v1/events") as events:
        snapshot = await anext(events)
        assert isinstance(snapshot.data, list)
        assert [row["run_id"] for row in snapshot.data] == [own_run.id]
        started_ids: set[object] = set()
        other_ids: set[str] = set()
        for number in range(5):
            body = {"agent": "actor", "input": f"Task {number}."}
            other_ids.add((await bob.post("/v1/runs", json=body)).json()["run_id"])
            started_ids.add((await ann.post("/v1/runs", json=body)).json()["run_id"])
        reported_ids: set[object] = set()
        completed_ids: set[object] = set()
        while not started_ids <= completed_ids:
            event = await anext(events)
            assert isinstance(event.data, dict)
            reported_ids.add(event.data["run_id"])
            if event.data["phase"] == "completed":
                completed_ids.add(event.data["run_id"])
    assert reported_ids <= started_ids | {own_run.id}
    assert not reported_ids & other_ids


async def test_many_streams_of_one_run_each_get_every_entry(
    serve: StartServer, stage: ControllableTools
) -> None:
    """Events are encoded once and shared; each stream has its own position."""
    turns = [Use("slow", name="a"), *(Use("quick", name=str(n)) for n in range(20)), "Done."]
    server = await serve(stage.agent(*turns))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    received: dict[int, list[SseEvent]] = {}

    async def watch(number: int) -> None:
        path = f"/v1/runs/{run.id}/events"
        async with open_event_stream(client, path, last=number % 4 or None) as events:
            received[number] = [event async for event in events]

    async with anyio.create_task_group() as tasks:
        for number in range(12):
            tasks.start_soon(watch, number)
        stage.gate("a").set()
    chain = await _read_hash_chain(server, run)
    for number, events in received.items():
        assert _list_seq_and_hash(events) == chain[number % 4 :]


async def test_streams_continue_when_the_stream_that_reads_for_them_closes(
    serve: StartServer, stage: ControllableTools
) -> None:
    """One stream reads the journal for all; when it closes, another one takes over."""
    turns = [Use("slow", name="a"), Use("slow", name="b"), "Some words."]
    server = await serve(stage.agent(*turns))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    await stage.start("a").wait()
    path = f"/v1/runs/{run.id}/events"
    async with AsyncExitStack() as first_stream:
        first = await first_stream.enter_async_context(open_event_stream(client, path))
        await anext(first)
        async with open_event_stream(client, path) as second:
            received = [await anext(second)]
            assert server.app.streams == 2
            await first_stream.aclose()
            while server.app.streams > 1:  # until the server has noticed the closed stream
                await checkpoint()
            stage.gate("a").set()
            await stage.start("b").wait()
            stage.gate("b").set()
            received += [event async for event in second]
    assert _list_seq_and_hash(received) == await _read_hash_chain(server, run)


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "9" * 30])
async def test_a_last_event_id_that_is_not_a_seq_is_refused(
    serve: StartServer, stage: ControllableTools, last: str
) -> None:
    """A guess at its meaning could lose entries."""
    server = await serve(stage.agent("Done."))
    client = await server.client()
    run = await server.mid.start("actor", "Go.", actor="olga")
    reply = await client.get(f"/v1/runs/{run.id}/events", headers={"Last-Event-ID": last})
    assert reply.status_code == 400


async def test_last_event_id_overrides_the_query_and_types_filter_a_stream(
    serve: StartServer, stage: ControllableTools
) -> None:
    """On a reconnect, a browser sends the header with the query of its first request."""
    server = await serve(stage.agent(Use("quick", name="a"), "Some words."))
    client = await server.client()
    run_path = await start_run(client)
    last_seq = (await wait_for_phase(client, run_path, "terminal")).json()["seq"]
    async with open_event_stream(
        client, f"{run_path}/events?after=1", last=last_seq - 1
    ) as events:
        assert [event.id async for event in events] == [str(last_seq), None]
    async with open_event_stream(
        client, f"{run_path}/events?types=run.created,run.completed"
    ) as events:
        kinds = [event.event async for event in events]
    assert kinds == ["run.created", "run.completed", "stream.end"]


async def test_the_list_stream_can_be_filtered(
    serve: StartServer, stage: ControllableTools
) -> None:
    server = await serve(stage.agent("Done."), stage.agent("Done.", name="other"))
    client = await server.client()
    await wait_for_phase(client, await start_run(client), "terminal")
    async with open_event_stream(client, "/v1/events?agent=other") as events:
        assert (await anext(events)).data == []
        await wait_for_phase(client, await start_run(client), "terminal")
        run_path = await start_run(client, "other")
        change = (await anext(events)).data
    assert isinstance(change, dict)
    assert change["run_id"] == run_path.rpartition("/")[2]


async def test_two_servers_on_one_store_show_and_control_the_same_run(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A control through one server reaches the worker of the other; both streams show it."""
    first = await serve(stage.agent(Use("slow", name="x"), "Done."))
    second = await serve()  # has no agent: it only shows and controls
    here, there = await first.client(), await second.client()
    run = (await here.post("/v1/runs", json={"agent": "actor", "input": "Go."})).json()[
        "run_id"
    ]
    await stage.start("x").wait()
    async with (
        open_event_stream(here, f"/v1/runs/{run}/events") as first_events,
        open_event_stream(there, f"/v1/runs/{run}/events") as second_events,
    ):
        response = await there.post(f"/v1/runs/{run}/cancel", json={"reason": "enough"})
        assert response.status_code == 202
        received_here = [event.raw async for event in first_events if event.id is not None]
        received_there = [event.raw async for event in second_events if event.id is not None]
    assert received_here == received_there
    assert b"event: run.cancelled" in received_here[-1]


class Update(msgspec.Struct):
    """The parts of an update that add up."""

    seq: int
    run: dict[str, object]
    turns: list[dict[str, object]]


async def test_updates_of_the_view_follow_the_entries_until_the_run_ends(
    serve: StartServer, stage: ControllableTools
) -> None:
    """A page needs no other request: the updates add up to the view, with all turns."""
    server = await serve(stage.agent(Use("slow", name="work"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("work").wait()
    view: dict[str, object] = {}
    turns: dict[object, object] = {}
    seqs: list[int] = []
    async with open_event_stream(client, f"{run_path}/events?view=true") as events:
        async for event in events:
            assert isinstance(event.data, dict)
            if event.event != "run.updated":
                seqs += [int(event.id)] if event.id else []
                continue
            assert event.data["seq"] == seqs[-1], "an update is never ahead of the entries"
            update = msgspec.convert(event.data, Update)
            view |= update.run
            turns |= {turn["number"]: turn for turn in update.turns}
            phase = view["phase"]
            if phase == "running" and not stage.gate("work").is_set():
                await client.post(f"{run_path}/pause")
            elif phase == "pausing":
                stage.gate("work").set()
            elif phase == "paused":
                await client.post(f"{run_path}/resume")
    assert view == (await client.get(run_path)).json()
    assert list(turns.values()) == (await client.get(f"{run_path}/turns")).json()["items"]


async def test_a_page_that_reconnects_gets_only_the_changes_since_its_last_update(
    serve: StartServer, stage: ControllableTools
) -> None:
    """It resumes after the update that it has received last, on any connection."""
    server = await serve(stage.agent(Use("slow", name="work"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("work").wait()
    first = await _read_update(client, run_path)
    assert set(first.run) == set((await client.get(run_path)).json())
    again = await _read_update(client, run_path, last=first.seq)
    assert (again.run, again.turns) == ({}, [])
    await client.post(f"{run_path}/pause")
    paused = await _read_update(client, run_path, last=first.seq)
    assert paused.run["phase"] == "pausing"
    assert "task" not in paused.run
    stage.gate("work").set()
    await wait_for_phase(client, run_path, "paused")
    finished = await _read_update(client, run_path, last=paused.seq)
    assert [turn["number"] for turn in finished.turns] == [2], "its call has ended"


async def _read_update(
    client: httpx2.AsyncClient, run_path: str, last: int | None = None
) -> Update:
    path = f"{run_path}/events?view=true"
    async with open_event_stream(client, path, last=last) as events:
        async for event in events:
            if event.event == "run.updated":
                return msgspec.convert(event.data, Update)
    raise AssertionError("the stream ended without an update")


async def test_an_update_comes_without_an_entry_when_the_worker_is_lost(
    serve: StartServer, stage: ControllableTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies appends nothing. The list says that workers have gone."""
    for module in (run_updates, feed_routes):
        monkeypatch.setattr(module, "DRIVEN_POLL_S", 0.01)
    server = await serve(stage.agent(Use("slow", name="work"), "Done."))
    client = await server.client()
    run_path = await start_run(client)
    await stage.start("work").wait()

    async def list_no_holders() -> frozenset[str]:
        return frozenset()

    async with (
        open_event_stream(client, f"{run_path}/events?view=true") as events,
        open_event_stream(client, "/v1/events") as changes,
    ):
        assert (await anext(changes)).event == "stream.snapshot"
        while (await anext(events)).event != "run.updated":
            pass
        with monkeypatch.context() as patch:
            patch.setattr(server.mid.store, "list_holders", list_no_holders)
            update = await anext(events)
            while (await anext(changes)).event != "workers.changed":
                pass
    assert isinstance(update.data, dict)
    assert msgspec.convert(update.data["overlay"], dict[str, object])["worker_lost"] is True
    stage.gate("work").set()
