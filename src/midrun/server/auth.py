"""Credentials: what a caller shows, and the actor it stands for.

A name and a role come from here and from nowhere else; nothing in a request can claim either.
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
from midrun.runs.token_file import TOKEN_FILE, token_folder

Auth: TypeAlias = Callable[[str], Awaitable[Actor | None]]
"""Says who shows this token; None is nobody.

It is asked on every request, and from time to time while a stream is open."""

TOKEN_BYTES: Final = 32
TOKEN_MIN: Final = 16
"""Characters. Shorter ones can be tried out, and an unset variable makes an empty one."""

_PRIVATE_FILE: Final = 0o600
_PRIVATE_FOLDER: Final = 0o700
_OTHERS: Final = 0o077


def find_name_problem(actor: Actor) -> str:
    """Return why `actor` cannot sign in, or "" if it can.

    A run that is started without an actor is recorded as started by `user`. A user with that
    name would own all of them. The bearer of the server's one token, an operator, has it.
    An empty name would own the runs of all users: that is its meaning in a query.
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

    Only their hashes are kept. Every one is compared, each in constant time, so that how long
    a refusal takes tells nothing.
    """

    def __init__(self, actors: Mapping[str, Actor]) -> None:
        if not actors or any(len(token) < TOKEN_MIN for token in actors):
            problem = (
                f"a token has at least {TOKEN_MIN} characters; `token_in` makes a good one"
            )
            raise Misconfigured("server", problem)
        for actor in actors.values():
            if problem := find_name_problem(actor):
                raise Misconfigured("server", problem)
        self._actors = tuple((_hashed(token), actor) for token, actor in actors.items())

    async def __call__(self, token: str) -> Actor | None:
        """Return whose token it is."""
        shown = _hashed(token)
        found = None
        for known, actor in self._actors:
            if compare_digest(known, shown):
                found = actor
        return found


def token_in(folder: Path) -> str:
    """Return the token of a data folder, made when it is first asked for.

    It is a file that only its owner can read. Choose a folder in which no tool works.

    Raises:
        Misconfigured: others can read the file, or it holds no token.
    """
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    path = folder / TOKEN_FILE
    only_new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        handle = os.open(path, only_new, _PRIVATE_FILE)
    except FileExistsError:
        return _kept(path)
    with os.fdopen(handle, "w") as file:
        file.write(token := token_urlsafe(TOKEN_BYTES))
    return token


def token_for(working_folder: Path, *, formerly: Path) -> str:
    """Return the token of servers in `working_folder`, kept outside of it.

    Raises:
        Misconfigured: there is a token file of an earlier version at `formerly`, or others can
            read the file.
    """
    folder = token_folder(working_folder)
    if formerly.exists():
        problem = (
            "Cannot use it: tools work in this folder, and may have read it. Delete it; a new "
            f"token is then made in {folder}, and browsers have to sign in again"
        )
        raise Misconfigured(f"token file {formerly}", problem)
    return token_in(folder)


def _kept(path: Path) -> str:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
        mode = os.fstat(file.fileno()).st_mode
        token = file.read().strip()
    if mode & _OTHERS:
        raise Misconfigured(f"token file {path}", "others can read it; delete it, start again")
    if len(token) < TOKEN_MIN:
        raise Misconfigured(f"token file {path}", "it holds no token; delete it, start again")
    return token


def _hashed(token: str) -> bytes:
    return sha256(token.encode(errors="surrogateescape")).digest()
