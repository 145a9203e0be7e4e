"""The worker's side of the zygote: start it, start calls in it, stop calls, read outcomes.

- `Zygote` is the public object: one for each worker. It starts a zygote process for each
  declared environment when the first call needs it, and again if it was killed.
- `ZygoteProcess` is one such process with its socket. It delivers the reports of the process to
  the call that they are about.
- `ProcessCall` is one call in a child. It talks to the child over the call's own socket and
  keeps the outcome.

**One call.** `Zygote.run_process` creates a socket pair, has a child forked that inherits one
end, waits until the child's process id is known, and only then sends the task. This order makes
the crash cases simple: a child that has done anything is known by its process id and can be
killed, whatever becomes of the zygote; a child that was never reported has done nothing.

**The end.** The outcome is the child's answer, if it sent one, and else the way it died. It is
taken only when the zygote has reaped the child *and* the socket is read to its end: the report
of the death may overtake the answer, which is on another socket.

**Cancellation.** Leaving the context of `run_process` ends the call: SIGTERM, the grace,
SIGKILL, and a wait until the process is reaped, all behind a shield.
`ProcessCall.final_outcome` has the outcome after that, also if the caller was cancelled.
"""

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

BOOT: Final = (
    "import sys; control, page, runtime, name, path, *sys.path = sys.argv[1:]; "
    "from midrun.driver.subprocess.zygote_server import main; "
    "main(int(control), int(page), int(runtime), name, path)"
)
"""The program of the zygote. It takes over the worker's `sys.path` before it imports midrun,
which this interpreter might not find by itself."""

CHUNK: Final = 1 << 16
"""Bytes that one `recv` reads at most."""

EXIT_S: Final = 5.0
"""Seconds that a zygote may take to exit when its socket is closed; milliseconds are usual."""


class Party(Protocol):
    """A call that is told about the reports of the zygote."""

    def hear(self, news: News) -> None:
        """Handle a report about this call."""

    def lose(self) -> None:
        """Handle the loss of the zygote; its children have been killed."""


class Link:
    """One zygote process and its socket. After its end it is not started again.

    `variables` are the whole environment of the process. It kills all calls when
    `deadline.moment` has passed.
    """

    def __init__(self, variables: Mapping[str, str], deadline: float) -> None:
        page = Deadline.open_page()
        self.deadline = Deadline(page)
        self.deadline.moment = deadline
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)  # noqa: FBT003 - the name says it
        # Close our copies of the zygote's descriptors: a copy of its socket end here would keep
        # the socket open after its death.
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
        """Ask for a child process that inherits `child_socket`; return the number of the call.

        If this is cancelled, no child is started.
        """
        # A number, not a process id: the call must be known by it before its process exists.
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
        """Have the zygote signal the process group of `call`, if it still exists."""
        if not self.lost:
            await self._send(Kill(call, number))

    def kill_directly(self, call: int) -> None:
        """Kill the process group of `call` without the zygote, which is gone or stuck."""
        if call in self._pids:
            # The number still belongs to this call: it is not reused while a process of the
            # group lives, or until its leader is reaped.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pids[call], signal.SIGKILL)

    async def kill_all(self) -> None:
        """Kill the process groups of all calls that still exist."""
        for call in tuple(self._parties):
            await self.kill(call, signal.SIGKILL)

    def forget(self, call: int) -> None:
        """Deliver no more reports about `call`."""
        self._parties.pop(call, None)
        self._pids.pop(call, None)

    async def listen(self) -> None:
        """Deliver the reports of the zygote until it is gone; a cancellation ends it."""
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
            # The zygote may be gone. That is no error here: `deliver_reports` informs all
            # calls.
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
        for observer in list(self._parties.values()):
            observer.lose()

    async def _reap(self) -> None:
        notify_closing(self._control)
        self._control.close()  # the zygote notices this, kills its children, and exits
        with move_on_after(EXIT_S):
            await to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        self._process.kill()
        self._process.wait()


