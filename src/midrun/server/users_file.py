"""A file with several users: their roles, and hashes of their tokens.

`midrun users` changes the file, and a running server notices the change at the next request. A
token has 256 random bits, so a plain SHA-256 is enough: there is no shorter way to find it than
to try all. A user may have several tokens. After a rotation the old ones are valid until their
overlap is over, so that every client can change to the new one in its own time.

A server keeps its last valid users if the file becomes unreadable, and logs the problem: a
half-copied file must neither sign all users out nor admit others.
"""

import fcntl
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from hmac import compare_digest
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.core.ids import MICROS_PER_SECOND, Micros
from midrun.core.values import Actor, Role, Value
from midrun.errors import Misconfigured
from midrun.ports.environment import Clock, read_wall_clock
from midrun.runs.validation import check_name
from midrun.server.auth import TOKEN_BYTES, find_name_problem, hash_token

_LOG: Final = logging.getLogger("midrun.server")

TOKEN_PREFIX: Final = "midrun_"  # noqa: S105 - makes tokens recognisable, also to scanners

_PRIVATE_FILE_MODE: Final = 0o600
_OTHER_WRITERS_BITS: Final = 0o022


class StoredToken(Value, kw_only=True):
    """The hash of a token. `id` names it in lists; `expires_at` is set by a rotation."""

    id: str
    sha256: str
    created_at: Micros
    expires_at: Micros | None = None


class StoredUser(Value, kw_only=True):
    """A user with a role and tokens; see `Actor` for its tenant and its teams."""

    name: str
    role: Role
    tenant: str = ""
    teams: tuple[str, ...] = ()
    tokens: tuple[StoredToken, ...] = ()

    @property
    def actor(self) -> Actor:
        """The actor that a token of the user stands for."""
        return Actor(name=self.name, role=self.role, tenant=self.tenant, teams=self.teams)

    def list_valid_tokens(self, now: Micros) -> tuple[StoredToken, ...]:
        """Return the tokens that have not expired."""
        return tuple(t for t in self.tokens if t.expires_at is None or t.expires_at > now)


class StoredUsers(Value, kw_only=True):
    """The content of a users file."""

    version: int = 1
    users: tuple[StoredUser, ...] = ()


