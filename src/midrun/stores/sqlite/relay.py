"""Sockets: how processes that share a file tell one another what is live.

Who listens has a datagram socket in a folder beside the database, `runs.db-live`, and for each
run that somebody watches a link to it that is named for the run, and numbered. Who has
something to tell looks there, so nobody has to be announced to anybody. Folder and sockets are
the owner's alone.

A name whose process is gone is removed by whoever comes across it, the folder by whoever leaves
it last. Where there can be no sockets nothing is live across processes, and nothing else is
different.
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

LIMIT: Final = 60_000
"""Bytes in one datagram: well within what every kernel takes."""

ADDRESS_MAX: Final = 100
"""Bytes in the path of a socket: the kernels' own bounds are 104 and 108."""

LOOK_S: Final = 0.05
"""How old a look into the folder may be."""

ENDING: Final = ".sock"
ATTEMPTS: Final = 3
"""To bind a socket, if others remove the folder at the same time, again and again."""

log = logging.getLogger("midrun")


class Sockets:
    """A `Relay` over the folder of one database."""

    def __init__(self, database: Path) -> None:
        self.limit = LIMIT
        self._folder = folder_of(database)
        self._name = token_hex(4)
        self._listening: socket.socket | None = None
        self._bound = anyio.Event()
        self._sending: dict[str, socket.socket] = {}  # each has its own room in the kernel
        self._looked_at = -LOOK_S
        self._seen: Mapping[str, Sequence[Listener]] = {}
        self._links: dict[RunId, Path] = {}
        self._linked = 0  # how many there were; so one that is made again is another one
        self._warned = False

    # ── telling ───────────────────────────────────────────────────────────────────────────

    def listeners(self, run: RunId) -> Sequence[Listener]:
        """Return whose sockets are linked to `run`, without our own."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_S:
            self._looked_at, self._seen = now, self._look()
        return self._seen.get(_sign(run), ()) if self._seen else ()

    def _look(self) -> Mapping[str, Sequence[Listener]]:
        found: dict[str, list[Listener]] = {}
        for link in self._names():
            run, _, rest = link.partition(".")
            name, _, since = rest.partition(".")
            if since.isdecimal() and name != self._name:
                found.setdefault(run, []).append(Listener(name, int(since)))
        there = {listener.name for listeners in found.values() for listener in listeners}
        for name in self._sending.keys() - there:
            self._let_go(name)
        return found

    def _let_go(self, name: str) -> None:
        sending = self._sending.pop(name, None)
        if sending is not None:
            sending.close()

    def _names(self) -> Sequence[str]:
        try:
            return (
                [there.name for there in self._folder.iterdir()]
                if _is_ours(self._folder)
                else ()
            )
        except OSError:
            return ()

    async def send(self, name: str, message: bytes) -> bool:
        """Send a datagram; the kernel holds a few of them for each listener, and no more."""
        try:
            sending = self._sending.get(name)
            if sending is None:
                sending = self._sending[name] = _socket()
            sending.sendto(message, self._address(name))
        except BlockingIOError:
            return False
        except (ConnectionRefusedError, FileNotFoundError):
            self._bury(name)
        except OSError as error:  # a folder without sockets, a message that is too long
            self._warn(error)
        return True

    def _bury(self, listener: str) -> None:
        """Remove the names of a process that is gone."""
        self._let_go(listener)
        for name in self._names():
            if name == listener + ENDING or f".{listener}." in name:
                with suppress(OSError):
                    (self._folder / name).unlink()
        self._looked_at = -LOOK_S

    # ── hearing ───────────────────────────────────────────────────────────────────────────

    def listen(self, run: RunId) -> None:
        """Link the socket to `run`; the first time, bind it."""
        try:
            if self._listening is None:
                self._bind()
            self._linked += 1
            link = self._folder / f"{_sign(run)}.{self._name}.{self._linked}"
            link.symlink_to(self._name + ENDING)
            self._links[run] = link
        except OSError as error:
            self._warn(error)

    def leave(self, run: RunId) -> None:
        """Take the link away."""
        link = self._links.pop(run, None)
        if link is not None:
            with suppress(OSError):
                link.unlink()

    async def receive(self) -> bytes:
        """Return the next datagram."""
        await self._bound.wait()
        while self._listening is not None:
            try:
                return self._listening.recv(LIMIT)
            except BlockingIOError:
                await anyio.wait_readable(self._listening)
        raise AssertionError("a relay that is closed receives nothing")

    def close(self) -> None:
        """Remove our names, and the folder if nobody else has one there."""
        for name in tuple(self._sending):
            self._let_go(name)
        if self._listening is not None:
            self._listening.close()
            self._bury(self._name)
            with suppress(OSError):
                self._folder.rmdir()
        self._listening = None

    def _bind(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._listening = self._made()
            except FileNotFoundError:  # somebody who left has just removed the folder
                if attempt == ATTEMPTS:
                    raise
            else:
                self._bound.set()
                self._sweep()
                return

    def _made(self) -> socket.socket:
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700)
        if not _is_ours(self._folder):
            raise PermissionError(f"{self._folder} is not ours alone")
        made = _socket()
        try:
            # Under another name first: one that is there already must answer.
            new = self._folder / f"{self._name}.new"
            made.bind(str(new))
            new.chmod(0o600)
            new.rename(self._address(self._name))
        except BaseException:
            made.close()
            raise
        return made

    def _sweep(self) -> None:
        """Bury whoever left without a word: nobody else may come across them."""
        for name in self._names():
            listener = name.removesuffix(ENDING)
            if name.endswith(ENDING) and listener != self._name:
                with _socket() as knocking:
                    try:
                        knocking.connect(self._address(listener))
                    except ConnectionRefusedError:
                        self._bury(listener)
                    except OSError:
                        continue

    def _address(self, name: str) -> str:
        return f"{self._folder}/{name}{ENDING}"

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning("nothing is live across processes here: %s", error)


def folder_of(database: Path) -> Path:
    """Return the folder for the sockets of `database`.

    A socket's path must be short. Where the database's is not, the folder is among the
    temporary files: in one of the owner's alone, under a name that follows from the path.
    """
    there = os.path.realpath(database)
    beside = f"{there}-live"
    if len(os.fsencode(beside)) + len("/12345678.sock") <= ADDRESS_MAX:
        return Path(beside)
    digest = sha256(os.fsencode(there)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"midrun-{os.geteuid()}-{digest}"


def _is_ours(folder: Path) -> bool:
    """Tell whether nobody else can put anything into `folder`, or read what is there."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@lru_cache(maxsize=4096)
def _sign(run: RunId) -> str:
    """Return the part of a link's name that stands for a run: any id makes a good name."""
    return sha256(run.encode()).hexdigest()[:16]


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)  # noqa: FBT003 - its only argument
    return made
