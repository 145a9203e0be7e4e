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
descriptor except its socket, the page of the deadline, the worker's holder socket
(`driver/holder_socket.py`), and standard error.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Final, Never

from midrun.driver.subprocess.child import ChildChannel, run_task
from midrun.driver.subprocess.function_lookup import FunctionLookup, FunctionNotFound
from midrun.driver.subprocess.protocol import (
    FRAME_HEADER,
    Deadline,
    ProcessGone,
    ProcessRefused,
    ProcessStarted,
    SignalProcess,
    StartProcess,
    ZygoteReport,
    decode_request,
    encode_frame,
)
from midrun.ports import platform
from midrun.ports.platform import read_boot_clock

DEADLINE_CHECK_S: Final = 1.0
"""The most seconds between two looks at the deadline.

The timeout of `select` stands still while the machine sleeps, the deadline does not.
"""

WORKER_SIGNALS: Final = {signal.SIGINT, signal.SIGTERM}
"""Signals that the zygote itself does not act on: Ctrl-C and a service manager's SIGTERM.

The worker acts on them. They are blocked, not ignored: a SIGTERM that reaches a child before it
has set up its signals stays pending, and is delivered when the child unblocks it.
"""

PR_SET_PDEATHSIG: Final = 1

PARENT_CHECK_S: Final = 0.5
"""The most seconds between two looks at the worker, on a platform without a pidfd."""


class ZygoteServer:
    """The main loop of a zygote.

    `control` is its socket to the worker, `worker_pid` the process id of the worker.
    """

    def __init__(
        self,
        control: socket.socket,
        deadline: Deadline,
        worker_pid: int,
        lookup: FunctionLookup,
    ) -> None:
        self._control = control
        self._deadline = deadline
        self._lookup = lookup
        self._queued_calls: dict[int, tuple[str, int]] = {}  # call: target, the child's socket
        self._pid_by_call: dict[int, int] = {}  # call: pid
        self._call_by_pid: dict[int, int] = {}  # pid: call
        # The self-pipe trick: SIGCHLD writes a byte, so that `select` returns.
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        os.set_blocking(self._wake_read_fd, False)
        os.set_blocking(self._wake_write_fd, False)
        self._install_signals()
        self._own_pid = os.getpid()
        self._worker_pid = worker_pid
        # Without a signal at the death of their parent, children watch the read end of this
        # pipe. Only the zygote has the write end, so the read ends with it.
        self._life_line = None if platform.CURRENT.has_parent_death_signal else os.pipe()
        self._sources: list[socket.socket | int] = [control, self._wake_read_fd]
        self._worker_pidfd: int | None = None
        if platform.CURRENT.has_pidfd:
            # A closed socket alone does not show the end of the worker: a process that the
            # worker has forked may hold a copy of it open. A pidfd does show it.
            try:
                self._worker_pidfd = os.pidfd_open(worker_pid)
            except ProcessLookupError:
                self._exit()
            self._sources.append(self._worker_pidfd)

    def serve(self) -> Never:
        """Handle requests of the worker until it is gone."""
        while True:
            # With calls to start, only poll: signals for running calls come first.
            self._handle_next(None if not self._queued_calls else 0)
            if self._queued_calls:
                self._start_queued(next(iter(self._queued_calls)))

    # ── messages and signals: these also run in the second thread ────────────

    def _handle_next(self, timeout: float | None, *more: int) -> None:
        """Wait for the next message or signal and handle it; only queue new calls."""
        if timeout is None and self._call_by_pid:
            timeout = self._compute_wait_s()
        if self._worker_pidfd is None:
            timeout = PARENT_CHECK_S if timeout is None else min(timeout, PARENT_CHECK_S)
        ready, _, _ = select.select([*self._sources, *more], [], [], timeout)
        # Looked at after every wait, whatever ended it. A message of a worker that has just
        # thawed must not be handled before the calls of its lapsed lease are dead.
        if self._has_lapsed():
            for pid in self._call_by_pid:
                _signal_group(pid, signal.SIGKILL)
        has_pidfd = self._worker_pidfd is not None
        if self._worker_pidfd in ready if has_pidfd else self._is_orphaned():
            self._exit()
        if self._wake_read_fd in ready:
            self._reap()
        if self._control in ready:
            self._read_request()

    def _is_orphaned(self) -> bool:
        return os.getppid() != self._worker_pid

    def _has_lapsed(self) -> bool:
        return read_boot_clock() >= self._deadline.moment

    def _compute_wait_s(self) -> float:
        left = self._deadline.moment - read_boot_clock()
        # After the deadline all calls have been killed, and SIGCHLD ends the wait.
        return min(left, DEADLINE_CHECK_S) if left > 0 else DEADLINE_CHECK_S

    def _read_request(self) -> None:
        try:
            header, fd = self._receive(FRAME_HEADER.size)
            body, _ = self._receive(FRAME_HEADER.unpack(header)[0])
        except (EOFError, OSError):
            self._exit()
        # Only the worker writes to this socket, and both run the same code: no check for
        # garbage.
        match decode_request(body):
            case StartProcess(call=call, target=target) if fd is not None:
                self._queued_calls[call] = target, fd
            case StartProcess(call=call, target=target):
                self._send_report(
                    ProcessRefused(call, "OSError", f"no descriptor left to start {target}")
                )
            case SignalProcess(call=call, signal=number):
                self._signal_call(call, number)

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

    def _signal_call(self, call: int, signal_number: int) -> None:
        # The call may be running, still queued, or gone. In the last case the signal is
        # dropped: its process id may belong to another process by now.
        if call in self._pid_by_call:
            _signal_group(self._pid_by_call[call], signal_number)
        elif call in self._queued_calls:
            _, fd = self._queued_calls.pop(call)
            os.close(fd)
            self._send_report(ProcessRefused(call, "", "stopped before it was started"))

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._wake_read_fd, 4096)
        with suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                pid, code = reaped[0], os.waitstatus_to_exitcode(reaped[1])
                # First forget the process id, then signal its group: after the reap, a later
                # request of the worker to signal this call must not find the number any more.
                if pid in self._call_by_pid:  # else a process that a module started on import
                    call = self._call_by_pid.pop(pid)
                    del self._pid_by_call[call]
                    # Kill the processes that the call left behind. The number of the group is
                    # not reused while one of them lives.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                    self._send_report(ProcessGone(call, code))

    def _send_report(self, report: ZygoteReport) -> None:
        try:
            self._control.sendall(encode_frame(report))
        except OSError:
            self._exit()

    def _exit(self) -> Never:
        """Kill all calls and exit, because the worker is gone."""
        for pid in self._call_by_pid:
            _signal_group(pid, signal.SIGKILL)
        os._exit(0)

    # ── starting calls ───────────────────────────────────────────────────────

    def _start_queued(self, call: int) -> None:
        """Start a waiting call and report it; if that fails, report the reason."""
        target, _ = self._queued_calls[call]
        try:
            function = self._find_function(target)
            report = self._fork_child(call, function)
        except FunctionNotFound as problem:
            report = self._refuse(call, problem.kind, problem.message, not_found=True)
        except OSError as problem:  # no process or memory left
            report = self._refuse(call, type(problem).__name__, f"cannot fork: {problem}")
        if report is not None:
            self._send_report(report)

    def _find_function(self, target: str) -> object:
        if self._lookup.is_imported(target):
            return self._lookup.find_function(target)
        with self._handle_in_thread():
            return self._lookup.find_function(target)

    def _fork_child(self, call: int, function: object) -> ZygoteReport | None:
        if call not in self._queued_calls:
            return None  # killed, and reported as refused, while its module was imported
        if self._has_lapsed():
            return self._refuse(call, "TimeoutError", "not started: the lease has lapsed")
        _, fd = self._queued_calls[call]
        # The second thread has ended (see `_handle_in_thread`), so this is the only thread.
        pid = os.fork()
        if not pid:
            self._become_child(fd, function)
        del self._queued_calls[call]
        os.close(fd)
        self._pid_by_call[call], self._call_by_pid[pid] = pid, call
        return ProcessStarted(call, pid)

    def _refuse(
        self, call: int, kind: str, message: str, *, not_found: bool = False
    ) -> ZygoteReport | None:
        if call not in self._queued_calls:
            return None
        _, fd = self._queued_calls.pop(call)
        os.close(fd)
        return ProcessRefused(call, kind, message, not_found)

    def _become_child(self, fd: int, function: object) -> Never:
        try:
            # A session of its own makes the child the leader of a process group. All processes
            # that the tool starts are in it, and one signal reaches all of them.
            os.setsid()
            # Have the kernel kill this child when the zygote dies. If the zygote died before
            # this line, the kernel will not do it: then the parent is another process now.
            if self._life_line is None:
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
            if os.getppid() != self._own_pid:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WORKER_SIGNALS)
            # Close all descriptors of the zygote, and the sockets of calls that are not started
            # yet: a copy here would keep them open.
            for source in (*self._sources, self._wake_write_fd):
                os.close(source if isinstance(source, int) else source.detach())
            for _, other in self._queued_calls.values():
                if other != fd:
                    os.close(other)
            if self._life_line is not None:
                _watch_life_line(*self._life_line)
            run_task(ChildChannel(fd), function, self._lookup.find_function)
        finally:
            os._exit(1)

    # ── the second thread ────────────────────────────────────────────────────

    @contextmanager
    def _handle_in_thread(self) -> Iterator[None]:
        # Closing `finish` makes `done` readable, which ends the `select` of the thread: a flag
        # alone would be seen only with the next message.
        done, finish = os.pipe()

        def listen() -> None:
            while not select.select([done], [], [], 0)[0]:
                self._handle_next(None, done)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield
        finally:
            os.close(finish)
            thread.join()
            os.close(done)
            self._install_signals()  # the imported module may have changed signal handlers

    def _install_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, WORKER_SIGNALS)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write_fd, warn_on_full_buffer=False)


