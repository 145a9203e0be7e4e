"""A bell: rung by whoever has news, waited for by the one who takes them."""

import anyio


class Bell:
    """Remembers that it was rung until somebody has waited for it."""

    __slots__ = ("_event", "_rung")

    def __init__(self) -> None:
        self._rung = False
        self._event: anyio.Event | None = None

    def ring(self) -> None:
        """Wake the one who waits, or whoever waits next."""
        self._rung = True
        if self._event is not None:
            self._event.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Return when it was rung since the last time, or when so much time has passed."""
        if not self._rung:
            self._event = anyio.Event()
            try:
                if seconds is None:
                    await self._event.wait()
                else:
                    with anyio.move_on_after(max(seconds, 0.0)):
                        await self._event.wait()
            finally:
                self._event = None
        self._rung = False
