"""Kill the own process at a chosen SQLite statement, for tests of crashes."""

import os
import signal
from collections.abc import Callable

import apsw

from midrun.stores.sqlite.store import SqliteStore

STATEMENTS = {
    "insert": "INSERT INTO entries",
    "tombstone": "INSERT INTO tombstones",
    "remove": "DELETE FROM",
    "commit": "COMMIT",
    "reply": "COMMIT",
}
"""The first words of the statement at each point; *reply* is after the commit has ended."""


def kill_self_at(point: str, number: int) -> None:
    """Kill this process the `number`-th time that a connection passes `point`."""
    code = apsw.SQLITE_TRACE_PROFILE if point == "reply" else apsw.SQLITE_TRACE_STMT
    count = 0
    is_open = False

    def count_statement(event: dict[str, object]) -> None:
        nonlocal count
        # To create or open the file also commits; only later statements are counted.
        if str(event.get("sql", "")).strip().startswith(STATEMENTS[point]) and is_open:
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    apsw.connection_hooks.append(lambda db: db.trace_v2(code, count_statement))
    original_init = SqliteStore.__init__

    def patched_init(self: SqliteStore, *args: object, **options: object) -> None:
        nonlocal is_open
        original_init(self, *args, **options)  # type: ignore[arg-type]  # passed on unchanged
        is_open = True

    SqliteStore.__init__ = patched_init  # type: ignore[method-assign]  # only in this process


def is_killed_at_statement(words: str, act: Callable[[], object]) -> bool:
    """Tell whether a forked process that calls `act` reaches a statement, and kill it there.

    The statement is the first one that begins with `words`.
    """
    child = os.fork()
    if not child:

        def die_at_statement(event: dict[str, object]) -> None:
            if str(event.get("sql", "")).strip().startswith(words):
                os.kill(os.getpid(), signal.SIGKILL)

        apsw.connection_hooks.append(
            lambda db: db.trace_v2(apsw.SQLITE_TRACE_STMT, die_at_statement)
        )
        try:
            act()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
