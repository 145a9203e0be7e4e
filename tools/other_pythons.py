"""Run the tests on each given Python version that is installed; list the missing ones.

    .venv/bin/python tools/other_pythons.py 3.12 3.13 -- -m "not once"

Arguments after `--` go to pytest. All versions are tested even if one fails. A version that is
not installed is reported, but is not a failure: a fresh clone must pass with one Python.
"""

import os
import subprocess
import sys
from pathlib import Path

MAKE = os.environ.get("MAKE", "make")


def main(argv: list[str]) -> int:
    """Test every version, print a summary, and return the exit code."""
    split = argv.index("--") if "--" in argv else len(argv)
    versions, pytest_args = argv[:split], argv[split + 1 :]
    verdicts = {version: run_tests_on(version, pytest_args) for version in versions}
    print(format_summary(verdicts), flush=True)
    return int("FAILED" in verdicts.values())


def run_tests_on(version: str, pytest_args: list[str]) -> str:
    """Return `passed`, `FAILED` or `NOT INSTALLED` for one version."""
    found = subprocess.run(["tools/find-python", version], check=False, capture_output=True)
    if found.returncode:
        return "NOT INSTALLED"
    folder = Path(f".venv-{version}")
    print(f"\n==> Python {version}", flush=True)
    # make would warn that it cannot use the job slots of the make that started this script.
    environment = {**os.environ, "MAKEFLAGS": ""}
    for command in (
        [MAKE, f"{folder}/.ready"],
        [f"{folder}/bin/python", "-m", "pytest", *pytest_args],
    ):
        if subprocess.run(command, env=environment, check=False).returncode:
            return "FAILED"
    return "passed"


def format_summary(verdicts: dict[str, str]) -> str:
    """Return a box that stands out in a long log."""
    lines = [f"  Python {version}   {word}" for version, word in verdicts.items()]
    if "NOT INSTALLED" in verdicts.values():
        lines.append("  Missing versions were NOT TESTED.")
    rule = "=" * 60
    return "\n".join(["", rule, *lines, rule])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
