"""Conditions of somebody's own, to be found by their names."""

from anyio.lowlevel import checkpoint

from midrun.driver.dispatcher import StopContext

BROKEN = {"raises": True}
"""What makes `broken` raise, until a test has mended it."""


def two_calls(run: StopContext) -> bool:
    """Stop after two tool calls."""
    return run.tool_calls >= 2


async def two_steps(run: StopContext) -> bool:
    """Stop after two steps, having thought about it."""
    await checkpoint()
    return run.steps >= 2


def broken(run: StopContext) -> bool:
    """Raise until it is mended."""
    del run
    if BROKEN["raises"]:
        raise RuntimeError("condition out of order")
    return False
