"""A ready-made tool that runs command lines."""

import subprocess
from datetime import timedelta
from tempfile import TemporaryFile
from typing import IO, Final

from midrun.agents.tool import Approve, Tool, tool
from midrun.agents.tool_environment import EnvironmentOption
from midrun.core.values import Json

OUTPUT_MAX: Final = 64 * 1024
"""Bytes kept of each output: the beginning and the end, where the reasons are."""


def shell(
    name: str = "shell",
    *,
    timeout: timedelta | None = None,
    approve: Approve = False,
    env: EnvironmentOption = None,
) -> Tool:
    """Return a tool that runs a command line with `sh`, where the runtime was started.

    It is a blocking tool, so it has a process group of its own: when the call is stopped, or
    over, everything that the command has started is killed, background processes included. It
    runs with the rights of the runtime, but not with its environment: `env` passes variables
    on, as in `tool`. `approve` says which commands a person must see first.
    """
    return tool(run_command, name=name, timeout=timeout, approve=approve, env=env)


def run_command(command: str) -> dict[str, Json]:
    """Run a command line with sh and wait for it. Returns exit_code, stdout and stderr.

    There is no terminal and no input. Background processes end with the command.

    Args:
        command: The command line.
    """
    with TemporaryFile() as out, TemporaryFile() as err:  # files: nobody has to keep reading
        done = subprocess.run(  # noqa: S603 - to run what it is given is its purpose
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            check=False,
        )
        return {"exit_code": done.returncode, "stdout": _kept(out), "stderr": _kept(err)}


def _kept(output: IO[bytes]) -> str:
    size = output.seek(0, 2)
    output.seek(0)
    if size <= OUTPUT_MAX:
        return output.read(OUTPUT_MAX).decode(errors="replace")
    half = OUTPUT_MAX // 2
    first = output.read(half)
    output.seek(-half, 2)
    last = output.read(half)
    left_out = f"\n… {size - 2 * half} bytes left out …\n"
    return first.decode(errors="replace") + left_out + last.decode(errors="replace")
