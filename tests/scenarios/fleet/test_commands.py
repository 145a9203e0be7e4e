"""The commands `serve` and `worker` on one Postgres, as processes of their own."""

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
from tests.support.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once]

APP = ROOT / "tests" / "unit" / "cli" / "app.py"
TOKEN = "t" * 43


class Commands:
    """Runs commands on one store."""

    def __init__(self, store: str, folder: Path) -> None:
        self._env = {
            **os.environ,
            "MIDRUN_STORE": store,
            "MIDRUN_TOKEN": TOKEN,
            "GATE": str(folder / "gate"),
        }
        self._folder = folder

    @contextmanager
    def start(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a command until the context is left."""
        with subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "midrun", *arguments],
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self._folder,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: str) -> str:
        """Run a command to its end, and return its output."""
        return subprocess.run(  # noqa: S603 - our own command
            [sys.executable, "-m", "midrun", *arguments],
            env=self._env,
            capture_output=True,
            text=True,
            check=True,
            cwd=self._folder,
        ).stdout


def wait_for_line(process: "subprocess.Popen[str]", pattern: str) -> str:
    """Wait until a process prints a line with `pattern`, and return the match."""
    assert process.stdout
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[0]
    raise AssertionError(f"the process has ended without printing {pattern}")


def call(server: str, path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """Send a request to a server, and return the JSON of its reply."""
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
        body_of_reply: dict[str, object] = json.loads(reply.read())
        return body_of_reply


def test_a_run_of_one_server_is_paused_by_another_and_completed_by_a_worker(
    postgres: Postgres, tmp_path: Path
) -> None:
    commands = Commands(postgres.url(), tmp_path)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(commands.start("serve", f"{APP}:searcher", "--port", "0"))
            for _ in range(2)
        ]
        one, two = (wait_for_line(server, r"http://127\.0\.0\.1:\d+") for server in servers)
        run = call(one, "/v1/runs", {"agent": "searcher", "input": "cats"})["run_id"]
        call(two, f"/v1/runs/{run}/pause", {"mode": "now"})
        while call(one, f"/v1/runs/{run}")["phase"] != "paused":
            pass
        for server in servers:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        commands.run("resume", str(run))
        (tmp_path / "gate").touch()
        with commands.start("worker", f"{APP}:searcher") as worker:
            assert "Found cats." in commands.run("feed", str(run), "--follow")
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0
        assert "clean" in commands.run("verify", str(run))
