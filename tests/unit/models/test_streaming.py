"""Replies over the wire: the same pieces and the same reply from every protocol."""

import msgspec
import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from midrun.core.ids import CallId
from midrun.core.transcript import Made, Turn
from midrun.core.values import Reply, Spend
from midrun.models.provider import Prices, ProviderModel
from midrun.ports.model import Piece, Prompt
from tests.support.providers import Answer, Call, Provider, Text, Thinking, Usage
from tests.unit.models.protocols import (
    ALL,
    ANTHROPIC,
    TASK,
    Speaks,
    Told,
    heard,
    joined,
    let_go,
    prompt,
)

protocols = pytest.mark.parametrize("speaks", ALL, ids=lambda speaks: str(speaks.name))

DONE = Answer(Text("Done."))


def said(reply: Reply, *uses: Made) -> Turn:
    """Return the turn that a reply has become, with its calls as they ended."""
    return Turn(
        role="assistant",
        text=reply.text,
        thinking=reply.thinking,
        uses=uses,
        # as it comes back from a journal, not the very objects that went in
        opaque=msgspec.json.decode(msgspec.json.encode(reply.opaque)),
    )


@protocols
async def test_text_and_thinking_come_piece_by_piece(speaks: Speaks) -> None:
    """What is seen while it streams is what the reply says in the end."""
    answer = Answer(Thinking("cats ", "are"), Text("Hello ", "world ü."))
    async with Provider(answer) as provider:
        pieces, finished = await heard(ProviderModel(speaks.provided(provider)), prompt())
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("thinking", "cats "),
        ("thinking", "are"),
        ("text", "Hello "),
        ("text", "world ü."),
    ]
    assert finished.reply.text == "Hello world ü."
    assert finished.reply.thinking == "cats are"
    assert finished.reply.uses == ()


@protocols
async def test_parallel_calls_come_in_order_with_their_arguments(speaks: Speaks) -> None:
    """Pieces say which call of the reply they belong to."""
    answer = Answer(
        Text("Let me see."),
        Call("search", '{"q": ', '"cats"}'),
        Call("search", '{"q": "dogs"}'),
        Call("search"),
    )
    async with Provider(answer) as provider:
        pieces, finished = await heard(ProviderModel(speaks.provided(provider)), prompt())
    assert joined(pieces, "args", call=0) == '{"q": "cats"}'
    assert joined(pieces, "args", call=1) == '{"q": "dogs"}'
    assert Piece(kind="args", text="", tool="search", call=2) in pieces
    assert [use.args for use in finished.reply.uses] == [{"q": "cats"}, {"q": "dogs"}, {}]
    assert not any(use.refused for use in finished.reply.uses)


@protocols
@pytest.mark.parametrize(
    "text",
    ['{"q": "ca', "cats", '["cats"]', '{"q": 1, "q": 2}', '{"q": 9007199254740993}', "null"],
)
async def test_arguments_that_are_no_json_object_are_refused_in_words(
    speaks: Speaks, text: str
) -> None:
    """Such a call is never made; the model is told why, and the next request is valid."""
    async with Provider(Answer(Call("search", text)), DONE) as provider:
        model = ProviderModel(speaks.provided(provider))
        _, finished = await heard(model, prompt())
        (use,) = finished.reply.uses
        assert (use.tool, use.args) == ("search", None)
        assert "the arguments are not" in use.refused
        made = Made(call=CallId("c1"), tool="search", problem=use.refused)
        await heard(model, prompt(TASK, said(finished.reply, made)))
        assert use.refused[:30] in msgspec.json.encode(provider.exchanges[1].body).decode()


@protocols
async def test_a_call_that_the_length_limit_cut_is_refused(speaks: Speaks) -> None:
    """Arguments that stop early may still be JSON by chance: no arguments at all, for one."""
    answer = Answer(Call("search", '{"q": "cats"}'), Call("delete"), finish="length")
    async with Provider(answer) as provider:
        _, finished = await heard(ProviderModel(speaks.provided(provider)), prompt())
    whole, cut = finished.reply.uses
    assert not whole.refused
    assert "too long" in cut.refused


@protocols
async def test_what_the_provider_counted_is_what_was_spent(speaks: Speaks) -> None:
    """Caps are kept on these numbers."""
    answer = Answer(Text("Hi."), usage=Usage(taken=1_000, given=500))
    async with Provider(answer) as provider:
        model = ProviderModel(speaks.provided(provider))
        _, finished = await heard(model, prompt())
    assert model.priced
    assert finished.reply.window == 1_000
    assert finished.spent is not None
    assert finished.spent.tokens == 1_500
    assert finished.spent.cost > 0


@protocols
async def test_a_provider_that_counts_nothing_leaves_it_open(speaks: Speaks) -> None:
    """None is not nothing: the driver then keeps what was set aside."""
    async with Provider(Answer(Text("Hi."), usage=None)) as provider:
        _, finished = await heard(ProviderModel(speaks.provided(provider)), prompt())
    assert finished.spent is None


@protocols
async def test_enough_is_set_aside_for_what_is_asked(speaks: Speaks) -> None:
    """A cap on money must hold before the answer is known."""
    async with Provider() as provider:
        model = ProviderModel(speaks.provided(provider))
        short = model.reserve(prompt())
        long = model.reserve(prompt(Turn(role="user", text="x" * 40_000)))
    assert short.tokens > 4096
    assert long.tokens > short.tokens + 9_000
    assert long.cost > short.cost > 0


