"""The relay sockets beside a SQLite file: permissions, location, delivery and cleanup."""

import os
from collections.abc import Iterator
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
def open_two_relays(path: Path) -> Iterator[tuple[SocketRelay, SocketRelay]]:
    """Open the relays of two processes on one file."""
    sender, listener_relay = SocketRelay(path), SocketRelay(path)
    try:
        yield sender, listener_relay
    finally:
        sender.close()
        listener_relay.close()


pytestmark = pytest.mark.usefixtures("_time_limit")


async def test_a_message_reaches_the_listener_of_its_run_only(tmp_path: Path) -> None:
    with open_two_relays(tmp_path / "runs.db") as (sender, listener_relay):
        assert not sender.listeners(RUN)
        listener_relay.listen(RUN)
        sender._listed_at = -1  # expire the cached list of listeners
        (listener,) = sender.listeners(RUN)
        assert not listener_relay.listeners(RUN), "a relay does not list its own listener"
        assert await sender.send(listener.name, b"hello")
        assert await listener_relay.receive() == b"hello"
        assert not sender.listeners(OTHER)


async def test_a_listener_that_stopped_for_a_moment_counts_as_another_listener(
    tmp_path: Path,
) -> None:
    """It has missed messages, so the driver of the run must send it an opening."""
    with open_two_relays(tmp_path / "runs.db") as (sender, listener_relay):
        listener_relay.listen(RUN)
        (before,) = sender.listeners(RUN)
        listener_relay.stop_listening(RUN)
        listener_relay.listen(RUN)
        sender._listed_at = -1
        (after,) = sender.listeners(RUN)
        assert (after.name, after != before) == (before.name, True)


async def test_a_full_listener_does_not_block_messages_to_others(tmp_path: Path) -> None:
    """The kernel counts unread messages against the socket that sent them."""
    third = SocketRelay(tmp_path / "runs.db")
    with open_two_relays(tmp_path / "runs.db") as (sender, frozen):
        for relay in (frozen, third):
            relay.listen(RUN)
        while await sender.send(frozen._name, b"x" * MESSAGE_MAX_BYTES):
            pass
        assert await sender.send(third._name, b"hello")
        assert await third.receive() == b"hello"
        third.close()


async def test_any_run_id_is_a_safe_file_name(tmp_path: Path) -> None:
    """A run id may come from a checkpoint of another author."""
    with open_two_relays(tmp_path / "runs.db") as (sender, listener_relay):
        listener_relay.listen(OTHER)
        assert len(sender.listeners(OTHER)) == 1
        assert {path.parent for path in get_relay_folder(tmp_path / "runs.db").iterdir()} == {
            tmp_path / "runs.db-live"
        }


async def test_the_longest_message_fits(tmp_path: Path) -> None:
    with open_two_relays(tmp_path / "runs.db") as (sender, listener_relay):
        listener_relay.listen(RUN)
        (listener,) = sender.listeners(RUN)
        assert await sender.send(listener.name, b"x" * MESSAGE_MAX_BYTES)
        assert len(await listener_relay.receive()) == MESSAGE_MAX_BYTES


async def test_a_send_to_a_listener_that_does_not_read_fails_without_waiting(
    tmp_path: Path,
) -> None:
    """The kernel's buffer is the limit; the sender keeps nothing."""
    with open_two_relays(tmp_path / "runs.db") as (sender, listener_relay):
        listener_relay.listen(RUN)
        (listener,) = sender.listeners(RUN)
        sent = 0
        while await sender.send(listener.name, b"x" * 1000):
            sent += 1
            assert sent < 10_000
        assert await listener_relay.receive()
        assert await sender.send(listener.name, b"hello")


async def test_only_the_owner_can_access_the_sockets(tmp_path: Path) -> None:
    """The umask of the process does not matter."""
    path = tmp_path / "runs.db"
    before = os.umask(0)
    try:
        with open_two_relays(path) as (_, listener_relay):
            listener_relay.listen(RUN)
            assert S_IMODE(get_relay_folder(path).stat().st_mode) == 0o700
            for name in get_relay_folder(path).iterdir():
                assert S_IMODE(name.stat().st_mode) == 0o600
    finally:
        os.umask(before)


@pytest.mark.parametrize("mode", [0o777, 0o755])
async def test_a_folder_that_others_can_read_or_write_is_not_used(
    tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Another user may have created it in order to listen, or to send in an agent's name."""
    path = tmp_path / "runs.db"
    get_relay_folder(path).mkdir()
    get_relay_folder(path).chmod(mode)
    with open_two_relays(path) as (sender, listener_relay):
        listener_relay.listen(RUN)
        (get_relay_folder(path) / f"{'0' * 16}.evil.1").symlink_to("evil.sock")
        assert not sender.listeners(RUN)
    assert "only this account can access" in caplog.text


async def test_the_sockets_of_a_file_with_a_long_path_are_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a socket is limited to about a hundred bytes."""
    monkeypatch.setattr("tempfile.tempdir", "/tmp")  # noqa: S108 - the folder of pytest is too long as well
    path = tmp_path / ("x" * 100) / "runs.db"
    path.parent.mkdir()
    with open_two_relays(path) as (sender, listener_relay):
        listener_relay.listen(RUN)
        (listener,) = sender.listeners(RUN)
        assert await sender.send(listener.name, b"hello")
        assert await listener_relay.receive() == b"hello"
        assert get_relay_folder(path).parent == Path("/tmp")  # noqa: S108 - as above
        assert S_IMODE(get_relay_folder(path).stat().st_mode) == 0o700
    assert not get_relay_folder(path).exists()


async def test_a_relay_that_cannot_create_its_folder_logs_once_and_does_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    get_relay_folder(path).write_text("a file, not a folder")
    with open_two_relays(path) as (sender, listener_relay):
        listener_relay.listen(RUN)
        listener_relay.stop_listening(RUN)
        assert not sender.listeners(RUN)
    assert len(caplog.records) == 1


async def test_the_last_relay_that_closes_removes_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with open_two_relays(path) as (sender, listener_relay):
        sender.listen(RUN)
        listener_relay.listen(RUN)
        sender.close()
        assert len(list(get_relay_folder(path).iterdir())) == 2
    assert not get_relay_folder(path).exists()


async def test_the_files_of_a_dead_process_are_removed_by_the_next_listener(
    tmp_path: Path,
) -> None:
    """The run may be over, and then no sender finds them."""
    path = tmp_path / "runs.db"
    dead = SocketRelay(path)
    dead.listen(RUN)
    assert dead._receiver is not None
    dead._receiver.close()  # as the kernel does when a process is killed
    with open_two_relays(path) as (sender, listener_relay):
        sender.listen(RUN)
        assert len(list(get_relay_folder(path).iterdir())) == 2
        assert len(listener_relay.listeners(RUN)) == 1


async def test_a_store_in_memory_has_no_relay_and_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert not isinstance(MemoryStore(), HasRelay)
    async with Midrun("memory://"):
        assert not [file async for file in anyio.Path(tmp_path).iterdir()]


async def test_a_sqlite_store_creates_no_socket_until_a_run_is_watched(tmp_path: Path) -> None:
    """Most processes drive runs and watch none."""
    async with Midrun(f"sqlite:///{tmp_path / 'runs.db'}") as midrun:
        assert isinstance(midrun.store, SqliteStore)
        assert not get_relay_folder(midrun.store.path).exists()
