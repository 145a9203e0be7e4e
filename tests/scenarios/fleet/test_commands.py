"""The commands on one Postgres: servers and workers side by side, any of them in control."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from midrun.testing.postgres import Postgres
from tests.support.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once]

APP = ROOT / "tests" / "unit" / "cli" / "app.py"
TOKEN = "t" * 43


class Commands:
    """Types commands on one store."""

    def __init__(self, store: str, folder: Path) -> None:
        self._env = {
            **os.environ,
            "MIDRUN_STORE": store,
            "MIDRUN_TOKEN": TOKEN,
            "GATE": str(folder / "gate"),
        }
        self._folder = folder

    @contextmanager
    def start(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a command until it is told to leave."""
        with subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "midrun", *words],
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def type(self, *words: str) -> str:
        """Return what a command prints."""
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "midrun", *words],
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
            cwd=self._folder,
        ).stdout


def said(process: "subprocess.Popen[str]", pattern: str) -> str:
    """Wait for a line that a process prints, and return what the pattern finds in it."""
    assert process.stdout
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"it has ended without saying {pattern}")


def call(server: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """Ask a server for something."""
    request = urllib.request.Request(  # noqa: S310 - a server of our own
        f"{server}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {TOKEN}",
            "Content-Type": "application/json",
            "Idempotency-Key": f"{server}{path}",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310 - as above
        answer: dict[str, object] = json.loads(reply.read())
        return answer


def test_servers_and_workers_share_the_runs_of_one_database(
    postgres: Postgres, tmp_path: Path
) -> None:
    """A run that one server starts is paused by the other, and driven on by a worker."""
    commands = Commands(postgres.url(), tmp_path)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(commands.start("serve", f"{APP}:searcher", "--port", "0"))
            for _ in range(2)
        ]
        one, two = (said(server, r"http://127\.0\.0\.1:\d+") for server in servers)
        run = call(one, "/v1/runs", {"agent": "searcher", "input": "cats"})["run_id"]
        call(two, f"/v1/runs/{run}/pause", {"mode": "now"})
        while call(one, f"/v1/runs/{run}")["phase"] != "paused":
            pass
        for server in servers:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        commands.type("resume", str(run))
        (tmp_path / "gate").touch()
        with commands.start("worker", f"{APP}:searcher") as worker:
            assert "Found cats." in commands.type("feed", str(run), "--follow")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        assert "clean" in commands.type("verify", str(run))
