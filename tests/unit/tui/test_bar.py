"""The control bar: each key, each dialog, and the ways to leave."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from prompt_toolkit.utils import get_cwidth

from midrun.agents.outcome import AskView
from midrun.core.entries import AskAnswered, MessageReceived, RedirectRequested
from midrun.core.ids import AskId, CallId, Micros
from midrun.core.values import FileLimits, Phase
from midrun.errors import StoreUnreachable
from midrun.models import Use
from midrun.runs.values import RunView
from midrun.stops import MaxSteps
from midrun.text.buttons import Button
from midrun.tui import session
from midrun.tui.bar import draw_bar, draw_cancel_dialog, list_ask_keys, list_confirm_keys
from midrun.tui.controller import ExitReason
from midrun.tui.styled_text import Hints, plain_text
from tests.support.paths import ROOT
from tests.support.run_journal import wait_for_entry
from tests.unit.tui.bar_session import open_bar

READ, WRITE = Use("read", what="the news"), Use("write", title="Memo")
SEND = Use("send", to="customers")
SEND_TWICE = Use("send", to="customers", copies=2)
PLAN = Use("plan", items=["Look", "Tell"], marks={"1": "running"})
CTRL_C, ESC, ALT_ENTER, ENTER = "\x03", "\x1b", "\x1b\r", "\r"
TAB, BACKSPACE = "\t", "\x7f"
STATIC = ROOT / "src" / "midrun" / "server" / "static"
PASTED = "\x1b[200~{}\x1b[201~"
READ_IN_FLIGHT = "Stops after “Read”"
"""A part of the pause button while the tool `read` runs."""


async def test_p_pauses_withdraws_the_pause_and_resumes() -> None:
    """The key does what its button says at the moment."""
    async with open_bar(READ, READ, "Done.") as bar:
        await bar.wait_for("Running", "p  Pause — Stops after “Read”.")
        bar.press("p")
        await bar.wait_for("Pausing, requested by you", "Keep running — Withdraws the pause.")
        bar.press("p")
        await bar.wait_for("Running", "p  Pause")
        bar.press("p")
        await bar.wait_for("Pausing")
        bar.gates["read"].set()
        await bar.wait_for("Paused by you", "p  Resume")
        bar.press("p")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "✓ the run completed" in bar.output.written


async def test_a_key_that_is_held_down_counts_once() -> None:
    """Otherwise it would pause and resume in turns."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT)
        bar.stop_clock()
        bar.press("p" * 20)
        await bar.wait_for("Pausing")
        bar.gates["read"].set()
        await bar.run.until("paused")
        await bar.wait_for("Paused by you")


async def test_a_redirect_is_typed_in_the_composer_and_waits_for_the_next_step() -> None:
    """In the composer, p, c and d are letters and not keys."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("r")
        await bar.wait_for("Enter: next turn")
        bar.press("pcd? skip the sports")
        await bar.wait_for("pcd? skip the sports", "Running")
        bar.press(ENTER)
        await bar.wait_for("Redirect waits", "“pcd? skip the sports”")
        bar.gates["read"].set()
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "received the new instruction “pcd? skip the sports”" in bar.output.written


async def test_alt_enter_redirects_now() -> None:
    """The call in flight is stopped for it."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("r")
        await bar.wait_for("Alt+Enter: now")
        bar.press("stop reading")
        await bar.wait_for("stop reading")
        bar.press(ALT_ENTER)
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "ada asked to redirect the run now: “stop reading”" in bar.output.written
        assert "· read was stopped midway" in bar.output.written