def _spawn(control: int, page: int, variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    name, path = main_module()
    import_path = [str(entry) for entry in sys.path]  # an entry may be a `Path`
    arguments = [str(control), str(page), str(os.getpid()), name, path]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
        [sys.executable, "-P", "-c", BOOT, *arguments, *import_path],
        stdin=subprocess.DEVNULL,
        stdout=_stderr(),
        env=variables,
        pass_fds=(control, page),
        start_new_session=True,
    )


def _stderr() -> int:
    """Return the descriptor of standard error; the null device if that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


Saver: TypeAlias = Callable[[Json], Awaitable[None]]
Noter: TypeAlias = Callable[[str], Awaitable[None]]

KILL_S: Final = 5.0
"""Seconds to wait for the end of a process after SIGKILL.

It takes longer only if the process is stuck in the kernel, or its zygote is stuck.
"""


class Running:
    """One call in a child process. `final_outcome` is its outcome; None while it runs.

    The state has two sources. The zygote reports the start and the end of the process
    (`on_report`, called from another task). The child sends its messages over the call's
    socket, which this class reads while it is awaited in `wait_for_outcome`. A report cancels
    `_wait_scope`, the scope of the current wait, so that the state is looked at again.
    """

    def __init__(self, link: Link, end: socket.socket, save: Saver, note: Noter) -> None:
        self.ended: Outcome | None = None
        self._link = link
        self._socket = end
        self._save = save
        self._note = note
        self._call = 0
        self._frames = Frames()
        self._started = False
        self._open = True  # the call's socket may still deliver bytes
        self._waiting = CancelScope()  # of the current wait, cancelled by a report
        self._asked: Save | Note | None = None  # the request that the child waits for
        self._answer: Answer | None = None  # as sent by the child, not yet final
        self._garbled = ""  # why its answer cannot be believed
        self._death: Died | None = None  # as reported by the zygote

    async def outcome(self) -> Outcome:
        """Wait for the end of the call and return its outcome.

        Its process group is gone then. An error of the caller's `save` or `note` is raised
        here. It may be awaited again after a cancellation, by one task at a time.
        """
        while self.ended is None:
            await self._attend()
        return self.ended

    # ── start and stop, called by `Zygote` ───────────────────────────────────

    async def start(self, target: str, end: socket.socket) -> None:
        """Ask for a child that inherits `child_socket`; if cancelled, none is started."""
        self._call = await self._link.start(target, end, self)

    async def instruct(self, errand: Errand) -> None:
        """Wait until the child's process id is known, then send it the task.

        If this is cancelled, the child gets no task and does nothing.
        """
        while not self._started and self._death is None:
            with CancelScope() as self._waiting:
                await sleep_forever()
        await self._send(framed(errand))

    async def stop(self, grace: timedelta) -> None:
        """Stop the call by SIGTERM, and after `grace` by SIGKILL; wait until it is reaped.

        Call it behind a shield; it takes little more than `grace`.
        """
        try:
            if self.ended is None:
                await self._link.kill(self._call, signal.SIGTERM)
                with move_on_after(grace.total_seconds()):
                    # Saves and notes of the child are still handled in its grace.
                    await self.outcome()
        finally:
            if self.ended is None:
                await self._kill()
            self._link.forget(self._call)

    async def _kill(self) -> None:
        await self._link.kill(self._call, signal.SIGKILL)
        with move_on_after(KILL_S):
            # Only read what the child has sent: it does not wait for replies any more.
            while self.ended is None:
                await self._hear_child()
        if self.ended is None:
            self._link.kill_directly(self._call)
            stuck = Died(signal=signal.SIGKILL, detail="killed, but nobody saw its process end")
            self.ended = self._answer or stuck

    # ── reports of the zygote ────────────────────────────────────────────────

    def hear(self, news: News) -> None:
        """Handle a report of the zygote about this call."""
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
        """Handle the loss of the zygote: the child is dead as well."""
        self._die(Died(started=self._started, detail="the process of blocking tools has died"))

    def _die(self, death: Died) -> None:
        self._death = death
        self._waiting.cancel()  # bytes that the child sent before are still read

    # ── messages of the child ────────────────────────────────────────────────

    async def _attend(self) -> None:
        """Handle the pending request of the child, or read its next message.

        If this is cancelled, the request stays pending and is handled again the next time.
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
            message = await self._next()
        except Garbled as problem:
            # The tool has written to our socket. From here on every answer could be forged.
            self._garbled = f", as it wrote to a descriptor that is not its own ({problem})"
            self._open = False
            await self._link.kill(self._call, signal.SIGKILL)
            return
        if message is None:
            self.ended = self._ending()
        elif isinstance(message, Save | Note):
            self._asked = message
        else:
            self._answer = message

    def _ending(self) -> Outcome:
        assert self._death is not None
        if not self._garbled:
            return self._answer or self._death
        return Died(signal=self._death.signal, detail=self._death.detail + self._garbled)

    async def _next(self) -> Said | None:
        """Return the next message of the child; None when it is dead and all is read."""
        while not self._garbled:
            body = self._frames.take()
            if body is not None:
                return said_of(body)
            if not self._received():
                # Nothing to read. If the child is dead, nothing more can come: all that it sent
                # was in the socket when the zygote reported its death.
                if self._death is not None:
                    return None
                await self._news()
        while self._death is None:
            await self._news()
        return None

    def _received(self) -> bool:
        """Read the bytes that are available; False if there were none."""
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
        """Wait until the socket is readable, or the zygote reports a change."""
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
                return  # the child is gone; the zygote will report it


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class Zygote:
    """Runs blocking functions in processes that can be killed. An async context manager.

    A function is named by "module:qualname" and found by importing the module in the zygote. So
    it shares no memory with the worker or with other calls. It sees the working directory that
    the worker had at the first call, and only the environment variables that are declared for
    it. Each declared environment has a zygote process of its own: a module finds its variables
    when it is imported, and no function finds those of another.

    Create it before the worker does anything else: it detects a script that runs its agent
    outside `if __name__ == "__main__":`, before the script does anything twice.

    Raises:
        Misconfigured: this system cannot fork, or this process is a zygote that is importing
            the module of a tool.
    """

    def __init__(self) -> None:
        refuse_while_importing()
        if not hasattr(os, "fork") or not sys.executable:
            raise Misconfigured(
                "blocking tools",
                "cannot run them: this system cannot fork. Declare them with in_process=True.",
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
        """Let all calls be killed at `moment` of the boot clock, unless it is moved before.

        The zygotes do that, so it happens even if this process is frozen. May be called from
        any thread. Without a call there is no deadline.
        """
        self._deadline = moment
        for process in tuple(self._links.values()):
            process.deadline.moment = moment

    async def kill_calls(self) -> None:
        """Kill all calls at once, without their grace."""
        for process in tuple(self._links.values()):
            await process.kill_all()

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
        """Run a function; leaving the context ends it.

        If it still runs then, it gets SIGTERM, `grace` to end by itself, and SIGKILL. The
        context is left when its process is reaped. Read `ProcessCall.final_outcome` after that,
        also after a cancellation: a function that finished within its grace has returned. If
        entering the context is cancelled, the function was not run.

        `save` and `note` are awaited, one at a time, when the function saves progress or notes
        a line. The function continues when they return, and is stopped if they raise.
        """
        _check(errand.target)
        mine, theirs = socket.socketpair()
        with mine:
            mine.setblocking(False)  # noqa: FBT003 - the name says it
            call = Running(self._link_for(environment), mine, save, note)
            with theirs:  # the kernel keeps the descriptor alive while it is on its way
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
        """Run a function to its end; for callers that need no outcome after a cancel."""
        async with self.running(errand, save=save, note=note, grace=grace) as call:
            return await call.outcome()

    def _link_for(self, environment: ToolEnvironment) -> Link:
        assert self._group is not None, "enter the zygote's context first"
        process = self._links.get(environment)
        if process is None or process.lost:
            process = self._links[environment] = Link(environment.variables(), self._deadline)
            self._group.start_soon(process.listen, name="zygote")
        return process


def _check(target: str) -> None:
    if len(target) > TARGET_MAX:
        problem = f"its name must have at most {TARGET_MAX} characters, got {len(target)}"
        raise Misconfigured(target[:80] + "…", problem)
