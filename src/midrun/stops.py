"""Stop conditions: when a run pauses by itself. Compose them with `|`, `&` and `~`.

This is the public door to `midrun.core.stops`, which keeps a custom condition by its name.
"""

from collections.abc import Callable
from importlib import import_module
from inspect import isfunction
from operator import attrgetter
from typing import Literal, TypeAlias

from midrun.core import stops
from midrun.core.stops import (
    MaxCost,
    MaxSteps,
    MaxTime,
    MaxTokens,
    MaxToolCalls,
    Repeats,
    Stop,
    TextMention,
)
from midrun.errors import Misconfigured

__all__ = [
    "Custom",
    "MaxCost",
    "MaxSteps",
    "MaxTime",
    "MaxTokens",
    "MaxToolCalls",
    "Repeats",
    "Stop",
    "TextMention",
    "resolve_custom",
]

Condition: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # the driver knows what it gives


def Custom(  # noqa: N802 - reads as the class it makes, like its siblings
    fn: Condition, *, then: Literal["pause", "complete"] = "pause"
) -> stops.Custom:
    """Return the condition that holds when `fn` says so at a boundary.

    It is stored by name, because a run may be resumed in another process: `fn` must be a
    function at the top of a module, or a static one of a class there.

    Raises:
        Misconfigured: it cannot be found again by its name.
    """
    name = f"{getattr(fn, '__module__', '')}:{getattr(fn, '__qualname__', repr(fn))}"
    try:
        found = resolve_custom(name)
    except Misconfigured:
        found = None
    if found is not fn:
        problem = f"{name} cannot be found by that name; move it to the top of a module"
        raise Misconfigured("stop Custom", problem)
    return stops.Custom(name, then)


def resolve_custom(name: str) -> Condition:
    """Return the function that a custom condition was made of, importing its module.

    Raises:
        Misconfigured: there is none of that name here.
    """
    module, _, path = name.partition(":")
    try:
        found: object = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise Misconfigured(f"stop {name}", f"cannot be imported here: {error}") from error
    if not isfunction(found):  # a name from a journal must not reach whatever can be called
        raise Misconfigured(f"stop {name}", "is not a function written in Python")
    return found