async def test_escape_discards_the_text_in_the_composer() -> None:
    """After that, keys act on the run again."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("rnever mind")
        await bar.wait_for("never mind")
        bar.press(ESC)
        await bar.wait_for("p  Pause")
        bar.press("p")
        await bar.wait_for("Pausing")
        assert not (await bar.run.view()).pending


async def test_w_withdraws_a_pending_redirect() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press(f"rskip the sports{ENTER}")
        await bar.wait_for("skip the sports", "w withdraws it")
        bar.press("w")
        await bar.wait_for_print("ada withdrew the instruction “skip the sports”")
        bar.gates["read"].set()
        assert await bar.wait_for_exit() is ExitReason.ENDED


async def test_a_side_question_is_acknowledged_at_once() -> None:
    """Tab turns a redirect into a side question and keeps the text."""
    async with open_bar(READ, "Nearly there.", "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("rhow far are you?")
        await bar.wait_for("how far are you?")
        bar.press(TAB)
        await bar.wait_for("Tab: redirect", "how far are you?")
        bar.press(ENTER)
        await bar.wait_for("Hold on")
        await bar.wait_for_print("» ada said “how far are you?”")
        bar.gates["read"].set()
        assert await bar.wait_for_exit() is ExitReason.ENDED
        # The output has the row twice if the bar is redrawn while the text streams.
        assert sum("Back to Sort the mail" in line for line in bar.printed_lines) == 1
        assert bar.printed_lines.count("Done.") == 1
        assert "interrupted" not in bar.output.written


async def test_a_question_to_a_paused_run_resumes_it_as_on_the_page() -> None:
    async with open_bar(READ, "Nearly there.", "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "s  Ask — Answers at the next turn")
        bar.press("p")
        bar.gates["read"].set()
        await bar.wait_for("Paused by you", "s  Ask — Resumes the run: it answers first")
        bar.press(f"show far are you?{ENTER}")
        await bar.wait_for_print("» ada said “how far are you?”")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "Nearly there." in "\n".join(bar.printed_lines)


async def test_hold_on_is_shown_until_the_side_question_is_answered() -> None:
    async with open_bar(READ, "Nearly there.", WRITE, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press(f"show far are you?{ENTER}")
        await bar.wait_for("Hold on", "Question waits")
        bar.gates["read"].set()
        assert "Hold on" not in await bar.wait_for("Running", "Write")


async def test_the_text_of_a_refused_redirect_returns_to_the_composer() -> None:
    """The run was halted while the text was typed."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("rskip the sports")
        await bar.wait_for("skip the sports")
        await bar.midrun.halt("fire drill", actor="operator:olga")
        await bar.wait_for("Halted")
        bar.press(ENTER)
        await bar.wait_for("redirect refused", "skip the sports", "Enter: next turn")


async def test_an_unsent_text_is_printed_when_the_run_ends() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("rskip the sports")
        await bar.wait_for("skip the sports")
        bar.gates["read"].set()
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "it finished first. Your text: skip the sports" in bar.output.written