def _watch_life_line(read_fd: int, write_fd: int) -> None:
    """Kill this child and its process group when the zygote dies."""
    os.close(write_fd)

    def watch() -> None:
        os.read(read_fd, 1)  # returns when no process has the other end any more
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="midrun-life-line", daemon=True).start()


def _signal_group(pid: int, signal_number: int) -> None:
    """Signal the process group of `pid`; only `pid` if it has not called `setsid` yet."""
    try:
        os.killpg(pid, signal_number)
    except (ProcessLookupError, PermissionError):
        with suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def main(
    fds: Sequence[int], worker_pid: int, system: str, main_name: str, main_path: str
) -> Never:
    """Run the zygote of the worker `worker_pid`, on the platform that the worker names.

    `fds` are its socket to the worker and the page of the deadline, and perhaps the worker's
    holder socket. That one is only kept open, here and in the children.
    """
    platform.CURRENT = platform.PLATFORMS.get(system, platform.CURRENT)
    for fd in fds:
        os.set_inheritable(fd, False)  # noqa: FBT003 - the name of the function says it
    control_fd, page_fd, *_ = fds
    deadline = Deadline(page_fd)
    os.close(page_fd)
    if isinstance(sys.stdout, TextIOWrapper):
        # Write each line at once, so that the output of a killed tool is not lost.
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv = [main_path]
    lookup = FunctionLookup(main_name, main_path)
    ZygoteServer(socket.socket(fileno=control_fd), deadline, worker_pid, lookup).serve()
