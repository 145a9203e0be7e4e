"""On a pseudo-terminal: signals while the bar is there, and colours where they are seen."""

import os
import signal
import sys
from pathlib import Path

import pexpect  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.unit.tui.terminals import APP, PATH

pytestmark = [pytest.mark.slow, pytest.mark.once]


def spawn(folder: Path, *words: str, **env: str) -> "pexpect.spawn[str]":
    """Start a command of midrun on a terminal of its own."""
    settings = {
        **os.environ,
        "PATH": PATH,
        "MIDRUN_STORE": f"sqlite:///{folder}/runs.db",
        "MIDRUN_ACTOR": "ada",
        "GATE": str(folder / "gate"),
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody here would answer where the cursor is
        **env,
    }
    words = ("-m", "midrun", *words)
    return pexpect.spawn(
        sys.executable,
        list(words),
        env=settings,
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 100),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_run_paused(tmp_path: Path, number: signal.Signals) -> None:
    """The process that drives it is about to go: it must not be found half done."""
    child = spawn(tmp_path, "run", f"{APP}:clerk", "Sort the mail")
    child.expect("Cancel")
    child.kill(number)
    child.expect("resume with: midrun resume run_")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 75


@pytest.mark.parametrize(("setting", "coloured"), [("", True), ("1", False)])
def test_colours_are_for_terminals_of_people_who_want_them(
    tmp_path: Path, setting: str, coloured: bool
) -> None:
    """NO_COLOR is asked for by name; the words are enough without."""
    (tmp_path / "gate").touch()
    run = spawn(tmp_path, "run", f"{APP}:clerk", "Sort the mail", "--plain")
    run.expect(pexpect.EOF)
    listed = spawn(tmp_path, "ls", NO_COLOR=setting)
    listed.expect(pexpect.EOF)
    assert "completed" in (listed.before or "")
    assert ("\x1b[32mcompleted" in (listed.before or "")) is coloured
