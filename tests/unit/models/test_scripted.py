"""The scripted model: its pieces, the choice of the turn, and invalid scripts."""

from collections.abc import Sequence

import anyio
import pytest

from midrun.core.transcript import Turn
from midrun.core.values import Spend
from midrun.errors import Misconfigured, ModelFailed
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece
from tests.unit.models.protocols import TASK, join_pieces, make_prompt, read_stream

FIRST_REPLY = Turn(role="assistant", text="one")
INTERRUPTED_REPLY = Turn(role="assistant", text="tw", interrupted=True)


@pytest.mark.parametrize(
    "text", ["Hello big world", "  two\n\nspaces  ", "", " ", "ein Satz\tmit Tab"]
)
async def test_the_pieces_make_up_the_text_of_the_reply(text: str) -> None:
    """A page that shows the pieces must end up with the journaled text."""
    pieces, finished = await read_stream(ScriptedModel([text]), make_prompt())
    assert join_pieces(pieces, "text") == finished.reply.text == text
    assert all(piece.text for piece in pieces)


async def test_text_is_streamed_word_by_word() -> None:
    """A run can be interrupted only between two pieces."""
    pieces, _ = await read_stream(ScriptedModel(["one two three"]), make_prompt())
    assert [piece.text for piece in pieces] == ["one ", "two ", "three"]


async def test_a_turn_may_have_text_and_several_calls() -> None:
    script = ScriptedModel([["Let me see.", Use("search", q="cats"), Use("search", q="dogs")]])
    pieces, finished = await read_stream(script, make_prompt())
    assert finished.reply.text == "Let me see."
    calls = [(use.tool, use.args) for use in finished.reply.uses]
    assert calls == [("search", {"q": "cats"}), ("search", {"q": "dogs"})]
    assert join_pieces(pieces, "args", call=1) == '{"q":"dogs"}'
    assert finished.spent == Spend(tokens=5)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ((TASK,), "one"),
        ((TASK, FIRST_REPLY), "two"),
        ((TASK, FIRST_REPLY, INTERRUPTED_REPLY), "three"),
    ],
)
async def test_the_transcript_determines_the_turn_to_play(
    turns: Sequence[Turn], expected: str
) -> None:
    """After a restart there is only the journal. An interrupted turn counts as played."""
    _, finished = await read_stream(ScriptedModel(["one", "two", "three"]), make_prompt(*turns))
    assert finished.reply.text == expected


async def test_a_turn_may_be_a_function_of_the_messages() -> None:
    script = ScriptedModel([lambda messages: f"You said: {messages[-1].text}"])
    _, finished = await read_stream(script, make_prompt())
    assert finished.reply.text == "You said: Find cats."


async def test_one_function_can_play_all_turns() -> None:
    """A benchmark needs thousands of turns."""
    script = ScriptedModel(lambda messages: Use("search", q=str(len(messages))))
    _, finished = await read_stream(script, make_prompt(TASK, FIRST_REPLY))
    assert finished.reply.uses[0].args == {"q": "2"}


async def test_after_the_last_turn_the_model_fails_with_the_number_of_turns() -> None:
    """An empty reply would look like a run that hangs."""
    with pytest.raises(ModelFailed, match="there are 1") as caught:
        await read_stream(ScriptedModel(["one"]), make_prompt(TASK, FIRST_REPLY))
    assert (caught.value.reason, caught.value.transient) == ("script_ended", False)


@pytest.mark.parametrize(
    ("turns", "where"),
    [
        (["fine", 7], r"turns\[1\]"),
        ([["fine", None]], r"turns\[0\]"),
        ([Use("search", q={1, 2})], r"turns\[0\].*q"),
        ("a text is no list", "turns must be a list"),
        (None, "turns must be a list"),
    ],
)
def test_an_invalid_turn_is_refused_with_its_index(turns: Sequence[str], where: str) -> None:
    """A mistake in a script is found before the run reaches it."""
    with pytest.raises(Misconfigured, match=where):
        ScriptedModel(turns)


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(Misconfigured, match="chunk_delay"):
        ScriptedModel(["one"], chunk_delay=-1)


async def test_a_function_that_raises_becomes_model_failed() -> None:
    """The driver handles a failed model and knows nothing about scripts."""
    with pytest.raises(ModelFailed, match="turn 0: ZeroDivisionError") as caught:
        await read_stream(
            ScriptedModel([lambda messages: "x" * (len(messages) // 0)]), make_prompt()
        )
    assert (caught.value.reason, caught.value.transient) == ("script_failed", False)


async def test_a_use_may_have_an_argument_named_self() -> None:
    use = Use("move", self="here")
    assert use.args == {"self": "here"}
    assert repr(use) == "Use('move', self='here')"


async def test_a_delayed_script_can_be_cancelled_between_two_pieces() -> None:
    """The delay is awaited, so a pause takes effect meanwhile."""
    received: list[Piece | Finished] = []
    script = ScriptedModel(["one two"], chunk_delay=3600)
    with anyio.CancelScope() as scope:
        async with script.stream(make_prompt()) as stream:
            async for item in stream:
                received.append(item)
                scope.cancel()
    assert scope.cancelled_caught
    assert received == [Piece(kind="text", text="one ")]


async def test_a_long_reply_without_delay_lets_other_tasks_run() -> None:
    """The event loop must be able to interrupt the reply."""
    pieces = 0
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            tasks.cancel_scope.cancel()

        async with ScriptedModel(["word " * 10_000]).stream(make_prompt()) as stream:
            tasks.start_soon(interrupt)
            async for _ in stream:
                pieces += 1
    assert pieces < 200
