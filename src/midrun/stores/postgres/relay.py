"""Carry live deltas to other processes with NOTIFY.

Each process listens to two channels: its own, to which messages for it are sent, and a shared
one, on which it announces every second the runs that are watched there. So the driver of a run
knows which processes want its deltas, and sends nothing if there is none. An announcement has a
number for each run that changes when the run is watched anew; the sender then starts over with
a full state.

The relay has a connection of its own, made at its first use. Deltas are sent through the pool.
The server writes notifications to its disk for a moment, so an encrypted store encrypts them.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import anyio
from anyio.lowlevel import checkpoint

from midrun.core.ids import RunId
from midrun.errors import StoreError
from midrun.ports.platform import read_boot_clock
from midrun.ports.relay import Listener
from midrun.stores.encryption import PayloadCipher
from midrun.stores.postgres import queries
from midrun.stores.postgres.connection import AnswerLost, PostgresAddress, PostgresConnection
from midrun.stores.postgres.pool import RETRY_PAUSE_MAX_S, ConnectionPool

MESSAGE_MAX_BYTES: Final = 7_900
"""The most bytes in one message: Postgres refuses 8000."""

ANNOUNCE_INTERVAL_S: Final = 1.0
"""Seconds between two announcements of the watched runs."""

ANNOUNCEMENT_TTL_S: Final = 3.5
"""Seconds after which an announcement that was not repeated expires."""

SHARED_CHANNEL: Final = "_live"
"""Suffix of the channel that all processes share."""

ANNOUNCE_REQUEST: Final = "?"
"""The message of a process that has just connected: every process shall announce now."""

RUNS_PER_ANNOUNCEMENT: Final = 100
"""The most runs in one announcement: ids have at most 64 characters."""


class PostgresRelay:
    """A `Relay` over a connection of its own, made at its first use."""

    def __init__(
        self, address: PostgresAddress, pool: ConnectionPool, cipher: PayloadCipher
    ) -> None:
        self.max_message_bytes = cipher.limit_live_bytes(MESSAGE_MAX_BYTES)
        self._cipher = cipher
        self._address = address
        self._pool = pool
        self._channel = ""  # suffix of this process's channel; empty while not connected
        self._watched: dict[RunId, int] = {}  # run -> number of its watch
        self._watch_count = 0
        # run -> channel of another process -> (number of its watch, expiry in boot time)
        self._remote_watches: dict[RunId, dict[str, tuple[int, float]]] = {}
        self._inbox: deque[bytes] = deque()
        self._in_use = anyio.Event()  # the relay is in use: connect
        self._watch_added = anyio.Event()  # a run was added: announce at once
        self._connection: PostgresConnection | None = None
        self._announced_at = -ANNOUNCE_INTERVAL_S

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return the channels of the processes that watch `run`."""
        self._in_use.set()
        listening = self._remote_watches.get(run)
        if not listening:
            return ()
        now = read_boot_clock()
        return [
            Listener(name, since) for name, (since, until) in listening.items() if until > now
        ]

    async def send(self, name: str, message: bytes) -> bool:
        """Send a message; ignore a failure, because nothing depends on it."""
        with suppress(StoreError):
            await self._pool.execute(
                queries.NOTIFY,
                {"channel": name, "message": self._cipher.encrypt_live(message).decode()},
            )
        return True

    def listen(self, run: RunId) -> None:
        """Announce at once that `run` is watched here."""
        self._watch_count += 1
        self._watched[run] = self._watch_count
        self._announced_at = -ANNOUNCE_INTERVAL_S
        self._in_use.set()
        self._watch_added.set()

    def stop_listening(self, run: RunId) -> None:
        """Stop announcing `run`; other processes forget it when the announcement expires."""
        self._watched.pop(run, None)

    async def receive(self) -> bytes:
        """Return the next message; reconnect for as long as the server is away."""
        while not self._inbox:
            await self._in_use.wait()
            try:
                if self._connection is None:
                    await self._connect()
                await self._exchange_messages()
            except (AnswerLost, StoreError):
                self._disconnect()
                await anyio.sleep(RETRY_PAUSE_MAX_S)
        return self._inbox.popleft()

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()

    async def _connect(self) -> None:
        self._connection = connection = await PostgresConnection.connect(self._address)
        # The pid of the server process is unique among all live connections, and so is the
        # channel.
        self._channel = f"_{connection.pid}"
        for channel in (SHARED_CHANNEL, self._channel):
            await connection.execute(queries.LISTEN, {"channel": channel})
        await connection.execute(
            queries.NOTIFY, {"channel": SHARED_CHANNEL, "message": ANNOUNCE_REQUEST}
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._channel = None, ""

    async def _exchange_messages(self) -> None:
        """Announce the watched runs if it is time, then wait for messages."""
        assert self._connection is not None
        # A fresh event before the announcement. A run that is added during it sets the event,
        # and the wait below returns at once.
        self._watch_added = anyio.Event()
        if self._watched and read_boot_clock() >= self._announced_at + ANNOUNCE_INTERVAL_S:
            self._announced_at = read_boot_clock()
            for message in self._build_announcements():
                await self._connection.execute(
                    queries.NOTIFY, {"channel": SHARED_CHANNEL, "message": message}
                )
        if self._connection.has_notifications():
            await checkpoint()
        else:
            await self._wait_for_activity(self._connection)
        for channel, text in self._connection.take_notifications():
            if channel.endswith(SHARED_CHANNEL):
                self._handle_announcement(text)
            else:
                # A message under another key is dropped; its text is in the journal soon.
                decrypted = self._cipher.decrypt_live(text.encode())
                self._inbox.extend([] if decrypted is None else [decrypted])

    async def _wait_for_activity(self, connection: PostgresConnection) -> None:
        """Wait for a message, a new watch, or the next announcement time."""
        async with anyio.create_task_group() as tasks:

            async def wait_for_watch() -> None:
                await self._watch_added.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_watch)
            with anyio.move_on_after(ANNOUNCE_INTERVAL_S):
                await connection.wait_readable()
            tasks.cancel_scope.cancel()

    def _build_announcements(self) -> Iterator[str]:
        runs = [f"{run}/{number}" for run, number in sorted(self._watched.items())]
        for start in range(0, len(runs), RUNS_PER_ANNOUNCEMENT):
            yield " ".join([self._channel, *runs[start : start + RUNS_PER_ANNOUNCEMENT]])

    def _handle_announcement(self, text: str) -> None:
        if text == ANNOUNCE_REQUEST:
            self._announced_at = -ANNOUNCE_INTERVAL_S
            return
        name, *runs = text.split(" ")
        if name == self._channel:
            return
        now = read_boot_clock()
        for announced in runs:
            run, _, number = announced.rpartition("/")
            watch = (int(number), now + ANNOUNCEMENT_TTL_S)
            self._remote_watches.setdefault(RunId(run), {})[name] = watch
        # Forget the runs whose announcements have all expired.
        for run in [
            run_id
            for run_id, watches in self._remote_watches.items()
            if all(expires_at < now for _, expires_at in watches.values())
        ]:
            del self._remote_watches[run]
