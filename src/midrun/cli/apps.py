"""Apps: what `module:attribute` or `file.py` stands for on the command line."""

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from midrun.agents.agent import Agent
from midrun.embed.midrun import Midrun
from midrun.errors import Misconfigured


def agents_of(app: str) -> tuple[Agent, ...]:
    """Return the agents of an app: an `Agent`, a list of them, or a `Midrun`.

    Raises:
        Misconfigured: there is no such thing; the text says what was looked for.
    """
    where, _, attribute = app.partition(":")
    module = _module(where)
    if attribute:
        if not hasattr(module, attribute):
            raise Misconfigured(app, f"{where} has no {attribute}")
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
    if path.suffix != ".py":
        sys.path.insert(0, str(Path.cwd()))
        try:
            return importlib.import_module(where)
        except ImportError as error:
            raise Misconfigured(where, f"cannot be imported: {error}") from error
    if not path.is_file():
        raise Misconfigured(where, "there is no such file")
    # Under its own name and folder, so that a process for blocking tools finds it again.
    sys.path.insert(0, str(path.resolve().parent))
    return importlib.import_module(path.stem)