@protocols
async def test_a_reply_is_given_back_as_the_provider_made_it(speaks: Speaks) -> None:
    """Signed thinking comes back intact, and every call is answered under its own id."""
    first = Answer(
        Thinking("hm", signature="s1gned"),
        Text("Let me see."),
        Call("search", '{"q": "cats"}', id="call_a"),
        Call("search", '{"q": "dogs"}', id="call_b"),
    )
    async with Provider(first, DONE) as provider:
        model = ProviderModel(speaks.provided(provider))
        _, finished = await heard(model, prompt())
        cats = Made(call=CallId("c1"), tool="search", args={"q": "cats"}, result=["Tom"])
        dogs = Made(call=CallId("c2"), tool="search", args={"q": "dogs"}, problem="declined")
        await heard(model, prompt(TASK, said(finished.reply, cats, dogs)))
        body = msgspec.json.encode(provider.exchanges[1].body).decode()
    assert ("s1gned" in body) == speaks.signs
    assert body.count('"call_a"') == body.count('"call_b"') == 2  # asked, and answered
    asked, answered = body.index('"call_a"'), body.rindex('"call_a"')
    assert asked < answered
    assert '[\\"Tom\\"]' in body[answered - 100 : answered + 100]
    assert "No result. declined" in body


@protocols
async def test_edited_arguments_are_what_the_model_is_shown(speaks: Speaks) -> None:
    """A person changed them before the call was made: that is what happened."""
    first = Answer(Thinking("hm", signature="s1gned"), Call("search", '{"q": "cats"}'))
    async with Provider(first, DONE) as provider:
        model = ProviderModel(speaks.provided(provider))
        _, finished = await heard(model, prompt())
        made = Made(call=CallId("c1"), tool="search", args={"q": "lions"}, result="Leo")
        await heard(model, prompt(TASK, said(finished.reply, made)))
        body = msgspec.json.encode(provider.exchanges[1].body).decode()
    assert "lions" in body
    assert '\\"cats\\"' not in body
    assert '"cats"' not in body
    assert ("s1gned" in body) == speaks.signs


@protocols
async def test_equal_call_ids_do_not_matter(speaks: Speaks) -> None:
    """Some servers number the calls of each reply from zero."""
    first = Answer(
        Call("search", '{"q": "cats"}', id="call_0"),
        Call("search", '{"q": "dogs"}', id="call_0"),
    )
    second = Answer(Call("search", '{"q": "cows"}', id="call_0"))
    async with Provider(first, second, DONE) as provider:
        model = ProviderModel(speaks.provided(provider))
        turns = [TASK]
        for n, animals in enumerate((("cats", "dogs"), ("cows",))):
            _, finished = await heard(model, prompt(*turns))
            assert [use.args for use in finished.reply.uses] == [{"q": a} for a in animals]
            uses = [
                Made(call=CallId(f"c{n}{a}"), tool="search", args={"q": a}, result=a.upper())
                for a in animals
            ]
            turns.append(said(finished.reply, *uses))
        await heard(model, prompt(*turns))
        body = msgspec.json.encode(provider.exchanges[2].body).decode()
    for id_ in ("call_0", "call_0-c0dogs", "call_0-c1cows"):
        assert body.count(f'"{id_}"') == 2


@protocols
async def test_instructions_and_tools_reach_the_provider_once(speaks: Speaks) -> None:
    """They are said beside the conversation, not in it."""
    async with Provider(DONE) as provider:
        await heard(ProviderModel(speaks.provided(provider)), prompt())
        body = msgspec.json.encode(provider.exchanges[0].body).decode()
    assert body.count("Be brief.") == 1
    assert body.count("Look something up.") == 1
    assert '"additionalProperties":false' in body


async def test_text_that_is_no_unicode_can_still_be_kept() -> None:
    """Half a surrogate pair in a chunk must not make the journal refuse the reply."""
    async with Provider(Answer(Text("cat \ud83d"))) as provider:
        pieces, finished = await heard(ProviderModel(ANTHROPIC.provided(provider)), prompt())
    assert joined(pieces, "text") == finished.reply.text == "cat ?"
    assert msgspec.json.encode(finished.reply)


async def test_a_reply_costs_what_the_list_says() -> None:
    """In millionths of a dollar, rounded up."""
    answer = Answer(Text("Hi."), usage=Usage(taken=1_000_000, given=0))
    async with Provider(answer) as provider:
        _, finished = await heard(ProviderModel(ANTHROPIC.provided(provider)), prompt())
    assert finished.spent == Spend(tokens=1_000_000, cost=5_000_000)


async def test_a_reply_under_another_name_costs_what_the_model_asked_costs() -> None:
    """Providers answer under dated names that the list may not have yet."""
    usage = RequestUsage(input_tokens=1_000_000)
    async with Provider() as provider:
        prices = Prices(ANTHROPIC.provided(provider))
    unheard_of = ModelResponse(parts=[], usage=usage, model_name="unheard-of")
    assert prices.compute_spend(unheard_of) == Spend(tokens=1_000_000, cost=5_000_000)


@protocols
async def test_a_bare_prompt_is_a_prompt(speaks: Speaks) -> None:
    """An agent may have neither instructions nor tools."""
    bare = Prompt(instructions="", transcript=Told(TASK))
    async with Provider(DONE) as provider:
        await heard(ProviderModel(speaks.provided(provider)), bare)
        body = provider.exchanges[0].body
    assert not {"system", "instructions", "tools"} & {
        name for name, value in body.items() if value
    }
    assert '"system"' not in str(body)


@protocols
async def test_connections_are_kept_for_who_holds_the_model_open(speaks: Speaks) -> None:
    """Otherwise each reply closes what it opened: nothing outlives its scope."""
    async with Provider(DONE, DONE, DONE) as provider:
        model = ProviderModel(speaks.provided(provider))
        await heard(model, prompt())
        assert let_go(model)
        async with model:
            await heard(model, prompt())
            await heard(model, prompt())
            assert not let_go(model)
        assert let_go(model)
