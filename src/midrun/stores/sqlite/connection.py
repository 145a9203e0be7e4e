"""Open and check the SQLite file of a store; translate SQLite's errors.

Opening checks only the cheap things: that the file is a store, of a schema version that this
process knows, with the same key. The lines of a journal are checked by their hash chain when
they are read.

Two dangers of SQLite on POSIX shape this module. Closing any descriptor of a file drops all
locks that the process holds on it, so an existing file is never opened except through SQLite,
and `sqlite3` of the standard library is refused for a file that is open here. And a file that
was removed or replaced by name stays writable through the open connection, so the writer checks
the identity of the file before each commit (`FileIdentity`).
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
from midrun.stores.encryption import PayloadCipher
from midrun.stores.migrations import load_migrations
from midrun.stores.sqlite import queries

_LOG: Final = logging.getLogger("midrun.stores")

APPLICATION_ID: Final = 0x4D49_4452  # "MIDR"
SCHEMA_VERSION: Final = load_migrations("midrun.stores.sqlite")[-1][0]
HEADER_BYTES: Final = 100
"""Size of SQLite's file header.

SQLite takes a shorter file for an empty database and would overwrite it.
"""

SQLITE_MIN_VERSION: Final = (3, 51, 3)
"""The first SQLite version without a bug that could lose committed pages.

Before it, two processes that checkpointed at the same time could do so.
"""

WAL_MAX_BYTES: Final = 16 * 1024 * 1024
"""The write-ahead log is cut back to this size.

It can grow beyond it while a long read keeps a checkpoint from finishing.
"""


class FileReplaced(Exception):
    """The open file is no longer the one that its path leads to."""


class SchemaTooNew(Exception):
    """A newer midrun has upgraded the schema while the file was open here."""


FILE_ERRORS: Final = (
    apsw.Error,
    UnicodeDecodeError,
    msgspec.MsgspecError,
    FileReplaced,
    SchemaTooNew,
)
"""Exceptions of a read or a write for which the file or the disk is the cause."""

_open_lock: Final = Lock()
"""Lets one thread open a file at a time: see `_create_file`."""

_WAL_RETRY_S: Final = 0.001

PAGE_BYTES: Final = 2048
"""The page size of a new file. An append changes two to three pages, and the log gets each of
them as a whole: with SQLite's default of 4096 a step would write half as much again."""

_DISK_FULL_ERRNOS: Final = frozenset({ENOSPC, EDQUOT, EFBIG})


def open_file(
    path: Path, *, durability: Durability, busy_ms: int, key_id: str = ""
) -> apsw.Connection:
    """Open the database for writing; create it with mode 0600 if needed.

    An existing file loses the access rights of other accounts, see `_restrict_access`.

    Raises:
        StoreForeign: not a store, or one of a newer midrun.
        StoreKeyRefused: its chains are made with another key than `key_id`.
        StoreDamaged, StoreBusy, StoreFull, StoreUnreachable: see there.
    """
    if get_sqlite_version() < SQLITE_MIN_VERSION:
        problem = f"SQLite {apsw.sqlite_lib_version()} can lose data; 3.51.3 or newer is needed"
        raise StoreUnreachable(str(path), problem)
    with _open_lock, translate_errors(path, busy_ms):
        _create_file(path)
        db = _connect(path, apsw.SQLITE_OPEN_READWRITE, busy_ms)
        try:
            _check_application_id(db, path)
            for suffix in ("", "-wal", "-shm"):
                _restrict_access(Path(f"{path}{suffix}"))
            if not db.pragma("page_count"):  # an existing file keeps its own values
                db.pragma("page_size", PAGE_BYTES)
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _enable_wal(db, busy_ms)
            full = "PRAGMA synchronous = FULL"
            db.execute(full if durability == "full" else "PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA foreign_keys = ON")
            db.pragma("journal_size_limit", WAL_MAX_BYTES)
            _ensure_schema(db)
            _check_key(db, path, key_id)
        except BaseException:
            db.close()
            raise
    return db


def get_sqlite_version() -> tuple[int, ...]:
    """Return the version of the SQLite library that apsw uses."""
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


def open_reader(path: Path, *, busy_ms: int) -> apsw.Connection:
    """Open a read-only connection to a file that `open_file` has opened before."""
    with translate_errors(path, busy_ms):
        # Opened for writing all the same: a connection that only reads cannot create the shared
        # memory file of the log. `query_only` then refuses every change.
        db = _connect(path, apsw.SQLITE_OPEN_READWRITE, busy_ms)
        db.execute("PRAGMA query_only = ON")
    return db


