"""Scripts of the demo: the transcript determines the next line, wherever a reply was cut."""

import pytest

from midrun.core.ids import CallId
from midrun.core.transcript import CallResult, Turn
from midrun.demo.model import Pace
from midrun.demo.script import InstructionEffect, Script, ScriptLine, find_next_line
from midrun.models import Use
from midrun.models.scripted import _make_turn


class CountingScript:
    """A script that counts to three, with a call in each line."""

    def begin(self, task: str) -> Script:
        """Count."""
        for number in range(1, 4):
            calls = yield ScriptLine(
                f"{task} {number}, one two.", (Use("note", n=number),), "Hm."
            )
            if calls[0].problem:
                yield ScriptLine(f"Oh: {calls[0].problem}.", (Use("look"),))
        yield ScriptLine("Done.")
        return ""

    def react_to_instruction(self, text: str) -> InstructionEffect:
        """Return a detour, another script, or only words."""
        return {
            "detour": InstructionEffect(detour=self._detour()),
            "instead": InstructionEffect(instead=self._instead()),
        }.get(text, InstructionEffect(words="Noted."))

    def answer_side_question(self, text: str) -> Script:
        """Answer with one line."""
        yield ScriptLine(f"To {text}: yes.")
        return ""

    def _detour(self) -> Script:
        yield ScriptLine("A detour.", (Use("look"),))
        return "Back."

    def _instead(self) -> Script:
        yield ScriptLine("Another way.")
        return ""


TASK = Turn(role="user", kind="task", text="Count")


def make_reply(text: str, *calls: CallResult) -> Turn:
    """Return a reply of the assistant."""
    return Turn(role="assistant", text=text, uses=calls)


def make_cut_reply(text: str) -> Turn:
    """Return a reply that was interrupted."""
    return Turn(role="assistant", text=text, interrupted=True)


def make_user_turn(text: str, kind: str = "instruction") -> Turn:
    """Return a text of a person."""
    return Turn(role="user", kind=kind, text=text)


def make_runtime_turn(kind: str, text: str) -> Turn:
    """Return a text of the runtime."""
    return Turn(role="runtime", kind=kind, text=text)


def make_call(tool: str = "note", problem: str = "") -> CallResult:
    """Return a call with its outcome."""
    return CallResult(
        call=CallId("c1"), tool=tool, result=None if problem else "ok", problem=problem
    )


FIRST_REPLY = make_reply("Count 1, one two.", make_call())
FRAME_HELD, FRAME_RESUMED = (
    make_runtime_turn("held", "Held: Count."),
    make_runtime_turn("back", "Back to *Count* — step 1"),
)


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        ([], "Count 1, one two."),
        ([FIRST_REPLY], "Count 2, one two."),
        ([make_cut_reply("Count 1, ")], "one two."),
        ([make_cut_reply("Count "), make_cut_reply("1, one ")], "two."),
        ([make_cut_reply("Count 1, "), make_user_turn("hm")], "Noted. … one two."),
        (
            [
                make_cut_reply("Count 1, "),
                make_user_turn("hm"),
                make_cut_reply("Noted. … one "),
            ],
            "two.",
        ),
        ([make_cut_reply("Count 1, one two.")], ""),
        ([make_cut_reply("Count 1, one two."), make_user_turn("hm")], "Noted. "),
        ([make_cut_reply(""), make_user_turn("hm")], "Noted. Count 1, one two."),
        ([make_cut_reply("Count 1, "), make_user_turn("instead")], "Another way."),
        ([make_cut_reply("Count 1, "), make_user_turn("detour")], "A detour."),
        (
            [make_cut_reply("Count 1, "), make_user_turn("detour"), make_cut_reply("A ")],
            "detour.",
        ),
        (
            [
                make_cut_reply("Count 1, "),
                make_user_turn("detour"),
                make_reply("A detour.", make_call("look")),
            ],
            "Back. … one two.",
        ),
        (
            [make_reply("Count 1, one two.", make_call(problem="stopped midway"))],
            "Oh: stopped midway.",
        ),
        ([make_reply("Count 1, one two.", make_call(problem="not executed: redirected"))], ""),
        ([FIRST_REPLY, FRAME_HELD, make_user_turn("it", "message")], "To it: yes."),
        (
            [
                FIRST_REPLY,
                FRAME_HELD,
                make_user_turn("it", "message"),
                make_reply("To it: yes."),
                FRAME_RESUMED,
            ],
            "Count 2, one two.",
        ),
        (
            [
                make_cut_reply("Count 1, "),
                FRAME_HELD,
                make_user_turn("it", "message"),
                make_cut_reply("To "),
                FRAME_RESUMED,
            ],
            "… one two.",
        ),
        (
            [
                FIRST_REPLY,
                FRAME_HELD,
                make_user_turn("it", "message"),
                FRAME_RESUMED,
                make_cut_reply(f"{FRAME_RESUMED.text}\n\nCount 2,"),
            ],
            " one two.",
        ),
        (
            [
                FIRST_REPLY,
                FRAME_HELD,
                make_user_turn("it", "message"),
                make_user_turn("instead"),
            ],
            "I come to that when I am back: instead. To it: yes.",
        ),
        (
            [
                FIRST_REPLY,
                FRAME_HELD,
                make_user_turn("it", "message"),
                make_runtime_turn("dropped", "Dropped *Count*"),
            ],
            "To it: yes.",
        ),
        ([make_reply("I am another model.", make_call("else"))], "Count 1, one two."),
        ([make_cut_reply("I am another mo")], "Count 1, one two."),
        (
            [Turn(role="assistant", kind="person", by="ada", text="Mine.")],
            "I have read what ada wrote. Count 1, one two.",
        ),
    ],
)
def test_the_transcript_determines_the_next_line(turns: list[Turn], text: str) -> None:
    """No word is repeated or missing after an interruption."""
    assert find_next_line(CountingScript(), [TASK, *turns]).text == text


def test_a_call_that_was_not_executed_is_requested_again_without_text() -> None:
    """The text before it was already said."""
    not_executed = make_reply(
        "Count 1, one two.", make_call(problem="not executed: redirected")
    )
    line = find_next_line(CountingScript(), [TASK, not_executed])
    assert [use.tool for use in line.uses] == ["note"]
    after = find_next_line(CountingScript(), [TASK, not_executed, make_reply("", make_call())])
    assert after.text == "Count 2, one two."


def test_a_script_at_its_end_returns_a_closing_line() -> None:
    """An empty reply would be the output of the run."""
    done = [make_reply(f"Count {n}, one two.", make_call()) for n in (1, 2, 3)]
    assert (
        find_next_line(CountingScript(), [TASK, *done, make_cut_reply("Done.")]).text
        == "That is all."
    )
    after = [
        TASK,
        *done,
        make_reply("Done."),
        make_user_turn("detour"),
        make_reply("A detour.", make_call("look")),
    ]
    assert find_next_line(CountingScript(), after).text == "Back. "


def test_the_delays_of_a_pace_vary_and_are_reproducible() -> None:
    """The random generator has a fixed seed."""
    line = ScriptLine("One two three. Four five.", (), "Hm, hm.")
    *pieces, _ = _make_turn(line.to_turn())
    delays = Pace().compute_delays(pieces)
    assert delays == Pace().compute_delays(pieces)
    assert len(set(delays)) == len(pieces)
    assert sum(Pace(2).compute_delays(pieces)) == pytest.approx(sum(delays) / 2)
    assert Pace(float("inf")).compute_delays(pieces) == [0] * len(pieces)
