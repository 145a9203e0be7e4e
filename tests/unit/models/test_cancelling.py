"""A reply that nobody wants any more: its connection is closed, wherever the reader stood.

Not reading is not a pause: the provider would go on generating, and charging.
"""

from contextlib import AbstractAsyncContextManager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings

from midrun.models.provider import ProviderModel
from midrun.ports.model import Piece
from tests.support.providers import Answer, Endless, Gate, Provider, Text
from tests.unit.models.protocols import ALL, Speaks, heard, let_go, prompt

protocols = pytest.mark.parametrize("speaks", ALL, ids=lambda speaks: str(speaks.name))

NET_S = 60
WORDS = [f"word{n} " for n in range(10)]


@protocols
@pytest.mark.parametrize("after", [None, 0, 3], ids=["headers", "first", "middle"])
async def test_a_cancelled_wait_closes_the_connection(
    speaks: Speaks, after: int | None
) -> None:
    """The reader stands in the model's own await."""
    gate = Gate(after=after)
    seen: list[str] = []
    with anyio.fail_after(NET_S):
        async with Provider(Answer(Text(*WORDS), fault=gate)) as provider:
            model = ProviderModel(speaks.provided(provider))
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    async with model.stream(prompt()) as stream:
                        async for piece in stream:
                            assert isinstance(piece, Piece)
                            seen.append(piece.text)

                tasks.start_soon(read)
                await gate.reached()
                while len(seen) < (after or 0):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            assert let_go(model)
            assert await provider.closed_midway() == (after or 0)
    assert seen == WORDS[: after or 0]


@protocols
async def test_a_reader_cancelled_in_its_own_work_closes_the_connection(
    speaks: Speaks,
) -> None:
    """Most cancellations land in the loop's body, where a bare `async for` leaks."""
    with anyio.fail_after(NET_S):
        async with Provider(Answer(Text("on "), fault=Endless())) as provider:
            model = ProviderModel(speaks.provided(provider))
            with anyio.CancelScope() as scope:
                async with model.stream(prompt()) as stream:
                    async for _ in stream:
                        scope.cancel()
                        await anyio.sleep_forever()
            assert scope.cancelled_caught
            assert let_go(model)
            await provider.closed_midway()


@protocols
async def test_a_reader_that_leaves_closes_the_connection(speaks: Speaks) -> None:
    """Leaving the context is all that a pause has to do."""
    with anyio.fail_after(NET_S):
        async with Provider(Answer(Text("on "), fault=Endless())) as provider:
            model = ProviderModel(speaks.provided(provider))
            async with model.stream(prompt()) as stream:
                assert await anext(stream) == Piece(kind="text", text="on ")
            assert let_go(model)
            await provider.closed_midway()


@protocols
async def test_a_reader_that_fails_closes_the_connection_and_keeps_its_error(
    speaks: Speaks,
) -> None:
    """Somebody else's mistake is not a model's failure."""
    with anyio.fail_after(NET_S):
        async with Provider(Answer(Text("on "), fault=Endless())) as provider:
            model = ProviderModel(speaks.provided(provider))

            async def fail() -> None:
                async with model.stream(prompt()) as stream:
                    async for _ in stream:
                        raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert let_go(model)
            await provider.closed_midway()


@protocols
@pytest.mark.parametrize("after", [1, 3])
async def test_a_connection_is_closed_although_the_model_is_held_open(
    speaks: Speaks, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections are kept for the next reply, but none that still carries the last one."""
    gate = Gate(after=after)
    asked: list[AbstractAsyncContextManager[StreamedResponse]] = []
    with anyio.fail_after(NET_S):
        answers = (Answer(Text(*WORDS), fault=gate), Answer(Text("Done.")))
        async with Provider(*answers) as provider:
            provided = speaks.provided(provider)
            ask = provided.request_stream

            def keeping(
                messages: list[ModelMessage],
                settings: ModelSettings | None,
                parameters: ModelRequestParameters,
            ) -> AbstractAsyncContextManager[StreamedResponse]:
                """Keep the request alive: the garbage collector must not be what closes it."""
                asked.append(ask(messages, settings, parameters))
                return asked[-1]

            monkeypatch.setattr(provided, "request_stream", keeping)
            async with ProviderModel(provided) as model:
                with anyio.CancelScope() as scope:
                    async with model.stream(prompt()) as stream:
                        await anext(stream)
                        scope.cancel()
                        await anyio.sleep_forever()
                assert await provider.closed_midway() == after
                _, finished = await heard(model, prompt())
            assert let_go(model)
    assert finished.reply.text == "Done."


@protocols
async def test_other_replies_of_the_same_model_go_on(speaks: Speaks) -> None:
    """Runs share a model; a pause of one must not close the connections of another."""
    gate = Gate(after=1)
    with anyio.fail_after(NET_S):
        answers = (
            Answer(Text("one ", "two"), fault=gate),
            Answer(Text("on "), fault=Endless()),
        )
        async with Provider(*answers) as provider:
            model = ProviderModel(speaks.provided(provider))
            async with model.stream(prompt()) as stays:
                assert await anext(stays) == Piece(kind="text", text="one ")
                async with model.stream(prompt()) as goes:
                    await anext(goes)
                await provider.closed_midway(1)
                gate.open()
                assert await anext(stays) == Piece(kind="text", text="two")
            assert let_go(model)


@protocols
async def test_a_cancellation_at_any_moment_leaves_nothing_open(speaks: Speaks) -> None:
    """Also while connecting, while sending, and while closing."""
    for turns in range(0, 60, 3):
        with anyio.fail_after(NET_S):
            async with Provider(Answer(Text(*WORDS), fault=Gate(after=2))) as provider:
                model = ProviderModel(speaks.provided(provider))
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:

                        async def cancel_later(turns: int = turns) -> None:
                            for _ in range(turns):
                                await checkpoint()
                            scope.cancel()

                        tasks.start_soon(cancel_later)
                        async with model.stream(prompt()) as stream:
                            async for _ in stream:
                                await checkpoint()
                assert scope.cancelled_caught
                there = model._model.provider
                assert there is not None
                assert there._entered_count == 0, turns
                if provider.exchanges:
                    await provider.closed_midway()
