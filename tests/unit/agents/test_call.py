"""What a tool can do with its call, in this process and in another."""

import math
from collections.abc import Awaitable, Callable

import pytest

from midrun.agents.tool_context import Call
from midrun.core.values import Json
from midrun.errors import Misconfigured, NotJson


def called(tell: Callable[[Json], Awaitable[None] | None]) -> Call:
    """Return a call that saves and notes through `tell`."""
    return Call(
        key="r1:c3", run_id="r1", epoch=2, attempt=1, progress=[1], saver=tell, noter=tell
    )


async def test_in_an_async_tool_saving_is_done_when_it_was_awaited() -> None:
    """Durable means: written before the next line runs."""
    told: list[Json] = []

    async def tell(value: Json) -> None:
        told.append(value)

    call = called(tell)
    saving = call.save({"page": 3})
    assert told == []
    await saving
    await call.note("page 3")
    assert told == [{"page": 3}, "page 3"]


async def test_in_a_blocking_tool_saving_is_done_when_it_returns() -> None:
    """There is no event loop there; and an await out of habit does no harm."""
    told: list[Json] = []
    call = called(told.append)
    _ = call.save((1, 2))
    _ = call.note("half")
    assert told == [[1, 2], "half"]
    await call.save(5)
    await call.note("done")
    assert told == [[1, 2], "half", 5, "done"]


def test_what_cannot_be_stored_is_refused_before_anything_is_sent() -> None:
    """The place to notice is the line that made it, with the path to the flaw."""
    told: list[Json] = []
    call = called(told.append)
    with pytest.raises(NotJson) as refusal:
        _ = call.save({"seen": [1, math.nan]})
    assert refusal.value.path == "progress.seen[1]"
    with pytest.raises(Misconfigured, match="save a number or an object"):
        _ = call.save(None)
    with pytest.raises(Misconfigured, match="a note is one string"):
        _ = call.note(3)  # type: ignore[arg-type]  # as an untyped tool would
    with pytest.raises(NotJson):
        _ = call.note("\ud800")
    assert told == []


def test_a_call_tells_what_it_is_and_cannot_be_changed() -> None:
    """Its key goes to the far end; a tool that could change it would break its own promise."""
    call = called(lambda _: None)
    assert (call.key, call.run_id, call.epoch, call.attempt, call.progress) == (
        "r1:c3",
        "r1",
        2,
        1,
        [1],
    )
    assert repr(call) == "Call(key='r1:c3', run_id='r1', epoch=2, attempt=1, progress=[1])"
    with pytest.raises(AttributeError):
        call.key = "other"  # type: ignore[misc]  # that is the test
