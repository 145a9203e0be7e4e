"""The bar in a real terminal, with a real process under it."""

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from midrun import Midrun
from midrun.core.entries import PauseRequested, StoodDown
from tests.unit.tui.terminals import APP, terminal

pytestmark = [pytest.mark.slow, pytest.mark.once]


def once(*texts: str) -> Callable[[str], bool]:
    """Return what tells whether each of `texts` is on a screen one time."""
    return lambda screen: all(screen.count(text) == 1 for text in texts)


def _buttons(screen: str) -> list[str]:
    """Return how the lines of the bar begin that have a key in front."""
    bar = screen.partition("Running")[2].splitlines()
    return [line[:8] for line in bar if line[1:2].strip() and line[2:4] == "  "]


def _shares_lines(screen: str) -> bool:
    """Tell whether some line of the bar has more than one button."""
    shared = [line for line in screen.splitlines() if "r  Redirect" in line]
    return any(" p  " in line or " c  " in line for line in shared)


async def test_at_80_columns_every_button_has_its_own_line(tmp_path: Path) -> None:
    """Nothing is cut off, nothing wraps by accident, and what was printed stays above."""
    async with terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        screen = await t.sees(
            "✓ write wrote Memo",
            "step 2",
            "read",
            so_that=lambda screen: _buttons(screen) == [" p  Paus", " r  Redi", " c  Canc"],
        )
        assert '→ write {"title":"Memo"}' in screen.partition("Running")[0]
        t.gate.touch()
        await t.sees("All read.", "✓ completed", "code=0")
        assert "Running" not in await t.screen(scrollback=True)  # the bar left no trace


async def test_words_come_one_by_one_and_a_pause_keeps_them(tmp_path: Path) -> None:
    """In the middle of a sentence; the half of it that was said is marked, and stays."""
    async with terminal(tmp_path, 80, "run", f"{APP}:talker", "Talk") as t:
        await t.sees("word word word", "Running")
        await t.press("p")
        await t.sees("⟨interrupted⟩", "p  Resume", so_that=once("Paused by ada"))
        await t.press("r")
        await t.sees("redirect ▸", "Esc: discard")
        await t.write("come to the point")
        await t.sees("redirect ▸ come to the point")
        await t.press("Enter")
        await t.sees("+ come to the point", "Done.", "code=0")


async def test_on_a_wide_terminal_buttons_share_lines_and_a_resize_redraws(
    tmp_path: Path,
) -> None:
    """Whatever the width, there is one bar, and all of it is there."""
    async with terminal(tmp_path, 150, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.sees("Running", so_that=_shares_lines)
        await t.resize(80)
        await t.press("?")
        await t.sees("withdraw the pending redirect")
        await t.press("?")
        await t.sees(" c  Cancel", so_that=once("Running", "r  Redirect"))
        t.gate.touch()
        await t.sees("code=0")


async def test_ctrl_c_three_times_leaves_the_run_paused(tmp_path: Path) -> None:
    """Exit code 75, and the line that resumes it."""
    async with terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.sees("Running", "read")
        await t.press("C-c")
        await t.sees("Pausing by ada", "Keep running")
        await t.press("C-c")
        await t.sees("Cancel?", 'will undo: write {"title":"Memo"}', "cancel and undo 1")
        await t.press("C-c")
        screen = await t.sees("resume with: midrun resume run_", "code=75")
        assert "and drive it: midrun attach run_" in screen


async def test_a_confirmed_cancel_undoes_and_reports(tmp_path: Path) -> None:
    """Exit code 3, and what became of everything."""
    async with terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.sees("can undo 1")
        await t.press("c")
        await t.sees("Cancel?", "y", "cancel and undo 1")
        await t.press("y")
        await t.sees("↩ undone: write", "The run is cancelled.", "## Undone", "code=3")


async def test_a_model_cannot_send_an_escape_sequence(tmp_path: Path) -> None:
    """Neither a title, nor a clean screen to lie on, nor a colour; in no text, in no call."""
    async with terminal(tmp_path, 80, "run", f"{APP}:evil", "Behave") as t:
        screen = await t.sees(
            "Running", "␛]0;owned␇␛[2J␛[H⟨U+009B⟩31mI was ⟨U+202E⟩here", "→ read"
        )
        assert "midrun pause run_" in screen  # the screen was not wiped
        assert "owned" not in await t.title()
        t.gate.touch()
        await t.sees("code=0")


async def test_what_a_blocking_tool_prints_comes_above_the_bar(tmp_path: Path) -> None:
    """It prints in a process of its own, past Python; the bar is not torn."""
    async with terminal(tmp_path, 80, "run", f"{APP}:counter", "Count") as t:
        screen = await t.sees("counting ␛[2Jcats", "c  Cancel", so_that=once("Running"))
        assert "counting" in screen.partition("Running")[0]
        t.gate.touch()
        await t.sees("Counted.", "code=0")


async def test_detaching_leaves_the_run_to_the_process(tmp_path: Path) -> None:
    """Without its bar it goes on, one line per fact."""
    async with terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.sees("Running", "read")
        await t.press("d")
        await t.sees("goes on in this process")
        t.gate.touch()
        await t.sees("the run completed", "All read.", "code=0")


async def test_a_terminal_that_knows_only_lines_gets_lines(tmp_path: Path) -> None:
    """As in an editor's shell: no cursor can be put anywhere, so there is no bar."""
    async with terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail", TERM="dumb") as t:
        screen = await t.sees("started run_", "the agent called")
        assert "p  Pause" not in screen
        t.gate.touch()
        await t.sees("the run completed", "All read.", "code=0")


@pytest.mark.parametrize("options", [[], ["--plain"]])
async def test_closing_the_terminal_pauses_what_is_driven_in_it(
    tmp_path: Path, options: list[str]
) -> None:
    """Before the driver goes: or the next worker would go on, and nobody has asked for that."""
    words = ("run", f"{APP}:clerk", "Sort the mail", *options)
    async with terminal(tmp_path, 80, *words) as t:
        await t.sees("read")
        await t.hang_up()
        with anyio.fail_after(60):
            async with Midrun(f"sqlite:///{tmp_path}/runs.db", engine=None) as midrun:
                (view,) = (await midrun.runs()).items
                kinds: list[type] = []
                async for item in (await midrun.get(view.run_id)).feed():
                    if item.seq is not None:
                        kinds.append(type(item.entry))
                    if kinds[-1:] == [StoodDown]:
                        break
                assert PauseRequested in kinds
                (view,) = (await midrun.runs()).items
                assert view.phase == "pausing"  # whoever takes it comes to rest first
