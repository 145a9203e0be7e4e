"""Patience: how long a connection may take to say what it wants.

Uvicorn waits for ever for the rest of a request's headers, and a connection costs whoever opens
it next to nothing. So it has a bound: from when it is accepted, or from the first byte after a
reply, until the headers are complete. What comes after them is bounded by the app, and what
lies between two requests by uvicorn.
"""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle


def patient(seconds: float) -> type[H11Protocol]:
    """Return uvicorn's protocol, with a bound on how long headers may take."""

    class Patient(H11Protocol):
        _deadline: TimerHandle | None = None

        def connection_made(  # type: ignore[override]  # as uvicorn has it
            self, transport: Transport
        ) -> None:
            super().connection_made(transport)
            self._deadline = self.loop.call_later(seconds, transport.close)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._is_asked():
                self._come()
            elif self._deadline is None:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

        def connection_lost(self, exc: Exception | None) -> None:
            self._come()
            super().connection_lost(exc)

        def _is_asked(self) -> bool:
            """Tell whether a request is under way: its headers have come, its reply has not."""
            asked: RequestResponseCycle | None = self.cycle  # None before the first
            return asked is not None and not asked.response_complete

        def _come(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Patient
