"""Models of providers, over real sockets: streamed replies, failures and cancellation.

Each test with `each_protocol` runs with all three wire protocols.
"""

from base64 import b64encode
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace
from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponseState
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from midrun.core.ids import CallId
from midrun.core.transcript import CallResult, Turn
from midrun.core.values import FileRef, Reply, RequestedCall, Spend
from midrun.errors import ModelFailed
from midrun.models.messages import make_reply
from midrun.models.provider import Prices, ProviderModel
from midrun.ports.environment import read_wall_clock
from midrun.ports.model import Finished, Piece, Prompt
from tests.support.providers import (
    Answer,
    Call,
    ConnectionCut,
    EarlyEnd,
    EndlessText,
    Gate,
    HttpError,
    MalformedChunk,
    Provider,
    Text,
    Thinking,
    Usage,
)
from tests.unit.models.protocols import (
    ALL_PROTOCOLS,
    ANTHROPIC,
    CHAT,
    TASK,
    FixedTranscript,
    WireProtocol,
    has_closed_connections,
    join_pieces,
    make_prompt,
    read_stream,
)

each_protocol = pytest.mark.parametrize(
    "protocol", ALL_PROTOCOLS, ids=lambda protocol: str(protocol.name)
)

DONE = Answer(Text("Done."))


def make_turn(reply: Reply, *uses: CallResult) -> Turn:
    """Return the turn that a reply becomes, with the outcomes of its calls."""
    return Turn(
        role="assistant",
        text=reply.text,
        thinking=reply.thinking,
        uses=uses,
        # decoded again, as it comes from a journal
        opaque=msgspec.json.decode(msgspec.json.encode(reply.opaque)),
    )


@each_protocol
async def test_text_and_thinking_are_streamed_in_pieces(protocol: WireProtocol) -> None:
    """The pieces make up the text of the final reply."""
    answer = Answer(Thinking("cats ", "are"), Text("Hello ", "world ü."))
    async with Provider(answer) as provider:
        pieces, finished = await read_stream(
            ProviderModel(protocol.make_model(provider)), make_prompt()
        )
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("thinking", "cats "),
        ("thinking", "are"),
        ("text", "Hello "),
        ("text", "world ü."),
    ]
    assert finished.reply.text == "Hello world ü."
    assert finished.reply.thinking == "cats are"
    assert finished.reply.uses == ()


@each_protocol
async def test_parallel_calls_come_in_order_with_their_arguments(
    protocol: WireProtocol,
) -> None:
    """Each piece has the index of its call."""
    answer = Answer(
        Text("Let me see."),
        Call("search", '{"q": ', '"cats"}'),
        Call("search", '{"q": "dogs"}'),
        Call("search"),
    )
    async with Provider(answer) as provider:
        pieces, finished = await read_stream(
            ProviderModel(protocol.make_model(provider)), make_prompt()
        )
    assert join_pieces(pieces, "args", call=0) == '{"q": "cats"}'
    assert join_pieces(pieces, "args", call=1) == '{"q": "dogs"}'
    assert Piece(kind="args", text="", tool="search", call=2) in pieces
    assert [use.args for use in finished.reply.uses] == [{"q": "cats"}, {"q": "dogs"}, {}]
    assert not any(use.refused for use in finished.reply.uses)


@each_protocol
@pytest.mark.parametrize(
    "text",
    ['{"q": "ca', "cats", '["cats"]', '{"q": 1, "q": 2}', '{"q": 9007199254740993}', "null"],
)
async def test_arguments_that_are_not_a_json_object_are_refused(
    protocol: WireProtocol, text: str
) -> None:
    """Such a call is never made; the model reads the reason, and the next request is valid."""
    async with Provider(Answer(Call("search", text)), DONE) as provider:
        model = ProviderModel(protocol.make_model(provider))
        _, finished = await read_stream(model, make_prompt())
        (use,) = finished.reply.uses
        assert (use.tool, use.args) == ("search", None)
        assert "the arguments are not" in use.refused
        made = CallResult(call=CallId("c1"), tool="search", problem=use.refused)
        await read_stream(model, make_prompt(TASK, make_turn(finished.reply, made)))
        assert use.refused[:30] in msgspec.json.encode(provider.exchanges[1].body).decode()


