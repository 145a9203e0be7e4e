"""Opening what a command works on: the store itself, or a server that has it."""

import os
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal, TypedDict
from urllib.parse import unquote, urlsplit

from midrun.agents.agent import Agent
from midrun.errors import Misconfigured
from midrun.handles.interface import AnyMidrun
from midrun.handles.token_file import find_token

STORE: Final = "sqlite:///midrun.db"
TEMPORAL_ADDRESS: Final = "127.0.0.1:7233"
SETTINGS_PREFIX: Final = "MIDRUN_"

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


def settle(args: Namespace) -> None:
    """Fill in the settings that were not typed, from the environment or by default.

    All variables `MIDRUN_*` leave the environment of this process before the app is imported:
    some are credentials, and tools that run in this process can read the environment.

    Raises:
        Misconfigured: a store and a server were given, or the file of a token has none.
    """
    names = [name for name in os.environ if name.startswith(SETTINGS_PREFIX)]
    given = {name: os.environ.pop(name) for name in names}.get
    if not hasattr(args, "store"):  # it works on nothing
        return
    url = getattr(args, "url", None)
    if url and args.store:
        raise Misconfigured("--store and --url", "give one of them: where are the runs?")
    args.where = ("--url", url) if url else ("--store", args.store) if args.store else ()
    if hasattr(args, "url") and not args.store:
        args.url = url or given("MIDRUN_URL")
    if hasattr(args, "token_file"):
        file = args.token_file
        args.token = _read_token(file) if file else given("MIDRUN_TOKEN")
    if hasattr(args, "temporal_address"):
        default = given("MIDRUN_TEMPORAL_ADDRESS") or TEMPORAL_ADDRESS
        args.temporal_address = args.temporal_address or default
    args.webhook_secret = given("MIDRUN_WEBHOOK_SECRET", "")
    args.keys = Keys(
        key=given("MIDRUN_KEY", "").encode() or None,
        chain_key=given("MIDRUN_CHAIN_KEY", "").encode() or None,
    )
    args.store = args.store or given("MIDRUN_STORE") or STORE
    if not getattr(args, "url", None):  # a server knows who asks by the token
        args.actor = args.actor or given("MIDRUN_ACTOR") or os.environ.get("USER") or "user"


@asynccontextmanager
async def opened(
    args: Namespace, agents: tuple[Agent, ...] = (), *, drive: bool = True
) -> AsyncIterator[AnyMidrun]:
    """Open the store, or a server; `agents` are known here, and driven unless told otherwise.

    Raises:
        Misconfigured: there is no such store, and nobody who would start a run in it.
    """
    if getattr(args, "url", None):
        from midrun.client.connect import connect  # noqa: PLC0415 - not needed for a store

        async with connect(args.url, token=args.token or _find_token(args.url)) as far:
            yield far
        return
    from midrun.embed.midrun import Midrun  # noqa: PLC0415 - not needed for a server

    check_file(args.store, there=not agents)
    engine: Literal["local"] | None = "local" if agents and drive else None
    async with Midrun(args.store, agents=agents, engine=engine, **args.keys) as near:
        yield near


class Keys(TypedDict):
    """The keys that a `Midrun` takes."""

    key: bytes | None
    chain_key: bytes | None


def check_file(store: str, *, there: bool) -> None:
    """See to it that the file of a store can be made; or that it is `there`, to look into.

    A slip in an address must not leave an empty store behind, nor look like one.

    Raises:
        Misconfigured: it is not; the text says what to do.
    """
    parts = urlsplit(store) if store.startswith("sqlite:///") else None
    if parts is None or parts.path == "/" or ":memory:" in store:  # the store has its own words
        return
    path = Path(unquote(parts.path[1:]))
    if there and not path.exists():
        problem = f"there is no store at {path}; check --store, or start a run to make it"
        raise Misconfigured(store, problem)
    if not path.parent.is_dir():
        raise Misconfigured(store, f"create the folder {path.parent} first, or check --store")


def _find_token(url: str) -> str | None:
    """Return the token of a server on this machine that was started in this folder."""
    return find_token(Path.cwd()) if urlsplit(url).hostname in LOOPBACK else None


def _read_token(file: str) -> str:
    """Return the token in a file.

    Raises:
        Misconfigured: the file cannot be read, or is empty.
    """
    try:
        token = Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"--token-file {file}", f"Cannot read a token: {error}") from error
    if not token:
        raise Misconfigured(
            f"--token-file {file}",
            "Cannot read a token: the file is empty. Write the token to it",
        )
    return token
