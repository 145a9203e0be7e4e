"""Wherever the command writes to: what is closed, full, or of another alphabet."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import msgspec
import pytest

from midrun import Agent, Midrun
from midrun.models import ScriptedModel

SAID = "Dönë — 日本"

pytestmark = pytest.mark.once


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Give a store with a run that has said more than ASCII."""
    address = f"sqlite:///{tmp_path / 'runs.db'}"
    agent = Agent("a", model=ScriptedModel([SAID]))

    async def fill() -> None:
        async with Midrun(address, agents=[agent]) as mid:
            await (await mid.start(agent, SAID)).result()

    anyio.run(fill)
    return address


def typed(*words: str, into: str = "") -> subprocess.CompletedProcess[bytes]:
    """Type a command in a locale that has ASCII only, with its output redirected `into`."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = f'exec "$@" {into}'
    return subprocess.run(  # noqa: S603 - our own code
        ["/bin/sh", "-c", command, "sh", sys.executable, "-m", "midrun", *words],
        env=os.environ | locale,
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_what_the_locale_has_no_letter_for_is_shown_by_its_number(store: str) -> None:
    """An agent may say anything, and nobody's run ends because of it."""
    done = typed("ls", "--store", store)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"D\xf6n\xeb \u2014" in done.stdout


def test_json_is_utf_8_in_every_locale(store: str) -> None:
    """Whoever reads it does not know ours."""
    done = typed("ls", "--store", store, "--json")
    assert msgspec.json.decode(done.stdout)["task"] == SAID


def test_without_an_output_the_command_does_what_it_does(store: str) -> None:
    """A service may be started so."""
    done = typed("ls", "--store", store, into=">&-")
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_output_that_is_full_is_named(store: str) -> None:
    """And is not a fault of ours, with a traceback."""
    done = typed("ls", "--store", store, into=">/dev/full")
    assert done.returncode == 1
    assert done.stderr == b"midrun: the output cannot be written: No space left on device\n"


def test_an_option_before_its_command_is_told_where_it_belongs() -> None:
    """Not to mean what it is already."""
    done = typed("--json", "ls")
    assert done.returncode == 2
    assert b"--json comes after the command" in done.stderr


def test_a_reader_that_leaves_in_the_middle_of_a_run_is_no_fault(tmp_path: Path) -> None:
    """What was written side by side with the run comes out of a task group."""
    app = tmp_path / "talks.py"
    app.write_text(
        "from midrun import Agent\nfrom midrun.models import ScriptedModel\n"
        "a = Agent('a', model=ScriptedModel(['x' * 300_000]))\n"
    )
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    done = typed("run", f"{app}:a", "Go.", "--store", store, into="| head -c 1")
    assert (done.stdout, done.stderr) == (b"r", b"")
