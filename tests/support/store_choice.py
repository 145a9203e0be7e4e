"""Where tests keep their runs: in a file, or all of them in a real Postgres.

A test is given a path. If there is an address beside it (`runs.url` beside `runs.db`), that is
where its runs are; so processes that a test starts find the same store.

`MIDRUN_TEST_STORE=postgres` has every test that is given a path keep its runs there, and runs
no other: they do not care. What is about the file itself says so, and why, and is skipped:
`@pytest.mark.about_sqlite("what it does to the file; where Postgres has the same")`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

EVERYWHERE: Final = os.environ.get("MIDRUN_TEST_STORE", "")


def kept_at(path: Path | str) -> str:
    """Return the address of the store that stands for `path`."""
    beside = Path(path).with_suffix(".url")
    return beside.read_text() if beside.exists() else f"sqlite:///{path}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what does not keep its runs where all are to be kept."""
    for item in items:
        mark = item.get_closest_marker("about_sqlite")
        if mark is not None and not (mark.args and isinstance(mark.args[0], str)):
            raise pytest.UsageError(f"{item.nodeid}: about_sqlite needs a reason")
        if mark is not None and EVERYWHERE:
            item.add_marker(pytest.mark.skip(reason=f"about SQLite: {mark.args[0]}"))
    if EVERYWHERE:
        others = [i for i in items if "kept" not in getattr(i, "fixturenames", ())]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Give the path of a new store, on what the test is run for."""
    path = tmp_path / "runs.db"
    there = getattr(request, "param", EVERYWHERE) == "postgres"
    if there:
        path.with_suffix(".url").write_text(request.getfixturevalue("postgres").url())
    yield path
    assert not (there and path.exists()), "it kept its runs in a file; open `kept_at(path)`"
