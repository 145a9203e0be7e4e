"""Connections: how the file is opened, what is checked then, and what its errors mean.

Opening checks what is cheap: that the file is ours, of a version we know, and that its schema
can be read. A journal's own bytes are checked when it is read, by its chain.
"""

import logging
import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EDQUOT, EFBIG, ENOSPC
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final
from urllib.parse import unquote, urlsplit
from weakref import WeakKeyDictionary

import apsw
import msgspec

from midrun.errors import (
    SqliteConflict,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreKeyRefused,
    StoreUnreachable,
)
from midrun.ports.store import Durability
from midrun.stores.sqlite import queries

_LOG: Final = logging.getLogger("midrun.stores")

APPLICATION: Final = 0x4D49_4452  # "MIDR"
SCHEMA: Final = 2
HEADER: Final = 100
"""Bytes. SQLite takes what is shorter for an empty database, and would write over it."""

NO_RESET_BUG: Final = (3, 51, 3)
"""Before SQLite 3.51.3 two processes that checkpoint at once could lose committed pages."""

LOG_MAX: Final = 16 * 1024 * 1024
"""Bytes. A log that a long reader has made larger than this is cut back once that has ended."""


class Moved(Exception):
    """The file that is open is not the one that others would open by its name."""


class Newer(Exception):
    """A newer midrun has made the file its own, while it was in use here."""


DAMAGE: Final = (apsw.Error, UnicodeDecodeError, msgspec.MsgspecError, Moved, Newer)
"""What reading or writing the file can raise when the file, or the disk, is to blame."""

_opening: Final = Lock()
"""One thread opens at a time: see `_make_file`."""

_RETRY_SECONDS: Final = 0.001

_FULL: Final = frozenset({ENOSPC, EDQUOT, EFBIG})


