"""Scripts: the next line follows from the transcript, wherever it was cut."""

import pytest

from midrun.core.ids import CallId
from midrun.core.transcript import Made, Turn
from midrun.demo.model import Pace, _split_into_pieces
from midrun.demo.script import InstructionEffect, Script, ScriptLine, find_next_line
from midrun.models import Use


class Counting:
    """A play that counts to three, with a call in each line."""

    def begin(self, task: str) -> Script:
        """Count."""
        for number in range(1, 4):
            made = yield ScriptLine(
                f"{task} {number}, one two.", (Use("note", n=number),), "Hm."
            )
            if made[0].problem:
                yield ScriptLine(f"Oh: {made[0].problem}.", (Use("look"),))
        yield ScriptLine("Done.")
        return ""

    def react_to_instruction(self, text: str) -> InstructionEffect:
        """Take a detour, another way, or only note it."""
        return {
            "detour": InstructionEffect(detour=self._detour()),
            "instead": InstructionEffect(instead=self._instead()),
        }.get(text, InstructionEffect(words="Noted."))

    def answer_side_question(self, text: str) -> Script:
        """Answer."""
        yield ScriptLine(f"To {text}: yes.")
        return ""

    def _detour(self) -> Script:
        yield ScriptLine("A detour.", (Use("look"),))
        return "Back."

    def _instead(self) -> Script:
        yield ScriptLine("Another way.")
        return ""


TASK = Turn(role="user", kind="task", text="Count")


def said(text: str, *made: Made) -> Turn:
    """Return a reply."""
    return Turn(role="assistant", text=text, uses=made)


def cut(text: str) -> Turn:
    """Return a reply that was cut off."""
    return Turn(role="assistant", text=text, interrupted=True)


def told(text: str, kind: str = "instruction") -> Turn:
    """Return words of a person."""
    return Turn(role="user", kind=kind, text=text)


def runtime(kind: str, text: str) -> Turn:
    """Return words of the runtime."""
    return Turn(role="runtime", kind=kind, text=text)


def made(tool: str = "note", problem: str = "") -> Made:
    """Return a call that was made."""
    return Made(call=CallId("c1"), tool=tool, result=None if problem else "ok", problem=problem)


FIRST = said("Count 1, one two.", made())
HELD, BACK = runtime("held", "Held: Count."), runtime("back", "Back to *Count* — step 1")


@pytest.mark.parametrize(
    ("turns", "text"),
    [
        ([], "Count 1, one two."),
        ([FIRST], "Count 2, one two."),
        ([cut("Count 1, ")], "one two."),
        ([cut("Count "), cut("1, one ")], "two."),
        ([cut("Count 1, "), told("hm")], "Noted. … one two."),
        ([cut("Count 1, "), told("hm"), cut("Noted. … one ")], "two."),
        ([cut("Count 1, one two.")], ""),
        ([cut("Count 1, one two."), told("hm")], "Noted. "),
        ([cut(""), told("hm")], "Noted. Count 1, one two."),
        ([cut("Count 1, "), told("instead")], "Another way."),
        ([cut("Count 1, "), told("detour")], "A detour."),
        ([cut("Count 1, "), told("detour"), cut("A ")], "detour."),
        (
            [cut("Count 1, "), told("detour"), said("A detour.", made("look"))],
            "Back. … one two.",
        ),
        ([said("Count 1, one two.", made(problem="stopped midway"))], "Oh: stopped midway."),
        ([said("Count 1, one two.", made(problem="not executed: redirected"))], ""),
        ([FIRST, HELD, told("it", "message")], "To it: yes."),
        ([FIRST, HELD, told("it", "message"), said("To it: yes."), BACK], "Count 2, one two."),
        ([cut("Count 1, "), HELD, told("it", "message"), cut("To "), BACK], "… one two."),
        (
            [FIRST, HELD, told("it", "message"), BACK, cut(f"{BACK.text}\n\nCount 2,")],
            " one two.",
        ),
        (
            [FIRST, HELD, told("it", "message"), told("instead")],
            "I come to that when I am back: instead. To it: yes.",
        ),
        (
            [FIRST, HELD, told("it", "message"), runtime("dropped", "Dropped *Count*")],
            "To it: yes.",
        ),
        ([said("I am another model.", made("else"))], "Count 1, one two."),
        ([cut("I am another mo")], "Count 1, one two."),
        (
            [Turn(role="assistant", kind="person", by="ada", text="Mine.")],
            "I have read what ada wrote. Count 1, one two.",
        ),
    ],
)
def test_the_next_line_follows_from_the_transcript(turns: list[Turn], text: str) -> None:
    """Nothing is repeated, nothing is left out, whoever came in between."""
    assert find_next_line(Counting(), [TASK, *turns]).text == text


def test_a_call_that_was_not_made_is_asked_for_again_without_a_word() -> None:
    """The words before it were said already."""
    sealed = said("Count 1, one two.", made(problem="not executed: redirected"))
    line = find_next_line(Counting(), [TASK, sealed])
    assert [use.tool for use in line.uses] == ["note"]
    after = find_next_line(Counting(), [TASK, sealed, said("", made())])
    assert after.text == "Count 2, one two."


def test_a_script_that_is_over_has_something_to_say() -> None:
    """An answer of nothing would be the output of the run."""
    done = [said(f"Count {n}, one two.", made()) for n in (1, 2, 3)]
    assert find_next_line(Counting(), [TASK, *done, cut("Done.")]).text == "That is all."
    after = [TASK, *done, said("Done."), told("detour"), said("A detour.", made("look"))]
    assert find_next_line(Counting(), after).text == "Back. "


def test_a_pace_is_uneven_and_the_same_each_time() -> None:
    """Chance has a seed: what was shown once can be shown again."""
    pieces = _split_into_pieces(ScriptLine("One two three. Four five.", (), "Hm, hm."))
    waits = Pace().compute_delays(pieces)
    assert waits == Pace().compute_delays(pieces)
    assert len(set(waits)) == len(pieces)
    assert sum(Pace(2).compute_delays(pieces)) == pytest.approx(sum(waits) / 2)
    assert Pace(float("inf")).compute_delays(pieces) == [0] * len(pieces)
