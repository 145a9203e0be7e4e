"""Find the Chromium that browser tests drive; as root on Debian, install it if there is none.

    .venv/bin/python tools/chromium.py

`MIDRUN_CHROMIUM` names one; otherwise it is looked for on PATH. Without one the tests fail, and
say so: a browser test that is passed over is a page that nobody looked at.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

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


def main() -> int:
    """Make sure that there is a Chromium."""
    try:
        find()
    except LookupError as error:
        if os.environ.get("MIDRUN_CHROMIUM") or not _install():
            print(f"\n*** {error}", file=sys.stderr)
            return 1
    return 0


def _install() -> bool:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    print("==> chromium: not found, installing it with apt-get", flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", "chromium"],
    ):
        if subprocess.run([apt, *command], env=quiet, check=False).returncode:
            return False
    return shutil.which("chromium") is not None


if __name__ == "__main__":
    sys.exit(main())
