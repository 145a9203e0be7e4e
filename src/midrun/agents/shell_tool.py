"""`shell`: a ready-made tool that runs command lines."""

import subprocess
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, Final

from midrun.agents.tool import Approve, Tool, tool
from midrun.agents.tool_environment import EnvironmentOption
from midrun.core.values import Json

OUTPUT_MAX_BYTES: Final = 64 * 1024
"""Bytes that are returned of stdout and of stderr. Of a longer output the first and the last
half of this are returned: errors usually stand at the beginning or at the end."""


def shell(
    name: str = "shell",
    *,
    timeout: timedelta | None = None,
    approve: Approve = False,
    env: EnvironmentOption = None,
) -> Tool:
    """Return a tool that runs a command line with `sh`.

    The command runs in the working folder of the worker, with the rights of the worker's user,
    but not with its environment. It is a blocking tool, so it has its own process group. When
    the call is aborted or has ended, all processes of the group are killed, background
    processes included.

    Args:
        name: The name of the tool.
        timeout: A call that takes longer is aborted.
        approve: True: a person approves every command first. A function: called with the
            arguments, it decides.
        env: Environment variables for the command, as in `tool`.
    """
    return tool(run_command, name=name, timeout=timeout, approve=approve, env=env)


def run_command(command: str) -> dict[str, Json]:
    """Run a command line with sh and wait for it. Returns exit_code, stdout and stderr.

    There is no terminal and no input. Background processes end with the command.

    Args:
        command: The command line.
    """
    # Files, not pipes: a pipe that is not read blocks the command when it is full, and one that
    # a background process keeps open would not end.
    with TemporaryFile() as out, TemporaryFile() as err:
        done = subprocess.run(  # noqa: S603 - running the given command is its purpose
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            check=False,
        )
        return {
            "exit_code": done.returncode,
            "stdout": _read_bounded(out),
            "stderr": _read_bounded(err),
        }


def _read_bounded(output: IO[bytes]) -> str:
    size = output.seek(0, 2)
    output.seek(0)
    if size <= OUTPUT_MAX_BYTES:
        return output.read(OUTPUT_MAX_BYTES).decode(errors="replace")
    half = OUTPUT_MAX_BYTES // 2
    first = output.read(half)
    output.seek(-half, 2)
    last = output.read(half)
    # Either half may begin or end within a UTF-8 character; those bytes are replaced.
    left_out = f"\n… {size - 2 * half} bytes left out …\n"
    return first.decode(errors="replace") + left_out + last.decode(errors="replace")
