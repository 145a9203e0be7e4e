"""Stopping a blocking tool: after the stop its process has no effect any more."""

import os
import signal
import threading
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun.core.values import Json
from midrun.driver.subprocess.protocol import Died, FunctionOutcome, Returned
from midrun.driver.subprocess.zygote_client import ProcessCall, Zygote
from tests.unit.driver.subprocess.scene import (
    DEEDS,
    LONG,
    NONE,
    PATIENCE,
    Middle,
    Watch,
    errand,
    ignore,
    in_the_middle,
    is_there,
    outcome_of,
)


async def test_a_cancelled_tool_has_no_effect_any_more(zygote: Zygote, tmp_path: Path) -> None:
    """Its process is reaped before the gate is opened."""
    async with in_the_middle(zygote, tmp_path, "hold") as middle:
        assert is_there(middle.pids[0])
    assert not is_there(middle.pids[0])
    middle.gate.open()
    assert middle.running.final_outcome == Died(
        signal=signal.SIGTERM, detail="killed by SIGTERM"
    )
    assert not middle.effect.exists()


async def test_a_tool_that_is_not_cancelled_passes_the_same_gate(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The counterpart of the test above."""
    async with in_the_middle(zygote, tmp_path, "hold") as middle:
        middle.gate.open()
        assert await middle.outcome() == Returned(value="held")
        assert middle.effect.exists()


async def test_the_child_processes_of_a_tool_die_with_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Shells do not pass signals on, so the whole process group is killed."""
    async with in_the_middle(zygote, tmp_path, "hold_with_family") as middle:
        watches = [Watch(pid) for pid in middle.pids]
        assert len(watches) == 3
    for watch in watches:
        await watch.end()
    for _ in watches:
        middle.gate.open()
    assert not middle.effect.exists()


async def test_child_processes_that_a_tool_leaves_behind_die_when_it_returns(
    zygote: Zygote, tmp_path: Path
) -> None:
    middle = Middle(tmp_path)
    outcome = await outcome_of(zygote, errand("leave_children_behind", middle.args))
    assert isinstance(outcome, Returned)
    assert isinstance(outcome.value, int)
    if is_there(outcome.value):  # orphans are reaped by init, later
        await Watch(outcome.value).end()
    middle.gate.open()
    assert not middle.effect.exists()


async def test_a_tool_that_ignores_sigterm_is_killed_after_its_grace(
    zygote: Zygote, tmp_path: Path
) -> None:
    async with in_the_middle(zygote, tmp_path, "ignore_requests_to_stop", NONE) as middle:
        pass
    assert not is_there(middle.pids[0])
    assert middle.running.final_outcome == Died(
        signal=signal.SIGKILL, detail="killed by SIGKILL"
    )
    assert not middle.effect.exists()


async def test_the_outcome_of_a_tool_that_finishes_within_its_grace_is_kept(
    zygote: Zygote, tmp_path: Path
) -> None:
    """It took effect, so it is not aborted."""
    async with in_the_middle(zygote, tmp_path, "finish_when_asked_to_stop") as middle:
        pass
    assert middle.running.final_outcome == Returned(value="finished")
    assert middle.effect.exists()


async def test_progress_is_saved_within_the_grace(zygote: Zygote, tmp_path: Path) -> None:
    """A long tool saves its progress when SIGTERM arrives."""
    middle = Middle(tmp_path)
    saved: list[Json] = []

    async def save(progress: Json) -> None:
        saved.append(progress)

    it = errand("save_when_asked_to_stop", middle.args)
    with anyio.fail_after(PATIENCE):
        async with zygote.run_process(it, save=save, note=ignore, grace=LONG) as running:
            await middle.fifo.hear()
            middle.gate.open()
    assert saved == [{"page": 7}]
    assert running.final_outcome == Returned(value="saved")


async def test_a_save_that_was_cancelled_is_repeated_within_the_grace(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The tool still waits for it. Saving twice does no harm."""
    middle = Middle(tmp_path)
    attempts: list[Json] = []

    async def save(progress: Json) -> None:
        attempts.append(progress)
        if len(attempts) == 1:
            group.cancel_scope.cancel()
            await anyio.sleep_forever()

    handles: list[ProcessCall] = []

    async def run() -> None:
        it = errand("save_when_asked_to_stop", middle.args)
        async with zygote.run_process(it, save=save, note=ignore, grace=LONG) as running:
            handles.append(running)
            await running.wait_for_outcome()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await middle.fifo.hear()
            middle.gate.open()
    assert attempts == [{"page": 7}] * 2
    assert [running.final_outcome for running in handles] == [Returned(value="saved")]


async def test_a_save_that_hangs_does_not_keep_the_tool_alive(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The grace also limits the time for callbacks of the tool."""
    middle = Middle(tmp_path)
    hanging = anyio.Event()

    async def save(progress: Json) -> None:
        del progress
        hanging.set()
        await anyio.sleep_forever()

    it = errand("save_when_asked_to_stop", middle.args)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                grace = timedelta(milliseconds=50)
                await zygote.run_to_end(it, save=save, note=ignore, grace=grace)

            group.start_soon(run)
            (pid,) = await middle.fifo.hear()
            middle.gate.open()
            await hanging.wait()
            group.cancel_scope.cancel()
    assert not is_there(pid)


@pytest.mark.parametrize("waits", range(12))
async def test_a_call_can_be_cancelled_at_any_moment_of_its_start(
    zygote: Zygote, tmp_path: Path, waits: int
) -> None:
    """Before it is sent, forked or given its task: no process is left."""
    middle = Middle(tmp_path)
    handles: list[ProcessCall] = []

    async def run() -> None:
        it = errand("hold", middle.args)
        async with zygote.run_process(it, save=ignore, note=ignore, grace=LONG) as running:
            handles.append(running)
            await running.wait_for_outcome()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            for _ in range(waits):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    for running in handles:
        assert isinstance(running.final_outcome, Died)
    middle.gate.open()
    assert not middle.effect.exists()
    assert await outcome_of(zygote, errand("add", {"a": 1})) == Returned(value=2)


async def test_fifty_calls_are_cancelled_at_once(zygote: Zygote, tmp_path: Path) -> None:
    """Each call waits only for the end of its own process."""
    pids: list[int] = []
    folders = [tmp_path / str(n) for n in range(50)]
    for folder in folders:
        folder.mkdir()

    async def run(middle: Middle) -> None:
        it = errand("hold", middle.args)
        await zygote.run_to_end(it, save=ignore, note=ignore, grace=LONG)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            middles = [Middle(folder) for folder in folders]
            for middle in middles:
                group.start_soon(run, middle)
            for middle in middles:
                pids += await middle.fifo.hear()
            group.cancel_scope.cancel()
    assert len(set(pids)) == 50
    assert not [pid for pid in pids if is_there(pid)]
    assert not [folder for folder in folders if (folder / "effect").exists()]


async def test_a_call_is_killed_while_the_module_of_another_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import may take seconds, and a cancel must not wait for it."""
    slow = tmp_path / "midrun_slow_module.py"
    gate = tmp_path / "import"
    os.mkfifo(gate)
    slow.write_text(f"open({str(gate)!r}).read()\ndef fn() -> int:\n    return 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    it = errand("midrun_slow_module:fn", {})
    outcomes: list[FunctionOutcome] = []

    async def run_slow() -> None:
        outcomes.append(await outcome_of(zygote, it))

    async def stop_slow() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await outcome_of(zygote, it)
            pytest.fail("it was run")

    async with Zygote() as zygote, anyio.create_task_group() as group:
        async with in_the_middle(zygote, tmp_path, "hold") as middle:
            group.start_soon(run_slow)
            # `open` returns when the import has opened the pipe as well.
            writer = await anyio.to_thread.run_sync(_open_for_writing, gate)
        assert not is_there(middle.pids[0])
        await stop_slow()
        os.close(writer)
    assert outcomes == [Returned(value=5)]
    assert not middle.effect.exists()


def _open_for_writing(path: Path) -> int:
    return os.open(path, os.O_WRONLY)


async def test_a_call_uses_no_thread_of_the_runtime(zygote: Zygote) -> None:
    """A thousand calls would need a thousand threads."""
    before = threading.active_count()
    async with zygote.run_process(
        errand(f"{DEEDS}:add", {"a": 1}), save=ignore, note=ignore, grace=NONE
    ) as running:
        assert threading.active_count() <= before
        await running.wait_for_outcome()