async def test_c_asks_for_confirmation_before_a_cancel() -> None:
    """Also if the run has not changed anything yet."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "c  Cancel")
        bar.press("c")
        await bar.wait_for("Cancel this run?", "It has changed nothing")
        bar.press("c")
        await bar.wait_for("Pausing, requested by you")
        bar.press("n")
        await bar.wait_for("Running")
        bar.press("c")
        await bar.wait_for("Cancel this run?", "Pausing, requested by you")
        bar.press("y")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "■ ada asked to cancel the run" in bar.output.written


@pytest.mark.parametrize(
    ("key", "printed"), [("y", "↩ the run undid write"), ("k", "keep finished work")]
)
async def test_the_cancel_dialog_lists_the_undos_and_holds_the_run(
    key: str, printed: str
) -> None:
    """No call starts while the dialog is open."""
    async with open_bar(WRITE, READ, "Done.") as bar:
        bar.gates["write"].set()
        await bar.wait_for("can undo 1", "Read")
        bar.press("c")
        shown = await bar.wait_for(
            "Cancel this run?", "Nothing new starts while you", "Pausing, requested by you"
        )
        assert "It can undo: Write: title “Memo”" in shown
        assert (await bar.run.view()).hold_until is not None
        bar.press(key)
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert printed in bar.output.written
        assert "■ the run is cancelled" in bar.output.written


async def test_the_cancel_dialog_lists_the_releases() -> None:
    async with open_bar(Use("lock", name="door"), READ, "Done.") as bar:
        await bar.wait_for("Running", "releases “Lock”")
        bar.press("c")
        await bar.wait_for(
            "Cancel this run?",
            "Released in any case: Lock: name “door”",
            "^C again leaves it paused",
        )
        bar.press("y")
        assert await bar.wait_for_exit() is ExitReason.ENDED


async def test_n_in_the_cancel_dialog_lets_the_run_go_on() -> None:
    """Only the hold is withdrawn."""
    async with open_bar(WRITE, READ, "Done.") as bar:
        bar.gates["write"].set()
        await bar.wait_for("can undo 1", "Read")
        bar.press("c")
        await bar.wait_for("Cancel this run?", "Pausing")
        bar.press("n")
        await bar.wait_for("Running", "p  Pause")
        bar.gates["read"].set()
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "✓ the run completed" in bar.output.written


async def test_ctrl_c_pauses_then_opens_the_cancel_dialog_then_leaves() -> None:
    async with open_bar(WRITE, "Done.") as bar:
        await bar.wait_for("p  Pause — Stops after “Write”.")
        bar.press(CTRL_C)
        await bar.wait_for("Pausing, requested by you", "Keep running")
        bar.press(CTRL_C)
        await bar.wait_for("Cancel this run?", "n  leave it as it is")
        bar.press(CTRL_C)
        assert await bar.wait_for_exit() is ExitReason.QUIT
        view = await bar.run.view()
        assert (view.phase, view.hold_until) == ("pausing", None)


async def test_ctrl_c_in_the_cancel_dialog_turns_the_hold_into_a_pause() -> None:
    """A hold would end after a minute, and the run would go on."""
    async with open_bar(WRITE, READ, "Done.") as bar:
        bar.gates["write"].set()
        await bar.wait_for("can undo 1", "Read")
        bar.press("c")
        await bar.wait_for("Cancel this run?", "Pausing")
        bar.press(CTRL_C)
        assert await bar.wait_for_exit() is ExitReason.QUIT
        assert (await bar.run.view()).hold_until is None


async def test_d_detaches_and_the_run_goes_on() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running")
        bar.press("d")
        assert await bar.wait_for_exit() is ExitReason.DETACHED
        bar.gates["read"].set()
        assert (await bar.run.until("terminal")).phase == "completed"


async def test_the_question_mark_opens_and_closes_the_help() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running")
        bar.press("?")
        await bar.wait_for("redirect: Enter at the next turn", "^C")
        bar.press("?")
        await bar.wait_for("p  Pause")


async def test_p_raises_a_reached_cap_and_resumes() -> None:
    async with open_bar(READ, "Done.", stop=MaxSteps(1)) as bar:
        bar.gates["read"].set()
        await bar.wait_for("Paused at the turn cap (1)", "p  Raise cap — Adds 10 turns")
        bar.press("p")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "ada raised the cap to 11 turns" in bar.output.written


async def test_pasted_text_does_not_act_as_keys() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT)
        bar.press("\x1b[200~pcd\x1b[201~?")
        await bar.wait_for("^C")  # the help: the key after the pasted text
        view = await bar.run.view()
        assert (view.phase, bar.exit_reason) == ("running", None)


@pytest.mark.parametrize("columns", [80, 150])
async def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """In each dialog. Wide characters count as two columns."""
    news = Use("read", what="ニュース" * 40)
    async with open_bar(WRITE, news, "Done.", columns=columns) as bar:
        bar.gates["write"].set()
        await bar.wait_for("Running", "can undo 1")
        for keys in ("?", "?c", "nr" + "日本" * 60):
            bar.press(keys)
            shown = await bar.wait_for(
                {"?": "^C", "?c": "Cancel this run?"}.get(keys, "Esc: discard")
            )
            lines = shown.splitlines()[:-1]  # the last line is the composer, which scrolls
            assert max(map(get_cwidth, lines)) <= columns


async def test_the_notice_of_a_lost_connection_disappears_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "VIEW_REFRESH_MAX_INTERVAL_S", 0.01)

    async def raise_unreachable() -> RunView:
        raise StoreUnreachable("sqlite:///runs.db", "connection refused")

    async with open_bar(Use("read", what="news"), "All read.") as bar:
        await bar.wait_for("Running")
        with monkeypatch.context() as patched:
            patched.setattr(bar.run, "view", raise_unreachable)
            await bar.wait_for("connection refused")
        await bar.wait_until_hidden("connection refused")


# ── asks ─────────────────────────────────────────────────────────────────────


async def test_y_approves_a_call() -> None:
    """The dialog shows the arguments."""
    async with open_bar(SEND, "Done.") as bar:
        await bar.wait_for("Waiting for a person", "a  Approve “Send”? (to: “customers”)")
        bar.press("a")
        await bar.wait_for("  to: customers", "y  approve", "e  edit", "n  decline")
        bar.press("y")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "ada approved a1, send" in bar.output.written
        assert "✓ send returned “sent to customers”" in bar.output.written


async def test_the_refusal_of_edited_arguments_is_shown_in_full() -> None:
    """The reason is at its end, so the line is wrapped and not clipped."""
    async with open_bar(SEND_TWICE, "Done.", columns=80) as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        await bar.wait_for("y  approve")
        bar.press("e")
        await bar.wait_for("go to the next argument")
        bar.press(f".5{ENTER}")
        await bar.wait_for("approve with these arguments")
        bar.press(ENTER)
        shown = await bar.wait_for("approve refused")
        assert "the run is waiting" in " ".join(shown.split())
        assert all(len(line) <= 80 for line in shown.splitlines())


async def test_e_approves_a_call_with_edited_arguments() -> None:
    """They are edited one after the other. An invalid value returns to the composer."""
    async with open_bar(SEND_TWICE, "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        await bar.wait_for("y  approve")
        bar.press("e")
        shown = await bar.wait_for("go to the next argument (1 of 2)")
        assert "{" not in shown
        bar.press(f"x{ENTER}")
        await bar.wait_for("2x", "Cannot use “2x” for copies: it is not a number.")
        bar.press(f"{BACKSPACE}{BACKSPACE}3{ENTER}")
        await bar.wait_for("customers", "approve with these arguments (2 of 2)")
        bar.press(BACKSPACE * 9 + f"bob{ENTER}")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "✓ send returned “sent to bob, 3 times”" in bar.output.written


async def test_an_approval_shows_the_lines_that_change() -> None:
    """The text before is that of the artifact that an argument names."""
    after = "# Trees\n\nEmpty places: 15\nPlaces: 34"
    show, publish = Use("show_notice"), Use("publish", name="notice.md", content=after)
    async with open_bar(show, publish, "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        shown = await bar.wait_for("What changes:", " Empty places: 12", "+ Empty places: 15")
        assert "name: notice.md" in shown
        assert "content:" not in shown
        bar.press("y")
        assert await bar.wait_for_exit() is ExitReason.ENDED


async def test_o_prints_all_of_a_call_that_is_too_long_for_the_dialog() -> None:
    """It is read before it is approved, without another terminal."""
    lines = [f"line {number}" for number in range(40)]
    content = "\n".join(["A long line, " * 9 + "name: forged.md", *lines])
    async with open_bar(Use("publish", name="news.md", content=content), "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        shown = await bar.wait_for("more rows: o shows all of them", "y  approve")
        assert "line 39" not in shown
        assert shown.index("name: news.md") < shown.index("content: ")  # long ones come last
        before = len(bar.printed_lines)
        bar.press("o")
        await bar.wait_for_print("line 39")
        rows = bar.printed_lines[before:]
        forged = [row for row in rows if "forged" in row]
        # A wrapped row of a text looks like no argument.
        assert forged
        assert all(row.startswith("    │ ") for row in forged)
        assert all(len(row) <= 100 for row in rows)
        assert "y  approve" in bar.text  # the dialog stays open
        bar.press("y")
        assert await bar.wait_for_exit() is ExitReason.ENDED


async def test_n_declines_a_call_with_a_reason() -> None:
    async with open_bar(SEND, "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        await bar.wait_for("n  decline")
        bar.press("n")
        await bar.wait_for("the reason is optional")
        bar.press(f"not to customers{ENTER}")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "ada declined a1, send, because: not to customers" in bar.output.written


async def test_a_question_is_answered_by_its_number_or_by_text() -> None:
    colour = Use("ask_human", question="Which colour?", options=["red", "blue"])
    size = Use("ask_human", question="Which size?")
    async with open_bar(colour, size, "Done.") as bar:
        await bar.wait_for("Waiting for a person", "Which colour?")
        bar.press("a")
        await bar.wait_for("1  red", "2  blue", "t  type an answer")
        bar.press("2")
        await bar.wait_for_print("ada answered a1, “Which colour?”: “blue”")
        await bar.wait_for("Which size?")
        bar.press("a")
        await bar.wait_for("? Which size?")
        bar.press("t")
        await bar.wait_for("Enter: send")
        bar.press(f"very large{ENTER}")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "ada answered a2, “Which size?”: “very large”" in bar.output.written


async def test_a_question_of_a_tool_that_handles_declines_can_be_declined() -> None:
    """Other questions do not have this key."""
    async with open_bar(Use("poll"), "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        await bar.wait_for("t  type an answer", "n  decline")
        bar.press("n")
        await bar.wait_for("the reason is optional")
        bar.press(f"neither{ENTER}")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "because: neither" in bar.output.written


async def test_an_ask_that_is_settled_elsewhere_closes_its_dialog() -> None:
    async with open_bar(SEND, Use("read", what="the news"), "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        await bar.wait_for("y  approve")
        await bar.run.approve(actor="bob")
        await bar.wait_for("Running", "p  Pause")
        await bar.wait_for_print("bob approved a1, send")


async def test_a_without_open_asks_shows_a_notice() -> None:
    async with open_bar(Use("read", what="the news"), "Done.") as bar:
        await bar.wait_for("Running")
        bar.press("a")
        await bar.wait_for("The run has no open asks.")


async def test_ctrl_c_pauses_a_waiting_run_and_its_ask_stays_open() -> None:
    async with open_bar(SEND, "Done.") as bar:
        await bar.wait_for("Waiting")
        bar.press("a")
        await bar.wait_for("y  approve")
        bar.press(ESC)
        await bar.wait_for("p  Pause — Pauses here; the question stays open.")
        bar.press(CTRL_C)
        shown = await bar.wait_for("Paused by you")
        assert "Approve “Send”?" in shown


async def test_an_answer_that_came_second_returns_to_the_composer() -> None:
    """The notice names the first answer and its actor."""
    size = Use("ask_human", question="Which size?")
    async with open_bar(size, Use("read", what="the news"), "Done.") as bar:
        await bar.wait_for("Waiting for a person")
        bar.press("a")
        await bar.wait_for("t  type an answer")
        bar.press("t")
        await bar.wait_for("Enter: send")
        bar.press("very large")
        await bar.wait_for("very large")
        await bar.run.answer("small", actor="bob")
        bar.press(ENTER)
        await bar.wait_for(
            "Your answer was not used: bob answered “small” first.", "very large", "Enter: send"
        )


# ── take over, hand back, fork ───────────────────────────────────────────────


async def test_t_takes_over_and_writes_and_p_hands_back() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("t")
        await bar.wait_for("p  Keep running")  # the call in flight finishes first
        bar.gates["read"].set()
        await bar.wait_for("p  Hand back", "t  Write — In the agent's place.")
        bar.press("t")
        await bar.wait_for("say it in the agent's place")
        bar.press(f"The news are old.{ENTER}")
        await bar.wait_for_print("ada wrote in the agent's place: “The news are old.”")
        await bar.wait_for_view()
        bar.press("p")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        assert "ada handed the run back to the agent" in bar.output.written


async def test_r_hands_back_with_an_instruction() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("t")
        await bar.wait_for("p  Keep running")
        bar.gates["read"].set()
        await bar.wait_for("r  Redirect — A person has taken over; hand back")
        bar.press("r")
        await bar.wait_for("the agent continues, and learns what you did")
        bar.press(f"go on with the sports{ENTER}")
        assert await bar.wait_for_exit() is ExitReason.ENDED
        turns = [str(turn) async for turn in bar.run.feed() if turn.seq is not None]
        assert any("go on with the sports" in turn for turn in turns)


async def test_f_starts_a_fork_and_shows_the_command_to_attach() -> None:
    """The command names the same store; this run goes on."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("f")
        await bar.wait_for("a new run continues from here", "Esc: discard")
        bar.press(f"only the weather{ENTER}")
        await bar.wait_for("midrun attach run_", "--store sqlite:///runs.db", "Running")
        runs = (await bar.midrun.runs()).items
        assert len(runs) == 2


