"""Mishaps: what somebody's code raised, in words that can be journaled and told to an agent."""

import math
from asyncio import CancelledError
from collections.abc import Iterator

import anyio

from midrun.agents.pausing import PauseHere
from midrun.codec.brief import safe_str
from midrun.driver.blocking.errands import Asked, Raised

CAUGHT = (Exception, SystemExit, GeneratorExit)
"""What a tool, a model or a condition may raise without taking anybody along.

A cancellation is none of these; `is_ours` says whether it was meant for us.
"""


def end_of(error: BaseException) -> Raised | Asked | None:
    """Return what an error means for the function that raised it; None: it is not its own.

    A question counts from wherever it was asked, also from inside a task group.
    """
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, PauseHere):
            return Asked(question=leaf.question, data=leaf.data)
    own = (*CAUGHT, CancelledError)  # AnyIO's name for it can only be asked for in a loop
    return raised(error) if all(isinstance(leaf, own) for leaf in leaves) else None


def raised(error: BaseException) -> Raised:
    """Return `error` in words; a group is told by what is in it."""
    leaves = list(_leaves(error))
    if len(leaves) == 1:
        return Raised(kind=type(leaves[0]).__name__, message=safe_str(leaves[0]))
    told = "; ".join(f"{type(leaf).__name__}: {safe_str(leaf)}" for leaf in leaves)
    return Raised(kind=type(error).__name__, message=told)


def words(error: BaseException) -> str:
    """Return `error` as one text."""
    told = raised(error)
    return f"{told.kind}: {told.message}"


def is_ours() -> bool:
    """Tell whether the cancellation that was just caught is one of a scope around us.

    If not, something that the code waited for was cancelled by others, and that is its error.
    """
    return anyio.current_effective_deadline() == -math.inf


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