class FileIdentity:
    """The identity of the database file, as of when the store was opened.

    Entries written to a file that has lost its name are invisible to other processes and gone
    when this process ends. With another file in its place, two databases would even share one
    log. So the writer calls `check_unchanged` before every commit.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._wal_path = f"{path.resolve()}-wal"  # SQLite resolves symbolic links first
        self._identity: tuple[int, int] | None = None
        with suppress(OSError):
            self._identity = _read_identity(self._path)

    def check_unchanged(self) -> None:
        """Check that the path leads to the open file and its log exists.

        Raises:
            FileReplaced: it does not.
        """
        if self._identity is None:
            return
        try:
            status = os.stat(self._path)  # noqa: PTH116 - called with every commit
        except FileNotFoundError:
            raise FileReplaced(self._path) from None
        except OSError:
            return  # this process may not stat it any more: that proves nothing
        # The log is tested with `access` and not with `stat`, which reads its times: once they
        # were read, the next write has to update them, and each commit takes half as long again
        # (Linux 6.13 and later).
        current = status.st_dev, status.st_ino
        if current != self._identity or not os.access(self._wal_path, os.F_OK):
            raise FileReplaced(self._path)


def _read_identity(name: str) -> tuple[int, int]:
    status = os.stat(name)  # noqa: PTH116 - called with every commit; pathlib is slower
    return status.st_dev, status.st_ino


@contextmanager
def translate_errors(path: Path, busy_ms: int) -> Iterator[None]:
    """Translate exceptions of SQLite in the block into store errors."""
    try:
        yield
    except FILE_ERRORS as error:
        raise translate_error(error, path, busy_ms) from error


def translate_error(
    error: Exception, path: Path, busy_ms: int, *, errno: int = 0
) -> StoreError:
    """Return the store error for `error`; `errno` is the operating system's number."""
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(str(path), busy_ms / 1000)
        case apsw.IOError() if errno in _DISK_FULL_ERRNOS:
            return StoreFull(str(path))
        case apsw.FullError():
            return StoreFull(str(path))
        case apsw.NotADBError():
            return StoreForeign(str(path), "not a SQLite database")
        case apsw.CorruptError() | apsw.FormatError():
            return StoreDamaged(str(path), str(error))
        case apsw.SQLError() | apsw.ConstraintError() | apsw.MismatchError():
            # The statements are constant and tested. So the schema or the data of the file is
            # not as midrun left it.
            return StoreDamaged(str(path), str(error))
        case UnicodeDecodeError() | msgspec.MsgspecError():
            return StoreDamaged(str(path), str(error))
        case SchemaTooNew():
            return StoreForeign(str(path), str(error))
        case FileReplaced():
            problem = "the file was removed or replaced while it was in use"
            return StoreUnreachable(str(path), problem)
        case _:
            return StoreUnreachable(str(path), f"{type(error).__name__}: {error}")


def _create_file(path: Path) -> None:
    """Create an empty file that only its owner may read, if there is none.

    An existing file is never opened here. On POSIX, closing any descriptor of a file drops
    every lock that this process holds on it, those of SQLite's other connections included.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise StoreUnreachable(str(path), "it is a directory") from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise StoreUnreachable(str(path), "this account cannot read and write it") from None
        # SQLite would take a file this short for an empty database. With a rollback journal
        # beside it, it may be a database that a crash has cut off, and SQLite restores it.
        if 0 < path.stat().st_size < HEADER_BYTES and not Path(f"{path}-journal").exists():
            raise StoreForeign(str(path), "not a SQLite database") from None
    except OSError as error:
        raise StoreUnreachable(str(path), error.strerror or str(error)) from error


def _restrict_access(path: Path) -> None:
    """Remove the access of other accounts from a file; log a warning.

    A copy from a backup has the mode that the umask gives it, most often 0644. A group keeps
    its access if it may write as well: such a file is shared between accounts on purpose.

    Raises:
        StoreUnreachable: the file belongs to another account, which has to change it.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return
    restricted = mode & ~(stat.S_IRWXO if mode & stat.S_IWGRP else stat.S_IRWXO | stat.S_IRWXG)
    if restricted == mode:
        return
    try:
        path.chmod(restricted)
    except FileNotFoundError:  # another process has closed the last connection meanwhile
        return
    except OSError as error:
        problem = (
            f"Cannot protect it: other accounts may read it (mode {mode:04o}), and this "
            f"account cannot change that ({error.strerror}). Run chmod {restricted:03o} {path} "
            "as its owner"
        )
        raise StoreUnreachable(str(path), problem) from error
    _LOG.warning("%s could be read by other accounts: its mode is %04o now", path, restricted)


def _enable_wal(db: apsw.Connection, busy_ms: int) -> None:
    """Switch to the write-ahead log; retry, because SQLite does not wait for this lock."""
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            # apsw runs a statement only as far as its rows are fetched.
            db.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_WAL_RETRY_S)  # noqa: TID251 - a file lock gives no notification
        else:
            return


_open_files: Final[WeakKeyDictionary[apsw.Connection, tuple[int, tuple[int, int]]]] = (
    WeakKeyDictionary()
)
"""The process that opened each connection, and the identity of its file."""


@cache
def _install_sqlite3_guard() -> None:
    """Install an audit hook that refuses `sqlite3.connect` for files that are open here.

    The standard library contains a second copy of SQLite. Each copy knows only its own
    connections, and keeps a file's descriptors open as long as one of them has a lock: on
    POSIX, closing one drops every lock of the process on that file. When the other copy closes
    the file, the connections of this store continue without their locks. Other processes then
    truncate the log and its index, which are mapped into memory here, and this process dies of
    SIGBUS.

    An audit hook sees every `sqlite3.connect`, whichever library calls it. It cannot be removed
    again and is called for all other audit events as well. So it is installed once, with the
    first connection, and its first comparison ends it: less than a microsecond per event.
    """
    sys.addaudithook(_refuse_sqlite3)