@each_protocol
async def test_a_call_that_the_length_limit_cut_is_refused(protocol: WireProtocol) -> None:
    """Truncated arguments may be valid JSON by chance, for example if they are empty."""
    answer = Answer(Call("search", '{"q": "cats"}'), Call("delete"), finish="length")
    async with Provider(answer) as provider:
        _, finished = await read_stream(
            ProviderModel(protocol.make_model(provider)), make_prompt()
        )
    whole, cut = finished.reply.uses
    assert not whole.refused
    assert "too long" in cut.refused


@each_protocol
async def test_the_spend_is_the_usage_that_the_provider_reports(protocol: WireProtocol) -> None:
    """Caps use these numbers."""
    answer = Answer(Text("Hi."), usage=Usage(input_tokens=1_000, output_tokens=500))
    async with Provider(answer) as provider:
        model = ProviderModel(protocol.make_model(provider))
        _, finished = await read_stream(model, make_prompt())
    assert model.priced
    assert finished.reply.prompt_tokens == 1_000
    assert finished.spent is not None
    assert finished.spent.tokens == 1_500
    assert finished.spent.cost > 0


@each_protocol
async def test_the_spend_is_none_if_the_provider_reports_no_usage(
    protocol: WireProtocol,
) -> None:
    """None is not zero: the driver then keeps the reserved amount."""
    async with Provider(Answer(Text("Hi."), usage=None)) as provider:
        _, finished = await read_stream(
            ProviderModel(protocol.make_model(provider)), make_prompt()
        )
    assert finished.spent is None


@each_protocol
async def test_the_reservation_grows_with_the_prompt(protocol: WireProtocol) -> None:
    """A cap on cost must hold before the reply is known."""
    async with Provider() as provider:
        model = ProviderModel(protocol.make_model(provider))
        short = model.reserve(make_prompt())
        long = model.reserve(make_prompt(Turn(role="user", text="x" * 40_000)))
    assert short.tokens > 4096
    assert long.tokens > short.tokens + 9_000
    assert long.cost > short.cost > 0


@each_protocol
async def test_a_reply_is_sent_back_as_the_provider_made_it(protocol: WireProtocol) -> None:
    """Signed thinking is unchanged, and each call is answered under its own id."""
    first = Answer(
        Thinking("hm", signature="s1gned"),
        Text("Let me see."),
        Call("search", '{"q": "cats"}', id="call_a"),
        Call("search", '{"q": "dogs"}', id="call_b"),
    )
    async with Provider(first, DONE) as provider:
        model = ProviderModel(protocol.make_model(provider))
        _, finished = await read_stream(model, make_prompt())
        cats = CallResult(call=CallId("c1"), tool="search", args={"q": "cats"}, result=["Tom"])
        dogs = CallResult(
            call=CallId("c2"), tool="search", args={"q": "dogs"}, problem="declined"
        )
        await read_stream(model, make_prompt(TASK, make_turn(finished.reply, cats, dogs)))
        body = msgspec.json.encode(provider.exchanges[1].body).decode()
    assert ("s1gned" in body) == protocol.has_signed_thinking
    assert body.count('"call_a"') == body.count('"call_b"') == 2  # asked, and answered
    requests, answered = body.index('"call_a"'), body.rindex('"call_a"')
    assert requests < answered
    assert '[\\"Tom\\"]' in body[answered - 100 : answered + 100]
    assert "No result. declined" in body


@each_protocol
async def test_the_model_is_sent_the_edited_arguments(protocol: WireProtocol) -> None:
    """A person changed them before the call was made."""
    first = Answer(Thinking("hm", signature="s1gned"), Call("search", '{"q": "cats"}'))
    async with Provider(first, DONE) as provider:
        model = ProviderModel(protocol.make_model(provider))
        _, finished = await read_stream(model, make_prompt())
        made = CallResult(call=CallId("c1"), tool="search", args={"q": "lions"}, result="Leo")
        await read_stream(model, make_prompt(TASK, make_turn(finished.reply, made)))
        body = msgspec.json.encode(provider.exchanges[1].body).decode()
    assert "lions" in body
    assert '\\"cats\\"' not in body
    assert '"cats"' not in body
    assert ("s1gned" in body) == protocol.has_signed_thinking


