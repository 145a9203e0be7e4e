"""One connection to the server, and the translation of its errors.

A connection is used by one task at a time. Every statement is a transaction of its own that the
server completes by itself; none stays open between two messages. So a statement has three
outcomes: an answer, a refusal, or `AnswerLost`. After the last one it is unknown whether the
statement took effect, and the connection is closed.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, LiteralString, TypeAlias

import anyio
import psycopg
from psycopg import AsyncConnection, conninfo, errors
from psycopg.rows import TupleRow

from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.environment import Clock
from midrun.ports.platform import read_boot_clock
from midrun.ports.store import Durability
from midrun.stores.postgres import queries

# An estimate of the server's time, for stamping entries before they are sent.
#
# The time of an entry is part of its hash, so the client needs it before the write. The
# estimate does not have to be exact: whether a holder is alive and a run is due is decided by
# the server's own clock inside its queries. A clock that is passed in, for tests, replaces
# both.

SLEW_MAX_MICROS: Final = 50
"""The most microseconds by which one answer sets the estimate back.

It is less than passes between two answers, so the estimate never runs backwards.
"""

STEP_MIN_MICROS: Final = MICROS_PER_SECOND
"""A difference of at least this many microseconds is not a delay: the clock was set."""


class ServerClock:
    """The time of the store: the server's, unless a clock was passed in."""

    def __init__(self, override: Clock | None = None) -> None:
        self._override = override
        self._offset_micros: int | None = (
            None  # server time minus local boot time, in microseconds
        )

    def estimate_now(self) -> Micros:
        """Return the estimated time of the server, or that of the given clock."""
        if self._override is not None:
            return self._override()
        return Micros(round(read_boot_clock() * 1e6) + (self._offset_micros or 0))

    def get_override(self) -> Micros | None:
        """Return the time of the given clock; None without one.

        The server then uses its own clock.
        """
        return None if self._override is None else self._override()

    def observe(self, now: Micros) -> None:
        """Take in the server's time from an answer."""
        # The answer was on its way for an unknown time, so `ahead` is too small by that delay.
        # The answer with the largest value had the shortest way and is nearest to the truth: a
        # larger value is taken at once. A smaller one is either such a delay or a slow drift,
        # so it is followed in small steps. A value smaller by a second or more means that the
        # server's clock was set back.
        ahead = now - round(read_boot_clock() * 1e6)
        if (
            self._offset_micros is not None
            and self._offset_micros - STEP_MIN_MICROS < ahead < self._offset_micros
        ):
            ahead = max(ahead, self._offset_micros - SLEW_MAX_MICROS)
        self._offset_micros = ahead


Values: TypeAlias = Mapping[str, object]
Rows: TypeAlias = Sequence[TupleRow]

CONNECT_TIMEOUT_S: Final = 5
"""The longest time to establish a connection."""

ANSWER_SLACK_S: Final = 1.0
"""The time that the client waits for an answer beyond the server's own timeout."""

