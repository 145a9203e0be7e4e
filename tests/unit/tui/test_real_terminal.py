"""The bar in a real terminal (tmux) or pseudo-terminal, with a real process under it."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pexpect  # type: ignore[import-untyped]  # it has no types
import pytest

from midrun import Agent, Midrun, connect
from midrun.core.entries import LeaseReleased, PauseRequested
from midrun.models import ScriptedModel
from midrun.runs.protocols import AnyRun
from tests.support.paths import PATH_WITH_MIDRUN
from tests.unit.tui.terminals import APP, open_terminal

pytestmark = [pytest.mark.slow, pytest.mark.once]


def each_appears_once(*texts: str) -> Callable[[str], bool]:
    """Return a condition: each of `texts` is on the screen exactly once."""
    return lambda screen: all(screen.count(text) == 1 for text in texts)


def _read_buttons(screen: str) -> list[str]:
    """Return the beginnings of the lines of the bar that start with a key."""
    bar = screen.partition("Running")[2].splitlines()
    return [line[:8] for line in bar if line[1:2].strip() and line[2:4] == "  "]


def _shares_lines(screen: str) -> bool:
    """Return whether a line of the bar has more than one button."""
    labels = ("p  Pause", "r  Redirect", "s  Ask", "c  Cancel")
    return any(sum(label in line for label in labels) > 1 for line in screen.splitlines())


async def test_at_80_columns_every_button_has_its_own_line(tmp_path: Path) -> None:
    """No line wraps, and the printed lines stay above the bar."""
    async with open_terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        screen = await t.wait_for(
            "✓ write returned “wrote Memo”",
            "turn 2",
            "read",
            condition=lambda screen: (
                _read_buttons(screen) == [" p  Paus", " r  Redi", " s  Ask ", " c  Canc"]
            ),
        )
        assert "→ the agent called write (title: “Memo”)" in screen.partition("Running")[0]
        t.gate.touch()
        await t.wait_for("All read.", "✓ the run completed", "code=0")
        assert "Running" not in await t.read_screen(scrollback=True)  # the bar is erased


async def test_a_pause_marks_the_streamed_text_as_interrupted(tmp_path: Path) -> None:
    async with open_terminal(tmp_path, 80, "run", f"{APP}:talker", "Talk") as t:
        await t.wait_for("word word word", "Running")
        await t.press("p")
        await t.wait_for(
            "⟨interrupted⟩", "p  Resume", condition=each_appears_once("Paused by you")
        )
        await t.press("r")
        await t.wait_for("redirect ▸", "Esc: discard")
        await t.type_text("come to the point")
        await t.wait_for("redirect ▸ come to the point")
        await t.press("Enter")
        await t.wait_for("new instruction “come to the point”", "Done.", "code=0")


async def test_on_a_wide_terminal_buttons_share_lines_and_a_resize_redraws_the_bar(
    tmp_path: Path,
) -> None:
    async with open_terminal(tmp_path, 150, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.wait_for("Running", condition=_shares_lines)
        await t.resize(80)
        await t.press("?")
        await t.wait_for("withdraw the pending redirect")
        await t.press("?")
        await t.wait_for(" c  Cancel", condition=each_appears_once("Running", "r  Redirect"))
        t.gate.touch()
        await t.wait_for("code=0")


async def test_ctrl_c_three_times_leaves_the_run_paused(tmp_path: Path) -> None:
    """The exit code is 75, and the command that resumes the run is printed."""
    async with open_terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.wait_for("Running", "read")
        await t.press("C-c")
        await t.wait_for("Pausing, requested by you", "Keep running")
        await t.press("C-c")
        await t.wait_for(
            "Cancel this run?", "It can undo: Write: title “Memo”", "cancel and undo 1"
        )
        await t.press("C-c")
        screen = await t.wait_for("midrun resume run_", "code=75")
        assert "and drive it: midrun attach run_" in screen


async def test_a_confirmed_cancel_undoes_and_reports(tmp_path: Path) -> None:
    """The exit code is 3."""
    async with open_terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.wait_for("can undo 1")
        await t.press("c")
        await t.wait_for("Cancel this run?", "y", "cancel and undo 1")
        await t.press("y")
        await t.wait_for("↩ the run undid write", "is cancelled.", "## Undone", "code=3")


async def test_a_model_cannot_send_an_escape_sequence(tmp_path: Path) -> None:
    """Neither in a text nor in the arguments of a call."""
    async with open_terminal(tmp_path, 80, "run", f"{APP}:evil", "Behave") as t:
        screen = await t.wait_for(
            "Running", "␛]0;owned␇␛[2J␛[H⟨U+009B⟩31mI was ⟨U+202E⟩here", "the agent called read"
        )
        assert "midrun pause run_" in screen  # the screen was not cleared
        assert "owned" not in await t.read_title()
        t.gate.touch()
        await t.wait_for("code=0")


async def test_the_output_of_a_blocking_tool_is_printed_above_the_bar(tmp_path: Path) -> None:
    """It prints in a process of its own, past Python's sys.stdout."""
    async with open_terminal(tmp_path, 80, "run", f"{APP}:counter", "Count") as t:
        screen = await t.wait_for(
            "counting ␛[2Jcats", "c  Cancel", condition=each_appears_once("Running")
        )
        assert "counting" in screen.partition("Running")[0]
        t.gate.touch()
        await t.wait_for("Counted.", "code=0")


