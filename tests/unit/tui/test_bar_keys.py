"""The control bar, with a person's keys: every button, every sheet, and how to leave."""

import pytest
from prompt_toolkit.utils import get_cwidth

from midrun.errors import StoreUnreachable
from midrun.models import Use
from midrun.runs.values import RunView
from midrun.stops import MaxSteps
from midrun.tui import session
from midrun.tui.controller import ExitReason
from tests.unit.tui.stage import staged

READ, WRITE = Use("read", what="the news"), Use("write", title="Memo")
CTRL_C, ESC, ALT_ENTER, ENTER, TAB = "\x03", "\x1b", "\x1b\r", "\r", "\t"


async def test_p_pauses_takes_it_back_and_resumes() -> None:
    """The same key, whatever it says at the moment; the words are the run's own."""
    async with staged(READ, READ, "Done.") as stage:
        await stage.sees("Running", "p  Pause — Stops after read.")
        stage.type("p")
        await stage.sees("Pausing by ada", "Keep running — Withdraws the pause.")
        stage.type("p")
        await stage.sees("Running", "p  Pause")
        stage.type("p")
        await stage.sees("Pausing")
        stage.gates["read"].set()
        await stage.sees("Paused by ada", "p  Resume")
        stage.type("p")
        assert await stage.gone() is ExitReason.ENDED
        assert "✓ completed" in stage.paper.written


async def test_a_key_that_is_held_down_is_pressed_once() -> None:
    """Otherwise it would pause and resume by turns, and end somewhere."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("p  Pause — Stops after read.")
        stage.stop_clock()
        stage.type("p" * 20)
        await stage.sees("Pausing")
        stage.gates["read"].set()
        await stage.run.until("paused")
        await stage.sees("Paused by ada")


async def test_a_redirect_is_written_in_one_line_and_waits_for_its_step() -> None:
    """Letters are letters while somebody writes: no p, c or d reaches the run."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("r")
        await stage.sees("Enter: next step")
        stage.type("pcd? skip the sports")
        await stage.sees("pcd? skip the sports", "Running")
        stage.type(ENTER)
        await stage.sees("redirect waits for the next step: “pcd? skip the sports”")
        stage.gates["read"].set()
        assert await stage.gone() is ExitReason.ENDED
        assert "+ pcd? skip the sports" in stage.paper.written


async def test_alt_enter_redirects_now() -> None:
    """The call in flight is stopped for it."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("r")
        await stage.sees("Alt+Enter: now")
        stage.type("stop reading")
        await stage.sees("stop reading")
        stage.type(ALT_ENTER)
        assert await stage.gone() is ExitReason.ENDED
        assert "redirect now by ada: stop reading" in stage.paper.written
        assert "■ read stopped midway" in stage.paper.written


async def test_escape_discards_what_was_written() -> None:
    """And the keys are keys again."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("rnever mind")
        await stage.sees("never mind")
        stage.type(ESC)
        await stage.sees("p  Pause")
        stage.type("p")
        await stage.sees("Pausing")
        assert not (await stage.run.view()).pending


async def test_what_waits_can_be_taken_back() -> None:
    """Until its boundary has come."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type(f"rskip the sports{ENTER}")
        await stage.sees("skip the sports", "w withdraws it")
        stage.type("w")
        await stage.printed("withdrawn by ada: skip the sports")
        stage.gates["read"].set()
        assert await stage.gone() is ExitReason.ENDED


async def test_a_side_question_is_acknowledged_at_once() -> None:
    """`s`, or Tab in the composer, which keeps the text."""
    async with staged(READ, "Nearly there.", "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("rhow far are you?")
        await stage.sees("how far are you?")
        stage.type(TAB)
        await stage.sees("Tab: redirect", "how far are you?")
        stage.type(ENTER)
        await stage.sees("Hold on")
        await stage.printed("» ada: how far are you?")
        stage.gates["read"].set()
        assert await stage.gone() is ExitReason.ENDED
        assert stage.paper.written.count("Back to Sort the mail") == 1
        assert stage.paper.written.count("Done.") == 1
        assert "interrupted" not in stage.paper.written


async def test_hold_on_is_said_until_the_side_question_has_its_turn() -> None:
    """What the bar says is true now."""
    async with staged(READ, "Nearly there.", WRITE, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type(f"show far are you?{ENTER}")
        await stage.sees("Hold on", "message waits")
        stage.gates["read"].set()
        assert "Hold on" not in await stage.sees("Running", "write")


async def test_a_text_that_was_refused_comes_back_to_be_sent_again() -> None:
    """Nobody's words are lost because somebody else was faster."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("rskip the sports")
        await stage.sees("skip the sports")
        await stage.midrun.halt("fire drill", actor="operator:olga")
        await stage.sees("Halted")
        stage.type(ENTER)
        await stage.sees("redirect refused", "skip the sports", "Enter: next step")


async def test_a_text_that_comes_too_late_is_printed() -> None:
    """The run has ended under the hands of whoever wrote it."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("rskip the sports")
        await stage.sees("skip the sports")
        stage.gates["read"].set()
        assert await stage.gone() is ExitReason.ENDED
        assert "it finished first. Your text: skip the sports" in stage.paper.written


async def test_one_key_never_cancels() -> None:
    """A cancel cannot be taken back, also where the run has changed nothing yet."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "c  Cancel")
        stage.type("c")
        await stage.sees("Cancel?", "It has changed nothing that a cancel could undo.")
        stage.type("c")
        await stage.sees("Pausing by ada")
        stage.type("n")
        await stage.sees("Running")
        stage.type("c")
        await stage.sees("Cancel?", "Pausing by ada")
        stage.type("y")
        assert await stage.gone() is ExitReason.ENDED
        assert "cancel requested by ada" in stage.paper.written