async def test_a_fork_needs_no_instruction() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("f")
        await bar.wait_for("Esc: discard")
        bar.press(ENTER)
        await bar.wait_for("midrun attach run_")


async def test_plan_steps_and_the_step_cap_are_shown_separately() -> None:
    async with open_bar(PLAN, READ, "Done.", stop=MaxSteps(2)) as bar:
        bar.gates["read"].set()
        shown = await bar.wait_for("Paused at the turn cap (2)", "plan 0/2 done")
        await bar.wait_for_print("the run reached a cap: at most 2 turns")
        assert shown.count("plan 0/2 done") == 1


async def test_the_bar_of_a_run_without_worker_shows_the_worker_command() -> None:
    """Not at a server, which drives its own runs."""
    async with open_bar(READ, "Done.") as bar:
        view = replace(await bar.run.view(), phase=Phase.QUEUED)
        now = Micros(view.changed_at + 60_000_000)
        local, remote = (
            Hints(target_options="--store sqlite:///x.db"),
            Hints(can_start_workers=False),
        )
        expected = "no worker drives it: midrun worker APP --store sqlite:///x.db"
        assert expected in [plain_text(line) for line in draw_bar(view, now, 80, local)]
        assert not any(
            "worker APP" in plain_text(line) for line in draw_bar(view, now, 80, remote)
        )


