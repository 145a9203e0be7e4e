"""Slices: run work that would block the event loop step by step."""

from collections.abc import Generator
from typing import Final, TypeVar

from anyio.lowlevel import cancel_shielded_checkpoint

from midrun.codec.strict_json import JsonLimits

T = TypeVar("T")

QUICK_LIMITS: Final = JsonLimits(max_bytes=32 * 1024)
"""A value within these limits is checked and encoded in less than two milliseconds."""


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run `steps` and return its result; yield to the event loop after each step.

    A cancellation is not delivered in here: the work is bounded, and it may process the result
    of a call that has happened, which must not be lost.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as `steps` says
        await cancel_shielded_checkpoint()
