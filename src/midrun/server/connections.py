"""Bounds on open connections (in total and per address), and on the time for headers.

A connection costs its sender almost nothing, and the server a file descriptor. A process
without a free descriptor cannot accept a connection, open a database or start a tool; asyncio
then logs the same error once per place in the backlog, every second. So connections are bounded
below the descriptor limit. A connection beyond the bound is closed as soon as it is accepted.

Idle connections must not keep others out. Above three quarters of a bound, each new connection
closes the oldest idle one: a connection that has not sent a request yet, or has received its
reply. A connection whose request is under way is never closed to make room.

An IPv6 network of 64 bits counts as one address: one machine may use all of it.
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
"""One in this many descriptors, and at least `RESERVED_FILES_MIN`, is left for other uses."""

FILES_KEPT_MIN: Final = 64
CONNECTIONS_MIN: Final = 8
CONNECTIONS_MAX: Final = 16_384
LOG_EVERY_S: Final = 60.0
RETRY_S: Final = 0.5
"""Seconds without accepting after descriptors ran out; asyncio itself retries after 1 s."""


class Idle(Protocol):
    """A connection that can be closed to make room."""

    def abort(self) -> None:
        """Close the connection at once."""


class Connections:
    """Counts the open connections of one server. A bound of 0 means the default bound."""

    def __init__(self, most: int = 0, most_per_address: int = 0) -> None:
        self.most = most or connections_max()
        self.most_per_address = most_per_address or max(1, self.most // 2)
        self._count = 0
        self._by_address: Counter[str] = Counter()
        self._idle: dict[Idle, str] = {}  # connection → its address, oldest first
        self._refused = 0
        self._told_at = -LOG_EVERY_S

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if a bound is reached."""
        address = network_of(address)
        # Called inside `accept`, before the connection costs more than its descriptor.
        full = self._count >= self.most
        if full or self._by_address[address] >= self.most_per_address:
            self._refuse(address)
            return False
        self._count += 1
        self._by_address[address] += 1
        return True

    def leave(self, address: str) -> None:
        """Stop counting a connection that was closed."""
        address = network_of(address)
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def wait(self, connection: Idle, address: str) -> None:
        """Record that a connection is idle; close the oldest idle one near a bound.

        Near the total bound that is the oldest of all; near the bound of one address, the
        oldest of that address, so that an address cannot close the connections of others.
        """
        address = network_of(address)
        crowded = self._count > _crowded_from(self.most)
        if crowded or self.is_crowded(address):
            others = (each for each, at in self._idle.items() if crowded or at == address)
            if (oldest := next(others, None)) is not None:
                del self._idle[oldest]
                oldest.abort()
        self._idle[connection] = address

    def is_crowded(self, address: str) -> bool:
        """Return whether a new connection of `address` closes an idle one."""
        there = self._by_address[network_of(address)]
        return self._count > _crowded_from(self.most) or there > _crowded_from(
            self.most_per_address
        )

    def work(self, connection: Idle) -> None:
        """Record that a connection is no longer idle: it has a request, or was closed."""
        self._idle.pop(connection, None)

    def _refuse(self, address: str) -> None:
        # One line per minute with the count: an attacker must not be able to fill the log.
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
    """Return the number of connections that the descriptor limit of this process allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    reserved = max(FILES_KEPT_MIN, soft // FILES_KEPT_SHARE)
    return min(CONNECTIONS_MAX, max(CONNECTIONS_MIN, soft - reserved))


def _crowded_from(most: int) -> int:
    return most - most // 4


class Listener(socket.socket):
    """A listening socket that closes accepted connections beyond the bound."""

    connections: Connections | None = None
    _exhausted_at = -LOG_EVERY_S
    _must_yield = False

    def accept(self) -> "tuple[socket.socket, tuple[str, int]]":
        """Accept and return the next connection within the bounds.

        Asyncio calls this in a loop for the whole backlog before it serves the first of the new
        connections. But a connection is recorded as idle, and can be closed to make room, only
        once it is served. So near a bound every second call raises `BlockingIOError`, which
        ends asyncio's loop: each connection is served before the next is accepted. A burst of
        idle connections then closes older idle ones, and does not reach the bound at which a
        connection with a request would be refused.

        Raises:
            BlockingIOError: no connection is waiting, or the loop of calls has to end.
            OSError: the process has no descriptor left. Asyncio logs it, and goes on to call
                this once for each place in the backlog; those calls raise `BlockingIOError`,
                so that the error is logged once and not thousands of times.
        """
        if self._must_yield or monotonic() - self._exhausted_at < RETRY_S:
            self._must_yield = False
            raise BlockingIOError
        while True:
            try:
                fd, address = self._accept()  # type: ignore[attr-defined]  # like socket.accept
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self._exhausted_at = monotonic()
                raise
            accepted = _Accepted(self.family, self.type, self.proto, fileno=fd)
            if self.connections is None:
                return accepted, address
            if accepted.join(self.connections, str(address[0])):
                self._must_yield = self.connections.is_crowded(str(address[0]))
                return accepted, address
            accepted.close()


class _Accepted(socket.socket):
    """A connection that is counted until it is closed.

    The count ends in `close`, because every way to end a connection leads there.
    """

    _of: Connections | None = None
    _address = ""

    def join(self, connections: Connections, address: str) -> bool:
        if not connections.admit(address):
            return False
        self._of, self._address = connections, address
        return True

    def close(self) -> None:
        super().close()
        connections, self._of = self._of, None  # a second close counts nothing
        if connections is not None:
            connections.leave(self._address)


# A timeout for request headers.
#
# Uvicorn waits without a limit for the rest of a request's headers (the "slow loris" attack).
# Here they have a deadline, from the accept, or from the first byte after a reply, until they
# are complete. The time for the body is bounded by `RequestContext.read_body`, and the time
# between two requests by uvicorn's keep-alive timeout.


def patient(seconds: float, connections: Connections) -> type[H11Protocol]:
    """Return uvicorn's protocol with a timeout of `header_timeout_s` for headers.

    The protocol reports to `connections` when it is idle. Uvicorn makes the instances itself,
    so both settings are attributes of a class.
    """

    class ConfiguredProtocol(PatientProtocol):
        headers_s = seconds
        bound = connections

    return ConfiguredProtocol


class PatientProtocol(H11Protocol):
    """Uvicorn's protocol with a timeout for headers; it reports when it is idle."""

    headers_s: float
    bound: Connections
    _deadline: TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # uvicorn narrows the type, too
        self, transport: Transport
    ) -> None:
        """Start the deadline for the headers of the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.headers_s, transport.close)
        self._rest()

    def data_received(self, data: bytes) -> None:
        """Parse bytes; start the deadline at the first byte of a request's headers."""
        super().data_received(data)  # parses; complete headers start a request cycle
        if self._is_asked():
            self._come()
            self.bound.work(self)
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.headers_s, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline and stop counting the connection as idle."""
        self._come()
        self.bound.work(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Record the connection as idle, unless a pipelined request has arrived already."""
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
        """Return whether a request is under way: headers complete, reply not complete."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _come(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
