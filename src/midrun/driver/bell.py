"""A bell: rung by whoever has news, waited for by the one who takes them."""

from asyncio import Future, get_running_loop

import anyio


class Bell:
    """Remembers that it was rung until somebody has waited for it.

    Every step of every run waits for one: a bare future costs a third of an event.
    """

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: Future[None] | None = None

    def ring(self) -> None:
        """Wake the one who waits, or whoever waits next."""
        self._rung = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None = None) -> None:
        """Return when it was rung since the last time, or when so much time has passed."""
        if not self._rung:
            self._waiter = get_running_loop().create_future()
            try:
                if seconds is None:
                    await self._waiter
                else:
                    with anyio.move_on_after(max(seconds, 0.0)):
                        await self._waiter
            finally:
                self._waiter = None
        self._rung = False
