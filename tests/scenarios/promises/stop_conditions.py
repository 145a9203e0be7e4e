"""Custom stop conditions. A run finds them by name, so they are functions of a module."""

from anyio.lowlevel import checkpoint

from midrun.driver.stop_conditions import StopContext

BROKEN = {"raises": True}
"""Makes `broken` raise; a test clears it to repair the condition."""


def two_calls(run: StopContext) -> bool:
    """Stop after two tool calls."""
    return run.tool_calls >= 2


async def two_steps(run: StopContext) -> bool:
    """Stop after two steps; an async condition."""
    await checkpoint()
    return run.steps >= 2


def broken(run: StopContext) -> bool:
    """Raise while `BROKEN` says so."""
    del run
    if BROKEN["raises"]:
        raise RuntimeError("condition out of order")
    return False
