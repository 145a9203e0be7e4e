"""Carry live deltas between the processes that share a file, over datagram sockets.

Each listening process binds one Unix datagram socket in a folder beside the database,
`runs.db-live`. For each run that it watches, it adds a symbolic link to that socket, named
after the run, the socket and a running number. A process with a delta to send lists the folder,
so no process has to be registered with another. Folder and sockets are accessible to their
owner only.

The names of a process that died are removed by the next process that meets them, the folder by
the last one that leaves. On a file system without sockets nothing is live across processes;
everything else works, because nothing depends on the relay.
"""

import logging
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from stat import S_ISDIR
from typing import Final

import anyio

from midrun.core.ids import RunId
from midrun.ports.relay import Listener

MESSAGE_MAX_BYTES: Final = 60_000
"""The most bytes in one datagram: well within the limit of every kernel."""

SOCKET_PATH_MAX_BYTES: Final = 100
"""The most bytes in the path of a socket: the kernels' limits are 104 and 108."""

LISTING_MAX_AGE_S: Final = 0.05
"""The longest time for which a listing of the folder is reused."""

SOCKET_SUFFIX: Final = ".sock"
BIND_MAX_ATTEMPTS: Final = 3
"""Attempts to bind the socket while other processes remove the empty folder."""

log = logging.getLogger("midrun")