@each_protocol
async def test_equal_call_ids_are_made_unique(protocol: WireProtocol) -> None:
    """Some servers number the calls of each reply from zero."""
    first = Answer(
        Call("search", '{"q": "cats"}', id="call_0"),
        Call("search", '{"q": "dogs"}', id="call_0"),
    )
    second = Answer(Call("search", '{"q": "cows"}', id="call_0"))
    async with Provider(first, second, DONE) as provider:
        model = ProviderModel(protocol.make_model(provider))
        turns = [TASK]
        for n, animals in enumerate((("cats", "dogs"), ("cows",))):
            _, finished = await read_stream(model, make_prompt(*turns))
            assert [use.args for use in finished.reply.uses] == [{"q": a} for a in animals]
            uses = [
                CallResult(
                    call=CallId(f"c{n}{a}"), tool="search", args={"q": a}, result=a.upper()
                )
                for a in animals
            ]
            turns.append(make_turn(finished.reply, *uses))
        await read_stream(model, make_prompt(*turns))
        body = msgspec.json.encode(provider.exchanges[2].body).decode()
    for id_ in ("call_0", "call_0-c0dogs", "call_0-c1cows"):
        assert body.count(f'"{id_}"') == 2


@each_protocol
async def test_instructions_and_tools_reach_the_provider_once(protocol: WireProtocol) -> None:
    """They are separate fields of the request, not messages."""
    async with Provider(DONE) as provider:
        await read_stream(ProviderModel(protocol.make_model(provider)), make_prompt())
        body = msgspec.json.encode(provider.exchanges[0].body).decode()
    assert body.count("Be brief.") == 1
    assert body.count("Look something up.") == 1
    assert '"additionalProperties":false' in body


async def test_half_a_surrogate_pair_is_replaced() -> None:
    """The journal would refuse the reply otherwise."""
    async with Provider(Answer(Text("cat \ud83d"))) as provider:
        pieces, finished = await read_stream(
            ProviderModel(ANTHROPIC.make_model(provider)), make_prompt()
        )
    assert join_pieces(pieces, "text") == finished.reply.text == "cat ?"
    assert msgspec.json.encode(finished.reply)


async def test_the_cost_of_a_reply_comes_from_the_price_list() -> None:
    """In millionths of a dollar, rounded up."""
    answer = Answer(Text("Hi."), usage=Usage(input_tokens=1_000_000, output_tokens=0))
    async with Provider(answer) as provider:
        _, finished = await read_stream(
            ProviderModel(ANTHROPIC.make_model(provider)), make_prompt()
        )
    assert finished.spent is not None
    assert (finished.spent.tokens, finished.spent.cost) == (1_000_000, 5_000_000)


async def test_a_reply_under_an_unknown_model_name_has_the_price_of_the_requested_model() -> (
    None
):
    """Providers answer under dated names that the price list may not have yet."""
    usage = RequestUsage(input_tokens=1_000_000)
    async with Provider() as provider:
        prices = Prices(ANTHROPIC.make_model(provider))
    response = ModelResponse(parts=[], usage=usage, model_name="unheard-of")
    spent = Spend(tokens=1_000_000, cost=5_000_000, input_tokens=1_000_000)
    assert prices.compute_spend(response) == spent


@each_protocol
async def test_a_prompt_may_have_neither_instructions_nor_tools(protocol: WireProtocol) -> None:
    bare = Prompt(instructions="", transcript=FixedTranscript(TASK))
    async with Provider(DONE) as provider:
        await read_stream(ProviderModel(protocol.make_model(provider)), bare)
        body = provider.exchanges[0].body
    assert not {"system", "instructions", "tools"} & {
        name for name, value in body.items() if value
    }
    assert '"system"' not in str(body)


@each_protocol
async def test_connections_stay_open_while_the_model_is_entered(protocol: WireProtocol) -> None:
    """Otherwise each reply closes the connection that it opened."""
    async with Provider(DONE, DONE, DONE) as provider:
        model = ProviderModel(protocol.make_model(provider))
        await read_stream(model, make_prompt())
        assert has_closed_connections(model)
        async with model:
            await read_stream(model, make_prompt())
            await read_stream(model, make_prompt())
            assert not has_closed_connections(model)
        assert has_closed_connections(model)


# ── failures ─────────────────────────────────────────────────────────────────


