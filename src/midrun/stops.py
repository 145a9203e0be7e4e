"""Stop conditions: when a run pauses by itself. Compose them with `|`, `&` and `~`.

    agent = Agent("clerk", model=model, stop=MaxSteps(20) | MaxCost(0.50))

Conditions are checked between two steps. A cap on tool calls is also checked between the calls
of one reply, and a cap on cost or tokens before a model call, with the amount that the call
reserves.

The public interface of `midrun.core.stops`. The core stores a custom condition by the name of
its function; `Custom` and `resolve_custom` convert between the two.
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
    """Return a condition that is met when `fn` returns true at a step boundary.

    `fn` is stored by name, because a run may be resumed in another process. It must be a
    function at the top level of a module, or a static method of a class there.

    Raises:
        Misconfigured: `fn` cannot be imported by its name.
    """
    name = f"{getattr(fn, '__module__', '')}:{getattr(fn, '__qualname__', repr(fn))}"
    try:
        found = resolve_custom(name)
    except Misconfigured:
        found = None
    if found is not fn:
        problem = f"{name} cannot be imported by that name; move it to the top of a module"
        raise Misconfigured("stop Custom", problem)
    return stops.Custom(name, then)


def resolve_custom(name: str) -> Condition:
    """Import the function of a custom condition.

    Raises:
        Misconfigured: there is no such function in this process.
    """
    module, _, path = name.partition(":")
    try:
        found: object = attrgetter(path)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise Misconfigured(f"stop {name}", f"cannot be imported here: {error}") from error
    # The name may come from an imported journal: it must not reach other callables, such as
    # `os:system` (a builtin) or a class.
    if not isfunction(found):
        raise Misconfigured(f"stop {name}", "is not a function written in Python")
    return found
