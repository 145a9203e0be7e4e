"""Fixtures that run commands at a store, and at a server with the same store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import PATH_WITH_MIDRUN
from tests.unit.cli.command_runner import TOKEN, CommandRunner, ProcessRunner, serve_app


@pytest.fixture(autouse=True)
def _isolate_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("MIDRUN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MIDRUN_ACTOR", "ada")
    monkeypatch.setenv("PATH", PATH_WITH_MIDRUN)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Serve an app; yield the folder with its store and its gate, and its URL."""
    folder = tmp_path_factory.mktemp("served")
    with serve_app(ProcessRunner(folder), GATE=str(folder / "gate")) as url:
        yield folder, url


@pytest.fixture
def midrun_at_store(
    server: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> CommandRunner:
    """Run commands at the store."""
    return CommandRunner(capsys, "--store", f"sqlite:///{server[0]}/runs.db")


@pytest.fixture
def midrun_at_server(
    server: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> CommandRunner:
    """Run commands at the server."""
    file = server[0] / "token-of-the-operator"
    file.write_text(f"{TOKEN}\n")
    return CommandRunner(capsys, "--url", server[1], "--token-file", str(file))


@pytest.fixture(params=["store", "url"])
def midrun(
    request: pytest.FixtureRequest,
    midrun_at_store: CommandRunner,
    midrun_at_server: CommandRunner,
) -> CommandRunner:
    """Run commands at the store, then at the server."""
    return midrun_at_store if request.param == "store" else midrun_at_server


@pytest.fixture
def gate(server: tuple[Path, str]) -> Iterator[Path]:
    """Return the file that searches wait for; it does not exist until the test creates it."""
    path = server[0] / "gate"
    path.unlink(missing_ok=True)
    yield path
    path.touch()


@pytest.fixture
def open_gate(gate: Path) -> Path:
    """Return the gate, which exists."""
    gate.touch()
    return gate
