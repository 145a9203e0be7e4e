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
from tests.unit.driver.subprocess.process_calls import (
    LONG_GRACE,
    NO_GRACE,
    TIMEOUT_S,
    TOOLS_MODULE,
    GatedCall,
    ProcessEnd,
    ignore_callback,
    make_task,
    process_exists,
    run_task,
    run_to_end,
    run_to_gate,
)


async def test_a_cancelled_tool_has_no_effect_any_more(zygote: Zygote, tmp_path: Path) -> None:
    """Its process is reaped before the gate is opened."""
    async with run_to_gate(zygote, tmp_path, "hold") as middle:
        assert process_exists(middle.pids[0])
    assert not process_exists(middle.pids[0])
    middle.gate.let_one_through()
    assert middle.running.final_outcome == Died(
        signal=signal.SIGTERM, detail="killed by SIGTERM"
    )
    assert not middle.effect.exists()


async def test_a_tool_that_is_not_cancelled_passes_the_same_gate(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The counterpart of the test above."""
    async with run_to_gate(zygote, tmp_path, "hold") as middle:
        middle.gate.let_one_through()
        assert await middle.wait_for_outcome() == Returned(value="held")
        assert middle.effect.exists()


async def test_the_child_processes_of_a_tool_die_with_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    """Shells do not pass signals on, so the whole process group is killed."""
    async with run_to_gate(zygote, tmp_path, "hold_with_family") as middle:
        watches = [ProcessEnd(pid) for pid in middle.pids]
        assert len(watches) == 3
    for watch in watches:
        await watch.wait_for_end()
    for _ in watches:
        middle.gate.let_one_through()
    assert not middle.effect.exists()


async def test_child_processes_that_a_tool_leaves_behind_die_when_it_returns(
    zygote: Zygote, tmp_path: Path
) -> None:
    middle = GatedCall(tmp_path)
    outcome = await run_task(zygote, make_task("leave_children_behind", middle.args))
    assert isinstance(outcome, Returned)
    assert isinstance(outcome.value, int)
    if process_exists(outcome.value):  # orphans are reaped by init, later
        await ProcessEnd(outcome.value).wait_for_end()
    middle.gate.let_one_through()
    assert not middle.effect.exists()


async def test_a_tool_that_ignores_sigterm_is_killed_after_its_grace(
    zygote: Zygote, tmp_path: Path
) -> None:
    async with run_to_gate(zygote, tmp_path, "ignore_requests_to_stop", NO_GRACE) as middle:
        pass
    assert not process_exists(middle.pids[0])
    assert middle.running.final_outcome == Died(
        signal=signal.SIGKILL, detail="killed by SIGKILL"
    )
    assert not middle.effect.exists()


async def test_the_outcome_of_a_tool_that_finishes_within_its_grace_is_kept(
    zygote: Zygote, tmp_path: Path
) -> None:
    """It took effect, so it is not aborted."""
    async with run_to_gate(zygote, tmp_path, "finish_when_asked_to_stop") as middle:
        pass
    assert middle.running.final_outcome == Returned(value="finished")
    assert middle.effect.exists()


async def test_progress_is_saved_within_the_grace(zygote: Zygote, tmp_path: Path) -> None:
    """A long tool saves its progress when SIGTERM arrives."""
    middle = GatedCall(tmp_path)
    saved: list[Json] = []

    async def save(progress: Json) -> None:
        saved.append(progress)

    it = make_task("save_when_asked_to_stop", middle.args)
    with anyio.fail_after(TIMEOUT_S):
        async with zygote.run_process(
            it, save=save, note=ignore_callback, grace=LONG_GRACE
        ) as running:
            await middle.fifo.read_numbers()
            middle.gate.let_one_through()
    assert saved == [{"page": 7}]
    assert running.final_outcome == Returned(value="saved")


async def test_a_save_that_was_cancelled_is_repeated_within_the_grace(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The tool still waits for it. Saving twice does no harm."""
    middle = GatedCall(tmp_path)
    attempts: list[Json] = []

    async def save(progress: Json) -> None:
        attempts.append(progress)
        if len(attempts) == 1:
            group.cancel_scope.cancel()
            await anyio.sleep_forever()

    handles: list[ProcessCall] = []

    async def run() -> None:
        it = make_task("save_when_asked_to_stop", middle.args)
        async with zygote.run_process(
            it, save=save, note=ignore_callback, grace=LONG_GRACE
        ) as running:
            handles.append(running)
            await running.wait_for_outcome()

    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await middle.fifo.read_numbers()
            middle.gate.let_one_through()
    assert attempts == [{"page": 7}] * 2
    assert [running.final_outcome for running in handles] == [Returned(value="saved")]


async def test_a_save_that_hangs_does_not_keep_the_tool_alive(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The grace also limits the time for callbacks of the tool."""
    middle = GatedCall(tmp_path)
    hanging = anyio.Event()

    async def save(progress: Json) -> None:
        del progress
        hanging.set()
        await anyio.sleep_forever()

    it = make_task("save_when_asked_to_stop", middle.args)
    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as group:

            async def run() -> None:
                grace = timedelta(milliseconds=50)
                await run_to_end(zygote, it, save=save, grace=grace)

            group.start_soon(run)
            (pid,) = await middle.fifo.read_numbers()
            middle.gate.let_one_through()
            await hanging.wait()
            group.cancel_scope.cancel()
    assert not process_exists(pid)


@pytest.mark.parametrize("waits", range(12))
async def test_a_call_can_be_cancelled_at_any_moment_of_its_start(
    zygote: Zygote, tmp_path: Path, waits: int
) -> None:
    """Before it is sent, forked or given its task: no process is left."""
    middle = GatedCall(tmp_path)
    handles: list[ProcessCall] = []

    async def run() -> None:
        it = make_task("hold", middle.args)
        async with zygote.run_process(
            it, save=ignore_callback, note=ignore_callback, grace=LONG_GRACE
        ) as running:
            handles.append(running)
            await running.wait_for_outcome()

    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            for _ in range(waits):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    for running in handles:
        assert isinstance(running.final_outcome, Died)
    middle.gate.let_one_through()
    assert not middle.effect.exists()
    assert await run_task(zygote, make_task("add", {"a": 1})) == Returned(value=2)


async def test_fifty_calls_are_cancelled_at_once(zygote: Zygote, tmp_path: Path) -> None:
    """Each call waits only for the end of its own process."""
    pids: list[int] = []
    folders = [tmp_path / str(n) for n in range(50)]
    for folder in folders:
        folder.mkdir()

    async def run(middle: GatedCall) -> None:
        it = make_task("hold", middle.args)
        await run_to_end(zygote, it, grace=LONG_GRACE)

    with anyio.fail_after(TIMEOUT_S):
        async with anyio.create_task_group() as group:
            middles = [GatedCall(folder) for folder in folders]
            for middle in middles:
                group.start_soon(run, middle)
            for middle in middles:
                pids += await middle.fifo.read_numbers()
            group.cancel_scope.cancel()
    assert len(set(pids)) == 50
    assert not [pid for pid in pids if process_exists(pid)]
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
    it = make_task("midrun_slow_module:fn", {})
    outcomes: list[FunctionOutcome] = []

    async def run_slow() -> None:
        outcomes.append(await run_task(zygote, it))

    async def stop_slow() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await run_task(zygote, it)
            pytest.fail("it was run")

    async with Zygote() as zygote, anyio.create_task_group() as group:
        async with run_to_gate(zygote, tmp_path, "hold") as middle:
            group.start_soon(run_slow)
            # `open` returns when the import has opened the pipe as well.
            writer = await anyio.to_thread.run_sync(_open_for_writing, gate)
        assert not process_exists(middle.pids[0])
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
        make_task(f"{TOOLS_MODULE}:add", {"a": 1}),
        save=ignore_callback,
        note=ignore_callback,
        grace=NO_GRACE,
    ) as running:
        assert threading.active_count() <= before
        await running.wait_for_outcome()
