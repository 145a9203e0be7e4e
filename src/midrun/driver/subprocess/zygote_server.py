"""The zygote: a process with one thread that forks a child for every call, and reaps it.

It is the only one to signal children, so no signal ever meets a process that was not meant.
While a module is being imported, which may take its time, a second thread goes on listening:
calls can be killed all the while, and the end of the runtime is noticed. It is gone again
before the next fork.

It also watches the runtime's lease: a runtime that is frozen cannot stop its calls, and by the
end of the lease another worker takes over. Before that, when the deadline that they share has
passed, the zygote kills all calls.

It is started with the variables that are declared for its tools (`agents/tool_environment.py`),
and not with the runtime's environment: the children are forked from it, so that neither they
nor their `/proc/self/environ` can show what it does not have. It does not inherit any
descriptor besides its socket and standard error.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Final, Never

from midrun.driver.subprocess.child import Channel, perform
from midrun.driver.subprocess.function_lookup import CannotFind, Places
from midrun.driver.subprocess.protocol import (
    LENGTH,
    Deadline,
    Gone,
    Kill,
    News,
    Refused,
    Start,
    Started,
    framed,
    request_of,
)
from midrun.ports.environment import boottime

DEADLINE_CHECK_S: Final = 1.0
"""Seconds between two looks at the deadline, at most. `select` does not count the time in which
the machine sleeps, but the deadline does."""

FOR_OTHERS: Final = {signal.SIGINT, signal.SIGTERM}
"""Ctrl-C and a service manager's SIGTERM are for the runtime to act on. Blocked, not ignored: a
child that is told to stop before it has come to itself finds the signal waiting for it."""

PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class Server:
    """One zygote: `control` leads to the runtime, whose process id is `runtime`."""

    def __init__(
        self, control: socket.socket, deadline: Deadline, runtime: int, places: Places
    ) -> None:
        self._control = control
        self._deadline = deadline
        self._places = places
        self._waiting: dict[int, tuple[str, int]] = {}  # target, the child's socket
        self._pids: dict[int, int] = {}  # by call
        self._calls: dict[int, int] = {}  # by pid
        self._alarm, self._bell = os.pipe()
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)
        self._arm()
        self._pid = os.getpid()
        self._sources: list[socket.socket | int] = [control, self._alarm]
        self._runtime: int | None = None
        if hasattr(os, "pidfd_open"):
            # The socket alone would not do if the runtime has forked: the copy holds it open.
            try:
                self._runtime = os.pidfd_open(runtime)
            except ProcessLookupError:
                self._end()
            self._sources.append(self._runtime)

    def serve(self) -> Never:
        """Do what the runtime asks for, until it is gone."""
        while True:
            self._look(None if not self._waiting else 0)
            if self._waiting:
                self._attend(next(iter(self._waiting)))

    # ── listening: these also run in the second thread ───────────────────────

    def _look(self, timeout: float | None, *more: int) -> None:
        """Wait for something to happen, and see to everything but new calls."""
        if timeout is None and self._calls:
            timeout = self._seconds_to_next_check()
        ready, _, _ = select.select([*self._sources, *more], [], [], timeout)
        if self._has_lapsed():
            for pid in self._calls:
                _signal(pid, signal.SIGKILL)
        if self._runtime in ready:
            self._end()
        if self._alarm in ready:
            self._reap()
        if self._control in ready:
            self._listen()

    def _has_lapsed(self) -> bool:
        return boottime() >= self._deadline.moment

    def _seconds_to_next_check(self) -> float:
        left = self._deadline.moment - boottime()
        # Past the deadline all calls have been killed, and SIGCHLD ends the wait.
        return min(left, DEADLINE_CHECK_S) if left > 0 else DEADLINE_CHECK_S

    def _listen(self) -> None:
        try:
            header, fd = self._receive(LENGTH.size)
            body, _ = self._receive(LENGTH.unpack(header)[0])
        except (EOFError, OSError):
            self._end()
        match request_of(body):
            case Start(call=call, target=target) if fd is not None:
                self._waiting[call] = target, fd
            case Start(call=call, target=target):
                self._tell(Refused(call, "OSError", f"no descriptor left to start {target}"))
            case Kill(call=call, signal=number):
                self._kill(call, number)

    def _receive(self, size: int) -> tuple[bytes, int | None]:
        data, fd = b"", None
        while len(data) < size:
            more, fds, _, _ = socket.recv_fds(self._control, size - len(data), 1)
            if not more:
                raise EOFError
            data += more
            fd = fds[0] if fds else fd
        return data, fd

    def _kill(self, call: int, number: int) -> None:
        if call in self._pids:
            _signal(self._pids[call], number)
        elif call in self._waiting:
            _, fd = self._waiting.pop(call)
            os.close(fd)
            self._tell(Refused(call, "", "stopped before it was started"))

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._alarm, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = ended[0], os.waitstatus_to_exitcode(ended[1])
                if pid in self._calls:  # else something that a module started
                    call = self._calls.pop(pid)
                    del self._pids[call]
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)  # what the call left behind
                    self._tell(Gone(call, code))

    def _tell(self, news: News) -> None:
        try:
            self._control.sendall(framed(news))
        except OSError:
            self._end()

    def _end(self) -> Never:
        """Die, and take every call along: nobody is left who could want it."""
        for pid in self._calls:
            _signal(pid, signal.SIGKILL)
        os._exit(0)

    # ── starting ─────────────────────────────────────────────────────────────

    def _attend(self, call: int) -> None:
        """Start the call, or say why it cannot be."""
        target, _ = self._waiting[call]
        try:
            found = self._find(target)
            news = self._started(call, found)
        except CannotFind as problem:
            news = self._refused(call, problem.kind, problem.message, not_found=True)
        except OSError as problem:  # no process or memory left
            news = self._refused(call, type(problem).__name__, f"cannot fork: {problem}")
        if news is not None:
            self._tell(news)

    def _find(self, target: str) -> object:
        if self._places.knows(target):
            return self._places.find(target)
        with self._listening_meanwhile():
            return self._places.find(target)

    def _started(self, call: int, found: object) -> News | None:
        if call not in self._waiting:
            return None  # killed while its module was imported
        if self._has_lapsed():
            return self._refused(call, "TimeoutError", "not started: the lease has lapsed")
        _, fd = self._waiting[call]
        pid = os.fork()
        if not pid:
            self._become_child(fd, found)
        del self._waiting[call]
        os.close(fd)
        self._pids[call], self._calls[pid] = pid, call
        return Started(call, pid)

    def _refused(
        self, call: int, kind: str, message: str, *, not_found: bool = False
    ) -> News | None:
        if call not in self._waiting:
            return None
        _, fd = self._waiting.pop(call)
        os.close(fd)
        return Refused(call, kind, message, not_found)

    def _become_child(self, fd: int, found: object) -> Never:
        try:
            os.setsid()
            if _LIBC is not None:
                _LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self._pid:
                os._exit(1)  # it died in between: nobody would kill this child
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_OTHERS)
            for source in (*self._sources, self._bell):
                os.close(source if isinstance(source, int) else source.detach())
            for _, other in self._waiting.values():
                if other != fd:
                    os.close(other)
            perform(Channel(fd), found)
        finally:
            os._exit(1)

    # ── the second thread ────────────────────────────────────────────────────

    @contextmanager
    def _listening_meanwhile(self) -> Iterator[None]:
        done, finish = os.pipe()

        def listen() -> None:
            while not select.select([done], [], [], 0)[0]:
                self._look(None, done)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            os.close(finish)
            thread.join()
            os.close(done)
            self._arm()  # a module may have taken the signals for itself

    def _arm(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FOR_OTHERS)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)


def _signal(pid: int, number: int) -> None:
    """Signal the group that `pid` leads, or `pid` if it has not come to lead it yet."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main(control: int, page: int, runtime: int, main_name: str, main_path: str) -> Never:
    """Be the zygote of the process `runtime`, at the other end of the descriptor `control`.

    `page` is the descriptor of the deadline's page.
    """
    os.set_inheritable(control, False)  # noqa: FBT003 - the name of the function says it
    deadline = Deadline(page)
    os.close(page)
    if isinstance(sys.stdout, TextIOWrapper):
        # What a killed tool has printed is not lost.
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [main_path]
    places = Places(main_name, main_path)
    Server(socket.socket(fileno=control), deadline, runtime, places).serve()
