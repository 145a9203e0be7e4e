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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
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

from midrun.agents.file import File
from midrun.agents.tool_environment import NOTHING_DECLARED, ToolEnvironment
from midrun.core.values import Json
from midrun.driver.subprocess.function_lookup import get_main_module, refuse_while_importing
from midrun.driver.subprocess.protocol import (
    DONE_FRAME,
    TARGET_MAX_CHARS,
    ChildAnswer,
    ChildMessage,
    ChildRequest,
    Deadline,
    Died,
    FrameBuffer,
    FunctionOutcome,
    FunctionTask,
    GarbledFrame,
    NoteRequest,
    ProcessGone,
    ProcessRefused,
    ProcessStarted,
    Raised,
    SaveRequest,
    ShowRequest,
    SignalProcess,
    StartProcess,
    ZygoteReport,
    ZygoteRequest,
    decode_message,
    decode_report,
    encode_frame,
    encode_problem,
)
from midrun.errors import FileRefused, Misconfigured
from midrun.ports import platform

BOOT_CODE: Final = (
    "import sys; fds, worker, system, name, path, *sys.path = sys.argv[1:]; "
    "from midrun.driver.subprocess.zygote_server import main; "
    "main([int(fd) for fd in fds.split()], int(worker), system, name, path)"
)
"""The program of the zygote. It takes over the worker's `sys.path` before it imports midrun,
which this interpreter might not find by itself."""

READ_CHUNK_BYTES: Final = 1 << 16
"""Bytes that one `recv` reads at most."""

ZYGOTE_EXIT_TIMEOUT_S: Final = 5.0
"""Seconds that a zygote may take to exit when its socket is closed; milliseconds are usual."""


class CallObserver(Protocol):
    """A call that is told about the reports of the zygote."""

    def on_report(self, report: ZygoteReport) -> None:
        """Handle a report about this call."""

    def on_zygote_lost(self) -> None:
        """Handle the loss of the zygote; its children have been killed."""


