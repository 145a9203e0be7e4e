"""Files: a body is stored with the entry that names it, once, and belongs to its runs."""

from datetime import timedelta
from hashlib import sha256

import anyio
import pytest
from msgspec.structs import replace

from midrun.core.entries import CallDone
from midrun.core.ids import CallId, Micros, RunId, Seq
from midrun.core.run_head import Head
from midrun.core.values import FileRef, Message, Phase
from midrun.errors import (
    FileMissing,
    RunErased,
    RunExists,
    RunNotFound,
    SeqConflict,
    StaleEpoch,
)
from midrun.ports.store import Store
from midrun.stores.encryption import get_cipher
from midrun.testing.store_suite.fixtures import (
    MISSING_RUN,
    OTHER_RUN,
    RUN,
    StoreSuiteFixtures,
    create_run,
    export_lines,
    make_head,
    make_imported,
    make_message,
    make_started,
    pause_run,
    take_lease,
)

_LONG = timedelta(seconds=60)
PICTURE = bytes(range(256)) * 300  # more than one page of a database
QUEUED = Head(phase=Phase.QUEUED, owner="ann")


def make_ref(body: bytes, name: str = "a.png") -> FileRef:
    """Return the reference to `body`."""
    digest = sha256(body).hexdigest()
    return FileRef(name=name, media_type="image/png", size=len(body), hash=digest)


def make_bodies(*bodies: bytes) -> dict[str, bytes]:
    """Return `bodies` by hash."""
    return {sha256(body).hexdigest(): body for body in bodies}


async def create_with_file(store: Store, run: RunId = RUN, body: bytes = PICTURE) -> FileRef:
    """Create a run whose task has a file."""
    ref = make_ref(body)
    started = replace(make_started(), files=(ref,))
    await store.create(run, [started], head=QUEUED, files=make_bodies(body))
    return ref


