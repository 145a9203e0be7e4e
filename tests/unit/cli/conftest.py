"""Places to type commands at: a store, and a server that has the very same store."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.typist import PATH, TOKEN, Shell, Typist, serving


@pytest.fixture(autouse=True)
def _nobody_elses_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("MIDRUN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MIDRUN_ACTOR", "ada")
    monkeypatch.setenv("PATH", PATH)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Serve an app; give the folder that its store and its gate are in, and its address."""
    folder = tmp_path_factory.mktemp("served")
    with serving(Shell(folder), GATE=str(folder / "gate")) as url:
        yield folder, url


@pytest.fixture
def store(served: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> Typist:
    """Type at the store itself."""
    return Typist(capsys, "--store", f"sqlite:///{served[0]}/runs.db")


@pytest.fixture
def url(served: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> Typist:
    """Type at the server."""
    file = served[0] / "token-of-the-operator"
    file.write_text(f"{TOKEN}\n")
    return Typist(capsys, "--url", served[1], "--token-file", str(file))


@pytest.fixture(params=["store", "url"])
def midrun(request: pytest.FixtureRequest, store: Typist, url: Typist) -> Typist:
    """Type at the one, then at the other: the same words do."""
    return store if request.param == "store" else url


@pytest.fixture
def gate(served: tuple[Path, str]) -> Iterator[Path]:
    """Give the gate that searches wait for; it is shut, and open again in the end."""
    path = served[0] / "gate"
    path.unlink(missing_ok=True)
    yield path
    path.touch()


@pytest.fixture
def open_gate(gate: Path) -> Path:
    """Give the gate, open."""
    gate.touch()
    return gate
