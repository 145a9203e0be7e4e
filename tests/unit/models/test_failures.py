"""What providers do wrong, and what it is called: stable reasons, worth another try or not."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from pydantic_ai.messages import ModelResponse, ModelResponseState

from midrun.errors import ModelFailed
from midrun.models.messages import make_reply
from midrun.models.provider import ProviderModel
from midrun.ports.environment import read_wall_clock
from midrun.ports.model import Finished, Piece
from tests.support.providers import (
    Answer,
    Call,
    Cut,
    Denied,
    Ended,
    Endless,
    Garbled,
    Gate,
    Provider,
    Text,
)
from tests.unit.models.protocols import ALL, CHAT, Speaks, prompt

protocols = pytest.mark.parametrize("speaks", ALL, ids=lambda speaks: str(speaks.name))

TOO_LONG = Denied(
    400,
    kind="invalid_request_error",
    message="prompt is too long; the maximum context length is 7 tokens",
)


async def failed(model: ProviderModel) -> tuple[list[Piece | Finished], ModelFailed]:
    """Return what came before a model failed, and how it failed."""
    came: list[Piece | Finished] = []

    async def read() -> None:
        async with model.stream(prompt()) as stream:
            async for piece in stream:
                came.append(piece)  # noqa: PERF401 - what came before the failure counts

    with pytest.raises(ModelFailed) as caught:
        await read()
    assert caught.value.model == model.name
    return came, caught.value


@protocols
@pytest.mark.parametrize(
    ("denied", "reason", "transient"),
    [
        (Denied(429, kind="rate_limit_error"), "rate_limited", True),
        (Denied(408), "timeout", True),
        (Denied(409), "server_error", True),
        (Denied(500), "server_error", True),
        (Denied(502), "server_error", True),
        (Denied(503), "overloaded", True),
        (Denied(529, kind="overloaded_error"), "overloaded", True),
        (Denied(400), "bad_request", False),
        (Denied(401, kind="authentication_error"), "unauthorized", False),
        (Denied(402, kind="billing_error"), "refused", False),
        (Denied(403, kind="permission_error"), "unauthorized", False),
        (Denied(404, kind="not_found_error"), "bad_request", False),
        (Denied(422), "bad_request", False),
        (TOO_LONG, "context_too_long", False),
    ],
    ids=lambda value: str(value.code) if isinstance(value, Denied) else "",
)
async def test_a_refusal_has_its_reason_and_is_not_tried_again_here(
    speaks: Speaks, denied: Denied, reason: str, transient: bool
) -> None:
    """Attempts are the driver's: it journals them, and can be paused between them."""
    async with Provider(denied, denied, denied) as provider:
        came, failure = await failed(ProviderModel(speaks.provided(provider)))
        assert (failure.reason, failure.transient) == (reason, transient)
        assert failure.retry_after is None
        assert came == []
        assert len(provider.exchanges) == 1


@protocols
async def test_a_wait_in_seconds_is_handed_on(speaks: Speaks) -> None:
    """Coming back earlier than asked makes a rate limit worse."""
    denied = Denied(429, kind="rate_limit_error", headers={"retry-after": "7"})
    async with Provider(denied) as provider:
        _, failure = await failed(ProviderModel(speaks.provided(provider)))
    assert failure.retry_after == 7.0


@protocols
async def test_a_wait_until_a_date_is_handed_on_in_seconds(speaks: Speaks) -> None:
    """HTTP allows both forms."""
    then = datetime.fromtimestamp(read_wall_clock() / 1e6, UTC) + timedelta(hours=1)
    date = format_datetime(then, usegmt=True)
    denied = Denied(503, headers={"retry-after": date})
    async with Provider(denied) as provider:
        _, failure = await failed(ProviderModel(speaks.provided(provider)))
    assert failure.retry_after is not None
    assert 3_000 < failure.retry_after <= 3_600


@protocols
@pytest.mark.parametrize(
    "fault", [Cut(after=2), Ended(after=2), Garbled(after=2)], ids=lambda f: type(f).__name__
)
async def test_a_stream_that_breaks_off_has_said_what_it_said(
    speaks: Speaks, fault: Cut | Ended | Garbled
) -> None:
    """The partial text is kept by the driver; another attempt may do better."""
    async with Provider(Answer(Text("one ", "two ", "three"), fault=fault)) as provider:
        came, failure = await failed(ProviderModel(speaks.provided(provider)))
        assert len(provider.exchanges) == 1
    assert [piece.text for piece in came if isinstance(piece, Piece)] == ["one ", "two "]
    assert len(came) == 2
    assert (failure.reason, failure.transient) == ("broken_stream", True)


