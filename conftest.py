"""Settings for every test: one event loop, no wall-clock limits, docs that run."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

# Without this the assertions inside our shipped suites fail without saying what they saw.
pytest.register_assert_rewrite("midrun.testing", "tests.support")
from midrun.testing.postgres import Postgres, running  # noqa: E402 - only now, hence
from tests.docs.reader import closed, opened, typed  # noqa: E402 - as above
from tests.support.store_choice import kept, pytest_collection_modifyitems  # noqa: E402 - for all tests
from tests.support.verified_journals import journals_are_sound  # noqa: E402 - as above

__all__ = ["journals_are_sound", "kept", "pytest_collection_modifyitems"]

# Two shared cores: a slow example says something about the machine, not about the code.
# The same tree gives the same answer; `--hypothesis-profile=fresh` looks elsewhere.
settings.register_profile("midrun", deadline=None, print_blob=True, derandomize=True)
settings.register_profile("fresh", deadline=None, print_blob=True)
settings.load_profile("midrun")


def _typed(example: Example) -> None:
    typed(example.namespace, str(example.parsed))


# Collected only when pages are named on the command line, as `make examples` does. The ADRs are
# records of what was decided, not instructions; they are not run.
pytest_collect_file = Sybil(
    path=".",
    patterns=["docs/*.md", "docs/**/*.md", "README.md", "CONTRIBUTING.md"],
    excludes=["docs/adr/*.md"],
    parsers=[PythonCodeBlockParser(), CodeBlockParser("sh", _typed), SkipParser()],
    setup=opened,
    teardown=closed,
).pytest()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run on asyncio: that is what midrun supports, whatever else is installed."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep tokens of servers that tests start out of the home folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Give a real Postgres; `postgres.url()` is the address of a new schema in it."""
    with running() as server:
        yield server