def _refuse_sqlite3(event: str, args: tuple[object, ...]) -> None:
    if event != "sqlite3.connect" or not isinstance(args[0], str | bytes | os.PathLike):
        return
    name = os.fsdecode(args[0])
    # A URI may ask for a read-only or immutable open. Its close drops the locks all the same.
    path = unquote(urlsplit(name).path) if name.startswith("file:") else name
    try:
        target = os.getpid(), _read_identity(path)
    except (OSError, ValueError):
        return  # no such file, or not a file at all: ":memory:"
    # A forked child inherits the connection objects but not the POSIX locks, so there is none
    # that it could lose.
    if any(_open_files.get(db) == target for db in apsw.connections()):
        raise SqliteConflict(path)


def _connect(path: Path, flags: int, busy_ms: int) -> apsw.Connection:
    _install_sqlite3_guard()
    db = apsw.Connection(os.fspath(path), flags=flags, statementcachesize=64)
    with suppress(OSError):  # removed meanwhile: `FileIdentity.check_unchanged` reports it
        _open_files[db] = os.getpid(), _read_identity(os.fspath(path))
    db.set_busy_timeout(busy_ms)
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _check_application_id(db: apsw.Connection, path: Path) -> None:
    # One statement reads one snapshot. Another process may be creating the schema right now;
    # its tables and its application id must be seen together or not at all.
    application, version, tables = db.execute(
        "SELECT application_id, user_version, EXISTS (SELECT 1 FROM sqlite_schema)"
        " FROM pragma_application_id, pragma_user_version"
    ).get
    if application == APPLICATION_ID:
        check_schema_version(db)
        return
    if application or version or tables:
        raise StoreForeign(str(path), "it is a database of another program")


def check_schema_version(db: apsw.Connection) -> None:
    """Check that the schema is not newer than this process knows.

    Raises:
        SchemaTooNew: it is.
    """
    version = db.execute(queries.VERSION).get
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(f"schema {version} belongs to a newer midrun")


def check_migrated_schema(db: apsw.Connection) -> None:
    """Check that this process may keep writing to a file that it has open.

    A newer midrun may have migrated the file meanwhile. A migration that only adds something
    lets older processes continue, so that a machine can be upgraded one process at a time.

    Raises:
        SchemaTooNew: the migration does not allow it.
    """
    version = db.execute(queries.VERSION).get
    if version <= SCHEMA_VERSION:
        return
    try:
        oldest = db.execute(queries.OLDEST_SUPPORTED).get
    except apsw.SQLError:  # the newer schema has no such table any more
        oldest = None
    if oldest is None or oldest > SCHEMA_VERSION:
        raise SchemaTooNew(f"schema {version} belongs to a newer midrun")


def explain_failure(db: apsw.Connection, error: Exception) -> Exception:
    """Return `SchemaTooNew` if a statement failed in a file that a newer midrun has migrated.

    Otherwise the file would be reported as damaged. Return other errors as they are: a lock or
    a full disk has nothing to do with the schema.
    """
    if isinstance(error, apsw.SQLError | apsw.ConstraintError | apsw.MismatchError):
        try:
            check_schema_version(db)
        except SchemaTooNew as newer:
            return newer
        except apsw.Error:
            pass  # the first error says more
    return error


def _ensure_schema(db: apsw.Connection) -> None:
    # Processes that open the same file at once do this one after the other; the second finds
    # the finished schema. All migrations are in one transaction: a process that is killed
    # midway leaves nothing behind.
    db.execute("BEGIN IMMEDIATE")
    try:
        check_schema_version(db)
        version = db.pragma("user_version")
        for number, text in load_migrations("midrun.stores.sqlite"):
            if number > version:
                for _ in db.execute(text):
                    pass
                db.pragma("user_version", number)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _check_key(db: apsw.Connection, path: Path, key_id: str) -> None:
    """Check that the chains use the key `key_id`; a new file adopts it."""
    stored_id = db.execute(queries.KEY).get
    if stored_id is None:
        db.execute(queries.SET_KEY, (key_id,))
        stored_id = db.execute(queries.KEY).get  # another process may have set its key first
    if stored_id != key_id:
        raise StoreKeyRefused(str(path), stored_id, key_id)


def register_key(db: apsw.Connection, path: Path, cipher: PayloadCipher) -> str:
    """Note that entries are encrypted with the key of `cipher`; return keys that it lacks.

    Raises:
        StoreEncrypted: the store is encrypted with other keys.
    """
    with translate_errors(path, 0):
        stored_ids = [key_id for (key_id,) in db.execute(queries.ENCRYPTION_KEYS)]
        missing_keys = cipher.check_store(str(path), stored_ids)
        if cipher and cipher.write_id not in stored_ids:
            db.execute(queries.ADD_ENCRYPTION_KEY, (cipher.write_id,))
    return missing_keys
