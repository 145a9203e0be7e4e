"""The store of a test: a SQLite file, or a real Postgres.

The fixture `store_path` of `conftest.py` returns a path. If there is a file with the address of
a store next to it (`runs.url` next to `runs.db`), that is the store. Processes of the test find
it the same way. They import this module, so it must not import pytest, which takes as long as
half of midrun.

`MIDRUN_TEST_STORE=postgres` runs all tests with that fixture on Postgres, and no others. A test
that needs the SQLite file is skipped there and gives the reason:
`@pytest.mark.about_sqlite("what it does to the file; where Postgres has the same")`.
"""

import os
from pathlib import Path
from typing import Final

STORE_OF_ALL_TESTS: Final = os.environ.get("MIDRUN_TEST_STORE", "")


def get_store_url(path: Path | str) -> str:
    """Return the address of the store at `path`."""
    beside = Path(path).with_suffix(".url")
    return beside.read_text() if beside.exists() else f"sqlite:///{path}"
