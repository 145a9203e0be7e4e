"""A bar on a run that somebody else drives: through the store, or through a server."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from midrun import Agent, Midrun, connect
from midrun.models import ScriptedModel
from midrun.runs.protocols import AnyRun
from tests.unit.tui.terminals import APP, terminal

pytestmark = [pytest.mark.slow, pytest.mark.once]

CLERK = Agent("clerk", model=ScriptedModel(["Sorted."]))
TOKEN = "a-token-that-is-long-enough-for-a-test"


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[tuple[str, AnyRun]]:
    """Have a server drive a run in a process of its own; give its address, and the run."""
    store = f"sqlite:///{folder}/runs.db"
    command = [sys.executable, "-m", "midrun", "serve", f"{APP}:clerk", "--port", "0"]
    env = {**os.environ, "GATE": str(folder / "gate"), "MIDRUN_TOKEN": TOKEN}
    async with await anyio.open_process([*command, "--store", store], env=env) as serving:
        assert serving.stdout is not None
        with anyio.fail_after(60):
            link = (await serving.stdout.receive()).decode().strip()
        url = link.partition("/#")[0]
        async with connect(url, token=TOKEN) as far:
            yield url, await far.start("clerk", "Sort the mail")
        serving.terminate()
        with anyio.fail_after(60):
            await serving.wait()


@pytest.mark.parametrize("through", ["store", "server"])
async def test_a_run_that_others_drive_is_steered_from_here(
    tmp_path: Path, through: str
) -> None:
    """The same bar, the same keys, the same words; what was before is recalled in short."""
    async with served(tmp_path) as (url, run):
        (tmp_path / "operator").write_text(TOKEN)
        far = ["--url", url, "--token-file", str(tmp_path / "operator")]
        where = far if through == "server" else []
        async with terminal(tmp_path, 100, "attach", run.id[4:12], *where) as t:
            await t.sees("Sort the mail", "✓ write wrote Memo", "Running", "read")
            await t.press("p")
            await t.sees("Pausing by", "Keep running")
            t.gate.touch()
            await t.sees("✓ read all of news", "Paused by", "p  Resume")
            await t.press("r")
            await t.sees("redirect ▸")
            await t.write("be brief")
            await t.press("Enter")
            await t.sees("+ be brief", "All read.", "✓ completed", "code=0")


async def test_detaching_from_a_run_that_others_drive_ends_the_command(tmp_path: Path) -> None:
    """And nothing else: exit code 0, the run goes on."""
    async with served(tmp_path) as (_, run), terminal(tmp_path, 80, "attach", run.id) as t:
        await t.sees("Running", "read")
        await t.press("d")
        await t.sees(f"attach again with: midrun attach {run.id}", "code=0")
        assert (await run.view()).phase == "running"


async def test_a_terminal_that_goes_away_stops_nothing_that_others_drive(
    tmp_path: Path,
) -> None:
    """Closing a window is no control."""
    async with served(tmp_path) as (_, run):
        async with terminal(tmp_path, 80, "attach", run.id) as t:
            await t.sees("Running", "read")
        assert (await run.view()).phase == "running"
        (tmp_path / "gate").touch()
        with anyio.fail_after(60):
            assert (await run.until("terminal")).phase == "completed"


async def test_detaching_from_a_run_without_a_worker_does_not_say_that_it_goes_on(
    tmp_path: Path,
) -> None:
    """It waits, and the command says for what."""
    async with Midrun(f"sqlite:///{tmp_path}/runs.db", agents=[CLERK], engine=None) as mid:
        run = await mid.start("clerk", "Sort the mail")
        async with terminal(tmp_path, 80, "attach", run.id) as t:
            await t.sees("Queued")
            await t.press("d")
            screen = await t.sees("detached: Queued — starts as soon as a worker takes it")
            assert "goes on" not in screen
