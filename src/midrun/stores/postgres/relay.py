"""Carry live deltas to other processes with NOTIFY.

Each process listens to two channels: its own, to which messages for it are sent, and a shared
one, on which it announces every second the runs that are watched there. So the driver of a run
knows which processes want its deltas, and sends nothing if there is none. An announcement has a
number for each run that changes when the run is watched anew; the sender then starts over with
a full state.

The relay has a connection of its own, made at its first use. Deltas are sent through the pool.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from midrun.core.ids import RunId
from midrun.errors import StoreError
from midrun.ports.environment import boottime
from midrun.ports.relay import Listener
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import Address, Link, Lost
from midrun.stores.postgres.pool import PAUSE_MAX_S, Links

LIMIT: Final = 7_900
"""The most bytes in one message: Postgres refuses 8000."""

SAY_S: Final = 1.0
"""Seconds between two announcements of the watched runs."""

GONE_S: Final = 3.5
"""Seconds after which an announcement that was not repeated expires."""

SHARED: Final = "_live"
"""Suffix of the channel that all processes share."""

WHO: Final = "?"
"""The message of a process that has just connected: every process shall announce now."""

RUNS_MAX: Final = 100
"""The most runs in one announcement: ids have at most 64 characters."""


class PostgresRelay:
    """A `Relay` over a connection of its own, made at its first use."""

    def __init__(self, address: Address, links: Links) -> None:
        self.limit = LIMIT
        self._address = address
        self._links = links
        self._name = ""  # suffix of this process's channel; empty while not connected
        self._watched: dict[RunId, int] = {}  # run -> number of its watch
        self._watches = 0
        # run -> channel of another process -> (number of its watch, expiry in boot time)
        self._elsewhere: dict[RunId, dict[str, tuple[int, float]]] = {}
        self._inbox: deque[bytes] = deque()
        self._needed = anyio.Event()  # the relay is in use: connect
        self._begun = anyio.Event()  # a run was added: announce at once
        self._link: Link | None = None
        self._said_at = -SAY_S

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return the channels of the processes that watch `run`."""
        self._needed.set()
        listening = self._elsewhere.get(run)
        if not listening:
            return ()
        now = boottime()
        return [
            Listener(name, since) for name, (since, until) in listening.items() if until > now
        ]

    async def send(self, name: str, message: bytes) -> bool:
        """Send a message; ignore a failure, because nothing depends on it."""
        with suppress(StoreError):
            await self._links.ask(queries.TELL, {"what": name, "message": message.decode()})
        return True

    def listen(self, run: RunId) -> None:
        """Announce at once that `run` is watched here."""
        self._watches += 1
        self._watched[run] = self._watches
        self._said_at = -SAY_S
        self._needed.set()
        self._begun.set()

    def leave(self, run: RunId) -> None:
        """Stop announcing `run`; other processes forget it when the announcement expires."""
        self._watched.pop(run, None)

    async def receive(self) -> bytes:
        """Return the next message; reconnect for as long as the server is away."""
        while not self._inbox:
            await self._needed.wait()
            try:
                if self._link is None:
                    await self._connect()
                await self._hear()
            except (Lost, StoreError):
                self._hang_up()
                await anyio.sleep(PAUSE_MAX_S)
        return self._inbox.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._hang_up()

    async def _connect(self) -> None:
        self._link = connection = await Link.made(self._address)
        # The pid of the server process is unique among all live connections, and so is the
        # channel.
        self._name = f"_{connection.pid}"
        for channel in (SHARED, self._name):
            await connection.ask(queries.LISTEN, {"what": channel})
        await connection.ask(queries.TELL, {"what": SHARED, "message": WHO})

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.drop()
        self._link, self._name = None, ""

    async def _hear(self) -> None:
        """Announce the watched runs if it is time, then wait for messages."""
        assert self._link is not None
        # A fresh event before the announcement. A run that is added during it sets the event,
        # and the wait below returns at once.
        self._begun = anyio.Event()
        if self._watched and boottime() >= self._said_at + SAY_S:
            self._said_at = boottime()
            for message in self._sayings():
                await self._link.ask(queries.TELL, {"what": SHARED, "message": message})
        if self._link.unheard():
            await checkpoint()
        else:
            await self._stirs(self._link)
        for channel, text in self._link.heard():
            if channel.endswith(SHARED):
                self._learn(text)
            else:
                self._inbox.append(text.encode())

    async def _stirs(self, link: Link) -> None:
        """Wait for a message, a new watch, or the next announcement time."""
        async with anyio.create_task_group() as tasks:

            async def wait_for_watch() -> None:
                await self._begun.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_watch)
            with anyio.move_on_after(SAY_S):
                await link.readable()
            tasks.cancel_scope.cancel()

    def _sayings(self) -> Iterator[str]:
        runs = [f"{run}/{number}" for run, number in sorted(self._watched.items())]
        for start in range(0, len(runs), RUNS_MAX):
            yield " ".join([self._name, *runs[start : start + RUNS_MAX]])

    def _learn(self, text: str) -> None:
        if text == WHO:
            self._said_at = -SAY_S
            return
        name, *runs = text.split(" ")
        if name == self._name:
            return
        now = boottime()
        for announced in runs:
            run, _, number = announced.rpartition("/")
            watch = (int(number), now + GONE_S)
            self._elsewhere.setdefault(RunId(run), {})[name] = watch
        # Forget the runs whose announcements have all expired.
        for run in [
            run_id
            for run_id, watches in self._elsewhere.items()
            if all(expires_at < now for _, expires_at in watches.values())
        ]:
            del self._elsewhere[run]