@protocols
@pytest.mark.parametrize("fault", [Cut(after=1), Ended(after=1)])
async def test_a_call_in_an_unfinished_stream_is_never_asked_for(
    speaks: Speaks, fault: Cut | Ended
) -> None:
    """Its arguments were JSON already, but nobody said that they were all of it."""
    answer = Answer(Call("delete", "{}", " "), fault=fault)
    async with Provider(answer) as provider:
        came, failure = await failed(ProviderModel(speaks.provided(provider)))
    assert not any(isinstance(said, Finished) for said in came)
    assert failure.reason == "broken_stream"


@protocols
@pytest.mark.parametrize("after", [None, 0], ids=["headers", "first"])
async def test_a_provider_that_says_nothing_is_given_up(
    speaks: Speaks, after: int | None
) -> None:
    """Nobody waits for ever."""
    answer = Answer(Text("one ", "two"), fault=Gate(after=after))
    async with Provider(answer) as provider:
        came, failure = await failed(ProviderModel(speaks.provided(provider), idle_s=0.1))
    assert came == []
    assert (failure.reason, failure.transient) == ("timeout", True)


@protocols
async def test_a_provider_that_falls_silent_is_given_up(speaks: Speaks) -> None:
    """What it said is kept, and the connection does not stay either."""
    answer = Answer(Text("one ", "two ", "three"), fault=Gate(after=2))
    async with Provider(answer) as provider:
        model = ProviderModel(speaks.provided(provider))

        async def read() -> None:
            async with model.stream(prompt()) as stream:
                assert await anext(stream) == Piece(kind="text", text="one ")
                assert await anext(stream) == Piece(kind="text", text="two ")
                model._idle_s = 0.01  # short only now: the test must not depend on speed
                await anext(stream)

        with pytest.raises(ModelFailed, match="timeout"):
            await read()
        await provider.closed_midway()


@protocols
async def test_a_reply_that_never_ends_is_given_up(speaks: Speaks) -> None:
    """It is not tried again: the same would come, and cost the same."""
    async with Provider(Answer(Text("for ever "), fault=Endless())) as provider:
        model = ProviderModel(speaks.provided(provider), size_max=10_000)
        came, failure = await failed(model)
        await provider.closed_midway()
    assert sum(len(piece.text) for piece in came if isinstance(piece, Piece)) <= 10_000
    assert (failure.reason, failure.transient) == ("broken_stream", False)


@protocols
async def test_a_provider_that_will_not_answer_has_refused(speaks: Speaks) -> None:
    """Asking the same again gets the same."""
    async with Provider(Answer(Text("I "), finish="filtered")) as provider:
        _, failure = await failed(ProviderModel(speaks.provided(provider)))
    assert (failure.reason, failure.transient) == ("refused", False)


@protocols
async def test_a_provider_that_is_not_there_is_worth_another_try(speaks: Speaks) -> None:
    """It may be back in a second."""
    async with Provider() as provider:
        provided = speaks.provided(provider)
    _, failure = await failed(ProviderModel(provided))
    assert (failure.reason, failure.transient) == ("connection", True)


@pytest.mark.parametrize("state", ["incomplete", "interrupted", "suspended"])
def test_only_a_complete_response_is_a_reply(state: ModelResponseState) -> None:
    """Whatever else it claims, and whoever made it."""
    with pytest.raises(ModelFailed, match="before it was whole"):
        make_reply("m", ModelResponse(parts=[], state=state, finish_reason="stop"))


def test_a_reply_that_the_provider_gave_up_is_worth_another_try() -> None:
    """Some say so in good order, with what they had until then."""
    with pytest.raises(ModelFailed) as caught:
        make_reply("m", ModelResponse(parts=[], finish_reason="error"))
    assert (caught.value.reason, caught.value.transient) == ("server_error", True)


async def test_a_detail_is_short_enough_to_journal() -> None:
    """Some gateways answer with a page of HTML."""
    async with Provider(Denied(500, message="<p>" * 10_000)) as provider:
        _, failure = await failed(ProviderModel(CHAT.provided(provider)))
    assert len(failure.detail) <= 500
