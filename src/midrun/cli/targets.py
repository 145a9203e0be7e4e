"""Targets of a command: its run or ask, its store or server, and the agents of an app."""

import importlib
import importlib.util
import sys
import traceback
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Final, Literal
from urllib.parse import unquote, urlsplit

from midrun.agents.agent import Agent
from midrun.agents.tool_environment import is_missing_variable
from midrun.cli.settings import SETTINGS_PREFIX
from midrun.errors import MidrunError, Misconfigured, RunErased, RunNotFound
from midrun.hosts import host, is_foreign_agent
from midrun.runs.midrun import Midrun
from midrun.runs.protocols import AnyMidrun, AnyRun
from midrun.runs.token_file import find_token

# Runs and asks, by their id or the beginning of it.


async def find_run(midrun: AnyMidrun, run_id: str) -> AnyRun:
    """Return the run with this id, or the only run whose id begins with it.

    Raises:
        RunNotFound: no run has such an id.
        Misconfigured: several of the newest runs begin with it, or it is empty.
    """
    # An unset shell variable gives "", which is the beginning of every id.
    if not run_id.strip():
        raise Misconfigured("RUN", "the id must not be empty; `midrun ls` lists the runs")
    try:
        return await midrun.get(run_id)
    except RunErased:
        raise
    except RunNotFound:
        matches = await midrun.find_ids(run_id)
        if len(matches) == 1:
            return await midrun.get(matches[0])
        if not matches:
            raise
        examples = ", ".join(matches[:4])
        problem = f"{len(matches)} runs begin with this; type more of the id: {examples}"
        raise Misconfigured(run_id, problem) from None


async def find_ask(midrun: AnyMidrun, ask_id: str) -> tuple[AnyRun, str | None]:
    """Return the run and the id of the ask; `RUN` alone means its only open ask (None)."""
    run, dash, ask = ask_id.rpartition("-")
    if not dash:
        return await find_run(midrun, ask_id), None
    return await find_run(midrun, run), ask


LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})


@asynccontextmanager
async def open_target(
    args: Namespace, agents: tuple[Agent, ...] = (), *, drive: bool = True
) -> AsyncIterator[AnyMidrun]:
    """Open the store or server of `args`; drive the runs of `agents` unless `drive` is False.

    Raises:
        Misconfigured: the store does not exist, and without agents nothing may create it.
    """
    if getattr(args, "url", None):
        from midrun.client import connect  # noqa: PLC0415 - not needed for a store

        async with connect(args.url, token=args.token or find_saved_token(args.url)) as midrun:
            yield midrun
        return
    from midrun.runs.midrun import Midrun  # noqa: PLC0415 - not needed for a server

    check_store_file(args.store, must_exist=not agents)
    engine: Literal["local"] | None = "local" if agents and drive else None
    async with Midrun(args.store, agents=agents, engine=engine, **args.keys) as opened:
        yield opened


def check_store_file(store: str, *, must_exist: bool) -> None:
    """Check that the file of a store exists (`must_exist`) or can be created.

    A typo in an address must neither create an empty store nor look like one.

    Raises:
        Misconfigured: the file, or its folder, does not exist.
    """
    parts = urlsplit(store) if store.startswith("sqlite:///") else None
    # Other stores and malformed addresses are checked when the store is opened.
    if parts is None or parts.path == "/" or ":memory:" in store:
        return
    path = Path(unquote(parts.path[1:]))
    if must_exist and not path.exists():
        problem = f"there is no store at {path}; check --store, or start a run to create it"
        raise Misconfigured(store, problem)
    if not path.parent.is_dir():
        raise Misconfigured(store, f"create the folder {path.parent} first, or check --store")


def find_saved_token(url: str) -> str | None:
    """Return the token that `midrun serve` saved for this folder; only for a local server."""
    return find_token(Path.cwd()) if urlsplit(url).hostname in LOOPBACK_HOSTS else None


# Apps: `module:attribute` or `file.py`, and the agents in them.

RUNS_CODE_PROBLEM: Final = (
    "the module runs code when it is imported; put that code under "
    'if __name__ == "__main__": at its end'
)