async def test_after_a_detach_the_process_drives_the_run_and_prints_plain_lines(
    tmp_path: Path,
) -> None:
    async with open_terminal(tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail") as t:
        await t.wait_for("Running", "read")
        await t.press("d")
        await t.wait_for("continues in this process")
        t.gate.touch()
        await t.wait_for("the run completed", "All read.", "code=0")


async def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    """For example a shell in an editor, which cannot move the cursor."""
    async with open_terminal(
        tmp_path, 80, "run", f"{APP}:clerk", "Sort the mail", TERM="dumb"
    ) as t:
        screen = await t.wait_for("started the run: “Sort the mail”", "the agent called")
        assert "p  Pause" not in screen
        t.gate.touch()
        await t.wait_for("the run completed", "All read.", "code=0")


@pytest.mark.parametrize("options", [[], ["--plain"]])
async def test_closing_the_terminal_pauses_the_run_that_is_driven_in_it(
    tmp_path: Path, options: list[str]
) -> None:
    """Otherwise the next worker would continue the run without a request."""
    words = ("run", f"{APP}:clerk", "Sort the mail", *options)
    async with open_terminal(tmp_path, 80, *words) as t:
        await t.wait_for("read")
        await t.close_window()
        with anyio.fail_after(60):
            async with Midrun(f"sqlite:///{tmp_path}/runs.db", engine=None) as midrun:
                (view,) = (await midrun.runs()).items
                kinds: list[type] = []
                async for item in (await midrun.get(view.run_id)).feed():
                    if item.seq is not None:
                        kinds.append(type(item.entry))
                    if kinds[-1:] == [LeaseReleased]:
                        break
                assert PauseRequested in kinds
                (view,) = (await midrun.runs()).items
                assert view.phase == "pausing"  # the next worker completes the pause first


# ── runs that another process drives ─────────────────────────────────────────


CLERK = Agent("clerk", model=ScriptedModel(["Sorted."]))
TOKEN = "a-token-that-is-long-enough-for-a-test"


@asynccontextmanager
async def serve_run(folder: Path) -> AsyncIterator[tuple[str, AnyRun]]:
    """Serve a run in a process of its own; yield the URL and the run."""
    store = f"sqlite:///{folder}/runs.db"
    command = [sys.executable, "-m", "midrun", "serve", f"{APP}:clerk", "--port", "0"]
    env = {**os.environ, "GATE": str(folder / "gate"), "MIDRUN_TOKEN": TOKEN}
    async with await anyio.open_process([*command, "--store", store], env=env) as server:
        assert server.stdout is not None
        with anyio.fail_after(60):
            link = (await server.stdout.receive()).decode().strip()
        url = link.partition("/#")[0]
        async with connect(url, token=TOKEN) as client:
            yield url, await client.start("clerk", "Sort the mail")
        server.terminate()
        with anyio.fail_after(60):
            await server.wait()


@pytest.mark.parametrize("through", ["store", "server"])
async def test_attach_controls_a_run_through_the_store_or_a_server(
    tmp_path: Path, through: str
) -> None:
    """The last lines before the attach are shown."""
    async with serve_run(tmp_path) as (url, run):
        (tmp_path / "operator").write_text(TOKEN)
        client = ["--url", url, "--token-file", str(tmp_path / "operator")]
        options = client if through == "server" else []
        async with open_terminal(tmp_path, 100, "attach", run.id[4:12], *options) as t:
            await t.wait_for(
                "Sort the mail", "✓ write returned “wrote Memo”", "Running", "read"
            )
            await t.press("p")
            await t.wait_for("Pausing, requested by", "Keep running")
            t.gate.touch()
            await t.wait_for("✓ read returned “all of news”", "Paused by", "p  Resume")
            await t.press("r")
            await t.wait_for("redirect ▸")
            await t.type_text("be brief")
            await t.press("Enter")
            await t.wait_for(
                "new instruction “be brief”", "All read.", "✓ the run completed", "code=0"
            )


async def test_detaching_from_a_run_of_another_process_ends_the_command(tmp_path: Path) -> None:
    """The exit code is 0, and the run goes on."""
    async with (
        serve_run(tmp_path) as (_, run),
        open_terminal(tmp_path, 80, "attach", run.id) as t,
    ):
        await t.wait_for("Running", "read")
        await t.press("d")
        await t.wait_for(f"attach again with: midrun attach {run.id}", "code=0")
        assert (await run.view()).phase == "running"


async def test_closing_the_terminal_does_not_stop_a_run_of_another_process(
    tmp_path: Path,
) -> None:
    async with serve_run(tmp_path) as (_, run):
        async with open_terminal(tmp_path, 80, "attach", run.id) as t:
            await t.wait_for("Running", "read")
        assert (await run.view()).phase == "running"
        (tmp_path / "gate").touch()
        with anyio.fail_after(60):
            assert (await run.until("terminal")).phase == "completed"


async def test_detaching_from_a_run_without_a_worker_does_not_say_that_it_goes_on(
    tmp_path: Path,
) -> None:
    async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[CLERK], engine=None) as mid:
        run = await mid.start("clerk", "Sort the mail")
        async with open_terminal(tmp_path, 80, "attach", run.id) as t:
            await t.wait_for("Queued")
            await t.press("d")
            screen = await t.wait_for("detached: Queued — starts as soon as")
            assert "the run continues" not in screen