TOO_LONG = HttpError(
    400,
    kind="invalid_request_error",
    message="prompt is too long; the maximum context length is 7 tokens",
)


async def read_failure(model: ProviderModel) -> tuple[list[Piece | Finished], ModelFailed]:
    """Read a stream until the model fails; return the items before it, and the failure."""
    received: list[Piece | Finished] = []

    async def read() -> None:
        async with model.stream(make_prompt()) as stream:
            async for piece in stream:
                received.append(piece)  # noqa: PERF401 - the items before the failure are needed

    with pytest.raises(ModelFailed) as caught:
        await read()
    assert caught.value.model == model.name
    return received, caught.value


@each_protocol
@pytest.mark.parametrize(
    ("denial", "reason", "transient"),
    [
        (HttpError(429, kind="rate_limit_error"), "rate_limited", True),
        (HttpError(408), "timeout", True),
        (HttpError(409), "server_error", True),
        (HttpError(500), "server_error", True),
        (HttpError(502), "server_error", True),
        (HttpError(503), "overloaded", True),
        (HttpError(529, kind="overloaded_error"), "overloaded", True),
        (HttpError(400), "bad_request", False),
        (HttpError(401, kind="authentication_error"), "unauthorized", False),
        (HttpError(402, kind="billing_error"), "refused", False),
        (HttpError(403, kind="permission_error"), "unauthorized", False),
        (HttpError(404, kind="not_found_error"), "bad_request", False),
        (HttpError(422), "bad_request", False),
        (TOO_LONG, "context_too_long", False),
    ],
    ids=lambda value: str(value.status) if isinstance(value, HttpError) else "",
)
async def test_an_http_error_has_a_reason_and_is_not_retried_by_the_model(
    protocol: WireProtocol, denial: HttpError, reason: str, transient: bool
) -> None:
    """Retries belong to the driver: it journals them and can be paused between them."""
    async with Provider(denial, denial, denial) as provider:
        received, failure = await read_failure(ProviderModel(protocol.make_model(provider)))
        assert (failure.reason, failure.transient) == (reason, transient)
        assert failure.retry_after is None
        assert received == []
        assert len(provider.exchanges) == 1


@each_protocol
async def test_retry_after_in_seconds_is_passed_on(protocol: WireProtocol) -> None:
    denial = HttpError(429, kind="rate_limit_error", headers={"retry-after": "7"})
    async with Provider(denial) as provider:
        _, failure = await read_failure(ProviderModel(protocol.make_model(provider)))
    assert failure.retry_after == 7.0


@each_protocol
async def test_retry_after_as_a_date_is_passed_on_in_seconds(protocol: WireProtocol) -> None:
    """HTTP allows both forms."""
    then = datetime.fromtimestamp(read_wall_clock() / 1e6, UTC) + timedelta(hours=1)
    date = format_datetime(then, usegmt=True)
    denial = HttpError(503, headers={"retry-after": date})
    async with Provider(denial) as provider:
        _, failure = await read_failure(ProviderModel(protocol.make_model(provider)))
    assert failure.retry_after is not None
    assert 3_000 < failure.retry_after <= 3_600


@each_protocol
@pytest.mark.parametrize(
    "fault",
    [ConnectionCut(after=2), EarlyEnd(after=2), MalformedChunk(after=2)],
    ids=lambda f: type(f).__name__,
)
async def test_a_broken_stream_fails_after_the_pieces_that_arrived(
    protocol: WireProtocol, fault: ConnectionCut | EarlyEnd | MalformedChunk
) -> None:
    """The driver keeps the partial text; the failure is transient."""
    async with Provider(Answer(Text("one ", "two ", "three"), fault=fault)) as provider:
        received, failure = await read_failure(ProviderModel(protocol.make_model(provider)))
        assert len(provider.exchanges) == 1
    assert [piece.text for piece in received if isinstance(piece, Piece)] == ["one ", "two "]
    assert len(received) == 2
    assert (failure.reason, failure.transient) == ("broken_stream", True)


