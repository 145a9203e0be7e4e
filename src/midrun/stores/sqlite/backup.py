"""Back up and restore the SQLite file of a store.

A backup is made with `VACUUM INTO`: a read transaction that copies the committed content into a
new file. Writers continue meanwhile; only the write-ahead log cannot be cut back before its
end. The copy is compact: it has no free pages, so nothing of a deleted run is left in it.

Neither function ever replaces a file. Each works on a file with another name and gives it its
name at the end, by a hard link, which fails if the name is taken.
"""

import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

import apsw

from midrun.errors import (
    Misconfigured,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnreachable,
)
from midrun.stores.sqlite.connection import open_reader, translate_errors

BUSY_MS: Final = 5000
_SIDE_FILES: Final = ("-wal", "-shm", "-journal")


@contextmanager
def reserve_name(target: Path) -> Iterator[Path]:
    """Give a temporary file beside `target`; at the end, give it the name `target`.

    Temporary files of a process that was killed here are removed first.

    Raises:
        Misconfigured: there is a file of this name, or a part of an old database.
    """
    _remove_leftovers(target)
    check_free(target)
    # A random name, because a pid is not unique: in a container, the process that was killed
    # may have had the same one.
    temporary = target.with_name(f".{target.name}.{token_hex(4)}.partial")
    # The lock is on the descriptor, so it ends with the process, also if that is killed.
    try:
        lock = os.open(_get_lock_path(temporary), os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:
        raise _make_write_error(target, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield temporary
        _sync(temporary)
        try:
            os.link(temporary, target)
        except FileExistsError:
            check_free(target)
            raise
        _sync(target.parent)
    except StoreFull as error:
        # `error` names the temporary file, or the store that was read from another disk.
        raise StoreFull(str(target)) from error
    except OSError as error:
        raise _make_write_error(target, error) from error
    finally:
        _unlink_all(temporary)
        os.close(lock)


def _make_write_error(target: Path, error: OSError) -> StoreError:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreFull(str(target))
    return StoreUnreachable(str(target), error.strerror or str(error))


def _get_lock_path(temporary: Path) -> Path:
    return temporary.with_name(f"{temporary.name}.lock")


def _unlink_all(temporary: Path) -> None:
    for suffix in ("", *_SIDE_FILES, ".lock"):
        with suppress(FileNotFoundError):
            Path(f"{temporary}{suffix}").unlink()


def _remove_leftovers(target: Path) -> None:
    """Remove the temporary files of processes that were killed; they may be copies of runs."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.partial.lock"):
        with suppress(OSError):  # it is locked: its process is at work
            lock = os.open(path, os.O_WRONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _unlink_all(path.with_name(path.name.removesuffix(".lock")))
            finally:
                os.close(lock)


def check_free(target: Path) -> None:
    """Refuse a name that is taken, or that the log of an old database has.

    SQLite would apply an old log to a new file of the same name.

    Raises:
        Misconfigured: it is.
    """
    for suffix in ("", *_SIDE_FILES):
        if os.path.lexists(f"{target}{suffix}"):
            problem = (
                f"Cannot write it: {target}{suffix} exists, and is not replaced. "
                "Choose another name, or move that file away."
            )
            raise Misconfigured(str(target), problem)
    if not target.parent.is_dir():
        raise Misconfigured(str(target), f"create the folder {target.parent} first")


def copy_content(source: Path, target: Path) -> None:
    """Copy the committed content of an open or closed store into the new file `target`.

    Raises:
        StoreForeign, StoreDamaged, StoreBusy, StoreFull, StoreUnreachable: see there.
    """
    # Checks that the source is a store, of a schema that this process knows. The key is not
    # needed for a copy.
    db = open_reader(source, busy_ms=BUSY_MS)
    try:
        with translate_errors(source, BUSY_MS):
            db.execute("PRAGMA query_only = OFF")  # or SQLite refuses to write the copy
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            db.execute("VACUUM INTO ?", (os.fspath(target),))
    finally:
        db.close()
    check_integrity(target)


def copy_backup(source: Path, target: Path) -> None:
    """Copy the file of a backup into the new file `target`, and check it.

    Raises:
        Misconfigured: the backup is missing, or is the file of a store that is in use.
        StoreForeign, StoreDamaged, StoreUnreachable: it is not a backup, or not readable.
    """
    if not source.is_file():
        raise Misconfigured(str(source), "there is no such file")
    for suffix in _SIDE_FILES:
        if Path(f"{source}{suffix}").exists():
            problem = f"{source}{suffix} exists: it is not a backup, or is in use"
            raise Misconfigured(str(source), f"{problem}; make one with midrun backup")
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        shutil.copyfile(source, target)
    except OSError as error:
        is_read = error.filename == os.fspath(source)
        raise _make_write_error(source if is_read else target, error) from error
    try:
        check_integrity(target)
    except (StoreDamaged, StoreForeign) as error:  # the copy is as the file that was named
        raise type(error)(str(source), error.problem) from error


def check_integrity(path: Path) -> None:
    """Check the pages and the indexes of a file that no other process has open.

    Raises:
        StoreDamaged: SQLite has found a problem.
    """
    with translate_errors(path, BUSY_MS):
        db = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            found = [str(row[0]) for row in db.execute("PRAGMA integrity_check(3)")]
        finally:
            db.close()
    if found != ["ok"]:
        raise StoreDamaged(str(path), "; ".join(found))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
