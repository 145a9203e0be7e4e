"""Run commands of midrun: in this process, which is fast, or in processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import pytest

from midrun.cli.main import main
from tests.support.paths import PATH_WITH_MIDRUN

APP = Path(__file__).with_name("app.py")
TOKEN = "a-token-that-is-long-enough-for-a-test"


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def values(self) -> list[dict[str, object]]:
        """The JSON output, one value per line."""
        return [cast("dict[str, object]", json.loads(line)) for line in self.out.splitlines()]


class CommandRunner:
    """Runs commands in this process. `target` are the options for a store or a server."""

    def __init__(self, capsys: "pytest.CaptureFixture[str]", *target: str) -> None:
        self._capsys = capsys
        self.target = target

    def __call__(self, *words: str) -> CommandResult:
        """Run a command to its end."""
        self._capsys.readouterr()
        before = dict(os.environ)
        try:
            code = main([*words, *self.target])
        except SystemExit as exit_:  # raised by argparse
            code = cast("int", exit_.code)
        finally:
            os.environ.update(before)  # a command removes its secrets from the environment
        return CommandResult(code, *self._capsys.readouterr())


class ProcessRunner:
    """Runs commands in processes of their own, with a store in `folder`."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "PATH": PATH_WITH_MIDRUN,
            "MIDRUN_STORE": f"sqlite:///{folder}/runs.db",
            "MIDRUN_ACTOR": "ada",
            **env,
        }

    def run(self, *words: str) -> CommandResult:
        """Run a command to its end."""
        done = subprocess.run(  # noqa: S603 - our own command
            self._command(words), env=self.env, capture_output=True, text=True, check=False
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        """Start a command that receives SIGHUP, also if the tests run under nohup."""
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # an ignored signal is inherited
        try:
            return subprocess.Popen(  # noqa: S603 - our own command
                self._command(words), env=self.env | env, stdout=subprocess.PIPE, text=True
            )
        finally:
            signal.signal(signal.SIGHUP, before)

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "midrun", *words]


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read lines until one contains `text`, and return that line."""
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"the process ended without printing {text}")


@contextmanager
def serve_app(
    shell: ProcessRunner, *options: str, app: str = f"{APP}:all_agents", **env: str
) -> Iterator[str]:
    """Serve the app in a process of its own, and yield its URL."""
    command = ("serve", app, "--port", "0", "--json", *options)
    with shell.start(*command, MIDRUN_TOKEN=TOKEN, **env) as server:
        try:
            printed = json.loads(read_until(server, "http://"))
            yield str(printed["url"]).partition("/#")[0]
        finally:
            server.terminate()