@each_protocol
@pytest.mark.parametrize("fault", [ConnectionCut(after=1), EarlyEnd(after=1)])
async def test_a_call_in_an_unfinished_stream_is_never_returned(
    protocol: WireProtocol, fault: ConnectionCut | EarlyEnd
) -> None:
    """Its arguments are valid JSON already, but the stream may have contained more."""
    answer = Answer(Call("delete", "{}", " "), fault=fault)
    async with Provider(answer) as provider:
        received, failure = await read_failure(ProviderModel(protocol.make_model(provider)))
    assert not any(isinstance(make_turn, Finished) for make_turn in received)
    assert failure.reason == "broken_stream"


@each_protocol
@pytest.mark.parametrize("after", [None, 0], ids=["headers", "first"])
async def test_a_provider_that_sends_nothing_times_out(
    protocol: WireProtocol, after: int | None
) -> None:
    answer = Answer(Text("one ", "two"), fault=Gate(after=after))
    async with Provider(answer) as provider:
        received, failure = await read_failure(
            ProviderModel(protocol.make_model(provider), idle_s=0.1)
        )
    assert received == []
    assert (failure.reason, failure.transient) == ("timeout", True)


@each_protocol
async def test_a_provider_that_stops_sending_times_out(protocol: WireProtocol) -> None:
    """The received pieces are kept, and the connection is closed."""
    answer = Answer(Text("one ", "two ", "three"), fault=Gate(after=2))
    async with Provider(answer) as provider:
        model = ProviderModel(protocol.make_model(provider))

        async def read() -> None:
            async with model.stream(make_prompt()) as stream:
                assert await anext(stream) == Piece(kind="text", text="one ")
                assert await anext(stream) == Piece(kind="text", text="two ")
                model._idle_s = 0.01  # short only from here: the test must not depend on speed
                await anext(stream)

        with pytest.raises(ModelFailed, match="timeout"):
            await read()
        await provider.wait_for_disconnect()


@each_protocol
async def test_a_reply_above_the_size_limit_is_aborted(protocol: WireProtocol) -> None:
    """It is not transient: a retry would give the same and cost the same."""
    async with Provider(Answer(Text("for ever "), fault=EndlessText())) as provider:
        model = ProviderModel(protocol.make_model(provider), size_max=10_000)
        received, failure = await read_failure(model)
        await provider.wait_for_disconnect()
    assert sum(len(piece.text) for piece in received if isinstance(piece, Piece)) <= 10_000
    assert (failure.reason, failure.transient) == ("broken_stream", False)


@each_protocol
async def test_a_filtered_reply_is_refused_and_not_transient(protocol: WireProtocol) -> None:
    async with Provider(Answer(Text("I "), finish="filtered")) as provider:
        _, failure = await read_failure(ProviderModel(protocol.make_model(provider)))
    assert (failure.reason, failure.transient) == ("refused", False)


@each_protocol
async def test_a_refused_connection_is_transient(protocol: WireProtocol) -> None:
    async with Provider() as provider:
        pydantic_model = protocol.make_model(provider)
    _, failure = await read_failure(ProviderModel(pydantic_model))
    assert (failure.reason, failure.transient) == ("connection", True)


@pytest.mark.parametrize("state", ["incomplete", "interrupted", "suspended"])
def test_an_incomplete_response_is_not_a_reply(state: ModelResponseState) -> None:
    with pytest.raises(ModelFailed, match="before it was whole"):
        make_reply("m", ModelResponse(parts=[], state=state, finish_reason="stop"))


def test_a_response_that_ends_in_an_error_is_transient() -> None:
    """Some providers report this in a regular response."""
    with pytest.raises(ModelFailed) as caught:
        make_reply("m", ModelResponse(parts=[], finish_reason="error"))
    assert (caught.value.reason, caught.value.transient) == ("server_error", True)


async def test_the_detail_of_a_failure_is_truncated() -> None:
    """Some gateways answer with a page of HTML."""
    async with Provider(HttpError(500, message="<p>" * 10_000)) as provider:
        _, failure = await read_failure(ProviderModel(CHAT.make_model(provider)))
    assert len(failure.detail) <= 500


# ── cancelled replies ────────────────────────────────────────────────────────


TIMEOUT_S = 60
WORDS = [f"word{n} " for n in range(10)]


