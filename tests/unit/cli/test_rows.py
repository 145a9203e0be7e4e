"""`midrun ls` fits its terminal, and says what is needed first."""

import os
import pty
import re
import subprocess
import sys
import termios
from itertools import product
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from midrun import Agent, Midrun, tool
from midrun.cli.output import format_row, text_width, truncate
from midrun.core.ids import Micros
from midrun.core.values import Phase
from midrun.models import ScriptedModel, Use
from midrun.runs.values import RunView
from midrun.tui.styled_text import plain_text

LONG = "Compare what the three vendors say about salt with what the harbour office has measured"
WIDE = "三つの業者の言うことを港の測定と比べて、違いを全部書き出してください"
SIZES = [80, 150]


@tool(approve=True)
async def send_mail_to_everybody(subject: str) -> str:
    """Send."""
    return subject


AGENT = Agent(
    "clerk",
    model=ScriptedModel([Use("send_mail_to_everybody", subject=LONG)]),
    tools=[send_mail_to_everybody],
)


@pytest.fixture(scope="module")
def waiting() -> RunView:
    """Give a run with a long task that waits for somebody."""
    return anyio.run(_waits)


async def _waits() -> RunView:
    async with Midrun("memory://", agents=[AGENT]) as midrun:
        return await (await midrun.start(AGENT, LONG)).until("waiting")


def told(view: RunView, columns: int | None, *, hours: int = 0) -> str:
    """Return the row, some hours later."""
    return plain_text(
        format_row(view, Micros(view.changed_at + hours * 3_600_000_000), columns)
    )


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("task", ["Sort", LONG, WIDE], ids=["short", "long", "wide"])
def test_a_row_fits_and_has_the_whole_id(waiting: RunView, columns: int, task: str) -> None:
    """Whatever there is to say besides; what was left out shows as an ellipsis."""
    for phase, hours in product(Phase, (0, 9, 100_000)):
        bare = replace(waiting, phase=phase, asks=(), task=task, parent=None)
        child, asking = replace(bare, parent=bare.run_id), replace(bare, asks=waiting.asks)
        for view in (bare, child, asking):
            row = told(view, columns, hours=hours)
            assert text_width(row) <= columns
            assert row.startswith(f"{view.run_id}  {phase}")
            assert task[:4] in row
            assert task in row or "…" in row


def test_room_is_used_where_there_is_some(waiting: RunView) -> None:
    """The step, the whole question, and the whole id of a parent."""
    asking = replace(waiting, task="Sort the mail")
    narrow, roomy = (told(asking, columns) for columns in SIZES)
    assert "! Let the a" in narrow
    assert "ago" not in narrow
    assert "! Let the agent call send_mail_to_everybody?" in roomy
    assert "0 s ago" in roomy
    child = replace(asking, asks=(), parent=waiting.run_id)
    assert told(child, 80).endswith("Sort the mail  (child)")
    assert told(child, 150).endswith(f"Sort the mail  part of {waiting.run_id}")


def test_what_a_run_needs_comes_before_what_it_is_about(waiting: RunView) -> None:
    """A list is read for what is to be done."""
    many = replace(waiting, asks=waiting.asks * 2)
    assert "  ! 2 to decide" in told(many, 80)
    assert "  ! failed" in told(replace(waiting, phase=Phase.FAILED, asks=()), 80)


def test_a_file_gets_all_of_it(waiting: RunView) -> None:
    """Programs cut for themselves; so do people who pipe it to one."""
    row = told(replace(waiting, parent=waiting.run_id), None)
    assert row.endswith(f"part of {waiting.run_id}  ! {waiting.asks[0].question}")


@pytest.mark.parametrize(
    ("text", "columns", "left"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab cd", 4, "ab…"),
        ("三つの", 5, "三つ…"),
        ("三つの", 4, "三…"),
        ("abc", 1, ""),
        ("abc", -4, ""),
    ],
)
def test_a_text_is_cut_to_fit(text: str, columns: int, left: str) -> None:
    """By columns, of which some characters take two."""
    assert truncate(text, columns) == left


@pytest.mark.slow
@pytest.mark.parametrize("columns", SIZES)
async def test_a_list_does_not_wrap_in_a_real_terminal(tmp_path: Path, columns: int) -> None:
    """As it comes out of the command; ids can be pasted from it."""
    store = f"sqlite:///{tmp_path / 'runs.db'}"
    async with Midrun(store, agents=[AGENT]) as midrun:
        runs = [await midrun.start(AGENT, task) for task in (LONG, WIDE, "Sort")]
        for run in runs:
            await run.until("waiting")
    rows = _typed(columns, "ls", "--store", store)
    assert [text_width(row) <= columns for row in rows] == [True] * len(runs)
    assert {row.split()[0] for row in rows} == {run.id for run in runs}


def _typed(columns: int, *arguments: str) -> list[str]:
    """Type a command into a terminal of that width, and return the lines that it shows."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (24, columns))
    env = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "midrun", *arguments], stdout=its, env=env | {"TERM": "xterm"}
    ) as command:
        os.close(its)
        shown = b""
        while part := _part(ours):
            shown += part
        os.close(ours)
        assert command.wait() == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines()


def _part(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the command is gone, and its end of the terminal with it
        return b""
