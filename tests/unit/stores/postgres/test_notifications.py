"""NOTIFY: the listener reports changes of other processes, the relay carries live output."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import timedelta
from typing import LiteralString

import anyio
import pytest

from midrun.core.ids import RunId, Seq
from midrun.core.values import Phase
from midrun.ports.relay import Relay
from midrun.ports.store import Change, HaltRecord
from midrun.stores.postgres import listener, queries, writer
from midrun.stores.postgres.connection import PostgresAddress, PostgresConnection, Rows, Values
from midrun.stores.postgres.relay import PostgresRelay
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from midrun.testing.store_suite.concurrency import wait_for_seqs
from midrun.testing.store_suite.fixtures import (
    OTHER_RUN,
    RUN,
    append_message,
    create_run,
    make_call_done,
    make_head,
    make_message,
    take_lease,
)
from tests.support.conditions import wait_until
from tests.unit.stores.postgres.conftest import (
    TERMINATE_CONNECTIONS,
    TIMEOUT_S,
    OpenStore,
    get_schema,
)
from tests.unit.stores.postgres.faulty_proxy import FaultyProxy

pytestmark = pytest.mark.once


async def test_a_store_reports_appends_and_halts_of_another_store(
    store: PostgresStore, url: str, open_store_at: OpenStore
) -> None:
    """The server appends controls; the worker that must obey them is another process."""
    other_store = await open_store_at(url)
    async with store.watch() as watch:
        await create_run(other_store)
        assert await anext(watch) == Change(run=RUN, seq=Seq(1))
        await other_store.set_halt(HaltRecord(scope="all", by="ops"))
        assert (await anext(watch)).run == ""


async def test_a_change_says_whether_the_run_is_leased(
    store: PostgresStore, url: str, open_store_at: OpenStore
) -> None:
    """Workers ignore changes of a run that another worker drives.

    The creation is announced apart from its commit, so it may arrive in the watch as well.
    """
    other_store = await open_store_at(url)
    await create_run(other_store)
    async with store.watch() as watch:
        await take_lease(other_store, RUN, 1, "a")
        change = await anext(watch)
        if change.seq == 1:
            assert not change.held
            change = await anext(watch)
        assert change == Change(run=RUN, seq=Seq(2), held=True)


async def test_the_progress_of_a_driven_run_is_announced_with_the_next_control(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step thus commits two transactions, not four. What is left is sent on close."""
    announced: list[object] = []
    execute = PostgresConnection.execute

    async def record_announcements(
        connection: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        if statement == queries.ANNOUNCE and values is not None:
            announced.append(values["lines"])
        return await execute(connection, statement, values, prepare=prepare)

    monkeypatch.setattr(PostgresConnection, "execute", record_announcements)
    monkeypatch.setattr(writer, "PROGRESS_DELAY_S", TIMEOUT_S)
    head = make_head(Phase.RUNNING, leased=True)
    await create_run(store)
    lease = await take_lease(store, RUN, 1, "a")
    await wait_until(lambda: announced == [[f"{RUN} 1"], [f"{RUN} 2 held"]])
    for seq in (2, 3):
        await store.append(RUN, [make_call_done()], after=Seq(seq), lease=lease, head=head)
    await store.append(RUN, [make_message()], after=Seq(4), lease=None, head=head)
    await wait_until(lambda: announced[2:] == [[f"{RUN} 5 held"]])
    await store.append(RUN, [make_call_done()], after=Seq(5), lease=lease, head=head)
    await store.close()
    assert announced[3:] == [[f"{RUN} 6 held"]]


async def test_changes_are_found_by_polling_if_every_notification_is_lost(
    store: PostgresStore, url: str, open_store_at: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_notifications = PostgresConnection.take_notifications

    def drop_notifications(connection: PostgresConnection) -> list[tuple[str, str]]:
        take_notifications(connection)
        return []

    monkeypatch.setattr(PostgresConnection, "take_notifications", drop_notifications)
    other_store = await open_store_at(url)
    async with store.watch() as watch:
        for n in range(3):
            await create_run(other_store, RunId(f"r{n}"))
        await other_store.set_halt(HaltRecord(scope="all", by="ops"))
        await wait_for_seqs(
            watch, {RunId("r0"): 1, RunId("r1"): 1, RunId("r2"): 1, RunId(""): 0}
        )


async def test_a_watch_survives_a_restart_of_the_server(
    store: PostgresStore, url: str, open_store_at: OpenStore, postgres: Postgres
) -> None:
    """It reports changes that were committed while it was disconnected."""
    other_store = await open_store_at(url)
    await create_run(other_store)
    async with store.watch() as watch:
        await anyio.to_thread.run_sync(postgres.restart, "immediate")
        await append_message(other_store, RUN, 1)
        await wait_for_seqs(watch, {RUN: 2})
        await create_run(other_store, OTHER_RUN)
        await wait_for_seqs(watch, {OTHER_RUN: 1})


@pytest.mark.slow
async def test_a_watch_survives_a_connection_that_is_lost_silently(
    proxy_url: str, url: str, proxy: FaultyProxy, open_store_at: OpenStore
) -> None:
    """No reset arrives. The watch reconnects when a poll gets no reply."""
    store, other_store = await open_store_at(proxy_url), await open_store_at(url)
    await create_run(other_store)
    async with store.watch() as watch:
        proxy.drop_silently()
        await append_message(other_store, RUN, 1)
        await wait_for_seqs(watch, {RUN: 2})
        await create_run(other_store, OTHER_RUN)
        await wait_for_seqs(watch, {OTHER_RUN: 1})


async def test_a_watch_that_was_disconnected_for_long_reads_all_runs(
    store: PostgresStore,
    url: str,
    open_store_at: OpenStore,
    postgres: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The table of news is pruned; here it is empty, and all notifications are lost."""
    monkeypatch.setattr("midrun.stores.postgres.listener.NOTICE_RETENTION_S", 0.0)
    monkeypatch.setattr("midrun.stores.postgres.listener.POLL_INTERVAL_S", 60.0)
    other_store = await open_store_at(url)
    await create_run(other_store)
    async with store.watch() as watch:
        take_notifications = PostgresConnection.take_notifications
        monkeypatch.setattr(
            PostgresConnection,
            "take_notifications",
            lambda connection: take_notifications(connection) and [],
        )
        await append_message(other_store, RUN, 1)
        await create_run(other_store, OTHER_RUN)
        schema = get_schema(url)
        postgres.execute(f'DELETE FROM "{schema}".midrun_notices')  # noqa: S608 - a name of this test
        postgres.execute(TERMINATE_CONNECTIONS)
        await wait_for_seqs(watch, {RUN: 2, OTHER_RUN: 1})


async def test_many_changes_are_split_into_several_notifications(
    store: PostgresStore, url: str, open_store_at: OpenStore
) -> None:
    """A notification has at most 8000 bytes, and a run id may have 64."""
    other_store = await open_store_at(url)
    runs = [RunId(f"{n:x<64}") for n in range(300)]
    async with store.watch() as watch:
        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(create_run, other_store, run)
        await wait_for_seqs(watch, dict.fromkeys(runs, 1))


async def test_a_notification_that_arrives_with_a_reply_is_not_missed(url: str) -> None:
    """It has been read from the socket already, so the socket will not become readable."""
    address = PostgresAddress(
        url, durability="full", write_timeout=timedelta(seconds=TIMEOUT_S)
    )
    await (await PostgresStore.open(url)).close()
    connection = await PostgresConnection.connect(address)
    try:
        with anyio.fail_after(TIMEOUT_S):
            await connection.execute(queries.LISTEN, {"channel": ""})
            await connection.execute(queries.NOTIFY, {"channel": "", "message": "run_1 7"})
            assert connection.has_notifications()
            assert [text for _, text in connection.take_notifications()] == ["run_1 7"]
    finally:
        connection.close()


async def test_a_change_during_the_cleanup_of_the_news_is_reported_at_once(
    store: PostgresStore, url: str, open_store_at: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification arrives with the reply to the cleanup, long before the next poll."""
    monkeypatch.setattr(listener, "POLLS_PER_CLEANUP", 1)
    monkeypatch.setattr(listener, "POLL_INTERVAL_S", 0.01)
    other_store, execute = await open_store_at(url), PostgresConnection.execute

    async def create_run_before(
        connection: PostgresConnection,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        if statement == queries.DELETE_OLD_NOTICES and listener.POLL_INTERVAL_S < 1:
            monkeypatch.setattr(listener, "POLL_INTERVAL_S", 3600.0)
            await create_run(other_store)
        return await execute(connection, statement, values, prepare=prepare)

    monkeypatch.setattr(PostgresConnection, "execute", create_run_before)
    async with store.watch() as watch:
        assert await anext(watch) == Change(run=RUN, seq=Seq(1))


# ── relay ────────────────────────────────────────────────────────────────────


async def receive_all(relay: Relay) -> AsyncGenerator[bytes, None]:
    """Yield the messages of a relay. While it waits, the relay also learns of listeners."""
    while True:
        yield await relay.receive()


async def wait_for_listener(relay: Relay, run: RunId) -> str:
    """Wait until the relay knows a remote listener of `run`; return its name."""
    while not (listeners := relay.listeners(run)):  # noqa: ASYNC110 - the relay has no event for it
        await anyio.sleep(0.01)
    return listeners[0].name


async def test_a_message_reaches_a_remote_listener_of_the_run(
    store: PostgresStore, url: str, open_store_at: OpenStore
) -> None:
    """The message has the maximum length."""
    receiver, sender = store.relay(), (await open_store_at(url)).relay()
    received: list[bytes] = []
    arrived = anyio.Event()

    async def listen() -> None:
        async with aclosing(receive_all(receiver)) as stream:
            async for message in stream:
                received.append(message)
                arrived.set()

    async def learn() -> None:
        async with aclosing(receive_all(sender)) as stream:
            async for _ in stream:
                raise AssertionError("the sender has received a message")

    receiver.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        tasks.start_soon(learn)
        name = await wait_for_listener(sender, RUN)
        longest = "é".encode() * (sender.max_message_bytes // 2)
        assert await sender.send(name, longest)
        await arrived.wait()
        assert received == [longest]
        assert not receiver.listeners(RUN)  # a relay does not list itself
        assert not sender.listeners(RunId("another"))
        tasks.cancel_scope.cancel()
    receiver.close()
    sender.close()


async def test_a_listener_that_left_and_returned_is_a_new_listener(
    store: PostgresStore, url: str, open_store_at: OpenStore
) -> None:
    """It missed messages, so the worker must send it the whole state."""
    receiver, sender = store.relay(), (await open_store_at(url)).relay()
    receiver.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receiver.receive)
        tasks.start_soon(sender.receive)
        name = await wait_for_listener(sender, RUN)
        (before,) = sender.listeners(RUN)
        receiver.stop_listening(RUN)
        receiver.listen(RUN)
        while (after := sender.listeners(RUN)) == [before]:  # noqa: ASYNC110 - the relay has no event for it
            await anyio.sleep(0.01)
        assert [remote.name for remote in after] == [name]
        tasks.cancel_scope.cancel()
    receiver.close()
    sender.close()


@pytest.mark.slow
async def test_a_relay_survives_a_restart_of_the_server(
    store: PostgresStore, url: str, open_store_at: OpenStore, postgres: Postgres
) -> None:
    """Listeners announce themselves again, under the name of the new connection."""
    receiver, sender = store.relay(), (await open_store_at(url)).relay()
    received = anyio.Event()

    async def listen() -> None:
        await receiver.receive()
        received.set()

    async def send_repeatedly() -> None:
        while True:
            for remote in sender.listeners(RUN):
                await sender.send(remote.name, b"again")
            await anyio.sleep(0.05)

    receiver.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sender.receive)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as first:
                first.start_soon(receiver.receive)
                await wait_for_listener(sender, RUN)
                scope.cancel()
        await anyio.to_thread.run_sync(postgres.restart, "immediate")
        tasks.start_soon(listen)
        tasks.start_soon(send_repeatedly)
        await received.wait()
        tasks.cancel_scope.cancel()
    receiver.close()
    sender.close()


async def test_a_relay_without_listeners_opens_no_connection(store: PostgresStore) -> None:
    """A command that only reads the store does not need one."""
    relay = store.relay()
    assert isinstance(relay, PostgresRelay)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.receive)
        await anyio.wait_all_tasks_blocked()
        assert relay._connection is None
        tasks.cancel_scope.cancel()
    relay.close()
