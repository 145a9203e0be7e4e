"""A link: one connection to the server, and what its errors mean.

A link is used by one task at a time. Whatever it is asked is one transaction that the server
carries out by itself; none is left open between two messages. So there are three outcomes: an
answer, a refusal, or `Lost`, after which nobody knows and the link is of no more use.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final, LiteralString, TypeAlias

import anyio
import psycopg
from psycopg import AsyncConnection, conninfo, errors
from psycopg.rows import TupleRow

from midrun.core.ids import Micros
from midrun.errors import (
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreUnreachable,
)
from midrun.ports.store import Durability
from midrun.stores.postgres import queries

Values: TypeAlias = Mapping[str, object]
Rows: TypeAlias = Sequence[TupleRow]

CONNECT_S: Final = 5
"""How long a connection may take to come about."""

SLACK_S: Final = 1.0
"""How much longer than the server's own bound an answer is waited for."""

DEFAULTS: Final = {
    "application_name": "midrun",
    "connect_timeout": str(CONNECT_S),
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
}
"""What an address leaves open. The client's encoding is not for an address to choose."""

_LOST: Final = (
    psycopg.OperationalError,  # the connection, or the server behind it, is gone
    psycopg.InterfaceError,  # the link was dropped
    OSError,
)
_FULL: Final = (errors.DiskFull, errors.OutOfMemory, errors.ConfigurationLimitExceeded)
_FINAL: Final = (
    "password authentication failed",
    "no pg_hba.conf entry",
    "does not exist",  # a database, a role, a file with certificates
    "certificate verify failed",
    "does not match host name",
    "does not support SSL",
)
"""What a server says, or is said of it, that waiting does not change."""

_BUSY: Final = (
    errors.QueryCanceled,  # by the statement's own timeout
    errors.LockNotAvailable,
    errors.DeadlockDetected,
    errors.SerializationFailure,
)


class Lost(Exception):
    """The answer will not come: what was asked has happened, or not."""


class Address:
    """Where a store is, and on which terms it is spoken to.

    `name` is for people to read: it has no password. `schema` is the number of the newest that
    we know, once it has been seen to.
    """

    def __init__(self, url: str, *, durability: Durability, patience: timedelta) -> None:
        try:
            parts = conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise StoreUnreachable("postgresql://…", str(error).strip()) from None
        self.conninfo = conninfo.make_conninfo("", **(DEFAULTS | parts), client_encoding="UTF8")
        host, port = parts.get("host") or "", parts.get("port") or ""
        place = f"{host}:{port}" if port else host
        self.name = f"postgresql://{place}/{parts.get('dbname') or ''}"
        self.relaxed = durability == "relaxed"
        self.patience_s = patience.total_seconds()
        self.schema = 0