@pytest.mark.parametrize(
    ("key", "said"), [("y", "↩ undone: write"), ("k", "keep finished work")]
)
async def test_a_cancel_with_effects_asks_first_and_holds_the_run(key: str, said: str) -> None:
    """Nothing new starts while somebody reads what would be undone."""
    async with staged(WRITE, READ, "Done.") as stage:
        stage.gates["write"].set()
        await stage.sees("can undo 1", "read")
        stage.type("c")
        bar = await stage.sees("Cancel?", "Nothing new starts meanwhile", "Pausing by ada")
        assert 'will undo: write {"title":"Memo"}' in bar
        assert (await stage.run.view()).hold_until is not None
        stage.type(key)
        assert await stage.gone() is ExitReason.ENDED
        assert said in stage.paper.written
        assert "■ cancelled" in stage.paper.written


async def test_a_cancel_of_a_run_that_holds_something_asks_first() -> None:
    """As the page does; and it says what the third Ctrl-C would do."""
    async with staged(Use("lock", name="door"), READ, "Done.") as stage:
        await stage.sees("Running", "releases lock")
        stage.type("c")
        await stage.sees("Cancel?", "will release: lock", "^C again leaves it paused")
        stage.type("y")
        assert await stage.gone() is ExitReason.ENDED


async def test_a_cancel_that_was_not_meant_lets_the_run_go_on() -> None:
    """Only the hold is taken back, and nothing else was asked."""
    async with staged(WRITE, READ, "Done.") as stage:
        stage.gates["write"].set()
        await stage.sees("can undo 1", "read")
        stage.type("c")
        await stage.sees("Cancel?", "Pausing")
        stage.type("n")
        await stage.sees("Running", "p  Pause")
        stage.gates["read"].set()
        assert await stage.gone() is ExitReason.ENDED
        assert "✓ completed" in stage.paper.written


async def test_ctrl_c_pauses_then_asks_then_leaves_the_run_paused() -> None:
    """Three times the same key, and nothing is lost at any of them."""
    async with staged(WRITE, "Done.") as stage:
        await stage.sees("p  Pause — Stops after write.")
        stage.type(CTRL_C)
        await stage.sees("Pausing by ada", "Keep running")
        stage.type(CTRL_C)
        await stage.sees("Cancel?", "n  back")
        stage.type(CTRL_C)
        assert await stage.gone() is ExitReason.QUIT
        view = await stage.run.view()
        assert (view.phase, view.hold_until) == ("pausing", None)


async def test_leaving_from_a_held_cancel_pauses_for_good() -> None:
    """The hold would have let go after a minute, with nobody there."""
    async with staged(WRITE, READ, "Done.") as stage:
        stage.gates["write"].set()
        await stage.sees("can undo 1", "read")
        stage.type("c")
        await stage.sees("Cancel?", "Pausing")
        stage.type(CTRL_C)
        assert await stage.gone() is ExitReason.QUIT
        assert (await stage.run.view()).hold_until is None


async def test_d_leaves_and_the_run_goes_on() -> None:
    """Detaching is nobody's pause."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running")
        stage.type("d")
        assert await stage.gone() is ExitReason.DETACHED
        stage.gates["read"].set()
        assert (await stage.run.until("terminal")).phase == "completed"


async def test_help_lists_the_keys_and_closes() -> None:
    """With the key that opened it."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running")
        stage.type("?")
        await stage.sees("redirect: Enter at the next step", "^C")
        stage.type("?")
        await stage.sees("p  Pause")


async def test_a_cap_is_raised_with_the_same_key() -> None:
    """The button says by how much."""
    async with staged(READ, "Done.", stop=MaxSteps(1)) as stage:
        stage.gates["read"].set()
        await stage.sees("Paused at the step cap (1)", "p  Raise cap, resume — Adds 10 steps")
        stage.type("p")
        assert await stage.gone() is ExitReason.ENDED
        assert "raised by ada: steps" in stage.paper.written


async def test_pasted_text_presses_no_buttons() -> None:
    """Somebody's clipboard must not cancel a run."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("p  Pause — Stops after read.")
        stage.type("\x1b[200~pcd\x1b[201~?")
        await stage.sees("^C")  # the help that came after it
        view = await stage.run.view()
        assert (view.phase, stage.left) == ("running", None)


@pytest.mark.parametrize("columns", [80, 150])
async def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    """In any sheet; wide characters count twice."""
    news = Use("read", what="ニュース" * 40)
    async with staged(WRITE, news, "Done.", columns=columns) as stage:
        stage.gates["write"].set()
        await stage.sees("Running", "can undo 1")
        for keys in ("?", "?c", "nr" + "日本" * 60):
            stage.type(keys)
            bar = await stage.sees({"?": "^C", "?c": "Cancel?"}.get(keys, "Esc: discard"))
            drawn = bar.splitlines()[:-1]  # the last is what is being written: it scrolls
            assert max(map(get_cwidth, drawn)) <= columns


async def test_a_connection_that_is_back_is_not_said_to_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While it is, what is drawn is old, and that is said; but not for ever after."""
    monkeypatch.setattr(session, "VIEW_REFRESH_MAX_INTERVAL_S", 0.01)

    async def lost() -> RunView:
        raise StoreUnreachable("sqlite:///runs.db", "nobody is there")

    async with staged(Use("read", what="news"), "All read.") as stage:
        await stage.sees("Running")
        with monkeypatch.context() as away:
            away.setattr(stage.run, "view", lost)
            await stage.sees("the run may still be working", "nobody is there")
        await stage.lacks("the run may still be working")