class FileTests(StoreSuiteFixtures):
    """The entry and the bodies that it names are one write."""

    async def test_a_file_is_read_back_as_it_was_written(self, store: Store) -> None:
        ref = await create_with_file(store)
        said = replace(make_message(), files=(make_ref(b""), make_ref(b"\0\xff")))
        bodies = make_bodies(b"", b"\0\xff")
        await store.append(RUN, [said], after=Seq(1), lease=None, head=QUEUED, files=bodies)
        await store.record_heartbeat("w", ttl=_LONG)
        lease = await take_lease(store, RUN, 2, "w")
        done = CallDone(call=CallId("c1"), files=(make_ref(b"chart"),))
        head = make_head(Phase.RUNNING, leased=True)
        await store.append(
            RUN, [done], after=Seq(3), lease=lease, head=head, files=make_bodies(b"chart")
        )
        for body in (PICTURE, b"", b"\0\xff", b"chart"):
            assert await store.read_file(RUN, make_ref(body).hash) == body
        assert (await store.read(RUN))[0].entry.files == (ref,)  # type: ignore[union-attr]

    async def test_a_refused_write_stores_no_file(self, store: Store) -> None:
        await create_run(store)
        said = replace(make_message(), files=(make_ref(PICTURE),))
        with pytest.raises(SeqConflict):
            await store.append(
                RUN, [said], after=Seq(9), lease=None, head=QUEUED, files=make_bodies(PICTURE)
            )
        started = replace(make_started(), files=(make_ref(PICTURE),))
        with pytest.raises(RunExists):
            await store.create(RUN, [started], head=QUEUED, files=make_bodies(PICTURE))
        with pytest.raises(FileMissing):
            await store.read_file(RUN, make_ref(PICTURE).hash)

    async def test_the_file_of_a_write_that_came_too_late_does_not_stay(
        self, store: Store
    ) -> None:
        """The run was taken over, or deleted; then no deletion would ever remove the body."""
        await create_run(store)
        await store.record_heartbeat("w", ttl=_LONG)
        lease = await take_lease(store, RUN, 1, "w")
        await take_lease(store, RUN, 2, "w", epoch=2)
        ref, head = make_ref(PICTURE), make_head(Phase.RUNNING, leased=True)
        done = CallDone(call=CallId("c1"), files=(ref,))
        with pytest.raises(StaleEpoch):
            await store.append(
                RUN, [done], after=Seq(2), lease=lease, head=head, files=make_bodies(PICTURE)
            )
        await create_run(store, OTHER_RUN, head=make_head(Phase.COMPLETED))
        await store.delete_runs([OTHER_RUN], by="ann")
        said, bodies = replace(make_message(), files=(ref,)), make_bodies(PICTURE)
        with pytest.raises(RunErased):
            await store.append(
                OTHER_RUN, [said], after=Seq(1), lease=None, head=QUEUED, files=bodies
            )
        started = replace(make_started(), files=(ref,))
        with pytest.raises(FileMissing):  # the body is not given, and not stored
            await store.create(RunId("run_3"), [started], head=QUEUED)

    async def test_an_entry_that_names_an_unknown_file_is_refused(self, store: Store) -> None:
        started = replace(make_started(), files=(make_ref(PICTURE),))
        with pytest.raises(FileMissing):
            await store.create(RUN, [started], head=QUEUED, files=make_bodies(b"another"))
        with pytest.raises(RunNotFound):
            await store.get_row(RUN)
        await create_run(store)
        said = replace(make_message(), files=(make_ref(PICTURE),))
        with pytest.raises(FileMissing):
            await store.append(RUN, [said], after=Seq(1), lease=None, head=QUEUED)
        assert (await store.get_row(RUN)).seq == 1

    async def test_a_body_with_another_hash_is_refused(self, store: Store) -> None:
        ref = make_ref(PICTURE)
        started = replace(make_started(), files=(ref,))
        for hash_, body in ((ref.hash, b"forged"), ("../etc/passwd", b"x")):
            named = replace(started, files=(replace(ref, hash=hash_),))
            with pytest.raises(ValueError, match="hash"):
                await store.create(RUN, [named], head=QUEUED, files={hash_: body})

    async def test_a_file_is_stored_once_and_read_through_its_runs_only(
        self, store: Store
    ) -> None:
        ref = await create_with_file(store)
        # The second run inherits the file with its history; its body is not sent again.
        history = (Message(role="user", text="look", files=(ref,)),)
        started = replace(make_started(), history=history)
        await store.create(OTHER_RUN, [started], head=QUEUED)
        assert await store.read_file(OTHER_RUN, ref.hash) == PICTURE
        third = RunId("run_3")
        await create_run(store, third)
        for run, wanted in ((third, FileMissing), (MISSING_RUN, RunNotFound)):
            with pytest.raises(wanted):
                await store.read_file(run, ref.hash)
        for unknown in ("0" * 64, "", "x" * 64, "\0"):
            with pytest.raises(FileMissing):
                await store.read_file(RUN, unknown)

    async def test_an_adopted_run_has_its_files(self, store: Store) -> None:
        ref = await create_with_file(store)
        await pause_run(store, RUN, 1)
        lines = await export_lines(store, RUN)
        other = [line.replace(ref.hash.encode(), b"f" * 64) for line in lines]
        head = make_head(Phase.PAUSED)
        with pytest.raises(FileMissing):
            await store.adopt(OTHER_RUN, other, make_imported(OTHER_RUN, other), head=head)
        imported = make_imported(OTHER_RUN, lines)
        await store.adopt(OTHER_RUN, lines, imported, head=head, files=make_bodies(PICTURE))
        assert await store.read_file(OTHER_RUN, ref.hash) == PICTURE

    async def test_files_count_as_stored_bytes_of_their_owner(self, store: Store) -> None:
        await create_with_file(store)
        usage = await store.get_usage("ann", since=Micros(0))
        lines = sum(len(line) for line, _ in await store.read_lines(RUN))
        stored = get_cipher(store).encrypt_file(make_ref(PICTURE).hash, PICTURE)
        assert usage.stored_bytes == lines + len(stored)

    async def test_runs_that_bring_the_same_file_at_once_all_have_it(
        self, store: Store
    ) -> None:
        runs = [RunId(f"run_{n}") for n in range(8)]
        async with anyio.create_task_group() as tasks:
            for run in runs:
                tasks.start_soon(create_with_file, store, run)
        for run in runs:
            assert await store.read_file(run, make_ref(PICTURE).hash) == PICTURE
