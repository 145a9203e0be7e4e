"""Settings for every test: one event loop, no wall-clock limits, docs that run."""

import pytest
from hypothesis import settings
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

# Without this the assertions inside our shipped suites fail without saying what they saw.
pytest.register_assert_rewrite("midrun.testing")

# Two shared cores: a slow example says something about the machine, not about the code.
settings.register_profile("midrun", deadline=None, print_blob=True)
settings.load_profile("midrun")

# Collected only when pages are named on the command line, as `make examples` does. The ADRs are
# records of what was decided, not instructions; they are not run.
pytest_collect_file = Sybil(
    path=".",
    patterns=["docs/**/*.md", "README.md"],
    excludes=["docs/adr/*.md"],
    parsers=[PythonCodeBlockParser(), SkipParser()],
).pytest()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run on asyncio: that is what midrun supports, whatever else is installed."""
    return "asyncio"