def open_file(
    path: Path, *, durability: Durability, busy_ms: int, kid: str = ""
) -> apsw.Connection:
    """Open the database for writing; make it if there is none, with mode 0600.

    One that is there is taken away from other accounts, see `_restrict_access`.

    Raises:
        StoreForeign: the file is something else, or a newer midrun's.
        StoreKeyRefused: its chains are made with another key than the one called `kid`.
        StoreDamaged, StoreBusy, StoreFull, StoreUnreachable: what they say.
    """
    if library_version() < NO_RESET_BUG:
        problem = f"SQLite {apsw.sqlite_lib_version()} can lose data; 3.51.3 or newer is needed"
        raise StoreUnreachable(str(path), problem)
    with _opening, meaning(path, busy_ms):
        _make_file(path)
        db = _connected(path, apsw.SQLITE_OPEN_READWRITE, busy_ms)
        try:
            _check_ours(db, path)
            for suffix in ("", "-wal", "-shm"):
                _restrict_access(Path(f"{path}{suffix}"))
            _use_wal(db, busy_ms)
            full = "PRAGMA synchronous = FULL"
            db.execute(full if durability == "full" else "PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            db.pragma("journal_size_limit", LOG_MAX)
            _ensure_schema(db)
            _check_key(db, path, kid)
        except BaseException:
            db.close()
            raise
    return db


def library_version() -> tuple[int, ...]:
    """Return the version of the SQLite library that apsw has brought, or was swapped for."""
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


def open_reader(path: Path, *, busy_ms: int) -> apsw.Connection:
    """Open a connection that cannot write to a file that `open_file` has opened before."""
    with meaning(path, busy_ms):
        db = _connected(path, apsw.SQLITE_OPEN_READWRITE, busy_ms)
        db.execute("PRAGMA query_only = ON")
    return db


class Place:
    """Which file was found by its name when the store was opened, with a log beside it.

    What is written to a file that has lost its name is seen by nobody else and gone with this
    process; and with another file in its place, two databases would share one log.
    """

    def __init__(self, path: Path) -> None:
        self._file = str(path)
        self._log = f"{path.resolve()}-wal"  # SQLite follows links before it names it
        self._identity: tuple[int, int] | None = None
        with suppress(OSError):
            self._identity = _identity(self._file)

    def check(self) -> None:
        """See that they are still there.

        Raises:
            Moved: they are not.
        """
        if self._identity is None:
            return
        try:
            found = _identity(self._file)
        except FileNotFoundError:
            raise Moved(self._file) from None
        except OSError:
            return  # we may not look any more: that says nothing about it
        # Not by its times, too: once they were read, the next write must set them anew, and
        # each commit takes half as long again (Linux 6.13 and later).
        if found != self._identity or not os.access(self._log, os.F_OK):
            raise Moved(self._file)


def _identity(name: str) -> tuple[int, int]:
    found = os.stat(name)  # noqa: PTH116 - with every commit: a path would cost more
    return found.st_dev, found.st_ino


@contextmanager
def meaning(path: Path, busy_ms: int) -> Iterator[None]:
    """Turn what SQLite raises inside into what it means for midrun."""
    try:
        yield
    except DAMAGE as error:
        raise meaning_of(error, path, busy_ms) from error


def meaning_of(error: Exception, path: Path, busy_ms: int, *, errno: int = 0) -> StoreError:
    """Return what an error of SQLite, with the system's own number, means for midrun."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(str(path), busy_ms / 1000)
        case apsw.IOError() if errno in _FULL:
            return StoreFull(str(path))
        case apsw.FullError():
            return StoreFull(str(path))
        case apsw.NotADBError():
            return StoreForeign(str(path), "not a SQLite database")
        case apsw.CorruptError() | apsw.FormatError():
            return StoreDamaged(str(path), str(error))
        case apsw.SQLError() | apsw.ConstraintError() | apsw.MismatchError():
            # Our statements are constant and tested: it is the file that is not as we left it.
            return StoreDamaged(str(path), str(error))
        case UnicodeDecodeError() | msgspec.MsgspecError():
            return StoreDamaged(str(path), str(error))
        case Newer():
            return StoreForeign(str(path), str(error))
        case Moved():
            problem = "removed, or another file was put in its place, while it was in use"
            return StoreUnreachable(str(path), problem)
        case _:
            return StoreUnreachable(str(path), f"{type(error).__name__}: {error}")


def _make_file(path: Path) -> None:
    """Make an empty file that only its owner may read, if there is none.

    A file that is there is never opened here: on POSIX, closing any descriptor of a file drops
    every lock that this process holds on it, those of SQLite's other connections included.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise StoreUnreachable(str(path), "it is a directory") from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise StoreUnreachable(str(path), "it may not be read and written") from None
        if 0 < path.stat().st_size < HEADER and not Path(f"{path}-journal").exists():
            raise StoreForeign(str(path), "not a SQLite database") from None
    except OSError as error:
        raise StoreUnreachable(str(path), error.strerror or str(error)) from error


def _restrict_access(path: Path) -> None:
    """Remove the access of other accounts from a file, if it exists; log a warning.

    A copy from a backup has the mode that the umask gives it, most often 0644. A group keeps
    its access if it may write as well: such a file is shared between accounts on purpose.

    Raises:
        StoreUnreachable: it belongs to another account, which has to do it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return
    wanted = mode & ~(stat.S_IRWXO if mode & stat.S_IWGRP else stat.S_IRWXO | stat.S_IRWXG)
    if wanted == mode:
        return
    try:
        path.chmod(wanted)
    except FileNotFoundError:  # another process has closed the last connection meanwhile
        return
    except OSError as error:
        problem = (
            f"Cannot protect it: other accounts may read it (mode {mode:04o}), and this "
            f"account cannot change that ({error.strerror}). Run chmod {wanted:03o} {path} "
            "as its owner"
        )
        raise StoreUnreachable(str(path), problem) from error
    _LOG.warning("%s could be read by other accounts: its mode is %04o now", path, wanted)


def _use_wal(db: apsw.Connection, busy_ms: int) -> None:
    """Switch to the write-ahead log; SQLite itself does not wait for the locks of this."""
    until = time.monotonic() + busy_ms / 1000
    while True:
        try:
            # Statements may be asked for rows only later, hence the fetching.
            db.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(_RETRY_SECONDS)  # noqa: TID251 - a file's lock cannot tell that it is free
        else:
            return


_connected_to: Final[WeakKeyDictionary[apsw.Connection, tuple[int, tuple[int, int]]]] = (
    WeakKeyDictionary()
)
"""The process that made each connection, and the file that it is to."""


@cache
def _watch_for_sqlite3() -> None:
    """Have `sqlite3.connect` refused, from now on, for files that are open here.

    The standard library has a copy of SQLite of its own. A copy knows its own connections and
    keeps a file's descriptors as long as any of them has a lock: on POSIX, closing one drops
    every lock of the process on that file. Of another copy's connections it knows nothing. When
    it closes the file, ours go on without their locks: other processes then truncate the log
    and its index, which are mapped into memory here, and this process dies of SIGBUS.

    An audit hook sees every `sqlite3.connect`, whichever library makes it. It cannot be taken
    away again, and is called for all other events as well; so it is installed once, with the
    first connection, and its first comparison ends it: less than a microsecond per event.
    """
    sys.addaudithook(_refuse_sqlite3)


def _refuse_sqlite3(event: str, args: tuple[object, ...]) -> None:
    if event != "sqlite3.connect" or not isinstance(args[0], str | bytes | os.PathLike):
        return
    name = os.fsdecode(args[0])
    # As a URI it may say how to open the file, but there is no way that is safe.
    path = unquote(urlsplit(name).path) if name.startswith("file:") else name
    try:
        found = os.getpid(), _identity(path)
    except (OSError, ValueError):
        return  # there is no such file, or it is no file: ":memory:"
    # A forked copy of this process has connections but no locks, and is left alone.
    if any(_connected_to.get(db) == found for db in apsw.connections()):
        raise SqliteConflict(path)


def _connected(path: Path, flags: int, busy_ms: int) -> apsw.Connection:
    _watch_for_sqlite3()
    db = apsw.Connection(os.fspath(path), flags=flags, statementcachesize=64)
    with suppress(OSError):  # it is gone again, which `Place` finds out
        _connected_to[db] = os.getpid(), _identity(os.fspath(path))
    db.set_busy_timeout(busy_ms)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _check_ours(db: apsw.Connection, path: Path) -> None:
    # One statement is one snapshot: another process may be making the file right now, and its
    # tables and its mark must be seen together or not at all.
    application, version, tables = db.execute(
        "SELECT application_id, user_version, EXISTS (SELECT 1 FROM sqlite_schema)"
        " FROM pragma_application_id, pragma_user_version"
    ).get
    if application == APPLICATION:
        check_version(db)
        return
    if application or version or tables:
        raise StoreForeign(str(path), "a database of something else")


def check_version(db: apsw.Connection) -> None:
    """See that the file is still of a version that we know.

    Raises:
        Newer: it is not.
    """
    version = db.execute(queries.VERSION).get
    if version > SCHEMA:
        raise Newer(f"schema {version} is of a newer midrun")


def _ensure_schema(db: apsw.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")  # another process may be doing the same right now
    try:
        check_version(db)
        missing = {0: ("schema.sql",), 1: ("schema_2.sql",)}.get(db.pragma("user_version"), ())
        for name in (*missing, "marks.sql", "chains.sql", "chunks.sql"):
            for _ in db.execute(Path(__file__).with_name(name).read_text("utf-8")):
                pass
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check_key(db: apsw.Connection, path: Path, kid: str) -> None:
    """See to it that the chains are made with this key; in a new file they are from now on."""
    kept = db.execute(queries.KEY).get
    if kept is None:
        db.execute(queries.SET_KEY, (kid,))
        kept = db.execute(queries.KEY).get  # another process may have been quicker
    if kept != kid:
        raise StoreKeyRefused(str(path), kept, kid)
