"""The link from the runtime to one zygote: its process, its socket, and who waits for news."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

from anyio import (
    CancelScope,
    ClosedResourceError,
    Lock,
    move_on_after,
    notify_closing,
    to_thread,
    wait_readable,
    wait_writable,
)

from midrun.driver.blocking.places import main_module
from midrun.driver.blocking.wire import (
    Deadline,
    Frames,
    Kill,
    News,
    Request,
    Start,
    Started,
    framed,
    news_of,
)

BOOT: Final = (
    "import sys; control, page, runtime, name, path, *sys.path = sys.argv[1:]; "
    "from midrun.driver.blocking.server import main; "
    "main(int(control), int(page), int(runtime), name, path)"
)
"""Takes over the runtime's `sys.path` before anything is looked for: not even midrun need be
where this interpreter would find it by itself."""

CHUNK: Final = 1 << 16
EXIT_S: Final = 5.0
"""How long a zygote may take to end when it is told to; it takes milliseconds."""


class Party(Protocol):
    """Somebody who has had the zygote start a call."""

    def hear(self, news: News) -> None:
        """Take note of what the zygote says of it."""

    def lose(self) -> None:
        """Take note that the zygote is gone; what it had started has been killed."""


class Link:
    """One zygote, from its start to its end. It is not started again: make another link.

    `variables` are all that its process has as its environment. It kills all calls when
    `deadline.moment` has passed.
    """

    def __init__(self, variables: Mapping[str, str], deadline: float) -> None:
        page = Deadline.open_page()
        self.deadline = Deadline(page)
        self.deadline.moment = deadline
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)  # noqa: FBT003 - the name says it
        try:
            with theirs:
                self._process = _spawn(theirs.fileno(), page, variables)
        finally:
            os.close(page)
        self._sending = Lock(fast_acquire=True)
        self._frames = Frames()
        self._parties: dict[int, Party] = {}
        self._pids: dict[int, int] = {}
        self._last = 0
        self.lost = False

    async def start(self, target: str, end: socket.socket, party: Party) -> int:
        """Have a call started, and give its child `end`; return the call's number.

        If this is cancelled, the call has not been started.
        """
        self._last += 1
        call = self._last
        self._parties[call] = party
        try:
            await self._send(Start(call, target), end)
        except BaseException:
            self.forget(call)
            raise
        return call

    async def kill(self, call: int, number: signal.Signals) -> None:
        """Send a signal to the process group of `call`, if it is still there."""
        if not self.lost:
            await self._send(Kill(call, number))

    def kill_directly(self, call: int) -> None:
        """Kill the process group of `call` without the zygote, which does not do it."""
        if call in self._pids:
            # Still ours: a group keeps its number while it lives, or until it is reaped.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pids[call], signal.SIGKILL)

    async def kill_all(self) -> None:
        """Kill the process groups of all calls that are still there."""
        for call in tuple(self._parties):
            await self.kill(call, signal.SIGKILL)

    def forget(self, call: int) -> None:
        """Tell its party nothing more."""
        self._parties.pop(call, None)
        self._pids.pop(call, None)

    async def listen(self) -> None:
        """Pass on what the zygote says until it is gone. Cancelling this ends the zygote."""
        try:
            while data := await self._receive():
                self._frames.feed(data)
                while (body := self._frames.take()) is not None:
                    self._deliver(news_of(body))
        finally:
            self._lose()
            with CancelScope(shield=True):
                await self._reap()

    async def _send(self, request: Request, end: socket.socket | None = None) -> None:
        data = [framed(request)]
        fds = [] if end is None else [end.fileno()]
        async with self._sending:
            # The zygote may be gone; `listen` tells everybody who has asked for something.
            with suppress(OSError, ClosedResourceError):
                while not self._sent(data, fds):
                    await wait_writable(self._control)

    def _sent(self, data: list[bytes], fds: list[int]) -> bool:
        try:
            socket.send_fds(self._control, data, fds)
        except BlockingIOError:
            return False
        return True

    async def _receive(self) -> bytes:
        while True:
            await wait_readable(self._control)
            try:
                return self._control.recv(CHUNK)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    def _deliver(self, news: News) -> None:
        if news.call in self._parties:
            if isinstance(news, Started):
                self._pids[news.call] = news.pid
            self._parties[news.call].hear(news)

    def _lose(self) -> None:
        self.lost = True
        for call in self._pids:
            self.kill_directly(call)
        for party in list(self._parties.values()):
            party.lose()

    async def _reap(self) -> None:
        notify_closing(self._control)
        self._control.close()  # it kills what still runs, and ends
        with move_on_after(EXIT_S):
            await to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        self._process.kill()
        self._process.wait()


def _spawn(control: int, page: int, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    name, path = main_module()
    places = [str(entry) for entry in sys.path]  # some people put a Path there
    given = [str(control), str(page), str(os.getpid()), name, path]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
        [sys.executable, "-P", "-c", BOOT, *given, *places],
        stdin=subprocess.DEVNULL,
        stdout=_stderr(),
        env=variables,
        pass_fds=(control, page),
        start_new_session=True,
    )


def _stderr() -> int:
    """Return standard error's descriptor, which may be closed; output has no other place."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2
