"""Waiting for facts that nobody announces, as they come about in another process."""

from collections.abc import Callable

import anyio


async def becomes(fact: Callable[[], bool]) -> None:
    """Wait until it is so."""
    while not fact():  # noqa: ASYNC110 - it may be another process that makes it so
        await anyio.sleep(0.002)
