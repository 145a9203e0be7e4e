"""A Postgres server that is frozen for longer than a lease, and one whose disk is full."""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from midrun.errors import StoreError, StoreFull
from midrun.models import ScriptedModel, Use
from midrun.ports.environment import Environment
from midrun.ports.store import AppendResult, Lease, RunQuery
from midrun.stores.postgres import connection, pool
from midrun.stores.postgres.store import PostgresStore
from midrun.testing.postgres import Postgres, running
from tests.support.conditions import wait_until
from tests.unit.stores.postgres.conftest import TIMEOUT_S
from tests.unit.workers.worker import make_agents, read_book

pytestmark = [pytest.mark.once, pytest.mark.slow]

RESULT_BYTES = 50_000
"""Random bytes that do not fit into the pages that are already allocated."""


class Disk:
    """A small disk with a schema on it. `url` leads to the schema."""

    def __init__(self, url: str, ballast: Path) -> None:
        self.url = url
        self._ballast = ballast

    def fill(self) -> None:
        """Use up all free space."""
        with suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        """Free the space again."""
        self._ballast.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    """Mount a disk of four megabytes under its own server; needs root."""
    with TemporaryDirectory(prefix="disk-", dir="/tmp") as folder:
        mounted = subprocess.run(  # noqa: S603 - for root only
            ["mount", "-t", "tmpfs", "-o", "size=4m,mode=755", "tmpfs", folder],  # noqa: S607 - as above
            check=False,
            capture_output=True,
        )
        if mounted.returncode:
            pytest.skip("cannot mount a small disk")
        try:
            with running() as server:
                yield Disk(create_schema_on(server, Path(folder)), Path(folder) / "ballast")
        finally:
            subprocess.run(["umount", "-l", folder], check=True)  # noqa: S603, S607 - as above


def create_schema_on(server: Postgres, disk: Path) -> str:
    space = disk / "space"
    space.mkdir(mode=0o700)
    if server.user is not None:
        shutil.chown(space, server.user)
    server.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
    return server.url() + quote(" -cdefault_tablespace=small")


class CountingStore(PostgresStore):
    """A store that counts the appends that failed because the disk was full."""

    full_errors = 0

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
        files: Mapping[str, bytes] | None = None,
    ) -> AppendResult:
        try:
            return await super().append(
                run,
                entries,
                after=after,
                lease=lease,
                head=head,
                starts=starts,
                at=at,
                files=files,
            )
        except StoreFull:
            self.full_errors += 1
            raise


async def test_a_full_disk_is_reported_and_the_run_waits_for_free_space(disk: Disk) -> None:
    """A result that cannot be appended is kept.

    A new run is refused with the advice to free space.
    """
    may_return = anyio.Event()
    calls: list[str] = []

    @tool
    async def act() -> str:
        """Return a large result."""
        calls.append("act")
        await may_return.wait()
        return os.urandom(RESULT_BYTES).hex()

    agent = Agent("actor", model=ScriptedModel([Use("act"), "Done."]), tools=[act])
    with anyio.fail_after(TIMEOUT_S):
        store = await CountingStore.open(disk.url)
        environment = Environment(lease=timedelta(seconds=TIMEOUT_S))
        async with Midrun(store, agents=[agent], outside=environment) as midrun:
            run = await midrun.start(agent, "Go.")
            await wait_until(lambda: calls == ["act"])
            disk.fill()
            may_return.set()
            await wait_until(lambda: store.full_errors > 0)
            task = os.urandom(RESULT_BYTES).hex()
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
    assert calls == ["act", "act"]  # one call for each run
    assert sum(isinstance(entry, LeaseTaken) for entry in entries) == 1


# ── a frozen server ──────────────────────────────────────────────────────────


LEASE = timedelta(seconds=4)
"""Long enough that a payment ends within the lease while the server is frozen."""


def count_book_words(folder: Path) -> Counter[str]:
    """Return how often each word was written into the book."""
    return Counter(line.split()[0] for line in read_book(folder))


async def test_workers_fence_themselves_while_the_server_is_frozen(
    postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP freezes the server for longer than the lease; nothing must be done twice.

    After SIGCONT the server executes the requests that it had received, long after their
    senders have given up.
    """
    monkeypatch.setattr(pool, "RECONNECT_MAX_S", 1.0)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_S", 1)
    environment, url = Environment(lease=LEASE), postgres.url()
    ada_agents, bob_agents = make_agents(tmp_path, "ada"), make_agents(tmp_path, "bob")
    with anyio.fail_after(TIMEOUT_S):
        async with (
            Midrun(url, agents=ada_agents, outside=environment) as midrun,
            Midrun(url, agents=bob_agents, outside=environment),
        ):
            clerk = await midrun.start("clerk", "Go.")
            payer = await midrun.start("payer", "Go.")
            await wait_until(lambda: count_book_words(tmp_path).keys() == {"a", "b", "pay"})
            with postgres.freeze_processes():
                (tmp_path / "paid").touch()
                await wait_until((tmp_path / "pay is over").exists)
                await wait_until((tmp_path / "b is over").exists)  # the worker stopped it
                with pytest.raises(StoreError):
                    await clerk.pause(request_id="once")
                assert count_book_words(tmp_path) == {"a": 1, "b": 1, "pay": 1}
            receipt = await clerk.pause(request_id="once")
            (tmp_path / "on").touch()
            await clerk.until("paused")
            kinds = [type(r.entry).__name__ for r in await midrun.store.read(clerk.id)]
            assert kinds.count("PauseRequested") == 1
            assert kinds[receipt.seq - 1] == "PauseRequested"
            await clerk.resume()
            assert (await clerk.until("completed")).output == "Done."
            await payer.until("completed")  # without an answer to an ask
            for run in (clerk, payer):
                verdict = await midrun.verify(run.id)
                assert verdict, str(verdict)
    counts = count_book_words(tmp_path)
    assert (counts["a"], counts["pay"]) == (1, 1)
    assert counts["b"] > 1  # the tool is idempotent, so it was repeated
