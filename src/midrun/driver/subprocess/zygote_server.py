"""The zygote process: imports modules, forks a child for each call, kills and reaps it.

**Signals.** The zygote is the parent of all children, so it alone knows when the kernel may
reuse a process id: after it has reaped the child. It sends all signals itself, between two
reaps, so that no signal can reach a process that is not the call's. The worker signals a child
itself only if the zygote is gone or does not respond.

**One thread at every fork.** A fork copies only the thread that calls it; a lock that another
thread holds would stay locked in the child for ever. So the zygote has one thread. The import
of a module may take seconds, though, and calls must stay killable meanwhile. For that time a
second thread handles messages (`_handle_in_thread`); it has ended before the next fork.

**The deadline.** A frozen worker cannot stop its calls, and at the end of its lease another
worker takes over. The zygote watches the deadline that both share and kills all calls when it
has passed (see `protocol.Deadline`).

**Environment.** The zygote is started with the variables that are declared for its tools
(`agents/tool_environment.py`), not with the worker's environment. Children are forked from it,
so neither they nor their `/proc/self/environ` can show other variables. It inherits no
descriptor except its socket, the page of the deadline, and standard error.
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
"""The most seconds between two looks at the deadline.

The timeout of `select` stands still while the machine sleeps, the deadline does not.
"""

FOR_OTHERS: Final = {signal.SIGINT, signal.SIGTERM}
"""Signals that the zygote itself does not act on: Ctrl-C and a service manager's SIGTERM.

The worker acts on them. They are blocked, not ignored: a SIGTERM that reaches a child before it
has set up its signals stays pending, and is delivered when the child unblocks it.
"""

PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None


class Server:
    """The main loop of a zygote.

    `control` is its socket to the worker, `worker_pid` the process id of the worker.
    """

    def __init__(
        self, control: socket.socket, deadline: Deadline, runtime: int, places: Places
    ) -> None:
        self._control = control
        self._deadline = deadline
        self._places = places
        self._waiting: dict[int, tuple[str, int]] = {}  # call: target, the child's socket
        self._pids: dict[int, int] = {}  # call: pid
        self._calls: dict[int, int] = {}  # pid: call
        # The self-pipe trick: SIGCHLD writes a byte, so that `select` returns.
        self._alarm, self._bell = os.pipe()
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)
        self._arm()
        self._pid = os.getpid()
        self._sources: list[socket.socket | int] = [control, self._alarm]
        self._runtime: int | None = None
        if hasattr(os, "pidfd_open"):
            # A closed socket alone does not show the end of the worker: a process that the
            # worker has forked may hold a copy of it open. A pidfd does show it.
            try:
                self._runtime = os.pidfd_open(runtime)
            except ProcessLookupError:
                self._end()
            self._sources.append(self._runtime)

    def serve(self) -> Never:
        """Handle requests of the worker until it is gone."""
        while True:
            # With calls to start, only poll: signals for running calls come first.
            self._look(None if not self._waiting else 0)
            if self._waiting:
                self._attend(next(iter(self._waiting)))

    # ── messages and signals: these also run in the second thread ────────────

    def _look(self, timeout: float | None, *more: int) -> None:
        """Wait for the next message or signal and handle it; only queue new calls."""
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
        # After the deadline all calls have been killed, and SIGCHLD ends the wait.
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
        # A descriptor arrives with the first bytes of its message, which is the header.
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
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = reaped[0], os.waitstatus_to_exitcode(reaped[1])
                if pid in self._calls:  # else a process that a module started on import
                    call = self._calls.pop(pid)
                    del self._pids[call]
                    # Kill the processes that the call left behind. The number of the group is
                    # not reused while one of them lives.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                    self._tell(Gone(call, code))

    def _tell(self, news: News) -> None:
        try:
            self._control.sendall(framed(news))
        except OSError:
            self._end()

    def _end(self) -> Never:
        """Kill all calls and exit, because the worker is gone."""
        for pid in self._calls:
            _signal(pid, signal.SIGKILL)
        os._exit(0)

    # ── starting calls ───────────────────────────────────────────────────────

    def _attend(self, call: int) -> None:
        """Start a waiting call and report it; if that fails, report the reason."""
        target, _ = self._waiting[call]
        try:
            function = self._find(target)
            report = self._started(call, function)
        except CannotFind as problem:
            report = self._refused(call, problem.kind, problem.message, not_found=True)
        except OSError as problem:  # no process or memory left
            report = self._refused(call, type(problem).__name__, f"cannot fork: {problem}")
        if report is not None:
            self._tell(report)

    def _find(self, target: str) -> object:
        if self._places.knows(target):
            return self._places.find(target)
        with self._listening_meanwhile():
            return self._places.find(target)

    def _started(self, call: int, found: object) -> News | None:
        if call not in self._waiting:
            return None  # killed, and reported as refused, while its module was imported
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
            # Have the kernel kill this child when the zygote dies. If the zygote died before
            # this line, the kernel will not do it: then the parent is another process now.
            if _LIBC is not None:
                _LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self._pid:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_OTHERS)
            # Close all descriptors of the zygote, and the sockets of calls that are not started
            # yet: a copy here would keep them open.
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
            self._arm()  # the imported module may have changed signal handlers

    def _arm(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, FOR_OTHERS)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)


def _signal(pid: int, number: int) -> None:
    """Signal the process group of `pid`; only `pid` if it has not called `setsid` yet."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def main(control: int, page: int, runtime: int, main_name: str, main_path: str) -> Never:
    """Run the zygote of the worker `worker_pid`.

    `control_fd` is its socket to the worker, `page_fd` the page of the deadline.
    """
    os.set_inheritable(control, False)  # noqa: FBT003 - the name of the function says it
    deadline = Deadline(page)
    os.close(page)
    if isinstance(sys.stdout, TextIOWrapper):
        # Write each line at once, so that the output of a killed tool is not lost.
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [main_path]
    lookup = Places(main_name, main_path)
    Server(socket.socket(fileno=control), deadline, runtime, lookup).serve()
