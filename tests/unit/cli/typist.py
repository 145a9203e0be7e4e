"""Typing commands: into this very process, which is quick, or into one of their own."""

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

APP = Path(__file__).with_name("app.py")
TOKEN = "a-token-that-is-long-enough-for-a-test"


PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""With this very midrun on it: hints then name it by its name."""


class Said(NamedTuple):
    """What a command printed, and how it exited."""

    code: int
    out: str
    err: str

    @property
    def values(self) -> list[dict[str, object]]:
        """What it said to programs: one value a line."""
        return [cast("dict[str, object]", json.loads(line)) for line in self.out.splitlines()]


class Typist:
    """Types commands in this process. `where` says where the runs are: a store, or a server."""

    def __init__(self, capsys: "pytest.CaptureFixture[str]", *where: str) -> None:
        self._capsys = capsys
        self.where = where

    def __call__(self, *words: str) -> Said:
        """Run a command to its end."""
        self._capsys.readouterr()
        before = dict(os.environ)
        try:
            code = main([*words, *self.where])
        except SystemExit as ended:  # argparse has its own way out
            code = cast("int", ended.code)
        finally:
            os.environ.update(before)  # a command takes its settings out of its own process
        return Said(code, *self._capsys.readouterr())


class Shell:
    """Types commands into processes of their own, in a folder of the test's own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        self.env = {
            **os.environ,
            "PATH": PATH,
            "MIDRUN_STORE": f"sqlite:///{folder}/runs.db",
            "MIDRUN_ACTOR": "ada",
            **env,
        }

    def type(self, *words: str) -> Said:
        """Run a command to its end."""
        done = subprocess.run(  # noqa: S603 - our own command
            self._command(words), env=self.env, capture_output=True, text=True, check=False
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **env: str) -> "subprocess.Popen[str]":
        """Start a command that hears a hang-up, though the tests may run under nohup."""
        before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what is ignored is inherited
        try:
            return subprocess.Popen(  # noqa: S603 - our own command
                self._command(words), env=self.env | env, stdout=subprocess.PIPE, text=True
            )
        finally:
            signal.signal(signal.SIGHUP, before)

    def _command(self, words: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "midrun", *words]


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    """Read lines until one has `text` in it, and return that one."""
    assert process.stdout
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended without saying {text}")


@contextmanager
def serving(
    shell: Shell, *options: str, app: str = f"{APP}:everyone", **env: str
) -> Iterator[str]:
    """Serve the app in a process of its own, and give its address."""
    command = ("serve", app, "--port", "0", "--json", *options)
    with shell.start(*command, MIDRUN_TOKEN=TOKEN, **env) as served:
        try:
            told = json.loads(read_until(served, "http://"))
            yield str(told["url"]).partition("/#")[0]
        finally:
            served.terminate()
