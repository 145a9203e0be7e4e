"""What a run asks is decided at the bar: approved, edited, declined, answered."""

from midrun.models import Use
from midrun.tui.controller import ExitReason
from tests.unit.tui.stage import staged

SEND = Use("send", to="everybody")
CTRL_C, ESC, ENTER, TAB, BACKSPACE = "\x03", "\x1b", "\r", "\t", "\x7f"


async def test_a_call_is_approved() -> None:
    """With its arguments in view."""
    async with staged(SEND, "Done.") as stage:
        await stage.sees(
            "Waiting for a person", 'a  Let the agent call send? {"to":"everybody"}'
        )
        stage.type("a")
        await stage.sees('"to": "everybody"', "y  approve", "e  edit", "n  decline")
        stage.type("y")
        assert await stage.gone() is ExitReason.ENDED
        assert "a1: approved by ada" in stage.paper.written
        assert "✓ send sent to everybody" in stage.paper.written


async def test_an_edit_that_is_refused_is_told_in_full() -> None:
    """What is wrong with it stands at the end: it is folded where others would cut it off."""
    async with staged(SEND, "Done.", columns=80) as stage:
        await stage.sees("Waiting")
        stage.type("a")
        await stage.sees("y  approve")
        stage.type("e")
        await stage.sees("approve with these arguments")
        stage.type(BACKSPACE * 12 + "5}" + ENTER)
        bar = await stage.sees("approve refused")
        assert "the run is waiting" in " ".join(bar.split())
        assert all(len(line) <= 80 for line in bar.splitlines())


async def test_a_call_is_approved_with_other_arguments() -> None:
    """They are edited as JSON; what is not JSON comes back."""
    async with staged(SEND, "Done.") as stage:
        await stage.sees("Waiting")
        stage.type("a")
        await stage.sees("y  approve")
        stage.type("e")
        await stage.sees('{"to":"everybody"}', "approve with these arguments")
        stage.type(f"{BACKSPACE}{ENTER}")
        await stage.sees('{"to":"everybody"', "Pass plain JSON data")
        stage.type(BACKSPACE * 11 + '"bob"}' + ENTER)
        assert await stage.gone() is ExitReason.ENDED
        assert "✓ send sent to bob" in stage.paper.written


async def test_a_call_is_declined_with_a_reason() -> None:
    """Which the agent is told."""
    async with staged(SEND, "Done.") as stage:
        await stage.sees("Waiting")
        stage.type("a")
        await stage.sees("n  decline")
        stage.type("n")
        await stage.sees("the reason is optional")
        stage.type(f"not to everybody{ENTER}")
        assert await stage.gone() is ExitReason.ENDED
        assert "a1: declined by ada not to everybody" in stage.paper.written


async def test_a_question_is_answered_by_choosing_or_by_typing() -> None:
    """The number of a proposed answer, or words of one's own."""
    colour = Use("ask_human", question="Which colour?", options=["red", "blue"])
    size = Use("ask_human", question="Which size?")
    async with staged(colour, size, "Done.") as stage:
        await stage.sees("Waiting for a person", "Which colour?")
        stage.type("a")
        await stage.sees("1  red", "2  blue", "t  type an answer")
        stage.type("2")
        await stage.printed("a1: answered by ada: blue")
        await stage.sees("Which size?")
        stage.type("a")
        await stage.sees("? Which size?")
        stage.type("t")
        await stage.sees("Enter: send")
        stage.type(f"very large{ENTER}")
        assert await stage.gone() is ExitReason.ENDED
        assert "a2: answered by ada: very large" in stage.paper.written


async def test_a_question_that_its_tool_goes_on_from_can_be_declined() -> None:
    """The tool is told so; other questions have no such key."""
    async with staged(Use("poll"), "Done.") as stage:
        await stage.sees("Waiting")
        stage.type("a")
        await stage.sees("t  type an answer", "n  decline")
        stage.type("n")
        await stage.sees("the reason is optional")
        stage.type(f"neither{ENTER}")
        assert await stage.gone() is ExitReason.ENDED
        assert "a1: declined by ada neither" in stage.paper.written


async def test_an_ask_that_is_decided_elsewhere_closes_its_sheet() -> None:
    """No error, and no second decision."""
    async with staged(SEND, Use("read", what="the news"), "Done.") as stage:
        await stage.sees("Waiting")
        stage.type("a")
        await stage.sees("y  approve")
        await stage.run.approve(actor="bob")
        await stage.sees("Running", "p  Pause")
        assert "a1: approved by bob" in await stage.printed("approved by bob")


async def test_a_run_that_asks_nothing_says_so() -> None:
    """Instead of an empty sheet."""
    async with staged(Use("read", what="the news"), "Done.") as stage:
        await stage.sees("Running")
        stage.type("a")
        await stage.sees("The run has no open asks.")


async def test_a_waiting_run_is_paused_and_keeps_its_question() -> None:
    """Escape closes the sheet, Ctrl-C holds the run here."""
    async with staged(SEND, "Done.") as stage:
        await stage.sees("Waiting")
        stage.type("a")
        await stage.sees("y  approve")
        stage.type(ESC)
        await stage.sees("p  Pause — Pauses here; the question stays open.")
        stage.type(CTRL_C)
        bar = await stage.sees("Paused by ada")
        assert "Let the agent call send?" in bar


async def test_an_answer_that_lost_a_race_is_named_and_kept() -> None:
    """The loser reads who won and with what; the text stays in the line."""
    size = Use("ask_human", question="Which size?")
    async with staged(size, Use("read", what="the news"), "Done.") as stage:
        await stage.sees("Waiting for a person")
        stage.type("a")
        await stage.sees("t  type an answer")
        stage.type("t")
        await stage.sees("Enter: send")
        stage.type("very large")
        await stage.sees("very large")
        await stage.run.answer("small", actor="bob")
        stage.type(ENTER)
        await stage.sees(
            "Your answer was not used: bob answered “small” first.", "very large", "Enter: send"
        )
