"""The relay: what is live, carried to other processes by `NOTIFY`.

Each process hears two channels: its own, for what is sent to it, and one that all share, on
which it says every second which runs are watched there, and which of its watches that is. So
who drives a run knows whether anybody elsewhere would hear its words, and sends nothing where
nobody does.
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
"""Bytes in one message: Postgres refuses 8000."""

SAY_S: Final = 1.0
"""How often a process says what is watched there."""

GONE_S: Final = 3.5
"""After how long it counts as gone if it does not."""

SHARED: Final = "_live"
WHO: Final = "?"
"""What one says who has just come: everybody, tell me what you watch."""

RUNS_MAX: Final = 100
"""Runs in one saying: their ids have at most 64 characters."""


class PostgresRelay:
    """A `Relay` over one link of its own, made when it is first needed."""

    def __init__(self, address: Address, links: Links) -> None:
        self.limit = LIMIT
        self._address = address
        self._links = links
        self._name = ""  # our channel's; empty while there is no link
        self._watched: dict[RunId, int] = {}  # since the how manieth watch
        self._watches = 0
        self._elsewhere: dict[RunId, dict[str, tuple[int, float]]] = {}  # since, until
        self._inbox: deque[bytes] = deque()
        self._needed = anyio.Event()  # by somebody who watches here, or has something to tell
        self._begun = anyio.Event()  # somebody has just begun to
        self._link: Link | None = None
        self._said_at = -SAY_S

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return the channels of those who watch `run` elsewhere."""
        self._needed.set()
        listening = self._elsewhere.get(run)
        if not listening:
            return ()
        now = boottime()
        return [
            Listener(name, since) for name, (since, until) in listening.items() if until > now
        ]

    async def send(self, name: str, message: bytes) -> bool:
        """Send a message; one that does not arrive is nobody's loss."""
        with suppress(StoreError):
            await self._links.ask(queries.TELL, {"what": name, "message": message.decode()})
        return True

    def listen(self, run: RunId) -> None:
        """Say at the next occasion, which is now, that `run` is watched here."""
        self._watches += 1
        self._watched[run] = self._watches
        self._said_at = -SAY_S
        self._needed.set()
        self._begun.set()

    def leave(self, run: RunId) -> None:
        """Say it no more; others forget it soon."""
        self._watched.pop(run, None)

    async def receive(self) -> bytes:
        """Return the next message, however often the server goes away meanwhile."""
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
        """Let go of the link."""
        self._hang_up()

    async def _connect(self) -> None:
        self._link = link = await Link.made(self._address)
        self._name = f"_{link.pid}"
        for channel in (SHARED, self._name):
            await link.ask(queries.LISTEN, {"what": channel})
        await link.ask(queries.TELL, {"what": SHARED, "message": WHO})

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.drop()
        self._link, self._name = None, ""

    async def _hear(self) -> None:
        """Say what is watched here if it is time, and wait for what others say."""
        assert self._link is not None
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
        """Wait until something comes in, somebody begins to watch, or it is time to speak."""
        async with anyio.create_task_group() as tasks:

            async def watched() -> None:
                await self._begun.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watched)
            with anyio.move_on_after(SAY_S):
                await link.readable()
            tasks.cancel_scope.cancel()

    def _sayings(self) -> Iterator[str]:
        runs = [f"{run}/{since}" for run, since in sorted(self._watched.items())]
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
        for saying in runs:
            run, _, since = saying.rpartition("/")
            told = (int(since), now + GONE_S)
            self._elsewhere.setdefault(RunId(run), {})[name] = told
        for run in [
            r for r, w in self._elsewhere.items() if all(u < now for _, u in w.values())
        ]:
            del self._elsewhere[run]
