"""Connections: how many are open at once, in all and from one address.

An IPv6 network of 64 bits, all of which one machine may have, counts as one address.

A connection costs its sender next to nothing, and the server a file descriptor. When a process
has no descriptor left it can accept nothing, open no database and start no tool; asyncio then
logs the same error once per place in the backlog, every second. So connections are bounded
below the descriptor limit, where they are accepted: what comes beyond the bound is closed.

Idle connections must not keep others out. From three quarters of a bound on, each new one
closes the oldest that is idle: it has not sent a request, or has had its reply. So a crowd of
idle connections makes room, and a request that is under way is never closed for another.
"""

import logging
import resource
import socket
from asyncio import TimerHandle, Transport
from collections import Counter
from errno import EMFILE, ENFILE, ENOBUFS, ENOMEM
from time import monotonic
from typing import Final, Protocol

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from midrun.server.limits import network_of

_LOG: Final = logging.getLogger("midrun.server")

EXHAUSTED: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})
FILES_KEPT_SHARE: Final = 4
"""One in so many descriptors, and at least `FILES_KEPT_MIN`, is kept for all other uses."""

FILES_KEPT_MIN: Final = 64
CONNECTIONS_MIN: Final = 8
CONNECTIONS_MAX: Final = 16_384
LOG_EVERY_S: Final = 60.0
RETRY_S: Final = 0.5
"""Asyncio tries again one second after an accept that failed."""


class Idle(Protocol):
    """A connection that can be closed to make room."""

    def abort(self) -> None:
        """Close it at once."""


class Connections:
    """Counts the open connections of one server. A bound of 0 means the default."""

    def __init__(self, most: int = 0, most_per_address: int = 0) -> None:
        self.most = most or connections_max()
        self.most_per_address = most_per_address or max(1, self.most // 2)
        self._count = 0
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Idle, str] = {}  # the oldest first, with its address
        self._refused = 0
        self._told_at = -LOG_EVERY_S

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if a bound is reached."""
        address = network_of(address)
        full = self._count >= self.most
        if full or self._by_address[address] >= self.most_per_address:
            self._refuse(address)
            return False
        self._count += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Count a connection that is closed."""
        address = network_of(address)
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def wait(self, connection: Idle, address: str) -> None:
        """Record that a connection is idle; close the oldest idle one near the bound."""
        address = network_of(address)
        crowded = self._count > _crowded_from(self.most)
        if crowded or self.is_crowded(address):
            others = (one for one, at in self._idle.items() if crowded or at == address)
            if (oldest := next(others, None)) is not None:
                del self._idle[oldest]
                oldest.abort()
        self._idle[connection] = address

    def is_crowded(self, address: str) -> bool:
        """Tell whether a new connection of `address` makes an idle one close."""
        there = self._by_address[network_of(address)]
        return self._count > _crowded_from(self.most) or there > _crowded_from(
            self.most_per_address
        )

    def work(self, connection: Idle) -> None:
        """Note that a connection is not idle: a request is under way, or it is closed."""
        self._idle.pop(connection, None)

    def _refuse(self, address: str) -> None:
        self._refused += 1
        if monotonic() - self._told_at < LOG_EVERY_S:
            return
        self._told_at = monotonic()
        _LOG.warning(
            "Closed %d new connections, the last from %s: at most %d may be open, %d from one "
            "address. Raise the limit of open files (ulimit -n) or Limits.connections.",
            self._refused,
            address,
            self.most,
            self.most_per_address,
        )
        self._refused = 0


def connections_max() -> int:
    """Return how many connections the descriptor limit of this process leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    kept = max(FILES_KEPT_MIN, soft // FILES_KEPT_SHARE)
    return min(CONNECTIONS_MAX, max(CONNECTIONS_MIN, soft - kept))


def _crowded_from(most: int) -> int:
    return most - most // 4


class Listener(socket.socket):
    """A listening socket that closes accepted connections beyond the bound."""

    connections: Connections | None = None
    _exhausted_at = -LOG_EVERY_S
    _must_yield = False

    def accept(self) -> "tuple[socket.socket, tuple[str, int]]":
        """Return the next connection that there is room for.

        Asyncio calls this for all that wait in the backlog before it serves the first of them.
        An idle connection is known as idle only when it is served, and can only then make room.
        So in a crowd every second call finds nothing, which ends asyncio's loop of calls: each
        connection is served before the next is accepted, and a burst of idle connections does
        not reach the bound at which a request that comes with it would be closed.

        Raises:
            BlockingIOError: there is none.
            OSError: the system has no descriptor left. Asyncio logs it, and goes on to call
                this once for each place in the backlog: those calls find nothing.
        """
        if self._must_yield or monotonic() - self._exhausted_at < RETRY_S:
            self._must_yield = False
            raise BlockingIOError
        while True:
            try:
                fd, address = self._accept()  # type: ignore[attr-defined]  # as `socket.accept` does
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._exhausted_at = monotonic()
                raise
            made = _Accepted(self.family, self.type, self.proto, fileno=fd)
            if self.connections is None:
                return made, address
            if made.join(self.connections, str(address[0])):
                self._must_yield = self.connections.is_crowded(str(address[0]))
                return made, address
            made.close()


class _Accepted(socket.socket):
    """A connection that is counted until it is closed."""

    _of: Connections | None = None
    _address = ""

    def join(self, connections: Connections, address: str) -> bool:
        if not connections.admit(address):
            return False
        self._of, self._address = connections, address
        return True

    def close(self) -> None:
        super().close()
        connections, self._of = self._of, None
        if connections is not None:
            connections.leave(self._address)


# Patience: how long a connection may take to say what it wants.
#
# Uvicorn waits for ever for the rest of a request's headers, and a connection costs whoever
# opens it next to nothing. So it has a bound: from when it is accepted, or from the first byte
# after a reply, until the headers are complete. What comes after them is bounded by the app,
# and what lies between two requests by uvicorn.


def patient(seconds: float, connections: Connections) -> type[H11Protocol]:
    """Return uvicorn's protocol, with a bound on how long headers may take.

    `connections` is told which of them are idle.
    """

    class Patient(PatientProtocol):
        headers_s = seconds
        bound = connections

    return Patient


class PatientProtocol(H11Protocol):
    """Uvicorn's protocol, which waits `headers_s` for headers, and says when it is idle."""

    headers_s: float
    bound: Connections
    _deadline: TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # as uvicorn has it
        self, transport: Transport
    ) -> None:
        """Wait for the headers of the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.headers_s, transport.close)
        self._rest()

    def data_received(self, data: bytes) -> None:
        """Take in bytes; from the first of a request on, its headers have a deadline."""
        super().data_received(data)
        if self._is_asked():
            self._come()
            self.bound.work(self)
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.headers_s, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._come()
        self.bound.work(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has come already."""
        super().on_response_complete()
        if not self._is_asked() and not self.transport.is_closing():
            self._rest()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _rest(self) -> None:
        peer = self.transport.get_extra_info("peername")
        self.bound.wait(self, str(peer[0]) if peer else "")

    def _is_asked(self) -> bool:
        """Tell whether a request is under way: its headers have come, its reply has not."""
        asked: RequestResponseCycle | None = self.cycle  # None before the first
        return asked is not None and not asked.response_complete

    def _come(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
