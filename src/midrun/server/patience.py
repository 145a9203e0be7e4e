"""Patience: how long a connection may take to say what it wants.

Uvicorn waits for ever for the rest of a request's headers, and a connection costs whoever opens
it next to nothing. So it has a bound: from when it is accepted, or from the first byte after a
reply, until the headers are complete. What comes after them is bounded by the app, and what
lies between two requests by uvicorn.
"""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from midrun.server.connections import Connections


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
