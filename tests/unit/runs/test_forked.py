"""A fork of a process with an open Midrun: it cannot close what is not its own."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("forking.py")
PATIENCE = 300

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("way", "code"), [("raises", 1), ("exits", 7)])
def test_a_fork_that_leaves_a_midrun_ends_and_says_so_and_its_parent_goes_on(
    tmp_path: Path, way: str, code: int
) -> None:
    """It hung: its threads are not there, and it waited for them."""
    command = [sys.executable, str(PROGRAM), f"sqlite:///{tmp_path}/runs.db", way]
    done = subprocess.run(  # noqa: S603 - our own program
        command, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.splitlines() == [f"{code} Done."]
    assert "was forked from" in done.stderr
    assert ("ValueError: in the fork" in done.stderr) is (way == "raises")