@pytest.mark.parametrize("key", ["\x04", "\x1a"])
async def test_ctrl_d_and_ctrl_z_show_the_key_that_leaves(key: str) -> None:
    """A suspended process would lose its runs to other workers."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press(key)
        await bar.wait_for("d leaves the bar", "Running")


async def test_pasted_lines_are_joined_to_one_text() -> None:
    """Nothing is sent before Enter is pressed."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("r")
        await bar.wait_for("Esc: discard")
        bar.press(PASTED.format("skip the sports\nand cancel\r\n\ndetach"))
        await bar.wait_for("skip the sports", "detach")
        assert (await bar.run.view()).pending == ()
        bar.press(ENTER)
        await bar.wait_for("“skip the sports and cancel detach”")


async def test_the_text_in_the_composer_survives_the_cancel_dialog() -> None:
    """Ctrl-C acts on the run also while a text is typed."""
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for(READ_IN_FLIGHT, "r  Redirect")
        bar.press("rskip the sports")
        await bar.wait_for("skip the sports")
        bar.press(CTRL_C)
        await bar.wait_for("Pausing, requested by you", "skip the sports")
        bar.press(CTRL_C)
        await bar.wait_for("Cancel this run?")
        bar.press("n")
        await bar.wait_for("skip the sports", "Esc: discard")
        bar.press(CTRL_C)
        await bar.wait_for("Cancel this run?")
        bar.press(CTRL_C)
        assert await bar.wait_for_exit() is ExitReason.QUIT
        assert "! it was not sent. Your text: skip the sports" in bar.output.written


