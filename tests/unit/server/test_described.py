"""The description is true: schemathesis makes requests of it, against a server that runs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import msgspec
import pytest

from tests.support.processes import ROOT
from tests.unit.server.conftest import PATIENCE, token_of

AUTH = {"Authorization": f"Bearer {token_of('olga')}"}

STATE_DECIDES = "positive_data_acceptance"
"""What is well formed may still be refused: 412, 422, for where the run stands."""

IS_428 = "missing_required_header"
"""It wants a 400; RFC 6585 has a status of its own for a missing If-Match."""


REFUSALS = [400, 401, 403, 404, 405, 406, 409, 412, 413, 415, 422, 428, 429]
"""What is refused is refused so; its own list has neither 412 nor 413."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """Give the address of a server in a process of its own, and the ids of its runs."""
    command = [sys.executable, "-m", "tests.unit.server.described", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:  # noqa: S603 - our own interpreter
        try:
            assert process.stdout is not None
            port, *runs = process.stdout.readline().split()
            yield f"http://127.0.0.1:{port}", runs
        finally:
            process.kill()


def _described(url: str, runs: list[str], path: Path) -> Path:
    """Write what the server says of itself, with the ids of things that are there."""
    described = httpx2.get(f"{url}/v1/openapi.json", headers=AUTH, timeout=PATIENCE).json()
    del described["paths"]["/v1/events"]  # never ends
    there = {
        "run": [*runs, "run_none"],
        "ask": [f"{run}-a1" for run in runs],
        "command": ["cmd_1", "cmd_5", "cmd_none"],
        "frame": ["f1"],
    }
    for operations in described["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    parameter["schema"] = {"enum": there[parameter["name"]]}
    path.write_bytes(msgspec.json.encode(described))
    path.with_name("schemathesis.toml").write_text(
        f"[checks]\nnegative_data_rejection.expected-statuses = {REFUSALS}\n"
    )
    return path


@pytest.mark.slow
@pytest.mark.once
def test_every_reply_to_whatever_is_asked_is_as_described(
    server: tuple[str, list[str]], tmp_path: Path
) -> None:
    """No 500, no status, type or field that is not in it; what must not be taken is refused."""
    url, runs = server
    tool = Path(sys.executable).with_name("schemathesis")
    found = subprocess.run(  # noqa: S603 - a tool of this environment
        [
            *(str(tool), "run", str(_described(url, runs, tmp_path / "openapi.json"))),
            *("--url", url, "--header", f"Authorization: {AUTH['Authorization']}"),
            *("--phases", "coverage,fuzzing,stateful", "--max-examples", "2"),
            *("--exclude-checks", f"{STATE_DECIDES},{IS_428}"),
            *("--max-time", "12", "--request-timeout", "30"),
            *("--generation-deterministic", "--no-color", "--warnings", "off"),
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
    assert "Tested:" in found.stdout
