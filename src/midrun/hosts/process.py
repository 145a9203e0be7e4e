"""Host an agent whose loop runs in another process, in any language.

    coder = midrun.hosts.process(
        name="coder",
        command=["python", "agent.py"],
        tools=[charge],
        upstream=Upstream("anthropic"),
    )

`coder` is an agent like any other: `Midrun(agents=[coder])`, `midrun serve`, `midrun run`. For
each run the worker starts the command in a process group of its own, with the task as its
input. The process finds its model provider and its tools in the variables of its environment;
they lead to a `Gateway` in the worker, which makes each request a call of the run. What the
process prints is the answer.

When the run is paused, the process is ended; when it continues, a new one is started. See
`gateway_calls.py` for the two ways in which a new process continues the work of the last.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Unpack, cast

import anyio
from anyio.abc import ByteReceiveStream, Process

from midrun.agents.program import ProgramCalls
from midrun.agents.signature import Function
from midrun.agents.tool import Tool
from midrun.agents.tool_environment import (
    EnvironmentOption,
    ToolEnvironment,
    declare_environment,
)
from midrun.codec.safe_repr import safe_repr
from midrun.errors import Misconfigured, ProcessFailed
from midrun.hosts.hosted_agent import HostedAgent, Hosting, HostOptions, ProgramModel
from midrun.hosts.upstream import DEFAULT_UPSTREAMS, Upstream, check_upstreams

OUTPUT_MAX_BYTES: Final = 1024 * 1024
"""Bytes that a process may print: they are the answer of the run."""

STDERR_MAX_BYTES: Final = 4096
"""Bytes at the end of the error output that are kept for the error of the run."""

STOP_SHARE_OF_GRACE: Final = 0.4
"""The part of the agent's grace between SIGTERM and SIGKILL."""

REAP_TIMEOUT_S: Final = 1.0
"""Seconds to wait for the end of killed processes and of their output."""

SUPERVISOR: Final = """
import ctypes, os, signal, subprocess, sys, threading
link, is_stopping = int(sys.argv[1]), False
def stop(*_):
    global is_stopping
    is_stopping = True
signal.signal(signal.SIGTERM, stop)  # a handler, which the command does not inherit
def watch():
    os.read(link, 1)  # returns when the worker has closed its end, or has died
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
try:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
except (AttributeError, OSError):
    pass  # not Linux
try:
    command = subprocess.Popen(sys.argv[2:])
except OSError as error:
    sys.exit(f"Cannot start {sys.argv[2]}: {error}")
code = 0
while True:
    try:
        pid, status = os.waitpid(-1, 0)
    except ChildProcessError:
        break
    if pid == command.pid:
        code = os.waitstatus_to_exitcode(status)
        if not is_stopping:
            break
os._exit(code if code >= 0 else 128 - code)
"""
"""A small program between the worker and the command.

It leads the process group, and kills it when the worker dies: the kernel closes the worker's
end of the pipe `link`, also after SIGKILL. Without it the process would run on without a run.

It ends with the command. After SIGTERM it ends with the last of all processes below it, which
become its children when their parents end: a program may stop before the one that it has
started has stored its state, and that one needs its time, too.
"""


def process(
    *,
    name: str,
    command: Sequence[str],
    tools: Sequence[Tool | Function] = (),
    upstream: Upstream | Sequence[Upstream] = DEFAULT_UPSTREAMS,
    env: EnvironmentOption = None,
    cwd: str | Path | None = None,
    keeps_history: bool = False,
    parallel: bool = False,
    **options: Unpack[HostOptions],
) -> HostedAgent:
    """Make an agent of a command that runs as a process of its own for each run.

    The process finds its model provider and its tools in the variables of its environment.
    They lead to a gateway in the worker, which makes each request a call of the run.

    Args:
        name: The name of the agent.
        command: The program and its arguments. It reads the task from its standard input, and
            prints the answer.
        tools: Tools for the process, as for `Agent`. It finds them at the MCP server
            `MIDRUN_MCP_URL`.
        upstream: The model providers to which requests are forwarded, with the worker's keys.
        env: Variables for the process, besides PATH, HOME and a few more: a list of names to
            copy, a dict of values, or "inherit" for all but MIDRUN_*.
        cwd: The working directory of the process. Default: that of the worker.
        keeps_history: Whether a process that is started again continues by itself where the
            last one ended, from a history that it has stored. By default it begins anew, and
            the calls that it makes again are answered from the journal.
        parallel: Whether the process makes calls at the same time, in an order that may change.
            After a restart, a call that the journal does not have then waits for the others.
        options: `stop`, `grace` and the other options of `Agent`.

    Raises:
        Misconfigured: An argument is not valid. The text says what to do.
    """
    hosting = Hosting(name=name, context=None, declared=None, options=options)
    owner = f"process {safe_repr(name, 80)}"
    program = _ProcessProgram(
        command=_check_command(owner, command),
        tools=tuple(Tool.of(each) for each in tools),
        upstreams=check_upstreams(owner, upstream),
        environment=declare_environment(owner, "env", env),
        cwd=cwd,
        keeps_history=keeps_history,
        is_parallel=parallel,
    )
    agent = HostedAgent(
        name,
        framework="process",
        model=ProgramModel(f"process {program.name}"),
        tools=program.tools,
        hosting=hosting,
        program=program,
    )
    agent.undeclared_tools = 0  # they are declared in Midrun
    program.grace_s = agent.grace.total_seconds()
    return agent