def test_the_dialogs_have_the_words_of_the_page() -> None:
    """Buttons and states come from the server; the page has the words of its sheets itself."""
    undo = Button(
        enabled=True,
        command="cancel",
        label="Cancel",
        consequence="",
        undo=("a",),
        irreversible=("b",),
        unsure=("c",),
        release=("d",),
        undo_count=1,
    )
    nothing = Button(enabled=True, command="cancel", label="Cancel", consequence="")
    sheet = (STATIC / "cancel-sheet.js").read_text()
    dialog = draw_cancel_dialog(undo, held=True, width=80)
    titles = [plain_text(line).split(": ")[0] for line in dialog]
    for title in titles[1:5]:
        assert f'"{title.strip()}:"' in sheet
    keys = [*list_confirm_keys(undo, held=True).values()]
    keys += list_confirm_keys(nothing, held=False).values()
    for words in keys:
        label = words[:1].upper() + words[1:].replace(" 1", " ${undo_count}")
        assert label in sheet
    unsure = AskView(id=AskId("a1"), kind="unsure", call=CallId("c1"), tool="post")
    rows = (STATIC / "control-bar-rows.js").read_text()
    for words in [*list_ask_keys(unsure).values()][:3]:
        label = words[:1].upper() + words[1:].replace("'", "\N{RIGHT SINGLE QUOTATION MARK}")
        assert f">{label}<" in rows


