"""Runs work that is too long for one turn of the event loop in slices."""

from collections.abc import Generator
from typing import Final, TypeVar

from anyio.lowlevel import cancel_shielded_checkpoint

from midrun.codec.strict_json import Limits

T = TypeVar("T")

QUICK: Final = Limits(size=32 * 1024)
"""A value within this is walked and encoded in less than two milliseconds, at once."""


async def run_in_slices(steps: Generator[None, None, T]) -> T:
    """Run `steps`, let the event loop do everything else after each, and return the result.

    A cancellation is left for later: the work is bounded, and a result that is lost here would
    be lost for good.
    """
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]  # as `steps` says
        await cancel_shielded_checkpoint()