def load_agents(app: str) -> tuple[Agent, ...]:
    """Return the agents of an app: an `Agent`, a list of them, or a `Midrun`.

    An agent of another framework is hosted, if the module has no agent of Midrun.

    Raises:
        Misconfigured: the app does not exist, cannot be imported, or has no agent.
    """
    where, _, attribute = app.partition(":")
    module = _import_app(where)
    if attribute:
        if not hasattr(module, attribute):
            names = [n for n, value in vars(module).items() if _is_agent(value)]
            has = f"; it has: {', '.join(names)}" if names else ""
            raise Misconfigured(app, f"{where} has no {attribute}{has}")
        value = getattr(module, attribute)
        if is_foreign_agent(value):
            return (_host_agent(attribute, value),)
        return _extract_agents(app, value)
    values = vars(module).items()
    if own := [value for _, value in values if isinstance(value, Agent | Midrun)]:
        return tuple(agent for value in own for agent in _extract_agents(app, value))
    foreign = {id(value): (name, value) for name, value in values if is_foreign_agent(value)}
    if not foreign:
        problem = "has no agent at its top level; define one there, or name it: file.py:agent"
        raise Misconfigured(app, problem)
    return tuple(_host_agent(name, value) for name, value in foreign.values())


def _is_agent(value: object) -> bool:
    return isinstance(value, Agent | Midrun) or is_foreign_agent(value)


def _host_agent(variable: str, value: object) -> Agent:
    """Host an agent of another framework under its own name, or that of its variable."""
    own_name: object = getattr(value, "name", None)
    # LangGraph and Strands name every agent that has no name of its own.
    is_named = isinstance(own_name, str) and own_name not in {"", "LangGraph", "Strands Agents"}
    return host(value, name=str(own_name) if is_named else variable)


def load_given_app(args: Namespace, server_reason: str) -> tuple[Agent, ...]:
    """Return the agents of `--app`; none if the command was typed without it.

    Raises:
        Misconfigured: as `load_agents`; or a server was given, too.
    """
    app: str | None = getattr(args, "app", None)
    if app and args.url:
        problem = f"cannot be combined with --url: {server_reason}; leave --app out"
        raise Misconfigured("--app", problem)
    return load_agents(app) if app else ()


def _extract_agents(app: str, value: object) -> tuple[Agent, ...]:
    match value:
        case Agent():
            return (value,)
        case Midrun():
            return tuple(value.agents.values())
        case Iterable():
            return tuple(agent for one in value for agent in _extract_agents(app, one))
        case _:
            expected = "must be an Agent, a list of agents or a Midrun"
            raise Misconfigured(app, f"{expected}, got {type(value).__name__}")


def _import_app(where: str) -> ModuleType:
    path = Path(where)
    if not where:
        raise Misconfigured("APP", "must be file.py, file.py:agent or module:agent, got ''")
    if path.is_dir() and not path.name.isidentifier():
        raise Misconfigured(where, "is a folder; name a file: file.py or file.py:agent")
    if path.suffix != ".py" and not path.is_file():
        return _import_module(where, where, Path.cwd())
    if path.suffix != ".py":
        raise Misconfigured(where, "is not a file of Python; name one that ends in .py")
    if not path.is_file():
        raise Misconfigured(where, "there is no such file; check the path")
    # Import it as a top-level module of its folder, not under an invented name: the zygote
    # process imports blocking tools again by their module name.
    return _import_module(where, path.stem, path.resolve().parent)


def _import_module(where: str, name: str, folder: Path) -> ModuleType:
    """Import the app's module; turn any error into one line with its position.

    User code can raise anything here. The user needs the position in their own code, not a
    traceback through midrun.
    """
    # Not removed afterwards: tools may import modules of their folder when they run.
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except MidrunError:  # names the wrong declaration already
        raise
    except SystemExit as error:
        raise Misconfigured(where, RUNS_CODE_PROBLEM) from error
    except Exception as error:
        if isinstance(error, RuntimeError) and _is_nested_event_loop(error):
            raise Misconfigured(where, RUNS_CODE_PROBLEM) from error
        place = _format_position(error, folder)
        problem = f"cannot be imported: {type(error).__name__}: {error}{place}"
        if is_missing_variable(error) and str(error.args[0]).startswith(SETTINGS_PREFIX):
            problem += "; the command removes MIDRUN_* from its environment: use another name"
        raise Misconfigured(where, problem) from error


def _is_nested_event_loop(error: RuntimeError) -> bool:
    """Tell whether `anyio.run` or `asyncio.run` raised because a loop is running already."""
    return "Already running" in str(error) or "event loop" in str(error)


def _format_position(error: Exception, folder: Path) -> str:
    """Return the innermost position inside the app, else the innermost in any file."""
    if isinstance(error, SyntaxError):  # its text has the position already
        return ""
    # Skip this module, importlib, and frozen modules such as "<frozen importlib._bootstrap>".
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename not in {__file__, importlib.__file__} and "<" not in frame.filename
    ]
    ours = [f for f in frames if _is_in_folder(folder, f.filename)] or frames
    return f" ({ours[-1].filename}:{ours[-1].lineno})" if ours else ""


def _is_in_folder(folder: Path, file: str) -> bool:
    return Path(file).is_relative_to(folder) and "site-packages" not in file
