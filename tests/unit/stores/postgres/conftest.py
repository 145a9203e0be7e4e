"""Fixtures for the Postgres store: a schema, stores on it, a proxy before the server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import anyio
import pytest

from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from tests.unit.stores.postgres.faulty_proxy import FaultyProxy, run_proxy

TIMEOUT_S = 90
"""Seconds after which a test that waits fails."""

TERMINATE_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'midrun'"
)

OpenStore = Callable[[str], Awaitable[PostgresStore]]


@pytest.fixture
def url(postgres: Postgres) -> str:
    """Return the URL of a new schema."""
    return postgres.url()


@pytest.fixture
async def open_store_at() -> AsyncIterator[OpenStore]:
    """Return a function that opens stores; they are closed after the test."""
    with anyio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:

            async def open_and_register(url: str) -> PostgresStore:
                store = await PostgresStore.open(url)
                stack.push_async_callback(store.close)
                return store

            yield open_and_register


@pytest.fixture
async def store(url: str, open_store_at: OpenStore) -> PostgresStore:
    """Return a store on the schema."""
    return await open_store_at(url)


@pytest.fixture
async def proxy(postgres: Postgres) -> AsyncIterator[FaultyProxy]:
    """Run a proxy before the server; `proxy_url` leads through it."""
    with TemporaryDirectory(prefix="cut-", dir="/tmp") as folder:
        async with run_proxy(Path(folder), postgres.folder) as proxy:
            yield proxy


@pytest.fixture
def proxy_url(url: str, postgres: Postgres, proxy: FaultyProxy) -> str:
    """Return the URL of the schema through the proxy."""
    return url.replace(quote(str(postgres.folder), safe=""), quote(str(proxy.folder), safe=""))


def get_schema(url: str) -> str:
    """Return the name of the schema in the URL of a test."""
    return url.rpartition("search_path%3D")[2]
