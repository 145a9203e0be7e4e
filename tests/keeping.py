"""Where tests keep their runs: in a file, or, for some tests as well, in a real Postgres.

A test is given a path. If there is an address beside it (`runs.url` beside `runs.db`), that is
where its runs are; so processes that a test starts find the same store.

`MIDRUN_TEST_STORE=postgres` has every test that can keep its runs there.
"""

import os
from pathlib import Path
from typing import Final

import pytest

EVERYWHERE: Final = os.environ.get("MIDRUN_TEST_STORE", "")

ON_BOTH: Final = frozenset(
    {
        "test_1_pause_is_not_stop",
        "test_4_cancel_really_cancels",
        "test_5_cancel_cleans_up",
        "test_6_nothing_is_redone",
        "test_9_a_person_costs_no_process",
        "test_12_an_operator_can_halt_everything",
        "test_14_races_have_one_winner",
    }
)
"""The modules whose tests are run on both, always."""


def kept_at(path: Path | str) -> str:
    """Return the address of the store that stands for `path`."""
    beside = Path(path).with_suffix(".url")
    return beside.read_text() if beside.exists() else f"sqlite:///{path}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have the tests of some modules run on both stores."""
    both = metafunc.module.__name__.rpartition(".")[2] in ON_BOTH
    if both and not EVERYWHERE and "kept" in metafunc.fixturenames:
        postgres = pytest.param("postgres", marks=pytest.mark.once)
        metafunc.parametrize("kept", ["sqlite", postgres], indirect=True)


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Give the path of a new store, on what the test is run for."""
    if getattr(request, "param", EVERYWHERE) == "postgres":
        (tmp_path / "runs.url").write_text(request.getfixturevalue("postgres").url())
    return tmp_path / "runs.db"