# ── files ────────────────────────────────────────────────────────────────────


CTRL_O, CTRL_U = "\x0f", "\x15"


async def test_ctrl_o_attaches_a_file_to_a_side_question(tmp_path: Path) -> None:
    """Tab completes the path, and the text in the composer is kept."""
    (tmp_path / "receipt.txt").write_text("9 EUR")
    (tmp_path / "recipe.txt").write_text("soup")
    async with open_bar(Use("read", what="mail"), "Yes.", "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("s")
        await bar.wait_for("Ctrl-O: attach a file")
        bar.press(f"Is it paid?{CTRL_O}")
        await bar.wait_for("Tab: complete the path")
        bar.press(f"{tmp_path}/re{TAB}")
        await bar.wait_for("receipt.txt, recipe.txt", f"{tmp_path}/rec")
        bar.press(f"ip{TAB}{ENTER}")
        await bar.wait_for("Is it paid?", "with recipe.txt (text/plain, 4 bytes)")
        bar.press(f"{CTRL_O}{tmp_path}/receipt.txt{ENTER}")
        await bar.wait_for("with receipt.txt (text/plain, 5 bytes)")
        bar.press(ENTER)
        said = await wait_for_entry(bar.run, MessageReceived)
    assert said.text == "Is it paid?"
    assert [file.name for file in said.files] == ["recipe.txt", "receipt.txt"]


async def test_a_file_that_a_run_does_not_take_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path stays in the prompt, Escape returns to the text, and nothing was attached."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.bin").write_bytes(b"\0")
    (tmp_path / "large.txt").touch()
    os.truncate("large.txt", FileLimits().file_bytes + 1)
    os.mkfifo("pipe.txt")
    async with open_bar(Use("read", what="mail"), "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("r")
        await bar.wait_for("Tab: side question")
        bar.press(f"Use it{CTRL_O}")
        await bar.wait_for("Tab: complete the path")
        for name, reason in [
            ("data.bin", "no model reads application/octet-stream"),
            ("large.txt", "it has 10,485,761 bytes"),
            ("pipe.txt", "it is no regular file"),
        ]:
            bar.press(f"{name}{ENTER}")
            await bar.wait_for(f"Cannot attach {name}: {reason}")
            bar.press(CTRL_U)  # clears the line
        bar.press(f"nowhere.txt{ENTER}")
        await bar.wait_for("Cannot read the file nowhere.txt: No such file or directory")
        bar.press(ESC)
        await bar.wait_for("Use it")
        bar.press(ENTER)
        assert (await wait_for_entry(bar.run, RedirectRequested)).files == ()


async def test_an_answer_has_a_file_and_a_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    async with open_bar(Use("ask_human", question="Which?"), "Done.") as bar:
        await bar.wait_for("Waiting for a person", "Which?")
        bar.press("a")
        await bar.wait_for("t  type an answer")
        bar.press("t")
        await bar.wait_for("Enter: send", "Ctrl-O: attach a file")
        bar.press(f"{CTRL_O}{tmp_path}/a.txt{ENTER}")
        await bar.wait_for("with a.txt")
        bar.press(ENTER)
        await bar.wait_for("Cannot send files without a text. Write one.")
        bar.press(f"This one{ENTER}")
        answered = await wait_for_entry(bar.run, AskAnswered)
    assert [file.name for file in answered.files] == ["a.txt"]


async def test_a_draft_without_files_refuses_ctrl_o() -> None:
    async with open_bar(READ, "Done.") as bar:
        await bar.wait_for("Running", "Read")
        bar.press("f")
        await bar.wait_for("a new run continues from here")
        bar.press(CTRL_O)
        await bar.wait_for("Cannot attach a file here: “fork, and” takes a text only.")