class Link:
    """One connection. `pid` is the server process at its other end."""

    def __init__(
        self, address: Address, connection: AsyncConnection, patience_s: float
    ) -> None:
        self._address = address
        self._connection = connection
        self._patience_s = patience_s
        self.pid = 0
        self.now = Micros(0)  # by the server's clock, when the link was made
        self._told: list[tuple[str, str]] = []
        connection.add_notify_handler(lambda one: self._told.append((one.channel, one.payload)))

    @classmethod
    async def made(cls, address: Address, *, patience_s: float | None = None) -> "Link":
        """Connect, and agree on the terms.

        Raises:
            Lost: nobody answers, or not now.
            StoreUnreachable: the server refuses us.
        """
        patience_s = address.patience_s if patience_s is None else patience_s
        connection: AsyncConnection | None = None
        with anyio.move_on_after(CONNECT_S + SLACK_S, shield=True):
            try:
                connection = await AsyncConnection.connect(address.conninfo, autocommit=True)
            except _LOST as error:
                raise _no_connection(address, error) from error
        if connection is None:
            raise Lost(f"no connection within {CONNECT_S} s")
        link = cls(address, connection, patience_s)
        values = {"relaxed": address.relaxed, "patience_ms": round(patience_s * 1000)}
        try:
            ((*_, link.pid, now),) = await link.ask(queries.SET_UP, values)
        except BaseException:
            link.drop()
            raise
        link.now = Micros(now)
        return link

    async def ask(
        self,
        statement: LiteralString,
        values: Values | None = None,
        *,
        prepare: bool | None = None,
    ) -> Rows:
        """Return what the server answers, however the caller fares meanwhile.

        Raises:
            Lost: nobody knows what became of it; the link is dropped.
            StoreError: the server would not.
        """
        with anyio.move_on_after(self._patience_s + SLACK_S, shield=True):
            try:
                cursor = self._connection.cursor(binary=True)
                await cursor.execute(statement, values, prepare=prepare)
                return [] if cursor.description is None else await cursor.fetchall()
            except psycopg.Error as error:
                raise await self._meaning(error) from error
        self.drop()
        raise Lost(f"no answer within {self._patience_s + SLACK_S:g} s")

    async def script(self, text: str) -> None:
        """Carry out statements that are ours from end to end, and answer nothing.

        Raises:
            Lost: nobody knows what became of it; the link is dropped.
            StoreError: the server would not.
        """
        with anyio.move_on_after(self._patience_s + SLACK_S, shield=True):
            try:
                await self._connection.execute(text.encode())
            except psycopg.Error as error:
                raise await self._meaning(error) from error
            return
        self.drop()
        raise Lost(f"no answer within {self._patience_s + SLACK_S:g} s")

    def heard(self) -> list[tuple[str, str]]:
        """Return what has been told since the last look, with its channel; without waiting.

        Raises:
            Lost: the connection is gone.
        """
        self.unheard()
        told, self._told = self._told, []
        return told

    async def readable(self) -> None:
        """Wait until something comes in. Of what has already, only `unheard` knows."""
        await anyio.wait_readable(self._connection.fileno())

    def unheard(self) -> bool:
        """Tell whether something has come in that was not heard; without waiting.

        It may have come with an answer. Then the socket says nothing of it any more.

        Raises:
            Lost: the connection is gone.
        """
        pgconn = self._connection.pgconn
        try:
            pgconn.consume_input()
            while (one := pgconn.notifies()) is not None:
                self._told.append((one.relname.decode(), one.extra.decode()))
        except psycopg.Error as error:
            self.drop()
            raise Lost(str(error)) from error
        return bool(self._told)

    def drop(self) -> None:
        """Close the connection, without waiting for anybody."""
        self._connection.pgconn.finish()

    @property
    def dropped(self) -> bool:
        """Whether it is of no more use."""
        return self._connection.closed

    async def _meaning(self, error: psycopg.Error) -> Exception:
        """Return what an error of the server, or of the way to it, means."""
        name, text = self._address.name, str(error).strip()
        if isinstance(error, _BUSY):
            return StoreBusy(name, self._patience_s)
        if isinstance(error, _FULL):
            return StoreFull(name)
        if isinstance(error, errors.ReadOnlySqlTransaction):
            self.drop()  # it was the primary once
            return Lost(text)
        if self._connection.closed or isinstance(error, _LOST):
            self.drop()
            return Lost(text)
        if isinstance(error, errors.InsufficientPrivilege):
            return StoreUnreachable(name, text)
        if isinstance(error, psycopg.DataError) and error.sqlstate is None:
            return ValueError(text)  # the server was not even asked
        # Our statements are constant and tested: it is the schema that is not as we left it.
        if (version := await self._version()) > self._address.schema > 0:
            return StoreForeign(name, f"schema {version} is of a newer midrun")
        return StoreDamaged(name, text)

    async def _version(self) -> int:
        """Return which schema the store has by now; 0 if it does not say."""
        with suppress(psycopg.Error):
            cursor = await self._connection.execute(queries.VERSION)
            ((version,),) = await cursor.fetchall()
            return int(version)
        return 0


def _no_connection(address: Address, error: Exception) -> Exception:
    """Tell a server that may answer soon from one that never will."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = next(line for line in reversed(lines) if line == line.lstrip())  # others are hints
    if any(part in line for line in lines for part in _FINAL):
        return StoreUnreachable(address.name, text)
    return Lost(text)


def unreachable(address: Address, lost: Lost) -> StoreError:
    """Return what a caller is told whose answer never came."""
    return StoreUnreachable(address.name, f"no answer ({lost}); read what became of it")
