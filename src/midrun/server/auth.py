"""Authentication: map a bearer token to an actor, and keep the token file.

The name and the role of a caller come only from here (or from a session that was opened with
such a credential). No other part of a request can claim either.
"""

import os
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from secrets import token_urlsafe
from typing import Final, TypeAlias

from midrun.core.values import Actor
from midrun.errors import Misconfigured
from midrun.runs.token_file import TOKEN_FILE_NAME, token_folder

Auth: TypeAlias = Callable[[str], Awaitable[Actor | None]]
"""Maps a token to its actor; None rejects the token.

It is called on every request, and again at intervals while a stream is open."""

TOKEN_BYTES: Final = 32
TOKEN_MIN_CHARS: Final = 16
"""The minimum length of a token, in characters. A shorter one can be guessed, and an unset
environment variable gives an empty one."""

_PRIVATE_FILE_MODE: Final = 0o600
_PRIVATE_FOLDER_MODE: Final = 0o700
_OTHERS_MODE_BITS: Final = 0o077


def find_name_problem(actor: Actor) -> str:
    """Return the reason why `actor` cannot sign in, or "" if it can.

    A run that is started without an actor is recorded as started by `user`, so an account with
    that name and the role user would own all of them. (The bearer of a server's single token
    has the name, but is an operator.) An empty owner in a query means all owners, so an account
    without a name would see the runs of all users.
    """
    if not actor.name:
        return "Cannot sign in: the account has no name. Give the Actor a name."
    if actor != Actor():
        return ""
    return (
        f"Cannot sign in as the user {actor.name!r}: this name stands for runs that were "
        "started without an actor. Give the account another name."
    )


class Tokens:
    """A fixed list of tokens, each with its actor.

    Only hashes are kept. A token is compared with all of them, each in constant time, so the
    time of a refusal reveals nothing.
    """

    def __init__(self, actors: Mapping[str, Actor]) -> None:
        if not actors or any(len(token) < TOKEN_MIN_CHARS for token in actors):
            problem = (
                f"each token must have at least {TOKEN_MIN_CHARS} characters. Let token_in() "
                "make one"
            )
            raise Misconfigured("server", problem)
        for actor in actors.values():
            if problem := find_name_problem(actor):
                raise Misconfigured("server", problem)
        self._actors = tuple((_hash_token(token), actor) for token, actor in actors.items())

    async def __call__(self, token: str) -> Actor | None:
        """Return the actor of `token`, or None."""
        shown = _hash_token(token)
        found = None
        for known, actor in self._actors:  # no early return: see the class
            if compare_digest(known, shown):
                found = actor
        return found


def token_in(folder: Path) -> str:
    """Return the token in `folder`; make one on the first call.

    It is kept in a file that only its owner can read. Choose a folder in which no tool works.

    Raises:
        Misconfigured: other users can read the file, or it holds no token.
    """
    folder.mkdir(mode=_PRIVATE_FOLDER_MODE, parents=True, exist_ok=True)
    path = folder / TOKEN_FILE_NAME
    # O_EXCL: of two processes that start at once, one creates the file and the other reads it.
    # O_NOFOLLOW: a symbolic link that another user placed here is not followed.
    only_new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        handle = os.open(path, only_new, _PRIVATE_FILE_MODE)
    except FileExistsError:
        return _read_token(path)
    with os.fdopen(handle, "w") as file:
        file.write(token := token_urlsafe(TOKEN_BYTES))
    return token


def token_for(working_folder: Path, *, former_path: Path) -> str:
    """Return the token for servers in `working_folder`; its file is outside of that folder.

    Raises:
        Misconfigured: a token file of an earlier version is at `former_path`, or other users
            can read the token file.
    """
    folder = token_folder(working_folder)
    if former_path.exists():
        problem = (
            "Cannot use it: tools work in this folder and may have read it. Delete it. A new "
            f"token is then made in {folder}, and browsers have to sign in again"
        )
        raise Misconfigured(f"token file {former_path}", problem)
    return token_in(folder)


def _read_token(path: Path) -> str:
    # The mode is read from the open file, not from the path, which could change in between.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        mode = os.fstat(file.fileno()).st_mode
        token = file.read().strip()
    if mode & _OTHERS_MODE_BITS:
        problem = "Cannot use it: other users can read it. Delete it and start again"
        raise Misconfigured(f"token file {path}", problem)
    if len(token) < TOKEN_MIN_CHARS:
        problem = "Cannot use it: it holds no token. Delete it and start again"
        raise Misconfigured(f"token file {path}", problem)
    return token


def _hash_token(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()
