"""Apps: what `module:attribute` or `file.py` stands for on the command line."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Final

from midrun.agents.agent import Agent
from midrun.agents.environment import is_missing_variable
from midrun.cli.opening import SETTINGS_PREFIX
from midrun.embed.midrun import Midrun
from midrun.errors import MidrunError, Misconfigured

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
