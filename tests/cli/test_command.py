"""The command, typed into a real process: what it prints, and how it exits."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

APP = Path(__file__).with_name("app.py")


class Shell:
    """Types commands in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "MIDRUN_STORE": f"sqlite:///{folder}/runs.db", "USER": "ada"}

    def type(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end."""
        return subprocess.run(  # noqa: S603 - our own command
            self._command(words), env=self.env, capture_output=True, text=True, check=False
        )

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        """Start a command."""
        return subprocess.Popen(  # noqa: S603 - our own command
            self._command(words), env=self.env | env, stdout=subprocess.PIPE, text=True
        )

    def json(self, *words: str) -> list[dict[str, object]]:
        """Return what a command says to programs."""
        said = self.type(*words, "--json").stdout.splitlines()
        return [cast("dict[str, object]", json.loads(line)) for line in said]

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "midrun", *words]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Give a shell."""
    return Shell(tmp_path)


def test_a_run_is_shown_until_it_has_completed(shell: Shell) -> None:
    """One line per fact, and the exit code says how it ended."""
    done = shell.type("run", f"{APP}:searcher", "Find cats")
    assert done.returncode == 0, done.stderr
    assert "RunCompleted" in done.stdout
    (row,) = shell.json("ls")
    assert cast("dict[str, str]", row["head"])["phase"] == "completed"
    shown = shell.type("show", str(row["run"])[4:12]).stdout  # the beginning of an id will do
    assert "Found cats." in shown
    assert "clean" in shell.type("verify", str(row["run"])).stdout


def test_a_run_that_asks_exits_as_paused_and_is_answered_from_elsewhere(shell: Shell) -> None:
    """The answer is given by one command, and another drives the run to its end."""
    asked = shell.type("run", f"{APP}:asker", "Ask me")
    assert asked.returncode == 75, asked.stderr
    assert "resume with: midrun resume run_" in asked.stdout
    (ask,) = shell.json("asks")
    name = f"{ask['run']}/{cast('dict[str, str]', ask['ask'])['id']}"
    assert "in the journal" in shell.type("answer", name, "red").stdout
    with shell.start("worker", f"{APP}:asker") as worker:
        follow = shell.type("feed", str(ask["run"]), "--follow")
        assert "output=red!" in follow.stdout
        worker.send_signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_an_interrupt_pauses_the_run_and_says_how_to_resume(
    shell: Shell, tmp_path: Path
) -> None:
    """Ctrl-C is not a kill: the tool finishes, the run is paused, nothing is lost."""
    gate = tmp_path / "gate"
    with shell.start("run", f"{APP}:searcher", "Find cats", GATE=str(gate)) as running:
        assert running.stdout
        for line in running.stdout:
            if "call_kind=tool" in line:
                break
        running.send_signal(signal.SIGINT)
        for line in running.stdout:
            if "PauseRequested" in line:
                break
        gate.touch()
        rest = running.stdout.read()
        assert running.wait() == 75
    assert "resume with: midrun resume run_" in rest
    (row,) = shell.json("ls", "--phase", "paused")
    assert shell.type("resume", str(row["run"]), "Only black ones").returncode == 0


def test_an_approval_is_given_by_name_and_refusals_say_why(shell: Shell) -> None:
    """Exit code 1, and what is possible instead."""
    shell.type("run", f"{APP}:sender", "Send it")
    (ask,) = shell.json("asks")
    name = f"{ask['run']}/{cast('dict[str, str]', ask['ask'])['id']}"
    assert shell.type("approve", name).returncode == 0
    again = shell.type("approve", name)
    assert again.returncode == 1
    assert "already_answered" in again.stderr
    assert "first was ada" in again.stderr
    cancelled = shell.type("cancel", str(ask["run"]), "--undo-all", "--reason", "enough")
    assert cancelled.returncode == 0
    assert "The run is cancelled." in shell.type("report", str(ask["run"])).stdout
    lines = shell.type("export", str(ask["run"])).stdout.splitlines()
    assert json.loads(lines[0])["entry"]["kind"] == "RunStarted"


def test_a_latch_is_set_and_lifted(shell: Shell) -> None:
    """By an operator, from any terminal."""
    assert shell.type("halt", "fire drill").returncode == 0
    assert shell.type("lift").returncode == 0
    assert shell.type("lift").returncode == 1


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["show", "run_nobody"], 1, "run_nobody"),
        (["run", "nowhere.py", "x"], 1, "there is no such file"),
        (["run", str(APP), "x"], 1, "choose with --agent"),
        (["answer", "a1", "x"], 1, "RUN/ASK"),
        (["nonsense"], 2, "invalid choice"),
        (["ls", "--store", "nonsense://"], 1, "memory:// or sqlite:///"),
    ],
)
def test_what_cannot_be_done_says_what_to_do(
    shell: Shell, words: list[str], code: int, says: str
) -> None:
    """In one line, without a traceback."""
    done = shell.type(*words)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr


def test_buttons_are_pressed_without_loading_what_they_do_not_need(shell: Shell) -> None:
    """No provider's package, and no model layer of anybody's."""
    code = (
        "import sys; from midrun.cli.main import main; main(['ls']);"
        "print([m for m in sys.modules if m.split('.')[0] in "
        "('pydantic', 'pydantic_ai', 'openai', 'anthropic', 'mcp', 'starlette')])"
    )
    done = subprocess.run(  # noqa: S603 - our own code
        [sys.executable, "-c", code], env=shell.env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_app_is_served_over_http_until_it_is_told_to_stop(shell: Shell) -> None:
    """Every control is one authenticated request away."""
    token = "a-token-that-is-long-enough-for-a-test"
    with shell.start("serve", f"{APP}:searcher", "--port", "0", "--token", token) as serving:
        assert serving.stdout
        address = serving.stdout.readline().partition("/#")[0]
        body = json.dumps({"agent": "searcher", "task": "Find cats"}).encode()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{address}/v1/runs", body, headers)  # noqa: S310 - our own server
        with urllib.request.urlopen(asked) as reply:  # noqa: S310 - as above
            started = json.load(reply)
        follow = shell.type("feed", started["run_id"], "--follow")
        assert "RunCompleted" in follow.stdout
        serving.send_signal(signal.SIGTERM)
        assert serving.wait() in {0, -signal.SIGTERM}  # it shuts down, then takes the signal
