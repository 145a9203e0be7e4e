"""The zygote as the runtime holds it: started when it is needed, again if it was killed."""

import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Final, Protocol, Self, TypeAlias

from anyio import (
    CancelScope,
    ClosedResourceError,
    Lock,
    create_task_group,
    move_on_after,
    notify_closing,
    sleep_forever,
    to_thread,
    wait_readable,
    wait_writable,
)
from anyio.abc import TaskGroup

from midrun.agents.tool_environment import NOTHING_DECLARED, ToolEnvironment
from midrun.core.values import Json
from midrun.driver.subprocess.function_lookup import main_module, refuse_while_importing
from midrun.driver.subprocess.protocol import (
    DONE,
    TARGET_MAX,
    Answer,
    Deadline,
    Died,
    Errand,
    Frames,
    Garbled,
    Gone,
    Kill,
    News,
    Note,
    Outcome,
    Raised,
    Refused,
    Request,
    Said,
    Save,
    Start,
    Started,
    framed,
    news_of,
    said_of,
)
from midrun.errors import Misconfigured

# The link from the runtime to one zygote: its process, its socket, and who waits for news.

BOOT: Final = (
    "import sys; control, page, runtime, name, path, *sys.path = sys.argv[1:]; "
    "from midrun.driver.subprocess.zygote_server import main; "
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


# A call that runs in a child of the zygote, as the runtime sees it.

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


class Zygote:
    """Runs blocking functions in processes that can be killed. An async context manager.

    Functions are named by place and found by importing their modules there, so they share no
    memory with the runtime, nor with each other. They see the working directory that the
    runtime had at the first call, and of its environment only what is declared for them: each
    declared environment has a process of its own that imports the modules, so that a module
    finds its variables when it is imported, and no function finds those of another.

    Make it before the runtime does anything else. A script that runs its agent outside
    `if __name__ == "__main__":` is found out by that, before it does anything twice.

    Raises:
        Misconfigured: processes cannot be forked here, or this is a zygote that is importing
            the module of a tool.
    """

    def __init__(self) -> None:
        refuse_while_importing()
        if not hasattr(os, "fork") or not sys.executable:
            raise Misconfigured(
                "blocking tools",
                "this system cannot fork processes for them; declare them in_process=True",
            )
        self._group: TaskGroup | None = None
        self._links: dict[ToolEnvironment, Link] = {}
        self._deadline = math.inf

    async def __aenter__(self) -> Self:
        self._group = await create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(kind, error, trace)

    def set_deadline(self, moment: float) -> None:
        """Have all calls killed at `moment`, by `boottime`, unless it is moved before.

        The zygote does that, so it happens although this process is frozen. May be called
        from any thread; a runtime that never calls it has no deadline.
        """
        self._deadline = moment
        for link in tuple(self._links.values()):
            link.deadline.moment = moment

    async def kill_calls(self) -> None:
        """Kill all calls at once, without their grace."""
        for link in tuple(self._links.values()):
            await link.kill_all()

    @asynccontextmanager
    async def running(
        self,
        errand: Errand,
        *,
        save: Saver,
        note: Noter,
        grace: timedelta,
        environment: ToolEnvironment = NOTHING_DECLARED,
    ) -> AsyncIterator[Running]:
        """Run a function; leaving the context ends it, however it is left.

        If it has not ended by then, it gets SIGTERM, `grace` to come to an end by itself, and
        SIGKILL; the context is left when its process is reaped. `Running.ended` tells what came
        of it, also after a cancel, to be read when the context has been left: a function that
        finished within its grace has returned. If entering is cancelled, it was not run.

        `save` and `note` are awaited one at a time for what the function saves and notes; it
        goes on when they return, and is ended if they raise.
        """
        _check(errand.target)
        mine, theirs = socket.socketpair()
        with mine:
            mine.setblocking(False)  # noqa: FBT003 - the name says it
            call = Running(self._link_for(environment), mine, save, note)
            with theirs:
                await call.start(errand.target, theirs)
            try:
                await call.instruct(errand)
                yield call
            finally:
                with CancelScope(shield=True):
                    await call.stop(grace)

    async def run(
        self, errand: Errand, *, save: Saver, note: Noter, grace: timedelta
    ) -> Outcome:
        """Run a function to its end: `running` for those who do not ask after a cancel."""
        async with self.running(errand, save=save, note=note, grace=grace) as call:
            return await call.outcome()

    def _link_for(self, environment: ToolEnvironment) -> Link:
        assert self._group is not None, "enter the zygote's context first"
        link = self._links.get(environment)
        if link is None or link.lost:
            link = self._links[environment] = Link(environment.variables(), self._deadline)
            self._group.start_soon(link.listen, name="zygote")
        return link


def _check(target: str) -> None:
    if len(target) > TARGET_MAX:
        raise Misconfigured(target[:80] + "…", f"a place has at most {TARGET_MAX} characters")
