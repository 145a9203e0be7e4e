"""Opening what a command works on: the store itself, or a server that has it."""

import importlib
import importlib.util
import os
import sys
import traceback
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, Literal, TypedDict
from urllib.parse import unquote, urlsplit

from midrun.agents.agent import Agent
from midrun.agents.tool_environment import is_missing_variable
from midrun.errors import MidrunError, Misconfigured, RunNotFound
from midrun.runs.midrun import Midrun
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.token_file import find_token

# Finding a run by its id, or by the beginning of it; and an ask by its run.


async def find(midrun: AnyMidrun, given: str) -> AnyRun:
    """Return the run of this id; a beginning will do where it is the only one.

    Raises:
        RunNotFound: there is none.
        Misconfigured: several of the newest runs begin like this, or no id was given.
    """
    if not given.strip():  # as a variable of a shell is that was never set
        raise Misconfigured("RUN", "the id is empty; `midrun ls` lists the runs there are")
    try:
        return await midrun.get(given)
    except RunNotFound:
        found = await midrun.named(given)
        if len(found) == 1:
            return await midrun.get(found[0])
        if not found:
            raise
        some = ", ".join(found[:4])
        problem = f"{len(found)} runs begin like this, type more of it: {some}"
        raise Misconfigured(given, problem) from None


async def find_ask(midrun: AnyMidrun, given: str) -> tuple[AnyRun, str | None]:
    """Return the run, and the ask of it that is named: `RUN-ASK`, or `RUN` for its only one."""
    run, dash, ask = given.rpartition("-")
    if not dash:
        return await find(midrun, given), None
    return await find(midrun, run), ask


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
        from midrun.client import connect  # noqa: PLC0415 - not needed for a store

        async with connect(args.url, token=args.token or _find_token(args.url)) as far:
            yield far
        return
    from midrun.runs.midrun import Midrun  # noqa: PLC0415 - not needed for a server

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


# Apps: what `module:attribute` or `file.py` stands for on the command line.

RUNS: Final = (
    "it runs something when it is imported; put that under "
    'if __name__ == "__main__": at its end'
)


def agents_of(app: str) -> tuple[Agent, ...]:
    """Return the agents of an app: an `Agent`, a list of them, or a `Midrun`.

    Raises:
        Misconfigured: there is no such thing, or it cannot be imported; the text says what
            was looked for, or what was raised and where.
    """
    where, _, attribute = app.partition(":")
    module = _module(where)
    if attribute:
        if not hasattr(module, attribute):
            names = [
                n for n, value in vars(module).items() if isinstance(value, Agent | Midrun)
            ]
            has = f"; it has: {', '.join(names)}" if names else ""
            raise Misconfigured(app, f"{where} has no {attribute}{has}")
        return _agents(app, getattr(module, attribute))
    found = [value for value in vars(module).values() if isinstance(value, Agent | Midrun)]
    if not found:
        raise Misconfigured(app, "there is no Agent in it; name one: file.py:agent")
    return tuple(agent for value in found for agent in _agents(app, value))


def _agents(app: str, value: object) -> tuple[Agent, ...]:
    match value:
        case Agent():
            return (value,)
        case Midrun():
            return tuple(value.agents.values())
        case Iterable():
            return tuple(agent for one in value for agent in _agents(app, one))
        case _:
            problem = f"is {type(value).__name__}; name an Agent, a list of them, or a Midrun"
            raise Misconfigured(app, problem)


def _module(where: str) -> ModuleType:
    path = Path(where)
    if path.is_dir() and not path.name.isidentifier():
        raise Misconfigured(where, "is a folder; name a file: file.py, or file.py:agent")
    if path.suffix != ".py":
        return _imported(where, where, Path.cwd())
    if not path.is_file():
        raise Misconfigured(where, "there is no such file")
    # Under its own name and folder, so that a process for blocking tools finds it again.
    return _imported(where, path.stem, path.resolve().parent)


def _imported(where: str, name: str, folder: Path) -> ModuleType:
    """Import what others wrote: it may raise anything, and its author wants one line."""
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except MidrunError:  # its text says what is wrong with what was declared
        raise
    except SystemExit as error:
        raise Misconfigured(where, RUNS) from error
    except Exception as error:
        if isinstance(error, RuntimeError) and _wants_a_loop(error):
            raise Misconfigured(where, RUNS) from error
        place = _place(error, folder)
        problem = f"cannot be imported: {type(error).__name__}: {error}{place}"
        if is_missing_variable(error) and str(error.args[0]).startswith(SETTINGS_PREFIX):
            problem += "; the command takes MIDRUN_* out of its environment: use another name"
        raise Misconfigured(where, problem) from error


def _wants_a_loop(error: RuntimeError) -> bool:
    """Tell whether it is what `anyio.run` or `asyncio.run` raise inside of another."""
    return "Already running" in str(error) or "event loop" in str(error)


def _place(error: Exception, folder: Path) -> str:
    """Return where in the app it was raised; else where it was, if that was in a file."""
    if isinstance(error, SyntaxError):  # its text says where
        return ""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in {__file__, importlib.__file__} and "<" not in frame.filename
    ]
    ours = [f for f in frames if _is_in(folder, f.filename)] or frames
    return f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""


def _is_in(folder: Path, file: str) -> bool:
    return Path(file).is_relative_to(folder) and "site-packages" not in file
