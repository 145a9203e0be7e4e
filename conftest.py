"""Settings for all tests: the event loop, Hypothesis profiles, blocks of the documentation."""

import os
from collections.abc import Iterator
from functools import partial
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import settings
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

# Without this, failed assertions in the shipped test suites do not show their values.
pytest.register_assert_rewrite("midrun.testing", "tests.support")
from midrun.testing.postgres import Postgres, running  # noqa: E402 - must follow the line above
from tests.docs.reader import close_page, open_page, run_block  # noqa: E402 - as above
from tests.support.store_choice import pytest_collection_modifyitems, store_path  # noqa: E402 - for all tests
from tests.support.verified_journals import journals_are_sound  # noqa: E402 - as above

__all__ = ["journals_are_sound", "pytest_collection_modifyitems", "store_path"]

# No deadline: on shared cores, a slow example is a property of the machine, not of the code.
# Results are reproducible; `--hypothesis-profile=fresh` draws new examples.
settings.register_profile("midrun", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("midrun")


def _run_sh_block(example: Example) -> None:
    run_block(example.namespace, str(example.parsed))


# Blocks are collected only from pages that the command line names, as in `make examples`. ADRs
# are records of decisions, not instructions; their blocks are not run.
pytest_collect_file = Sybil(
    path=".",
    patterns=["docs/*.md", "docs/**/*.md", "README.md", "CONTRIBUTING.md"],
    excludes=["docs/adr/*.md"],
    parsers=[PythonCodeBlockParser(), CodeBlockParser("sh", _run_sh_block), SkipParser()],
    setup=open_page,
    teardown=close_page,
).pytest()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run on asyncio, the only event loop that midrun supports."""
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    """Keep the tokens of test servers out of the home folder, and traces off the network.

    This is no fixture: some modules copy the environment when they are imported, and the pages
    of the documentation have no fixtures.
    """
    folder = mkdtemp(prefix="midrun-state-")
    os.environ["XDG_STATE_HOME"] = folder
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    config.add_cleanup(partial(rmtree, folder, ignore_errors=True))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Start a real Postgres; `postgres.url()` returns the address of a new schema in it."""
    with running() as server:
        yield server
