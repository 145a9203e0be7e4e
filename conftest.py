"""Settings for all tests: event loop, store, Hypothesis, blocks of the documentation."""

import asyncio
import gc
import os
import signal
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import ModuleType

import certifi
import pytest
import uvicorn.server
from hypothesis import settings
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

# Without this, failed assertions in the shipped test suites do not show their values.
pytest.register_assert_rewrite("midrun.testing", "tests.support")
from midrun.testing.postgres import Postgres, running  # noqa: E402 - must follow the line above
from tests.docs.reader import close_page, open_page, run_block  # noqa: E402 - as above
from tests.support.store_choice import STORE_OF_ALL_TESTS  # noqa: E402 - as above
from tests.support.verified_journals import journals_are_sound  # noqa: E402 - for all tests

__all__ = ["journals_are_sound"]

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


async def _sleep_briefly(delay_s: float) -> None:
    await asyncio.sleep(min(delay_s, 0.005))


def pytest_configure(config: pytest.Config) -> None:
    """Set the signal and the variables that every process of the tests inherits.

    This is no fixture: some modules copy the environment when they are imported, and the pages
    of the documentation have no fixtures.
    """
    # The shell of a script starts background jobs with SIGINT ignored. All processes that the
    # tests start would inherit that, and a test that interrupts one of them would not end.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tokens of test servers stay out of the home folder, and traces off the network.
    folder = mkdtemp(prefix="midrun-state-")
    os.environ["XDG_STATE_HOME"] = folder
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    # Most HTTP clients read all certificate authorities of the system when they are created,
    # which takes 20 ms. Tests reach no TLS server on the network, so one authority is enough.
    authorities, end, _ = certifi.contents().partition("-----END CERTIFICATE-----\n")
    Path(folder, "authority.pem").write_text(authorities + end)
    os.environ["SSL_CERT_FILE"] = f"{folder}/authority.pem"
    os.environ.pop("SSL_CERT_DIR", None)
    config.add_cleanup(partial(rmtree, folder, ignore_errors=True))
    # Uvicorn asks every 100 ms whether it should stop, and then whether it is done. Hundreds of
    # tests stop a server, so the one of the tests asks more often.
    quick_asyncio = ModuleType("asyncio")
    vars(quick_asyncio).update(vars(asyncio), sleep=_sleep_briefly)
    vars(uvicorn.server)["asyncio"] = quick_asyncio


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector away from the imported modules and the collected tests.

    These are a million objects that live until the end. A full collection would visit them all.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Start a real Postgres; `postgres.url()` returns the address of a new schema in it."""
    with running() as server:
        yield server


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip or deselect the tests that cannot run on the store of `MIDRUN_TEST_STORE`."""
    for item in items:
        mark = item.get_closest_marker("about_sqlite")
        if mark is not None and not (mark.args and isinstance(mark.args[0], str)):
            raise pytest.UsageError(f"{item.nodeid}: about_sqlite needs a reason")
        if mark is not None and STORE_OF_ALL_TESTS:
            item.add_marker(pytest.mark.skip(reason=f"about SQLite: {mark.args[0]}"))
    if STORE_OF_ALL_TESTS:
        stored: list[pytest.Item] = []
        others: list[pytest.Item] = []
        for item in items:
            is_stored = "store_path" in getattr(item, "fixturenames", ())
            (stored if is_stored else others).append(item)
        items[:] = stored
        config.hook.pytest_deselected(items=others)


@pytest.fixture
def store_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return the path of a new store; see `tests/support/store_choice.py`."""
    path = tmp_path / "runs.db"
    on_postgres = getattr(request, "param", STORE_OF_ALL_TESTS) == "postgres"
    if on_postgres:
        path.with_suffix(".url").write_text(request.getfixturevalue("postgres").url())
    yield path
    assert not (on_postgres and path.exists()), "the test used SQLite; open `kept_at(path)`"