@each_protocol
@pytest.mark.parametrize("after", [None, 0, 3], ids=["headers", "first", "middle"])
async def test_a_reader_cancelled_while_it_waits_for_a_piece_closes_the_connection(
    protocol: WireProtocol, after: int | None
) -> None:
    """The reader is cancelled in an await of the model."""
    gate = Gate(after=after)
    texts: list[str] = []
    with anyio.fail_after(TIMEOUT_S):
        async with Provider(Answer(Text(*WORDS), fault=gate)) as provider:
            model = ProviderModel(protocol.make_model(provider))
            async with anyio.create_task_group() as tasks:

                async def read() -> None:
                    async with model.stream(make_prompt()) as stream:
                        async for piece in stream:
                            assert isinstance(piece, Piece)
                            texts.append(piece.text)

                tasks.start_soon(read)
                await gate.wait_until_reached()
                while len(texts) < (after or 0):
                    await checkpoint()
                tasks.cancel_scope.cancel()
            assert has_closed_connections(model)
            assert await provider.wait_for_disconnect() == (after or 0)
    assert texts == WORDS[: after or 0]


@each_protocol
async def test_a_reader_cancelled_in_its_own_work_closes_the_connection(
    protocol: WireProtocol,
) -> None:
    """Most cancellations arrive in the body of the loop, where a bare `async for` leaks."""
    with anyio.fail_after(TIMEOUT_S):
        async with Provider(Answer(Text("on "), fault=EndlessText())) as provider:
            model = ProviderModel(protocol.make_model(provider))
            with anyio.CancelScope() as scope:
                async with model.stream(make_prompt()) as stream:
                    async for _ in stream:
                        scope.cancel()
                        await anyio.sleep_forever()
            assert scope.cancelled_caught
            assert has_closed_connections(model)
            await provider.wait_for_disconnect()


@each_protocol
async def test_leaving_the_stream_context_closes_the_connection(protocol: WireProtocol) -> None:
    """A pause needs nothing else."""
    with anyio.fail_after(TIMEOUT_S):
        async with Provider(Answer(Text("on "), fault=EndlessText())) as provider:
            model = ProviderModel(protocol.make_model(provider))
            async with model.stream(make_prompt()) as stream:
                assert await anext(stream) == Piece(kind="text", text="on ")
            assert has_closed_connections(model)
            await provider.wait_for_disconnect()


@each_protocol
async def test_an_error_of_the_reader_closes_the_connection_and_is_not_wrapped(
    protocol: WireProtocol,
) -> None:
    """It is not a failure of the model."""
    with anyio.fail_after(TIMEOUT_S):
        async with Provider(Answer(Text("on "), fault=EndlessText())) as provider:
            model = ProviderModel(protocol.make_model(provider))

            async def fail() -> None:
                async with model.stream(make_prompt()) as stream:
                    async for _ in stream:
                        raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fail()
            assert has_closed_connections(model)
            await provider.wait_for_disconnect()


