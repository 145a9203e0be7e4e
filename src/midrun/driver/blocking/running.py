"""A call that runs in a child of the zygote, as the runtime sees it."""

import signal
import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeAlias

from anyio import CancelScope, move_on_after, sleep_forever, wait_readable, wait_writable

from midrun.core.values import Json
from midrun.driver.blocking.errands import Answer, Died, Errand, Outcome, Raised
from midrun.driver.blocking.link import CHUNK, Link
from midrun.driver.blocking.wire import (
    DONE,
    Frames,
    Garbled,
    Gone,
    News,
    Note,
    Refused,
    Said,
    Save,
    Started,
    framed,
    said_of,
)

Saver: TypeAlias = Callable[[Json], Awaitable[None]]
Noter: TypeAlias = Callable[[str], Awaitable[None]]

KILL_S: Final = 5.0
"""How long to wait for the end of a process that was killed. Only one that is stuck in the
kernel needs longer, or one whose zygote is stuck."""


class Running:
    """One call. `ended` is what came of it: None while it runs, and readable after a cancel."""

    def __init__(self, link: Link, end: socket.socket, save: Saver, note: Noter) -> None:
        self.ended: Outcome | None = None
        self._link = link
        self._socket = end
        self._save = save
        self._note = note
        self._call = 0
        self._frames = Frames()
        self._started = False
        self._open = True  # the call's socket, as far as there can be something in it
        self._waiting = CancelScope()
        self._asked: Save | Note | None = None  # what the child waits for
        self._answer: Answer | None = None
        self._garbled = ""
        self._death: Died | None = None

    async def outcome(self) -> Outcome:
        """Return what came of the call, once its process group is gone.

        What the caller's `save` or `note` raises comes out here. May be awaited again, by one
        task at a time.
        """
        while self.ended is None:
            await self._attend()
        return self.ended

    # ── beginning and end, for `Zygote` ──────────────────────────────────────

    async def start(self, target: str, end: socket.socket) -> None:
        """Have the child started, at the other `end`. If this is cancelled, it is not."""
        self._call = await self._link.start(target, end, self)

    async def instruct(self, errand: Errand) -> None:
        """Tell the child what to do, once its process is known.

        Not before: whatever becomes of the zygote, a call that has done anything can be killed,
        and one that was never heard of has done nothing. If this is cancelled, neither has it.
        """
        while not self._started and self._death is None:
            with CancelScope() as self._waiting:
                await sleep_forever()
        await self._send(framed(errand))

    async def stop(self, grace: timedelta) -> None:
        """End the call: SIGTERM, `grace` to come to an end by itself, SIGKILL.

        Returns when its process is reaped. To be shielded; it takes little more than `grace`.
        """
        try:
            if self.ended is None:
                await self._link.kill(self._call, signal.SIGTERM)
                with move_on_after(grace.total_seconds()):
                    await self.outcome()
        finally:
            if self.ended is None:
                await self._kill()
            self._link.forget(self._call)

    async def _kill(self) -> None:
        await self._link.kill(self._call, signal.SIGKILL)
        with move_on_after(KILL_S):
            while self.ended is None:
                await self._hear_child()
        if self.ended is None:
            self._link.kill_directly(self._call)
            stuck = Died(signal=signal.SIGKILL, detail="killed, but nobody saw its process end")
            self.ended = self._answer or stuck

    # ── news from the zygote ─────────────────────────────────────────────────

    def hear(self, news: News) -> None:
        """Take note of what the zygote says of this call."""
        match news:
            case Started():
                self._started = True
                self._waiting.cancel()
            case Refused(kind=kind, message=why, not_found=not_found):
                problem = Raised(kind=kind, message=why, not_found=not_found)
                self._answer = problem if kind else None
                self._die(Died(started=False, detail=why))
            case Gone(code=code) if code < 0:
                self._die(Died(signal=-code, detail=f"killed by {_name(-code)}"))
            case Gone(code=code):
                self._die(Died(exit_code=code, detail=f"exited with {code}, without an answer"))

    def lose(self) -> None:
        """Take note that the zygote is gone, and the call with it."""
        self._die(Died(started=self._started, detail="the process of blocking tools has died"))

    def _die(self, death: Died) -> None:
        self._death = death
        self._waiting.cancel()  # nothing more can come; what has come is still read

    # ── the conversation with the child ──────────────────────────────────────

    async def _attend(self) -> None:
        """Do what the child has asked for, or hear what it says next.

        If this is cancelled, what was asked for is done again the next time.
        """
        match self._asked:
            case None:
                await self._hear_child()
                return
            case Save(progress=progress):
                await self._save(progress)
            case Note(text=text):
                await self._note(text)
        self._asked = None
        await self._send(DONE)

    async def _hear_child(self) -> None:
        try:
            said = await self._next()
        except Garbled as problem:
            # A tool has written to our socket: no answer of it can be believed any more.
            self._garbled = f", as it wrote to a descriptor that is not its own ({problem})"
            self._open = False
            await self._link.kill(self._call, signal.SIGKILL)
            return
        if said is None:
            self.ended = self._ending()
        elif isinstance(said, Save | Note):
            self._asked = said
        else:
            self._answer = said

    def _ending(self) -> Outcome:
        assert self._death is not None
        if not self._garbled:
            return self._answer or self._death
        return Died(signal=self._death.signal, detail=self._death.detail + self._garbled)

    async def _next(self) -> Said | None:
        """Return what the child says next, or None when it is gone and has been heard out."""
        while not self._garbled:
            body = self._frames.take()
            if body is not None:
                return said_of(body)
            if not self._received():
                if self._death is not None:
                    return None
                await self._news()
        while self._death is None:
            await self._news()
        return None

    def _received(self) -> bool:
        """Take what is there to be read, and tell whether there was anything."""
        if not self._open:
            return False
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._frames.feed(data)
        self._open = bool(data)
        return self._open

    async def _news(self) -> None:
        """Wait until there may be something to read, or the child is gone."""
        with CancelScope() as self._waiting:
            if self._open:
                await wait_readable(self._socket)
            else:
                await sleep_forever()

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and self._death is None:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                with CancelScope() as self._waiting:
                    await wait_writable(self._socket)
            except OSError:
                return  # it does not listen any more; its end will be heard of


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