@dataclass(kw_only=True)
class _ProcessProgram:
    """The program of an agent: opens a gateway, and runs the command behind it."""

    command: Sequence[str]
    tools: Sequence[Tool]
    upstreams: Sequence[Upstream]
    environment: ToolEnvironment
    cwd: str | Path | None
    keeps_history: bool
    is_parallel: bool
    grace_s: float = 0.0

    @property
    def name(self) -> str:
        """The name of the command."""
        return Path(self.command[0]).name

    async def __call__(self, calls: ProgramCalls, task: str) -> str:
        """Run the command for one run, and return its output."""
        try:
            # In a thread: the MCP SDK takes a second to import. The dependency is optional.
            await anyio.to_thread.run_sync(import_module, "midrun.hosts.gateway")
            from midrun.hosts.gateway import open_gateway  # noqa: PLC0415 - see above
        except ImportError as error:
            problem = f"Cannot open the gateway: {error}. Install midrun[process]."
            raise Misconfigured(f"process {self.name}", problem) from error
        opened = open_gateway(
            calls,
            self.tools,
            self.upstreams,
            keeps_history=self.keeps_history,
            is_parallel=self.is_parallel,
        )
        try:
            async with opened as gateway:
                variables = {
                    **self.environment.variables(),
                    **gateway.list_variables(),
                    "MIDRUN_RUN_ID": calls.run_id,
                }
                return await _Child(self, variables).run(task)
        except ExceptionGroup as group:  # of the tasks of the gateway
            raise _find_first_error(group) from group


def _check_command(owner: str, command: object) -> tuple[str, ...]:
    is_list = isinstance(command, list | tuple) and bool(command)
    if not is_list or not all(isinstance(each, str) for each in cast("list[object]", command)):
        problem = (
            f'command must be a list of str, as ["python", "agent.py"], got '
            f"{safe_repr(command, 80)}"
        )
        raise Misconfigured(owner, problem)
    return tuple(cast("list[str]", command))


def _find_first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first = group.exceptions[0]
    return _find_first_error(first) if isinstance(first, BaseExceptionGroup) else first


class _Child:
    """The process of one run, its output, and its end."""

    def __init__(self, program: _ProcessProgram, variables: dict[str, str]) -> None:
        self._program = program
        self._variables = variables
        self._output = bytearray()
        self._stderr = bytearray()

    async def run(self, task: str) -> str:
        """Run the command, and return its output when it has ended.

        Raises:
            ProcessFailed: It ended with an error, or printed too much.
        """
        async with self._start() as child, anyio.create_task_group() as tasks:
            tasks.start_soon(self._write_task, child, task)
            tasks.start_soon(self._read_output, child)
            tasks.start_soon(self._read_stderr, child)
            await child.wait()
            # Processes that the command has left behind may hold its output open.
            _kill_group(child, signal.SIGKILL)
            tasks.cancel_scope.deadline = anyio.current_time() + REAP_TIMEOUT_S
        if code := child.returncode:
            raise self._make_failure(f"ended with code {code}")
        return self._output.decode(errors="replace").strip()

    @asynccontextmanager
    async def _start(self) -> AsyncGenerator[Process, None]:
        """Start the command, and end its whole process group with the context."""
        # Only the worker has `own_end`, and never writes to it. When the worker is gone, for
        # whatever reason, the kernel closes it, and the supervisor reads the end of the pipe.
        link, own_end = os.pipe()
        command = self._program.command
        try:
            child = await anyio.open_process(
                [sys.executable, "-I", "-S", "-c", SUPERVISOR, str(link), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._program.cwd,
                env=self._variables,
                start_new_session=True,
                pass_fds=(link,),
            )
        except BaseException as error:  # also a cancellation
            os.close(own_end)
            if isinstance(error, OSError):
                raise self._make_failure(f"cannot be started: {error}") from error
            raise
        finally:
            os.close(link)
        try:
            yield child
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(child)
            os.close(own_end)

    async def _end(self, child: Process) -> None:
        if child.returncode is None:
            _kill_group(child, signal.SIGTERM)
            with anyio.move_on_after(self._program.grace_s * STOP_SHARE_OF_GRACE):
                await child.wait()
        # Always, also after the leader has ended by itself: processes that it started may be
        # left.
        _kill_group(child, signal.SIGKILL)
        with anyio.move_on_after(REAP_TIMEOUT_S):
            await child.wait()
            await child.aclose()

    async def _write_task(self, child: Process, task: str) -> None:
        assert child.stdin is not None
        # The process may end, or close its input, without reading the task.
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await child.stdin.send(task.encode())
        await child.stdin.aclose()

    async def _read_output(self, child: Process) -> None:
        async for part in _iterate(child.stdout):
            self._output += part
            if len(self._output) > OUTPUT_MAX_BYTES:
                raise self._make_failure(f"printed more than {OUTPUT_MAX_BYTES} bytes")

    async def _read_stderr(self, child: Process) -> None:
        async for part in _iterate(child.stderr):
            self._stderr += part
            del self._stderr[:-STDERR_MAX_BYTES]

    def _make_failure(self, problem: str) -> ProcessFailed:
        said = self._stderr.decode(errors="replace").strip()
        return ProcessFailed(self._program.name, problem, said)


async def _iterate(stream: ByteReceiveStream | None) -> AsyncGenerator[bytes, None]:
    assert stream is not None, "the process has pipes"
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async for part in stream:
            yield part


def _kill_group(child: Process, number: signal.Signals) -> None:
    # The group has the id of its leader. The kernel does not give that id to another process
    # or group while a process of this group exists.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)