# ── signals and colours, on a pseudo-terminal ────────────────────────────────


def spawn_midrun(folder: Path, *words: str, **env: str) -> "pexpect.spawn[str]":
    """Start a midrun command on a pseudo-terminal."""
    settings = {
        **os.environ,
        "PATH": PATH_WITH_MIDRUN,
        "MIDRUN_STORE": f"sqlite:///{folder}/runs.db",
        "MIDRUN_ACTOR": "ada",
        "GATE": str(folder / "gate"),
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # pexpect does not answer cursor queries
        **env,
    }
    words = ("-m", "midrun", *words)
    return pexpect.spawn(
        sys.executable,
        list(words),
        env=settings,
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 100),
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_run_paused(tmp_path: Path, number: signal.Signals) -> None:
    """The process that drives the run is about to exit."""
    child = spawn_midrun(tmp_path, "run", f"{APP}:clerk", "Sort the mail")
    child.expect("Cancel")
    child.kill(number)
    child.expect("midrun resume run_")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 75


@pytest.mark.parametrize(
    ("options", "first"),
    [([], signal.SIGHUP), ([], signal.SIGTERM), (["--plain"], signal.SIGHUP)],
)
def test_a_hangup_does_not_kill_the_process_while_it_leaves(
    tmp_path: Path, options: list[str], first: signal.Signals
) -> None:
    """A closed terminal sends SIGHUP late, or twice: the run is being paused by then."""
    child = spawn_midrun(tmp_path, "run", f"{APP}:clerk", "Sort the mail", *options)
    child.expect("the agent called read")
    child.kill(first)
    child.expect("midrun resume run_")  # the signals are not received any more
    child.kill(signal.SIGHUP)
    child.expect(pexpect.EOF)
    child.close()
    assert (child.exitstatus, child.signalstatus) == (75, None)


@pytest.mark.parametrize(("setting", "coloured"), [("", True), ("1", False)])
def test_colours_are_printed_unless_no_color_is_set(
    tmp_path: Path, setting: str, coloured: bool
) -> None:
    (tmp_path / "gate").touch()
    run = spawn_midrun(tmp_path, "run", f"{APP}:clerk", "Sort the mail", "--plain")
    run.expect(pexpect.EOF)
    listing = spawn_midrun(tmp_path, "ls", NO_COLOR=setting)
    listing.expect(pexpect.EOF)
    assert "completed" in (listing.before or "")
    assert ("\x1b[32mcompleted" in (listing.before or "")) is coloured