class ZygoteProcess:
    """One zygote process and its socket. After its end it is not started again.

    `variables` are the whole environment of the process. It kills all calls when
    `deadline.moment` has passed. It and its calls keep `holder_fd` open, see `holder_socket`.
    """

    def __init__(
        self, variables: Mapping[str, str], deadline: float, holder_fd: int | None = None
    ) -> None:
        page = Deadline.open_page()
        self.deadline = Deadline(page)
        self.deadline.moment = deadline
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)  # noqa: FBT003 - the name says it
        # Close our copies of the zygote's descriptors: a copy of its socket end here would keep
        # the socket open after its death.
        try:
            with theirs:
                fds = [theirs.fileno(), page, *([] if holder_fd is None else [holder_fd])]
                self._process = _spawn_zygote(fds, variables)
        finally:
            os.close(page)
        self._send_lock = Lock(fast_acquire=True)
        self._frames = FrameBuffer()
        self._observers: dict[int, CallObserver] = {}
        self._pids: dict[int, int] = {}
        self._last_call = 0
        self.is_lost = False

    async def start_call(
        self, target: str, child_socket: socket.socket, observer: CallObserver
    ) -> int:
        """Ask for a child process that inherits `child_socket`; return the number of the call.

        If this is cancelled, no child is started.
        """
        # A number, not a process id: the call must be known by it before its process exists.
        self._last_call += 1
        call = self._last_call
        self._observers[call] = observer
        try:
            await self._send(StartProcess(call, target), child_socket)
        except BaseException:
            self.forget_call(call)
            raise
        return call

    async def signal_call(self, call: int, signal_number: signal.Signals) -> None:
        """Have the zygote signal the process group of `call`, if it still exists."""
        if not self.is_lost:
            await self._send(SignalProcess(call, signal_number))

    def kill_directly(self, call: int) -> None:
        """Kill the process group of `call` without the zygote, which is gone or stuck."""
        if call in self._pids:
            # The number still belongs to this call: it is not reused while a process of the
            # group lives, or until its leader is reaped.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pids[call], signal.SIGKILL)

    async def kill_all(self) -> None:
        """Kill the process groups of all calls that still exist."""
        for call in tuple(self._observers):
            await self.signal_call(call, signal.SIGKILL)

    def forget_call(self, call: int) -> None:
        """Deliver no more reports about `call`."""
        self._observers.pop(call, None)
        self._pids.pop(call, None)

    async def deliver_reports(self) -> None:
        """Deliver the reports of the zygote until it is gone; a cancellation ends it."""
        try:
            while data := await self._receive():
                self._frames.feed(data)
                while (body := self._frames.take_frame()) is not None:
                    self._deliver(decode_report(body))
        finally:
            self._handle_loss()
            with CancelScope(shield=True):
                await self._reap()

    async def _send(
        self, request: ZygoteRequest, child_socket: socket.socket | None = None
    ) -> None:
        data = [encode_frame(request)]
        fds = [] if child_socket is None else [child_socket.fileno()]
        async with self._send_lock:
            # The zygote may be gone. That is no error here: `deliver_reports` informs all
            # calls.
            with suppress(OSError, ClosedResourceError):
                while not self._try_send(data, fds):
                    await wait_writable(self._control)

    def _try_send(self, data: list[bytes], fds: list[int]) -> bool:
        try:
            socket.send_fds(self._control, data, fds)
        except BlockingIOError:
            return False
        return True

    async def _receive(self) -> bytes:
        while True:
            await wait_readable(self._control)
            try:
                return self._control.recv(READ_CHUNK_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    def _deliver(self, report: ZygoteReport) -> None:
        if report.call in self._observers:
            if isinstance(report, ProcessStarted):
                self._pids[report.call] = report.pid
            self._observers[report.call].on_report(report)

    def _handle_loss(self) -> None:
        self.is_lost = True
        for call in self._pids:
            self.kill_directly(call)
        for observer in list(self._observers.values()):
            observer.on_zygote_lost()

    async def _reap(self) -> None:
        notify_closing(self._control)
        self._control.close()  # the zygote notices this, kills its children, and exits
        with move_on_after(ZYGOTE_EXIT_TIMEOUT_S):
            await to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        self._process.kill()
        self._process.wait()


def _spawn_zygote(
    fds: Sequence[int], variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    name, path = get_main_module()
    import_path = [str(entry) for entry in sys.path]  # an entry may be a `Path`
    system = platform.CURRENT
    arguments = [" ".join(map(str, fds)), str(os.getpid()), system.name, name, path]
    return subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
        [sys.executable, "-P", "-c", BOOT_CODE, *arguments, *import_path],
        stdin=subprocess.DEVNULL,
        stdout=_get_stderr_fd(),
        env={**system.tool_variables, **variables},
        pass_fds=fds,
        start_new_session=True,
    )


def _get_stderr_fd() -> int:
    """Return the descriptor of standard error; the null device if that is closed."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


SaveCallback: TypeAlias = Callable[[Json], Awaitable[None]]
NoteCallback: TypeAlias = Callable[[str], Awaitable[None]]
ShowCallback: TypeAlias = Callable[[File], Awaitable[None]]


async def refuse_file(file: File) -> None:
    """Refuse a file of a function that cannot show any."""
    raise FileRefused(f"Cannot show “{file.name}”: only a tool call can show artifacts.")


KILL_TIMEOUT_S: Final = 5.0
"""Seconds to wait for the end of a process after SIGKILL.

It takes longer only if the process is stuck in the kernel, or its zygote is stuck.
"""


class ProcessCall:
    """One call in a child process. `final_outcome` is its outcome; None while it runs.

    The state has two sources. The zygote reports the start and the end of the process
    (`on_report`, called from another task). The child sends its messages over the call's
    socket, which this class reads while it is awaited in `wait_for_outcome`. A report cancels
    `_wait_scope`, the scope of the current wait, so that the state is looked at again.
    """

    def __init__(
        self,
        zygote_process: ZygoteProcess,
        own_socket: socket.socket,
        save: SaveCallback,
        note: NoteCallback,
        show: ShowCallback,
    ) -> None:
        self.final_outcome: FunctionOutcome | None = None
        self._zygote_process = zygote_process
        self._socket = own_socket
        self._save = save
        self._note = note
        self._show = show
        self._call = 0
        self._frames = FrameBuffer()
        self._is_started = False
        self._is_open = True  # the call's socket may still deliver bytes
        self._wait_scope = CancelScope()  # of the current wait, cancelled by a report
        self._pending_request: ChildRequest | None = None  # the child waits for its reply
        self._answer: ChildAnswer | None = None  # as sent by the child, not yet final
        self._garbled_reason = ""  # why its answer cannot be believed
        self._death: Died | None = None  # as reported by the zygote

    async def wait_for_outcome(self) -> FunctionOutcome:
        """Wait for the end of the call and return its outcome.

        Its process group is gone then. An error of the caller's `save` or `note` is raised
        here. It may be awaited again after a cancellation, by one task at a time.
        """
        while self.final_outcome is None:
            await self._handle_next()
        return self.final_outcome

    # ── start and stop, called by `Zygote` ───────────────────────────────────

    async def start(self, target: str, child_socket: socket.socket) -> None:
        """Ask for a child that inherits `child_socket`; if cancelled, none is started."""
        self._call = await self._zygote_process.start_call(target, child_socket, self)

    async def send_task(self, task: FunctionTask) -> None:
        """Wait until the child's process id is known, then send it the task.

        If this is cancelled, the child gets no task and does nothing.
        """
        # The wait has no event: `on_report` cancels its scope, and the loop looks at the state
        # again. Every wait of this class works in that way, so a report can never be missed: it
        # is stored before the scope is cancelled, and looked at before the next wait.
        while not self._is_started and self._death is None:
            with CancelScope() as self._wait_scope:
                await sleep_forever()
        await self._send(encode_frame(task))

    async def stop(self, grace: timedelta) -> None:
        """Stop the call by SIGTERM, and after `grace` by SIGKILL; wait until it is reaped.

        Call it behind a shield; it takes little more than `grace`.
        """
        try:
            if self.final_outcome is None:
                # In the grace the function may still return. Then its effect has happened, and
                # the outcome is its answer, not the stop.
                await self._zygote_process.signal_call(self._call, signal.SIGTERM)
                with move_on_after(grace.total_seconds()):
                    # Saves and notes of the child are still handled in its grace.
                    await self.wait_for_outcome()
        finally:
            if self.final_outcome is None:
                await self._kill_child()
            self._zygote_process.forget_call(self._call)

    async def _kill_child(self) -> None:
        await self._zygote_process.signal_call(self._call, signal.SIGKILL)
        with move_on_after(KILL_TIMEOUT_S):
            # Only read what the child has sent: it does not wait for replies any more.
            while self.final_outcome is None:
                await self._read_message()
        if self.final_outcome is None:
            self._zygote_process.kill_directly(self._call)
            problem = "killed, but the end of its process was not seen"
            stuck = Died(signal=signal.SIGKILL, is_gone=False, detail=problem)
            self.final_outcome = self._answer or stuck

    # ── reports of the zygote ────────────────────────────────────────────────

    def on_report(self, report: ZygoteReport) -> None:
        """Handle a report of the zygote about this call."""
        match report:
            case ProcessStarted():
                self._is_started = True
                self._wait_scope.cancel()
            case ProcessRefused(kind=kind, message=why, not_found=not_found):
                problem = Raised(kind=kind, message=why, not_found=not_found)
                # Without a kind, the call was stopped before it was started: it has no answer,
                # and no effect.
                self._answer = problem if kind else None
                self._note_death(Died(started=False, detail=why))
            case ProcessGone(code=code) if code < 0:
                self._note_death(
                    Died(signal=-code, detail=f"killed by {_get_signal_name(-code)}")
                )
            case ProcessGone(code=code):
                self._note_death(
                    Died(exit_code=code, detail=f"exited with {code}, without an answer")
                )

    def on_zygote_lost(self) -> None:
        """Handle the loss of the zygote: the child is dead as well."""
        self._note_death(
            Died(started=self._is_started, detail="the process of blocking tools has died")
        )

    def _note_death(self, death: Died) -> None:
        self._death = death
        self._wait_scope.cancel()  # bytes that the child sent before are still read

    # ── messages of the child ────────────────────────────────────────────────

    async def _handle_next(self) -> None:
        """Handle the pending request of the child, or read its next message.

        If this is cancelled, the request stays pending and is handled again the next time.
        """
        reply = DONE_FRAME
        match self._pending_request:
            case None:
                await self._read_message()
                return
            case SaveRequest(progress=progress):
                await self._save(progress)
            case NoteRequest(text=text):
                await self._note(text)
            case ShowRequest(file=file):
                try:
                    await self._show(file.to_file())
                except (FileRefused, Misconfigured) as refusal:
                    reply = encode_problem(str(refusal))
        self._pending_request = None
        await self._send(reply)

    async def _read_message(self) -> None:
        try:
            message = await self._read_next_message()
        except GarbledFrame as problem:
            # The tool has written to our socket. From here on every answer could be forged.
            self._garbled_reason = (
                f", as it wrote to a descriptor that is not its own ({problem})"
            )
            self._is_open = False
            await self._zygote_process.signal_call(self._call, signal.SIGKILL)
            return
        if message is None:
            self.final_outcome = self._make_final_outcome()
        elif isinstance(message, SaveRequest | NoteRequest | ShowRequest):
            self._pending_request = message
        else:
            self._answer = message

    def _make_final_outcome(self) -> FunctionOutcome:
        assert self._death is not None
        if not self._garbled_reason:
            return self._answer or self._death
        return Died(signal=self._death.signal, detail=self._death.detail + self._garbled_reason)

    async def _read_next_message(self) -> ChildMessage | None:
        """Return the next message of the child; None when it is dead and all is read."""
        while not self._garbled_reason:
            body = self._frames.take_frame()
            if body is not None:
                return decode_message(body)
            if not self._read_available():
                # Nothing to read. If the child is dead, nothing more can come: all that it sent
                # was in the socket when the zygote reported its death.
                if self._death is not None:
                    return None
                await self._wait_for_change()
        while self._death is None:
            await self._wait_for_change()
        return None

    def _read_available(self) -> bool:
        """Read the bytes that are available; False if there were none."""
        if not self._is_open:
            return False
        try:
            data = self._socket.recv(READ_CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self._frames.feed(data)
        # No bytes mean that the child has closed its end, which a tool can do while it runs.
        # Only the report of the zygote says that the child is dead.
        self._is_open = bool(data)
        return self._is_open

    async def _wait_for_change(self) -> None:
        """Wait until the socket is readable, or the zygote reports a change."""
        with CancelScope() as self._wait_scope:
            if self._is_open:
                await wait_readable(self._socket)
            else:
                await sleep_forever()

    async def _send(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and self._death is None:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                with CancelScope() as self._wait_scope:
                    await wait_writable(self._socket)
            except OSError:
                return  # the child is gone; the zygote will report it


def _get_signal_name(number: int) -> str:
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
        Misconfigured: this Python has no executable to start, or this process is a zygote that
            is importing the module of a tool.
    """

    def __init__(self, holder_fd: int | None = None) -> None:
        refuse_while_importing()
        if not sys.executable:
            problem = "Cannot run them: the Python of this process has no executable."
            raise Misconfigured("blocking tools", problem)
        self._task_group: TaskGroup | None = None
        self._processes: dict[ToolEnvironment, ZygoteProcess] = {}
        self._deadline = math.inf
        self._holder_fd = holder_fd

    async def __aenter__(self) -> Self:
        self._task_group = await create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._task_group is not None
        self._task_group.cancel_scope.cancel()
        return await self._task_group.__aexit__(kind, error, trace)

    def set_deadline(self, moment: float) -> None:
        """Let all calls be killed at `moment` of the boot clock, unless it is moved before.

        The zygotes do that, so it happens even if this process is frozen. May be called from
        any thread. Without a call there is no deadline.
        """
        self._deadline = moment
        for process in tuple(self._processes.values()):
            process.deadline.moment = moment

    async def kill_calls(self) -> None:
        """Kill all calls at once, without their grace."""
        for process in tuple(self._processes.values()):
            await process.kill_all()

    @asynccontextmanager
    async def run_process(
        self,
        task: FunctionTask,
        *,
        save: SaveCallback,
        note: NoteCallback,
        grace: timedelta,
        show: ShowCallback = refuse_file,
        environment: ToolEnvironment = NOTHING_DECLARED,
    ) -> AsyncIterator[ProcessCall]:
        """Run a function; leaving the context ends it.

        If it still runs then, it gets SIGTERM, `grace` to end by itself, and SIGKILL. The
        context is left when its process is reaped. Read `ProcessCall.final_outcome` after that,
        also after a cancellation: a function that finished within its grace has returned. If
        entering the context is cancelled, the function was not run.

        `save`, `note` and `show` are awaited, one at a time, when the function saves progress,
        notes a line or shows a file. The function continues when they return, and is stopped if
        they raise. Only a refused file is raised in the function itself.
        """
        _check_target(task.target)
        mine, theirs = socket.socketpair()
        with mine:
            mine.setblocking(False)  # noqa: FBT003 - the name says it
            call = ProcessCall(self._get_process(environment), mine, save, note, show)
            with theirs:  # the kernel keeps the descriptor alive while it is on its way
                await call.start(task.target, theirs)
            try:
                await call.send_task(task)
                yield call
            finally:
                with CancelScope(shield=True):
                    await call.stop(grace)

    def _get_process(self, environment: ToolEnvironment) -> ZygoteProcess:
        assert self._task_group is not None, "enter the zygote's context first"
        process = self._processes.get(environment)
        # A zygote that was killed is replaced with the next call. Its calls have ended as
        # `Died`; they are not started again here, because only the core decides that.
        if process is None or process.is_lost:
            process = self._processes[environment] = ZygoteProcess(
                environment.variables(), self._deadline, self._holder_fd
            )
            self._task_group.start_soon(process.deliver_reports, name="zygote")
        return process


def _check_target(target: str) -> None:
    if len(target) > TARGET_MAX_CHARS:
        problem = f"its name must have at most {TARGET_MAX_CHARS} characters, got {len(target)}"
        raise Misconfigured(target[:80] + "…", problem)
