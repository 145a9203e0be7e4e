"""The store of a test: a SQLite file, or a real Postgres.

The fixture `store_path` returns a path. If there is a file with the address of a store next to
it (`runs.url` next to `runs.db`), that is the store. Processes of the test find it the same
way.

`MIDRUN_TEST_STORE=postgres` runs all tests with that fixture on Postgres, and no others. A test
that needs the SQLite file is skipped there and gives the reason:
`@pytest.mark.about_sqlite("what it does to the file; where Postgres has the same")`.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

STORE_OF_ALL_TESTS: Final = os.environ.get("MIDRUN_TEST_STORE", "")


def get_store_url(path: Path | str) -> str:
    """Return the address of the store at `path`."""
    beside = Path(path).with_suffix(".url")
    return beside.read_text() if beside.exists() else f"sqlite:///{path}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip or deselect the tests that cannot run on the store of `MIDRUN_TEST_STORE`."""
    for item in items:
        mark = item.get_closest_marker("about_sqlite")
        if mark is not None and not (mark.args and isinstance(mark.args[0], str)):
            raise pytest.UsageError(f"{item.nodeid}: about_sqlite needs a reason")
        if mark is not None and STORE_OF_ALL_TESTS:
            item.add_marker(pytest.mark.skip(reason=f"about SQLite: {mark.args[0]}"))
    if STORE_OF_ALL_TESTS:
        others = [i for i in items if "store_path" not in getattr(i, "fixturenames", ())]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)


@pytest.fixture
def store_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return the path of a new store; see the module docstring."""
    path = tmp_path / "runs.db"
    on_postgres = getattr(request, "param", STORE_OF_ALL_TESTS) == "postgres"
    if on_postgres:
        path.with_suffix(".url").write_text(request.getfixturevalue("postgres").url())
    yield path
    assert not (on_postgres and path.exists()), "the test used SQLite; open `kept_at(path)`"
