"""Real processes for the promises that are about processes."""

import json
import subprocess
import sys

import anyio

from tests.support.processes import ROOT


async def elsewhere(*arguments: object) -> dict[str, str]:
    """Run `elsewhere.py` with these arguments in a process of its own; return what it says."""
    command = [sys.executable, "-m", "tests.scenarios.promises.elsewhere", *map(str, arguments)]
    with anyio.fail_after(120):
        ended = await anyio.run_process(
            command, cwd=ROOT, check=False, stderr=subprocess.STDOUT
        )
    said = ended.stdout.decode()
    assert ended.returncode == 0, said
    told: dict[str, str] = json.loads(said.splitlines()[-1])
    return told
