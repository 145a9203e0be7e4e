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

from midrun.server.limits import get_sender_network

_LOG: Final = logging.getLogger("midrun.server")

EXHAUSTION_ERRNOS: Final = frozenset({EMFILE, ENFILE, ENOBUFS, ENOMEM})
RESERVED_FILES_DIVISOR: Final = 4
"""One in this many descriptors, and at least `RESERVED_FILES_MIN`, is left for other uses."""

RESERVED_FILES_MIN: Final = 64
CONNECTIONS_MIN: Final = 8
CONNECTIONS_MAX: Final = 16_384
LOG_INTERVAL_S: Final = 60.0
ACCEPT_RETRY_S: Final = 0.5
"""Seconds without accepting after descriptors ran out; asyncio itself retries after 1 s."""


class AbortableConnection(Protocol):
    """A connection that can be closed to make room."""

    def abort(self) -> None:
        """Close the connection at once."""


class Connections:
    """Counts the open connections of one server. A bound of 0 means the default bound."""

    def __init__(self, max_open: int = 0, max_per_address: int = 0) -> None:
        self.max_open = max_open or derive_connections_max()
        self.max_per_address = max_per_address or max(1, self.max_open // 2)
        self._count = 0
        self._by_address: Counter[str] = Counter()
        # Connection → its address, oldest first.
        self._idle: dict[AbortableConnection, str] = {}
        self._refused_count = 0
        self._logged_at = -LOG_INTERVAL_S

    def admit(self, address: str) -> bool:
        """Count a new connection; return False if a bound is reached."""
        address = get_sender_network(address)
        # Called inside `accept`, before the connection costs more than its descriptor.
        full = self._count >= self.max_open
        # The bound of one address is below the total: one client cannot take all places.
        if full or self._by_address[address] >= self.max_per_address:
            self._refuse(address)
            return False
        self._count += 1
        self._by_address[address] += 1
        return True

    def release(self, address: str) -> None:
        """Stop counting a connection that was closed."""
        address = get_sender_network(address)
        self._count -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def mark_idle(self, connection: AbortableConnection, address: str) -> None:
        """Record that a connection is idle; close the oldest idle one near a bound.

        Near the total bound that is the oldest of all; near the bound of one address, the
        oldest of that address, so that an address cannot close the connections of others.
        """
        address = get_sender_network(address)
        crowded = self._count > _compute_crowd_threshold(self.max_open)
        if crowded or self.is_crowded(address):
            others = (each for each, at in self._idle.items() if crowded or at == address)
            if (oldest := next(others, None)) is not None:
                del self._idle[oldest]
                oldest.abort()
        self._idle[connection] = address

    def is_crowded(self, address: str) -> bool:
        """Return whether a new connection of `address` closes an idle one."""
        there = self._by_address[get_sender_network(address)]
        return self._count > _compute_crowd_threshold(
            self.max_open
        ) or there > _compute_crowd_threshold(self.max_per_address)

    def mark_busy(self, connection: AbortableConnection) -> None:
        """Record that a connection is no longer idle: it has a request, or was closed."""
        self._idle.pop(connection, None)

    def _refuse(self, address: str) -> None:
        # One line per minute with the count: an attacker must not be able to fill the log.
        self._refused_count += 1
        if monotonic() - self._logged_at < LOG_INTERVAL_S:
            return
        self._logged_at = monotonic()
        _LOG.warning(
            "Closed %d new connections, the last from %s: at most %d may be open, %d from one "
            "address. Raise the limit of open files (ulimit -n) or Limits.connections.",
            self._refused_count,
            address,
            self.max_open,
            self.max_per_address,
        )
        self._refused_count = 0


def derive_connections_max() -> int:
    """Return the number of connections that the descriptor limit of this process allows."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    reserved = max(RESERVED_FILES_MIN, soft // RESERVED_FILES_DIVISOR)
    return min(CONNECTIONS_MAX, max(CONNECTIONS_MIN, soft - reserved))


def _compute_crowd_threshold(bound: int) -> int:
    return bound - bound // 4


class BoundedListener(socket.socket):
    """A listening socket that closes accepted connections beyond the bound."""

    connections: Connections | None = None
    _exhausted_at = -LOG_INTERVAL_S
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
            OSError: the process has no descriptor left. Asyncio logs it, and continues to call
                this once for each place in the backlog; those calls raise `BlockingIOError`,
                so that the error is logged once and not thousands of times.
        """
        if self._must_yield or monotonic() - self._exhausted_at < ACCEPT_RETRY_S:
            self._must_yield = False
            raise BlockingIOError
        while True:
            try:
                fd, address = self._accept()  # type: ignore[attr-defined]  # like socket.accept
            except OSError as error:
                if error.errno in EXHAUSTION_ERRNOS:
                    self._exhausted_at = monotonic()
                raise
            accepted = _CountedSocket(self.family, self.type, self.proto, fileno=fd)
            if self.connections is None:
                return accepted, address
            if accepted.admit(self.connections, str(address[0])):
                self._must_yield = self.connections.is_crowded(str(address[0]))
                return accepted, address
            accepted.close()


class _CountedSocket(socket.socket):
    """A connection that is counted until it is closed.

    The count ends in `close`, because every way to end a connection leads there.
    """

    _connections: Connections | None = None
    _address = ""

    def admit(self, connections: Connections, address: str) -> bool:
        if not connections.admit(address):
            return False
        self._connections, self._address = connections, address
        return True

    def close(self) -> None:
        super().close()
        # The reference is dropped, so that a second close counts nothing.
        connections, self._connections = self._connections, None
        if connections is not None:
            connections.release(self._address)


# A timeout for request headers.
#
# Uvicorn waits without a limit for the rest of a request's headers (the "slow loris" attack).
# Here they have a deadline, from the accept, or from the first byte after a reply, until they
# are complete. The time for the body is bounded by `RequestContext.read_body`, and the time
# between two requests by uvicorn's keep-alive timeout.


def make_protocol(timeout_s: float, connections: Connections) -> type[H11Protocol]:
    """Return uvicorn's protocol with a timeout of `timeout_s` for headers.

    The protocol reports to `connections` when it is idle. Uvicorn makes the instances itself,
    so both settings are attributes of a class.
    """

    class ConfiguredProtocol(HeaderTimeoutProtocol):
        header_timeout_s = timeout_s
        connection_counter = connections

    return ConfiguredProtocol


class HeaderTimeoutProtocol(H11Protocol):
    """Uvicorn's protocol with a timeout for headers; it reports when it is idle."""

    header_timeout_s: float
    connection_counter: Connections
    _deadline: TimerHandle | None = None

    def connection_made(  # type: ignore[override]  # uvicorn narrows the type, too
        self, transport: Transport
    ) -> None:
        """Start the deadline for the headers of the first request."""
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.header_timeout_s, transport.close)
        self._mark_idle()

    def data_received(self, data: bytes) -> None:
        """Parse bytes; start the deadline at the first byte of a request's headers."""
        super().data_received(data)  # parses; complete headers start a request cycle
        if self._has_open_request():
            self._cancel_deadline()
            self.connection_counter.mark_busy(self)
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.header_timeout_s, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline and stop counting the connection as idle."""
        self._cancel_deadline()
        self.connection_counter.mark_busy(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Record the connection as idle, unless a pipelined request has arrived already."""
        super().on_response_complete()
        if not self._has_open_request() and not self.transport.is_closing():
            self._mark_idle()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _mark_idle(self) -> None:
        peer = self.transport.get_extra_info("peername")
        self.connection_counter.mark_idle(self, str(peer[0]) if peer else "")

    def _has_open_request(self) -> bool:
        """Return whether a request is under way: headers complete, reply not complete."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