class UsersFile:
    """The users in a file: the `auth` of a server, and the changes of `midrun users`.

    A token is compared with all hashes, each in constant time, as in `Tokens`.
    """

    def __init__(self, path: Path, *, clock: Clock = read_wall_clock) -> None:
        self._path = path
        self._clock = clock
        self._users = StoredUsers()
        self._version_seen: tuple[int, ...] | None = None  # of the file that `_users` is from

    def load(self) -> StoredUsers:
        """Read the file.

        Raises:
            Misconfigured: it cannot be read, other accounts can write it, or its content is
                not that of a users file.
        """
        where = f"users_file {self._path}"
        try:
            with self._path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read()
        except OSError as error:
            why = getattr(error, "strerror", "") or str(error)
            problem = (
                f"Cannot read it: {why}. Add a user with midrun users add, or check the path"
            )
            raise Misconfigured(where, problem) from error
        if mode & _OTHER_WRITERS_BITS and stat.S_ISREG(mode):
            problem = "Cannot use it: other accounts can write it. Run chmod go-w on it"
            raise Misconfigured(where, problem)
        try:
            users = msgspec.json.decode(text, type=StoredUsers)
        except ValueError as error:
            problem = (
                f"Cannot use it: it is no users file ({error}). Make one: midrun users add"
            )
            raise Misconfigured(where, problem) from error
        for user in users.users:
            if problem := find_name_problem(user.actor):
                raise Misconfigured(where, problem)
        return users

    async def __call__(self, token: str) -> Actor | None:
        """Return the actor of `token`, or None."""
        self._reload_if_changed()
        shown, found, now = hash_token(token).hex(), None, self._clock()
        for user in self._users.users:
            for known in user.list_valid_tokens(now):  # no early return: see the class
                if compare_digest(known.sha256, shown):
                    found = user.actor
        return found

    def _reload_if_changed(self) -> None:
        # A stat at each request costs microseconds, and needs no watcher that could fail.
        version: tuple[int, ...] = ()
        try:
            status = self._path.stat()
            # The inode changes with every change by `midrun users`, which replaces the file.
            # The other fields show changes by an editor.
            version = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        except OSError:
            pass  # `load` reports it
        if version == self._version_seen:
            return
        self._version_seen = version
        try:
            self._users = self.load()
        except Misconfigured as error:
            _LOG.error("Went on with the users known so far. %s", error)

    # ── changes ───────────────────────────────────────────────────────────────────────────

    def add(self, name: str, role: Role, *, tenant: str = "", teams: Sequence[str] = ()) -> str:
        """Add a user and return its token, which is stored nowhere.

        Raises:
            Misconfigured: the name is taken or not allowed, or the file is unusable.
        """
        check_name("name", name)
        user = StoredUser(name=name, role=role, tenant=tenant, teams=tuple(teams))
        if problem := find_name_problem(user.actor):
            raise Misconfigured("name", problem)

        def change(users: StoredUsers) -> tuple[StoredUser, ...]:
            if any(each.name == name for each in users.users):
                problem = f"{name} exists already. Use rotate for a new token, or revoke first"
                raise Misconfigured("name", problem)
            return (*users.users, replace(user, tokens=(stored,)))

        token, stored = self._make_token()
        self._change(change, may_create=True)
        return token

    def rotate(self, name: str, overlap: timedelta) -> str:
        """Return a new token of a user; the earlier ones are valid for `overlap` more.

        Raises:
            Misconfigured: there is no such user, or the file is unusable.
        """
        until = Micros(self._clock() + int(overlap.total_seconds() * MICROS_PER_SECOND))

        def change(users: StoredUsers) -> tuple[StoredUser, ...]:
            user = _find_user(users, name)
            old = [
                # A second rotation does not extend the time of a token of the first.
                replace(each, expires_at=min(until, each.expires_at or until))
                for each in user.list_valid_tokens(self._clock())
            ]
            renewed = replace(user, tokens=(*old, stored))
            return tuple(renewed if each is user else each for each in users.users)

        token, stored = self._make_token()
        self._change(change)
        return token

    def revoke(self, name: str) -> None:
        """Remove a user; its tokens and their sessions end at once.

        Raises:
            Misconfigured: there is no such user, or the file is unusable.
        """

        def change(users: StoredUsers) -> tuple[StoredUser, ...]:
            gone = _find_user(users, name)
            return tuple(each for each in users.users if each is not gone)

        self._change(change)

    def _make_token(self) -> tuple[str, StoredToken]:
        token = f"{TOKEN_PREFIX}{token_urlsafe(TOKEN_BYTES)}"
        digest = hash_token(token).hex()
        return token, StoredToken(id=token_hex(4), sha256=digest, created_at=self._clock())

    def _change(
        self,
        change: Callable[[StoredUsers], tuple[StoredUser, ...]],
        *,
        may_create: bool = False,
    ) -> None:
        """Replace the file with a changed one; readers see the old or the new one, whole."""
        with self._lock():
            exists = self._path.exists() or not may_create
            users = self.load() if exists else StoredUsers()
            changed = replace(users, users=change(users))
            text = msgspec.json.format(msgspec.json.encode(changed), indent=2) + b"\n"
            before = self._path.stat() if exists else None
            draft = self._path.with_name(f"{self._path.name}.{token_hex(4)}")
            # Created private, and given the old owner and mode before anything is written: at
            # no moment can other accounts read more than before.
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE_MODE)
            try:
                with os.fdopen(handle, "wb") as file:
                    if before is not None:
                        _keep_access(file.fileno(), before)
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(self._path)
            except BaseException:
                draft.unlink(missing_ok=True)
                raise

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one process at a time change the file.

        The lock is on the folder: the file itself is replaced by each change.
        """
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
        except OSError as error:
            raise Misconfigured(
                f"users_file {self._path}",
                f"Cannot open its folder: {error.strerror}. Create it first, or check the path",
            ) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)  # ends the lock


def _keep_access(file: int, before: os.stat_result) -> None:
    """Give a new file the owner and the mode of the one that it replaces.

    If root changes the users, the server must still be able to read them.
    """
    if (os.fstat(file).st_uid, os.fstat(file).st_gid) != (before.st_uid, before.st_gid):
        with suppress(PermissionError):  # an account that is not root gives no file away
            os.fchown(file, before.st_uid, before.st_gid)
    os.fchmod(file, before.st_mode & 0o777)


def _find_user(users: StoredUsers, name: str) -> StoredUser:
    for user in users.users:
        if user.name == name:
            return user
    names = ", ".join(user.name for user in users.users) or "none"
    raise Misconfigured("name", f"there is no user {name}. Users: {names}")
