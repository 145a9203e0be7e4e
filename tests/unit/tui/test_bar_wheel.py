"""At the bar: to take the agent's place and give it back, and to send a new run another way."""

import pytest
from msgspec.structs import replace

from midrun.core.ids import Micros
from midrun.core.values import Phase
from midrun.models import Use
from midrun.stops import MaxSteps
from midrun.tui.bar import draw_bar
from midrun.tui.controller import ExitReason
from midrun.tui.styled_text import Hints, plain_text
from tests.unit.tui.stage import staged

READ = Use("read", what="the news")
PLAN = Use("plan", items=["Look", "Tell"], marks={"1": "running"})
CTRL_C, ENTER = "\x03", "\r"
PASTED = "\x1b[200~{}\x1b[201~"


async def test_a_person_takes_over_writes_and_hands_back() -> None:
    """All in one place; the agent is told what was written, and goes on."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running", "read")
        stage.type("t")
        await stage.sees("p  Keep running")  # the call in flight finishes first
        stage.gates["read"].set()
        await stage.sees("p  Hand back", "t  Write — In the agent's place.")
        stage.type("t")
        await stage.sees("say it in the agent's place")
        stage.type(f"The news are old.{ENTER}")
        await stage.printed("· ada: The news are old.")
        await stage.caught_up()
        stage.type("p")
        assert await stage.gone() is ExitReason.ENDED
        assert "handed back by ada" in stage.paper.written


async def test_it_is_handed_back_with_words_by_the_key_of_new_words() -> None:
    """The button says so: hand back, with an instruction if you like."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running", "read")
        stage.type("t")
        await stage.sees("p  Keep running")
        stage.gates["read"].set()
        await stage.sees("r  Redirect — A person has taken over; hand back")
        stage.type("r")
        await stage.sees("the agent goes on, and learns what you did")
        stage.type(f"go on with the sports{ENTER}")
        assert await stage.gone() is ExitReason.ENDED
        turns = [str(turn) async for turn in stage.run.feed() if turn.seq is not None]
        assert any("go on with the sports" in turn for turn in turns)


async def test_a_fork_goes_on_elsewhere_and_says_how_to_watch_it() -> None:
    """With the store that this one was found in; this run is as it was."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running", "read")
        stage.type("f")
        await stage.sees("a new run goes on from here", "Esc: discard")
        stage.type(f"only the weather{ENTER}")
        await stage.sees("midrun attach run_", "--store sqlite:///runs.db", "Running")
        runs = (await stage.midrun.runs()).items
        assert len(runs) == 2


async def test_a_fork_needs_no_words() -> None:
    """Then it goes on as this one would have."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running", "read")
        stage.type("f")
        await stage.sees("Esc: discard")
        stage.type(ENTER)
        await stage.sees("midrun attach run_")


async def test_the_steps_of_a_plan_are_told_from_those_of_a_cap() -> None:
    """Nobody should ask why a run at step 1 of 2 has made all of its two steps."""
    async with staged(PLAN, READ, "Done.", stop=MaxSteps(2)) as stage:
        stage.gates["read"].set()
        bar = await stage.sees("Paused at the step cap (2)", "plan step 1 of 2")
        await stage.printed("cap reached: at most 2 steps")
        assert bar.count("step 1 of 2") == 1


async def test_a_run_that_nobody_drives_says_what_to_type() -> None:
    """As it is typed here; at a server nobody can: it drives its own."""
    async with staged(READ, "Done.") as stage:
        view = replace(await stage.run.view(), phase=Phase.QUEUED)
        now = Micros(view.changed_at + 60_000_000)
        near, far = (
            Hints(target_options="--store sqlite:///x.db"),
            Hints(can_start_workers=False),
        )
        told = "no worker drives it: midrun worker APP --store sqlite:///x.db"
        assert told in [plain_text(line) for line in draw_bar(view, now, 80, near)]
        assert not any(
            "worker APP" in plain_text(line) for line in draw_bar(view, now, 80, far)
        )


@pytest.mark.parametrize("key", ["\x04", "\x1a"])
async def test_keys_that_leave_elsewhere_say_how_it_is_done_here(key: str) -> None:
    """Suspended, this process would lose its run to others, and nobody means that."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Running", "read")
        stage.type(key)
        await stage.sees("d leaves the bar", "Running")


async def test_a_text_of_many_lines_is_pasted_as_one() -> None:
    """No line of it is sent before the whole is there, and nothing after it is a key."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("r")
        await stage.sees("Esc: discard")
        stage.type(PASTED.format("skip the sports\nand cancel\r\n\ndetach"))
        await stage.sees("skip the sports", "detach")
        assert (await stage.run.view()).pending == ()
        stage.type(ENTER)
        await stage.sees(
            "redirect waits for the next step: “skip the sports and cancel detach”"
        )


async def test_a_line_that_is_being_written_outlives_the_question_whether_to_cancel() -> None:
    """Ctrl-C reaches the run while somebody writes; their words are not its price."""
    async with staged(READ, "Done.") as stage:
        await stage.sees("Stops after read", "r  Redirect")
        stage.type("rskip the sports")
        await stage.sees("skip the sports")
        stage.type(CTRL_C)
        await stage.sees("Pausing by ada", "skip the sports")
        stage.type(CTRL_C)
        await stage.sees("Cancel?")
        stage.type("n")
        await stage.sees("skip the sports", "Esc: discard")
        stage.type(CTRL_C)
        await stage.sees("Cancel?")
        stage.type(CTRL_C)
        assert await stage.gone() is ExitReason.QUIT
        assert "! it was not sent. Your text: skip the sports" in stage.paper.written
