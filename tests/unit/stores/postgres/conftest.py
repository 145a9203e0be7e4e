"""What tests of the Postgres store share: a schema, stores on it, a proxy before it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import anyio
import pytest

from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres
from tests.unit.stores.postgres.cutting import Cutter, cutting

PATIENCE = 90
"""Seconds after which something that should have happened counts as never happening."""

Open = Callable[[str], Awaitable[PostgresStore]]


@pytest.fixture
def url(postgres: Postgres) -> str:
    """Give the address of an empty schema."""
    return postgres.url()


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Give what opens stores that are closed afterwards."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:

            async def open_one(address: str) -> PostgresStore:
                store = await PostgresStore.open(address)
                stack.push_async_callback(store.close)
                return store

            yield open_one


@pytest.fixture
async def store(url: str, opened: Open) -> PostgresStore:
    """Give a store on the schema."""
    return await opened(url)


@pytest.fixture
async def cutter(postgres: Postgres) -> AsyncIterator[Cutter]:
    """Give a proxy before the server; `through(url, cutter)` is the way over it."""
    with TemporaryDirectory(prefix="cut-", dir="/tmp") as folder:
        async with cutting(Path(folder), postgres.folder) as cutter:
            yield cutter


@pytest.fixture
def cut_url(url: str, postgres: Postgres, cutter: Cutter) -> str:
    """Give the address of the schema through the proxy."""
    return url.replace(quote(str(postgres.folder), safe=""), quote(str(cutter.folder), safe=""))