class SocketRelay:
    """A `Relay` over the socket folder of one database."""

    def __init__(self, database: Path) -> None:
        self.max_message_bytes = MESSAGE_MAX_BYTES
        self._folder = get_relay_folder(database)
        self._name = token_hex(4)
        self._receiver: socket.socket | None = None
        self._bound = anyio.Event()
        # One sending socket per listener: the kernel's send buffer belongs to the sender, so
        # one listener that does not read cannot block the messages to the others.
        self._senders: dict[str, socket.socket] = {}
        self._listed_at = -LISTING_MAX_AGE_S
        self._listeners_by_run: Mapping[str, Sequence[Listener]] = {}
        self._links: dict[RunId, Path] = {}
        self._link_count = 0  # numbers the links: a run that is watched again gets a new number
        self._warned = False

    # ── sending ───────────────────────────────────────────────────────────────────────────

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return the other processes whose sockets are linked to `run`."""
        # Called for every token of a model, so the folder is listed at most once per
        # `LISTING_MAX_AGE_S`.
        now = time.monotonic()
        if now - self._listed_at >= LISTING_MAX_AGE_S:
            self._listed_at, self._listeners_by_run = now, self._list_listeners()
        return (
            self._listeners_by_run.get(_hash_run_id(run), ()) if self._listeners_by_run else ()
        )

    def _list_listeners(self) -> Mapping[str, Sequence[Listener]]:
        listeners_by_run: dict[str, list[Listener]] = {}
        for link in self._list_names():
            run, _, rest = link.partition(".")
            name, _, since = rest.partition(".")
            # The name of a link has the run, the listener and a number. A listener that watches
            # a run again gets another number, so the sender sees that it needs the whole text
            # once more.
            if since.isdecimal() and name != self._name:
                listeners_by_run.setdefault(run, []).append(Listener(name, int(since)))
        # Close the sending sockets to processes that no longer listen to any run.
        present = {
            listener.name for listeners in listeners_by_run.values() for listener in listeners
        }
        for name in self._senders.keys() - present:
            self._close_sender(name)
        return listeners_by_run

    def _close_sender(self, name: str) -> None:
        sender = self._senders.pop(name, None)
        if sender is not None:
            sender.close()

    def _list_names(self) -> Sequence[str]:
        try:
            return (
                [path.name for path in self._folder.iterdir()]
                if _is_private_folder(self._folder)
                else ()
            )
        except OSError:
            return ()

    async def send(self, name: str, message: bytes) -> bool:
        """Send a datagram; return False if the listener's queue in the kernel is full."""
        try:
            sender = self._senders.get(name)
            if sender is None:
                sender = self._senders[name] = _make_socket()
            sender.sendto(message, self._get_socket_path(name))
        except BlockingIOError:
            return False
        except (ConnectionRefusedError, FileNotFoundError):
            self._remove_names(name)  # the process is gone and left its names behind
        except OSError as error:  # no sockets on this file system, or a message too long
            self._warn_once(error)
        return True

    def _remove_names(self, listener: str) -> None:
        """Remove the names of a process that is gone."""
        self._close_sender(listener)
        for name in self._list_names():
            if name == listener + SOCKET_SUFFIX or f".{listener}." in name:
                with suppress(OSError):
                    (self._folder / name).unlink()
        self._listed_at = -LISTING_MAX_AGE_S

    # ── receiving ─────────────────────────────────────────────────────────────────────────

    def listen(self, run: RunId) -> None:
        """Link the socket to `run`; bind it first if this is the first run."""
        try:
            if self._receiver is None:
                self._bind()
            self._link_count += 1
            link = self._folder / f"{_hash_run_id(run)}.{self._name}.{self._link_count}"
            # A link for each watched run tells senders who listens, without a message or a
            # registry: they list the folder.
            link.symlink_to(self._name + SOCKET_SUFFIX)
            self._links[run] = link
        except OSError as error:
            self._warn_once(error)

    def stop_listening(self, run: RunId) -> None:
        """Remove the link for `run`."""
        link = self._links.pop(run, None)
        if link is not None:
            with suppress(OSError):
                link.unlink()

    async def receive(self) -> bytes:
        """Return the next datagram."""
        await self._bound.wait()
        while self._receiver is not None:
            try:
                return self._receiver.recv(MESSAGE_MAX_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._receiver)
        raise AssertionError("receive() was called on a closed relay")

    def close(self) -> None:
        """Remove the names of this process, and the folder if it is empty."""
        for name in tuple(self._senders):
            self._close_sender(name)
        if self._receiver is not None:
            self._receiver.close()
            self._remove_names(self._name)
            with suppress(OSError):
                self._folder.rmdir()
        self._receiver = None

    def _bind(self) -> None:
        for attempt in range(1, BIND_MAX_ATTEMPTS + 1):
            try:
                self._receiver = self._create_socket()
            except FileNotFoundError:  # the last process that left has removed the folder
                if attempt == BIND_MAX_ATTEMPTS:
                    raise
            else:
                self._bound.set()
                self._remove_dead_listeners()
                return

    def _create_socket(self) -> socket.socket:
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        if not _is_private_folder(self._folder):
            raise PermissionError(
                f"{self._folder} must be a directory that only this account can access"
            )
        receiver = _make_socket()
        try:
            # Bound under a temporary name and then renamed. A socket under its final name must
            # already accept messages: another process removes one that does not.
            temporary = self._folder / f"{self._name}.new"
            receiver.bind(str(temporary))
            temporary.chmod(0o600)
            temporary.rename(self._get_socket_path(self._name))
        except BaseException:
            receiver.close()
            raise
        return receiver

    def _remove_dead_listeners(self) -> None:
        """Remove the names of processes that died without removing them.

        A listener that no process sends to would otherwise stay for ever.
        """
        for name in self._list_names():
            listener = name.removesuffix(SOCKET_SUFFIX)
            if name.endswith(SOCKET_SUFFIX) and listener != self._name:
                with _make_socket() as probe:
                    try:
                        probe.connect(self._get_socket_path(listener))
                    except ConnectionRefusedError:
                        self._remove_names(listener)
                    except OSError:
                        continue

    def _get_socket_path(self, name: str) -> str:
        return f"{self._folder}/{name}{SOCKET_SUFFIX}"

    def _warn_once(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning("Cannot relay live output to other processes: %s", error)


def get_relay_folder(database: Path) -> Path:
    """Return the folder for the sockets of `database`.

    The path of a socket must be short. If the database's path is too long, the folder is placed
    in the directory for temporary files, under a name that is derived from the path and the
    account.
    """
    resolved = os.path.realpath(database)
    beside = f"{resolved}-live"
    if len(os.fsencode(beside)) + len("/12345678.sock") <= SOCKET_PATH_MAX_BYTES:
        return Path(beside)
    digest = sha256(os.fsencode(resolved)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"midrun-{os.geteuid()}-{digest}"


def _is_private_folder(folder: Path) -> bool:
    """Tell whether `folder` is a directory that only this account can read and write."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return False
    return (
        S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    )


@lru_cache(maxsize=4096)
def _hash_run_id(run: RunId) -> str:
    """Return the part of a link's name that stands for a run.

    A run id need not be a valid file name; its hash is.
    """
    return sha256(run.encode()).hexdigest()[:16]


def _make_socket() -> socket.socket:
    new = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    new.setblocking(False)  # noqa: FBT003 - its only argument
    return new
