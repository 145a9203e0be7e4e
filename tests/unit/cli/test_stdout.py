"""Wherever the command writes to: what is closed, full, or of another alphabet."""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import anyio
import msgspec
import pytest

from midrun import Agent, Midrun
from midrun.cli.output import CommandOutput
from midrun.models import ScriptedModel

SAID = "Dönë — 日本"
MIDRUN = (sys.executable, "-m", "midrun")

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
        ["/bin/sh", "-c", command, "sh", *MIDRUN, *words],
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
    assert done.stderr == b"midrun: Cannot write the output: No space left on device\n"


def test_an_option_before_its_command_is_told_where_it_belongs() -> None:
    """Not to mean what it is already."""
    done = typed("--json", "ls")
    assert done.returncode == 2
    assert b"--json comes after the command" in done.stderr


TALKS = """
import os
import anyio
from midrun import Agent, tool
from midrun.models import ScriptedModel, Use

@tool
async def wait() -> None:
    \"\"\"Wait for the test.\"\"\"
    while not await anyio.Path(os.environ["GATE"]).exists():
        await anyio.sleep(0.005)

model = ScriptedModel([Use("wait"), "word " * 10_000], chunk_delay=0.1)
a = Agent("a", model=model, tools=[wait])
"""


@pytest.mark.parametrize("form", ["--plain", "--json"])
def test_a_reader_that_leaves_in_the_middle_of_a_run_pauses_it(
    tmp_path: Path, form: str
) -> None:
    """As a terminal that is closed does: the driver is about to go, and nobody watches.

    What is written side by side with the run comes out of a task group; that is no fault.
    """
    app, gate, store = tmp_path / "talks.py", tmp_path / "gate", f"sqlite:///{tmp_path}/runs.db"
    app.write_text(TALKS)
    words = ("run", f"{app}:a", "Go.", "--store", store, "--actor", "ada", form)
    with subprocess.Popen(  # noqa: S603 - our own code
        [*MIDRUN, *words],
        env=os.environ | {"GATE": str(gate)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.read(1)
        started.stdout.close()
        gate.touch()
        said = started.stderr.read().decode()
    assert started.returncode == 75
    assert said.startswith(
        "midrun: the output cannot be written, so the run is paused\nresume with: "
    )
    assert said.endswith(f"--store {store}\n")
    view = msgspec.json.decode(typed("ls", "--store", store, "--json").stdout)
    assert (view["phase"], view["sign"]["by"]) == ("paused", "ada")


def test_a_reader_that_leaves_a_run_of_others_pauses_nothing(store: str) -> None:
    """It was only looked at."""
    run = msgspec.json.decode(typed("ls", "--store", store, "--json").stdout)["run_id"]
    done = typed("attach", run, "--store", store, into="| head -c 1")
    assert (len(done.stdout), done.stderr) == (1, b"")


class Screen(StringIO):
    """A terminal, as far as a program can tell."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def test_a_report_is_broken_between_words_where_somebody_reads_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A terminal would cut through them; a file gets the lines as they are."""
    monkeypatch.setenv("COLUMNS", "40")
    report = f"# Title\n\n- `write` {'word ' * 20}\n\n{'Partial work. ' * 9}"
    screen, file = Screen(), StringIO()
    CommandOutput(screen).write_wrapped(report)
    CommandOutput(file).write_wrapped(report)
    shown = screen.getvalue().splitlines()
    assert shown[:4] == ["# Title", "", f"- `write`{' word' * 6}", f"  {'word ' * 7}".rstrip()]
    assert max(map(len, shown)) <= 40
    assert " ".join(screen.getvalue().split()) == " ".join(report.split())
    assert file.getvalue() == f"{report}\n"
