"""The scripted model: what it says, which turn it is at, and what it refuses."""

from collections.abc import Sequence

import anyio
import pytest

from midrun.core.transcript import Turn
from midrun.core.values import Spend
from midrun.errors import Misconfigured, ModelFailed
from midrun.models import ScriptedModel, Use
from midrun.ports.model import Finished, Piece
from tests.unit.models.protocols import TASK, heard, joined, prompt

SPOKEN = Turn(role="assistant", text="one")
CUT = Turn(role="assistant", text="tw", interrupted=True)


@pytest.mark.parametrize(
    "text", ["Hello big world", "  two\n\nspaces  ", "", " ", "ein Satz\tmit Tab"]
)
async def test_the_pieces_joined_are_the_text(text: str) -> None:
    """A page that shows the pieces must end up with what the journal has."""
    pieces, finished = await heard(ScriptedModel([text]), prompt())
    assert joined(pieces, "text") == finished.reply.text == text
    assert all(piece.text for piece in pieces)


async def test_text_comes_word_by_word() -> None:
    """An interrupt can only land between pieces; a script with one piece has no middle."""
    pieces, _ = await heard(ScriptedModel(["one two three"]), prompt())
    assert [piece.text for piece in pieces] == ["one ", "two ", "three"]


async def test_a_turn_may_have_text_and_several_calls() -> None:
    """Parallel calls are what models make."""
    script = ScriptedModel([["Let me see.", Use("search", q="cats"), Use("search", q="dogs")]])
    pieces, finished = await heard(script, prompt())
    assert finished.reply.text == "Let me see."
    wanted = [(use.tool, use.args) for use in finished.reply.uses]
    assert wanted == [("search", {"q": "cats"}), ("search", {"q": "dogs"})]
    assert joined(pieces, "args", call=1) == '{"q":"dogs"}'
    assert finished.spent == Spend(tokens=5)


@pytest.mark.parametrize(
    ("turns", "said"),
    [((TASK,), "one"), ((TASK, SPOKEN), "two"), ((TASK, SPOKEN, CUT), "three")],
)
async def test_the_turn_to_play_follows_from_the_transcript(
    turns: Sequence[Turn], said: str
) -> None:
    """A restart forgets everything but the journal; an interrupted turn counts as played."""
    _, finished = await heard(ScriptedModel(["one", "two", "three"]), prompt(*turns))
    assert finished.reply.text == said


async def test_a_turn_can_be_found_from_the_messages() -> None:
    """A demo answers what was asked."""
    script = ScriptedModel([lambda messages: f"You said: {messages[-1].text}"])
    _, finished = await heard(script, prompt())
    assert finished.reply.text == "You said: Find cats."


async def test_one_function_can_play_all_turns() -> None:
    """A benchmark does not write ten thousand turns down."""
    script = ScriptedModel(lambda messages: Use("search", q=str(len(messages))))
    _, finished = await heard(script, prompt(TASK, SPOKEN))
    assert finished.reply.uses[0].args == {"q": "2"}


async def test_after_the_last_turn_it_fails_and_says_how_many_there_were() -> None:
    """Saying nothing for ever would look like a hang of ours."""
    with pytest.raises(ModelFailed, match="there are 1") as caught:
        await heard(ScriptedModel(["one"]), prompt(TASK, SPOKEN))
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
def test_what_is_no_turn_is_refused_by_its_place(turns: Sequence[str], where: str) -> None:
    """A mistake in a script should not wait until the run gets there."""
    with pytest.raises(Misconfigured, match=where):
        ScriptedModel(turns)


def test_time_does_not_run_backwards() -> None:
    """A negative delay is a typo."""
    with pytest.raises(Misconfigured, match="chunk_delay"):
        ScriptedModel(["one"], chunk_delay=-1)


async def test_a_function_that_raises_fails_the_call_by_name() -> None:
    """The driver knows what to do with a failed model, and nothing about scripts."""
    with pytest.raises(ModelFailed, match="turn 0: ZeroDivisionError") as caught:
        await heard(ScriptedModel([lambda messages: "x" * (len(messages) // 0)]), prompt())
    assert (caught.value.reason, caught.value.transient) == ("script_failed", False)


async def test_a_tool_may_have_arguments_of_any_name() -> None:
    """`self` is a fine name in somebody else's schema."""
    use = Use("move", self="here")
    assert use.args == {"self": "here"}
    assert repr(use) == "Use('move', self='here')"


async def test_a_slow_script_can_be_left_in_the_middle() -> None:
    """The delay is awaited, so that a pause is seen while it lasts."""
    seen: list[Piece | Finished] = []
    script = ScriptedModel(["one two"], chunk_delay=3600)
    with anyio.CancelScope() as scope:
        async with script.stream(prompt()) as stream:
            async for said in stream:
                seen.append(said)
                scope.cancel()
    assert scope.cancelled_caught
    assert seen == [Piece(kind="text", text="one ")]


async def test_a_long_reply_lets_others_have_a_turn() -> None:
    """A script without delays must not starve the loop that would interrupt it."""
    pieces = 0
    async with anyio.create_task_group() as tasks:

        async def interrupt() -> None:
            tasks.cancel_scope.cancel()

        async with ScriptedModel(["word " * 10_000]).stream(prompt()) as stream:
            tasks.start_soon(interrupt)
            async for _ in stream:
                pieces += 1
    assert pieces < 200