@each_protocol
@pytest.mark.parametrize("after", [1, 3])
async def test_a_cancelled_reply_closes_its_connection_while_the_model_is_entered(
    protocol: WireProtocol, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entered model keeps idle connections, but none that still carries a reply."""
    gate = Gate(after=after)
    requests: list[AbstractAsyncContextManager[StreamedResponse]] = []
    with anyio.fail_after(TIMEOUT_S):
        answers = (Answer(Text(*WORDS), fault=gate), Answer(Text("Done.")))
        async with Provider(*answers) as provider:
            pydantic_model = protocol.make_model(provider)
            request_stream = pydantic_model.request_stream

            def keep_request(
                messages: list[ModelMessage],
                settings: ModelSettings | None,
                parameters: ModelRequestParameters,
            ) -> AbstractAsyncContextManager[StreamedResponse]:
                """Keep the request alive: the garbage collector must not be what closes it."""
                requests.append(request_stream(messages, settings, parameters))
                return requests[-1]

            monkeypatch.setattr(pydantic_model, "request_stream", keep_request)
            async with ProviderModel(pydantic_model) as model:
                with anyio.CancelScope() as scope:
                    async with model.stream(make_prompt()) as stream:
                        await anext(stream)
                        scope.cancel()
                        await anyio.sleep_forever()
                assert await provider.wait_for_disconnect() == after
                _, finished = await read_stream(model, make_prompt())
            assert has_closed_connections(model)
    assert finished.reply.text == "Done."


@each_protocol
async def test_a_cancelled_reply_does_not_affect_other_replies_of_the_model(
    protocol: WireProtocol,
) -> None:
    """Runs share a model."""
    gate = Gate(after=1)
    with anyio.fail_after(TIMEOUT_S):
        answers = (
            Answer(Text("one ", "two"), fault=gate),
            Answer(Text("on "), fault=EndlessText()),
        )
        async with Provider(*answers) as provider:
            model = ProviderModel(protocol.make_model(provider))
            async with model.stream(make_prompt()) as first_stream:
                assert await anext(first_stream) == Piece(kind="text", text="one ")
                async with model.stream(make_prompt()) as second_stream:
                    await anext(second_stream)
                await provider.wait_for_disconnect(1)
                gate.open()
                assert await anext(first_stream) == Piece(kind="text", text="two")
            assert has_closed_connections(model)


@pytest.mark.slow
@each_protocol
async def test_a_cancellation_at_any_moment_leaves_nothing_open(protocol: WireProtocol) -> None:
    """Also while connecting, sending and closing."""
    for ticks in range(0, 60, 3):
        with anyio.fail_after(TIMEOUT_S):
            async with Provider(Answer(Text(*WORDS), fault=Gate(after=2))) as provider:
                model = ProviderModel(protocol.make_model(provider))
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:

                        async def cancel_later(ticks: int = ticks) -> None:
                            for _ in range(ticks):
                                await checkpoint()
                            scope.cancel()

                        tasks.start_soon(cancel_later)
                        async with model.stream(make_prompt()) as stream:
                            async for _ in stream:
                                await checkpoint()
                assert scope.cancelled_caught
                provider_client = model._model.provider
                assert provider_client is not None
                assert provider_client._entered_count == 0, ticks
                if provider.exchanges:
                    await provider.wait_for_disconnect()


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


def make_file_ref(name: str, media_type: str, data: bytes) -> FileRef:
    """Return the reference to a file."""
    return FileRef(
        name=name, media_type=media_type, size=len(data), hash=sha256(data).hexdigest()
    )


@each_protocol
async def test_files_reach_the_provider_with_the_text_and_the_result_they_belong_to(
    protocol: WireProtocol,
) -> None:
    """An image as its bytes, text as text, and an archive by its name only."""
    bodies = {
        "a.png": PNG,
        "chart.png": PNG + b"2",
        "b.md": b"# Gr\xc3\xbc\xc3\x9fe",
        "c.zip": b"PK",
    }
    types = {"png": "image/png", "md": "text/markdown", "zip": "application/zip"}
    refs = {
        name: make_file_ref(name, types[name.rpartition(".")[2]], data)
        for name, data in bodies.items()
    }
    task = replace(TASK, files=(refs["a.png"], refs["b.md"], refs["c.zip"]))
    made = CallResult(
        call=CallId("c2"),
        tool="search",
        args={"q": "x"},
        result="1",
        files=(refs["chart.png"],),
    )
    reply = Reply(uses=(RequestedCall(tool="search", args={"q": "x"}),))
    prompt = replace(
        make_prompt(task, make_turn(reply, made)),
        files={refs[name].hash: data for name, data in bodies.items()},
    )
    async with Provider(DONE) as provider:
        await read_stream(ProviderModel(protocol.make_model(provider)), prompt)
    sent = msgspec.json.encode(provider.exchanges[0].body).decode()
    for name in ("a.png", "chart.png"):
        assert b64encode(bodies[name]).decode() in sent, name
        assert name in sent
    assert "# Grüße" in sent
    assert "c.zip" in sent
    assert b64encode(b"PK").decode() not in sent


async def test_a_file_that_a_model_does_not_take_is_refused_by_name() -> None:
    """It is no transient failure: another attempt would fail in the same way."""
    movie = make_file_ref("clip.mp4", "video/mp4", b"\0\0")
    prompt = make_prompt(replace(TASK, files=(movie,)))
    prompt = replace(prompt, files={movie.hash: b"\0\0"})
    async with Provider(DONE) as provider:
        with pytest.raises(ModelFailed, match=r"clip\.mp4.*video/mp4") as failed:
            await read_stream(ProviderModel(CHAT.make_model(provider)), prompt)
    assert (failed.value.reason, failed.value.transient) == ("file_refused", False)
    assert not provider.exchanges
