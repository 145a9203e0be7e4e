"""A server whose disk is full: it is said, nothing is lost, and with room runs go on."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

import anyio
import pytest

from midrun import Agent, Midrun, tool
from midrun.core.entries import Entry, LeaseTaken
from midrun.core.ids import Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.errors import StoreFull
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.ports.store import AppendResult, Lease, RunQuery
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres, running
from tests.crash.facts import becomes
from tests.unit.stores.postgres.conftest import PATIENCE

pytestmark = [pytest.mark.once, pytest.mark.slow]

LONG = 50_000
"""Bytes of chance: more than there is room for in pages that are there already."""


class Disk:
    """A small disk that a schema is kept on. `url` is its address."""

    def __init__(self, url: str, ballast: Path) -> None:
        self.url = url
        self._ballast = ballast

    def fill(self) -> None:
        """Leave no room at all."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        """Take away what fills it."""
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Give a disk of four megabytes, under a server of its own; that takes root."""
    with TemporaryDirectory(prefix="disk-", dir="/tmp") as folder:
        mounted = subprocess.run(  # noqa: S603 - for root only
            ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", folder],  # noqa: S607 - as above
            check=False,
            capture_output=True,
        )
        if mounted.returncode:
            pytest.skip("cannot mount here, and nothing else fills a server's disk")
        try:
            with running() as server:
                yield Disk(_kept_on(server, Path(folder)), Path(folder) / "ballast")
        finally:
            subprocess.run(["umount", "-l", folder], check=True)  # noqa: S603, S607 - as above


def _kept_on(server: Postgres, disk: Path) -> str:
    space = disk / "space"
    space.mkdir(mode=0o700)
    if server.user is not None:
        shutil.chown(space, server.user)
    server.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
    return server.url() + quote(" -cdefault_tablespace=small")


class Watched(PostgresStore):
    """A store that counts how often an append found no room."""

    noes = 0

    async def append(
        self,
        run: RunId,
        entries: Sequence[Entry],
        *,
        after: Seq | None,
        lease: Lease | None,
        head: Head | None,
        starts: bool = False,
        at: Micros | None = None,
    ) -> AppendResult:
        """Append; a no is counted."""
        try:
            return await super().append(
                run, entries, after=after, lease=lease, head=head, starts=starts, at=at
            )
        except StoreFull:
            self.noes += 1
            raise


async def test_a_full_disk_is_named_and_holds_a_run_up_until_there_is_room(disk: Disk) -> None:
    """A result that cannot be journaled is kept; who asks is refused, and told what to do."""
    acted = anyio.Event()
    did: list[str] = []

    @tool
    async def act() -> str:
        """Act, and say a lot."""
        did.append("act")
        await acted.wait()
        return os.urandom(LONG).hex()

    agent = Agent("actor", model=ScriptedModel([Use("act"), "Done."]), tools=[act])
    with anyio.fail_after(PATIENCE):
        store = await Watched.open(disk.url)
        outside = Environment(lease=timedelta(seconds=PATIENCE))
        async with Midrun(store, agents=[agent], outside=outside) as midrun:
            run = await midrun.start(agent, "Go.")
            await becomes(lambda: did == ["act"])
            disk.fill()
            acted.set()
            await becomes(lambda: store.noes > 0)
            task = os.urandom(LONG).hex()
            with pytest.raises(StoreFull, match="Free space, then retry"):
                await midrun.start(agent, task, request_id="once")
            assert [row.run for row in (await store.list_runs(RunQuery())).items] == [run.id]
            disk.make_room()
            assert (await run.until("completed")).output == "Done."
            other = await midrun.start(agent, task, request_id="once")
            assert (await other.until("completed")).output == "Done."
            assert await midrun.verify(run.id)
            entries = [record.entry for record in await store.read(run.id)]
        await store.close()
    assert did == ["act", "act"]  # once for each of them
    assert sum(isinstance(entry, LeaseTaken) for entry in entries) == 1
