"""What is live reaches those who watch in other processes, and nobody else."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio
import pytest

from midrun.core.ids import RunId
from midrun.ports.relay import Relay
from midrun.stores.postgres.relay import PostgresRelay
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from tests.unit.stores.postgres.conftest import Open

pytestmark = pytest.mark.once

RUN = RunId("run_1")


async def messages(relay: Relay) -> AsyncGenerator[bytes, None]:
    """Give what a relay receives; waiting for it is also what makes it learn."""
    while True:
        yield await relay.receive()


async def known(relay: Relay, run: RunId) -> str:
    """Wait until a relay knows that somebody elsewhere watches `run`."""
    while not (listeners := relay.listeners(run)):  # noqa: ASYNC110 - others have to say so
        await anyio.sleep(0.01)
    return listeners[0].name


async def test_a_message_reaches_the_one_who_watches(
    store: PostgresStore, url: str, opened: Open
) -> None:
    """Also the longest, and also after the server has been away."""
    here, there = store.relay(), (await opened(url)).relay()
    heard: list[bytes] = []
    arrived = anyio.Event()

    async def listen() -> None:
        async with aclosing(messages(here)) as stream:
            async for message in stream:
                heard.append(message)
                arrived.set()

    async def learn() -> None:
        async with aclosing(messages(there)) as stream:
            async for _ in stream:
                raise AssertionError("nobody sends anything there")

    here.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        tasks.start_soon(learn)
        listener = await known(there, RUN)
        longest = "é".encode() * (there.max_message_bytes // 2)
        assert await there.send(listener, longest)
        await arrived.wait()
        assert heard == [longest]
        assert not here.listeners(RUN)  # nobody hears of themselves
        assert not there.listeners(RunId("another"))
        tasks.cancel_scope.cancel()
    here.close()
    there.close()


async def test_who_left_for_a_moment_is_another_listener(
    store: PostgresStore, url: str, opened: Open
) -> None:
    """It has missed something: who drives has to know, long before it counts as gone."""
    here, there = store.relay(), (await opened(url)).relay()
    here.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(here.receive)
        tasks.start_soon(there.receive)
        name = await known(there, RUN)
        (before,) = there.listeners(RUN)
        here.stop_listening(RUN)
        here.listen(RUN)
        while (after := there.listeners(RUN)) == [before]:  # noqa: ASYNC110 - it has to say so
            await anyio.sleep(0.01)
        assert [listener.name for listener in after] == [name]
        tasks.cancel_scope.cancel()
    here.close()
    there.close()


async def test_a_relay_outlives_the_server(
    store: PostgresStore, url: str, opened: Open, postgres: Postgres
) -> None:
    """Whoever watches says so again, under the name of the new connection."""
    here, there = store.relay(), (await opened(url)).relay()
    heard = anyio.Event()

    async def listen() -> None:
        await here.receive()
        heard.set()

    async def say() -> None:
        while True:
            for listener in there.listeners(RUN):
                await there.send(listener.name, b"again")
            await anyio.sleep(0.05)

    here.listen(RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(there.receive)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as first:
                first.start_soon(here.receive)
                await known(there, RUN)
                scope.cancel()
        await anyio.to_thread.run_sync(postgres.restart, "immediate")
        tasks.start_soon(listen)
        tasks.start_soon(say)
        await heard.wait()
        tasks.cancel_scope.cancel()
    here.close()
    there.close()


async def test_a_relay_that_nobody_needs_has_no_connection(store: PostgresStore) -> None:
    """A command that only looks opens none for it."""
    relay = store.relay()
    assert isinstance(relay, PostgresRelay)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(relay.receive)
        await anyio.wait_all_tasks_blocked()
        assert relay._connection is None
        tasks.cancel_scope.cancel()
    relay.close()
