"""The sockets beside a database: whose they are, where they are, and what is left of them."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_IMODE

import anyio
import pytest

from midrun import Midrun
from midrun.core.ids import RunId
from midrun.ports.relay import HasRelay
from midrun.stores.memory import MemoryStore
from midrun.stores.sqlite.relay import MESSAGE_MAX_BYTES, SocketRelay, get_relay_folder
from midrun.stores.sqlite.store import SqliteStore

RUN, OTHER = RunId("run_1"), RunId("../../etc/passwd\0")


@contextmanager
def ends(path: Path) -> Iterator[tuple[SocketRelay, SocketRelay]]:
    """Give the ends of two processes."""
    here, there = SocketRelay(path), SocketRelay(path)
    try:
        yield here, there
    finally:
        here.close()
        there.close()


@pytest.fixture
async def _bounded() -> AsyncIterator[None]:
    with anyio.fail_after(30):
        yield


pytestmark = pytest.mark.usefixtures("_bounded")


async def test_a_message_reaches_who_listens_for_its_run(tmp_path: Path) -> None:
    """And nobody else is sent anything."""
    with ends(tmp_path / "runs.db") as (here, there):
        assert not here.listeners(RUN)
        there.listen(RUN)
        here._listed_at = -1  # the look before is too young to be repeated
        (listener,) = here.listeners(RUN)
        assert not there.listeners(RUN), "nobody hears what they sent themselves"
        assert await here.send(listener.name, b"hello")
        assert await there.receive() == b"hello"
        assert not here.listeners(OTHER)


async def test_who_left_for_a_moment_is_another_listener(tmp_path: Path) -> None:
    """It has missed something, and who drives the run has to know."""
    with ends(tmp_path / "runs.db") as (here, there):
        there.listen(RUN)
        (before,) = here.listeners(RUN)
        there.stop_listening(RUN)
        there.listen(RUN)
        here._listed_at = -1
        (after,) = here.listeners(RUN)
        assert (after.name, after != before) == (before.name, True)


async def test_who_takes_nothing_takes_no_room_from_others(tmp_path: Path) -> None:
    """The kernel counts what nobody has taken against the socket that it was sent from."""
    third = SocketRelay(tmp_path / "runs.db")
    with ends(tmp_path / "runs.db") as (here, frozen):
        for end in (frozen, third):
            end.listen(RUN)
        while await here.send(frozen._name, b"x" * MESSAGE_MAX_BYTES):
            pass
        assert await here.send(third._name, b"hello")
        assert await third.receive() == b"hello"
        third.close()


async def test_any_id_of_a_run_makes_a_good_name(tmp_path: Path) -> None:
    """An id may come from a checkpoint that somebody else has made."""
    with ends(tmp_path / "runs.db") as (here, there):
        there.listen(OTHER)
        assert len(here.listeners(OTHER)) == 1
        assert {path.parent for path in get_relay_folder(tmp_path / "runs.db").iterdir()} == {
            tmp_path / "runs.db-live"
        }


async def test_the_longest_message_fits(tmp_path: Path) -> None:
    """Or what a model says at length would never arrive."""
    with ends(tmp_path / "runs.db") as (here, there):
        there.listen(RUN)
        (listener,) = here.listeners(RUN)
        assert await here.send(listener.name, b"x" * MESSAGE_MAX_BYTES)
        assert len(await there.receive()) == MESSAGE_MAX_BYTES


async def test_who_takes_nothing_has_no_room_after_a_while(tmp_path: Path) -> None:
    """The kernel's buffer is the bound; the sender neither waits nor keeps anything."""
    with ends(tmp_path / "runs.db") as (here, there):
        there.listen(RUN)
        (listener,) = here.listeners(RUN)
        sent = 0
        while await here.send(listener.name, b"x" * 1000):
            sent += 1
            assert sent < 10_000
        assert await there.receive()
        assert await here.send(listener.name, b"there is room again")


async def test_only_the_owner_can_reach_them(tmp_path: Path) -> None:
    """Whatever the process's umask is."""
    path = tmp_path / "runs.db"
    before = os.umask(0)
    try:
        with ends(path) as (_, there):
            there.listen(RUN)
            assert S_IMODE(get_relay_folder(path).stat().st_mode) == 0o700
            for name in get_relay_folder(path).iterdir():
                assert S_IMODE(name.stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o777, 0o755])
async def test_a_folder_that_others_could_write_to_or_read_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody may have made it before us, to listen, or to speak in an agent's name."""
    path = tmp_path / "runs.db"
    get_relay_folder(path).mkdir()
    get_relay_folder(path).chmod(mode)
    with ends(path) as (here, there):
        there.listen(RUN)
        (get_relay_folder(path) / f"{'0' * 16}.evil.1").symlink_to("evil.sock")
        assert not here.listeners(RUN)
    assert "only this account can access" in caplog.text


async def test_a_database_whose_path_is_long_has_them_among_the_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket has some hundred bytes; that of a file has thousands."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108 - pytest's own is long, too
    path = tmp_path / ("x" * 100) / "runs.db"
    path.parent.mkdir()
    with ends(path) as (here, there):
        there.listen(RUN)
        (listener,) = here.listeners(RUN)
        assert await here.send(listener.name, b"hello")
        assert await there.receive() == b"hello"
        assert get_relay_folder(path).parent == Path("/tmp")  # noqa: S108 - as above
        assert S_IMODE(get_relay_folder(path).stat().st_mode) == 0o700
    assert not get_relay_folder(path).exists()


async def test_where_no_socket_can_be_nothing_else_is_different(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and that is all."""
    path = tmp_path / "runs.db"
    get_relay_folder(path).write_text("a file, not a folder")
    with ends(path) as (here, there):
        there.listen(RUN)
        there.stop_listening(RUN)
        assert not here.listeners(RUN)
    assert len(caplog.records) == 1


async def test_nothing_is_left_by_those_who_leave(tmp_path: Path) -> None:
    """The folder goes with the last of them."""
    path = tmp_path / "runs.db"
    with ends(path) as (here, there):
        here.listen(RUN)
        there.listen(RUN)
        here.close()
        assert len(list(get_relay_folder(path).iterdir())) == 2
    assert not get_relay_folder(path).exists()


async def test_names_of_the_dead_are_removed_by_whoever_comes(tmp_path: Path) -> None:
    """Nobody may ever send to them again: their run may be over."""
    path = tmp_path / "runs.db"
    dead = SocketRelay(path)
    dead.listen(RUN)
    assert dead._receiver is not None
    dead._receiver.close()  # as the kernel does when a process is killed
    with ends(path) as (here, there):
        here.listen(RUN)
        assert len(list(get_relay_folder(path).iterdir())) == 2
        assert len(there.listeners(RUN)) == 1


async def test_a_store_in_memory_has_no_relay_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nobody else to reach."""
    monkeypatch.chdir(tmp_path)
    assert not isinstance(MemoryStore(), HasRelay)
    async with Midrun("memory://"):
        assert not [there async for there in anyio.Path(tmp_path).iterdir()]


async def test_a_store_on_a_file_makes_no_socket_until_somebody_watches(
    tmp_path: Path,
) -> None:
    """Most processes drive, and watch nothing."""
    async with Midrun(f"sqlite:///{tmp_path / 'runs.db'}") as midrun:
        assert isinstance(midrun.store, SqliteStore)
        assert not get_relay_folder(midrun.store.path).exists()