CONNINFO_DEFAULTS: Final = {
    "application_name": "midrun",
    "connect_timeout": str(CONNECT_TIMEOUT_S),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
"""Connection parameters that an address may override.

`client_encoding` is not among them: the store always uses UTF-8.
"""

_CONNECTION_ERRORS: Final = (
    psycopg.OperationalError,  # the connection, or the server behind it, is gone
    psycopg.InterfaceError,  # the connection was closed on this side
    OSError,
)
_FULL_ERRORS: Final = (errors.DiskFull, errors.OutOfMemory, errors.ConfigurationLimitExceeded)
_PERMANENT_FAILURES: Final = (
    "password authentication failed",
    "no pg_hba.conf entry",
    "does not exist",  # a database, a role, a certificate file
    "certificate verify failed",
    "does not match host name",
    "does not support SSL",
)
"""Parts of connection errors that a retry does not change."""

_BUSY_ERRORS: Final = (
    errors.QueryCanceled,  # by statement_timeout
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


class AnswerLost(Exception):
    """No answer will come: the statement took effect, or it did not."""


class PostgresAddress:
    """The address of a store and the settings of its connections.

    `name` is for messages and contains no password. `schema_version` is the newest schema
    version that this process knows; 0 until the store was prepared.
    """

    def __init__(self, url: str, *, durability: Durability, write_timeout: timedelta) -> None:
        try:
            parts = conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise StoreUnreachable("postgresql://…", str(error).strip()) from None
        self.conninfo = conninfo.make_conninfo(
            "", **(CONNINFO_DEFAULTS | parts), client_encoding="UTF8"
        )
        host, port = parts.get("host") or "", parts.get("port") or ""
        location = f"{host}:{port}" if port else host
        self.name = f"postgresql://{location}/{parts.get('dbname') or ''}"
        self.relaxed = durability == "relaxed"
        self.write_timeout_s = write_timeout.total_seconds()
        self.schema_version = 0


class PostgresConnection:
    """One connection. `pid` is the server process at its other end."""

    def __init__(
        self, address: PostgresAddress, connection: AsyncConnection, timeout_s: float
    ) -> None:
        self._address = address
        self._connection = connection
        self._timeout_s = timeout_s
        self.pid = 0
        self.connected_at = Micros(0)  # the server's time when the connection was made
        self._notifications: list[tuple[str, str]] = []
        connection.add_notify_handler(
            lambda notification: self._notifications.append(
                (notification.channel, notification.payload)
            )
        )

    @classmethod
    async def connect(
        cls, address: PostgresAddress, *, timeout_s: float | None = None
    ) -> "PostgresConnection":
        """Connect and set the timeouts and the durability of the session.

        Raises:
            AnswerLost: the server does not answer now.
            StoreUnreachable: the server refuses the connection for good.
        """
        timeout_s = address.write_timeout_s if timeout_s is None else timeout_s
        connection: AsyncConnection | None = None
        # Shielded: psycopg must not be cancelled in the middle of the handshake. The timeout of
        # libpq applies to each host of the address; this one bounds all of them together.
        with anyio.move_on_after(CONNECT_TIMEOUT_S + ANSWER_SLACK_S, shield=True):
            try:
                connection = await AsyncConnection.connect(address.conninfo, autocommit=True)
            except _CONNECTION_ERRORS as error:
                raise _translate_connect_error(address, error) from error
        if connection is None:
            raise AnswerLost(f"no connection within {CONNECT_TIMEOUT_S} s")
        new = cls(address, connection, timeout_s)
        values = {"relaxed": address.relaxed, "patience_ms": round(timeout_s * 1000)}
        try:
            ((*_, new.pid, now),) = await new.execute(queries.SET_UP_SESSION, values)
        except BaseException:
            new.close()
            raise
        new.connected_at = Micros(now)
        return new

    async def execute(
        self,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        """Execute one statement and return its rows.

        The caller's cancellation is delivered afterwards: a statement that was sent is always
        awaited.

        Raises:
            AnswerLost: the outcome is unknown; the connection is closed.
            StoreError: the server refused the statement.
        """
        # The server cancels a slow statement by itself (statement_timeout) and answers so. This
        # timeout is longer and fires only when the server or the network is silent; then the
        # answer is lost.
        # Shielded: a cancelled wait would leave the connection in the middle of an answer, and
        # the next statement would read the rest of it as its own.
        with anyio.move_on_after(self._timeout_s + ANSWER_SLACK_S, shield=True):
            try:
                cursor = self._connection.cursor(binary=True)
                await cursor.execute(statement, values, prepare=prepare)
                return [] if cursor.description is None else await cursor.fetchall()
            except psycopg.Error as error:
                raise await self._translate_error(error) from error
        self.close()
        raise AnswerLost(f"no answer within {self._timeout_s + ANSWER_SLACK_S:g} s")

    async def run_script(self, text: str) -> None:
        """Execute a script of statements without parameters and without a result.

        Raises:
            AnswerLost: the outcome is unknown; the connection is closed.
            StoreError: the server refused a statement.
        """
        with anyio.move_on_after(self._timeout_s + ANSWER_SLACK_S, shield=True):
            try:
                await self._connection.execute(text.encode())
            except psycopg.Error as error:
                raise await self._translate_error(error) from error
            return
        self.close()
        raise AnswerLost(f"no answer within {self._timeout_s + ANSWER_SLACK_S:g} s")

    def take_notifications(self) -> list[tuple[str, str]]:
        """Return the notifications since the last call, with their channels; never wait.

        Raises:
            AnswerLost: the connection is gone.
        """
        self.has_notifications()
        notifications, self._notifications = self._notifications, []
        return notifications

    async def wait_readable(self) -> None:
        """Wait until the socket has data.

        Notifications that psycopg has already read do not make it readable: check
        `has_notifications` first.
        """
        await anyio.wait_readable(self._connection.fileno())

    def has_notifications(self) -> bool:
        """Tell whether there are notifications that were not returned yet; never wait.

        A notification may have arrived together with an answer. Then psycopg has already read
        it from the socket, and waiting for the socket would miss it.

        Raises:
            AnswerLost: the connection is gone.
        """
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
            while (notification := pgconn.notifies()) is not None:
                self._notifications.append(
                    (notification.relname.decode(), notification.extra.decode())
                )
        except psycopg.Error as error:
            self.close()
            raise AnswerLost(str(error)) from error
        return bool(self._notifications)

    def close(self) -> None:
        """Close the connection at once, without a message to the server."""
        self._connection.pgconn.finish()

    @property
    def closed(self) -> bool:
        """Whether the connection is closed."""
        return self._connection.closed

    async def _translate_error(self, error: psycopg.Error) -> Exception:
        """Return the exception that an error of the server or the network means."""
        name, text = self._address.name, str(error).strip()
        if isinstance(error, _BUSY_ERRORS):
            return StoreBusy(name, self._timeout_s)
        if isinstance(error, _FULL_ERRORS):
            return StoreFull(name)
        if isinstance(error, errors.ReadOnlySqlTransaction):
            self.close()  # a failover: this server is a standby now
            return AnswerLost(text)
        if self._connection.closed or isinstance(error, _CONNECTION_ERRORS):
            self.close()
            return AnswerLost(text)
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreUnreachable(name, text)
        if isinstance(error, psycopg.DataError) and error.sqlstate is None:
            return ValueError(text)  # psycopg refused a value; nothing was sent
        # The statements are constant and tested. So the schema is not as midrun left it: a
        # newer midrun has migrated it, or it is damaged.
        if (version := await self._read_schema_version()) > self._address.schema_version > 0:
            return StoreForeign(name, f"schema {version} belongs to a newer midrun")
        return StoreDamaged(name, text)

    async def _read_schema_version(self) -> int:
        """Return the current schema version of the store; 0 if it cannot be read."""
        with suppress(psycopg.Error):
            cursor = await self._connection.execute(queries.SCHEMA_VERSION)
            ((version,),) = await cursor.fetchall()
            return int(version)
        return 0


def _translate_connect_error(address: PostgresAddress, error: Exception) -> Exception:
    """Return `AnswerLost` for a server that may answer soon, else a final error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # libpq indents its hints; the last line without an indent is the reason.
    text = next(line for line in reversed(lines) if line == line.lstrip())
    if any(part in line for line in lines for part in _PERMANENT_FAILURES):
        return StoreUnreachable(address.name, text)
    return AnswerLost(text)


def make_unreachable_error(address: PostgresAddress, lost: AnswerLost) -> StoreError:
    """Return the error for a caller whose answer was lost and not found again."""
    problem = f"no answer ({lost}); a write may have taken effect: read the run to find out"
    return StoreUnreachable(address.name, problem)
