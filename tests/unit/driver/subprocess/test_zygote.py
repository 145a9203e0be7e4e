"""The zygote: its end, the end of the runtime, deadlines, scripts, and many calls."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from midrun.driver.subprocess.function_lookup import mark_importing
from midrun.driver.subprocess.protocol import Died, FunctionOutcome, Raised, Returned
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.errors import Misconfigured
from midrun.ports.platform import read_boot_clock
from tests.support.conditions import wait_until
from tests.support.paths import ROOT
from tests.unit.driver.subprocess.process_calls import (
    LONG_GRACE,
    TIMEOUT_S,
    Fifo,
    GatedCall,
    ProcessEnd,
    make_task,
    process_exists,
    run_task,
    run_to_end,
    run_to_gate,
)

SCRIPTS = Path(__file__).parent / "scripts"
ZYGOTE_DIED = "the process of blocking tools has died"
LAPSED = Raised(kind="TimeoutError", message="not started: the lease has lapsed")


@contextmanager
def script(name: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Run a script of the folder `scripts` as a program of its own, and kill it at the end."""
    command = [sys.executable, str(SCRIPTS / name), *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    with subprocess.Popen(  # noqa: S603 - our own script
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("copies", [0, 1], ids=["alone", "with a forked copy"])
async def test_a_killed_runtime_leaves_no_tool_process_behind(
    tmp_path: Path, platform_name: str, copies: int
) -> None:
    """SIGKILL leaves no time to stop them, and a forked copy may hold the sockets open."""
    middle, others = GatedCall(tmp_path), Fifo(tmp_path / "others")
    paths = (middle.fifo.path, middle.gate.path, middle.effect, others.path)
    with script("holding.py", *paths, copies, platform_name) as process:
        pids = await middle.fifo.read_numbers()
        zygote, *copied = await others.read_numbers()
        watches = [ProcessEnd(pid) for pid in (*pids, zygote)]
        process.send_signal(signal.SIGKILL)
        try:
            for watch in watches:
                await watch.wait_for_end()
        finally:
            for pid in copied:
                os.kill(pid, signal.SIGKILL)
        for _ in pids:
            middle.gate.let_one_through()
    assert len(pids) == 3
    assert not middle.effect.exists()


async def test_the_calls_of_a_killed_zygote_die_and_a_new_zygote_starts(tmp_path: Path) -> None:
    outcomes: list[FunctionOutcome] = []
    middle = GatedCall(tmp_path)
    async with Zygote() as zygote, anyio.create_task_group() as group:

        async def run() -> None:
            outcomes.append(await run_task(zygote, make_task("hold_with_family", middle.args)))

        group.start_soon(run)
        pids = await middle.fifo.read_numbers()
        watches = [ProcessEnd(pid) for pid in pids]
        (link,) = zygote._processes.values()
        os.kill(link._process.pid, signal.SIGKILL)
        for watch in watches:
            await watch.wait_for_end()
        for _ in pids:
            middle.gate.let_one_through()
        assert await run_task(zygote, make_task("add", {"a": 1})) == Returned(value=2)
    (outcome,) = outcomes
    assert outcome == Died(detail=ZYGOTE_DIED)
    assert not middle.effect.exists()


async def test_a_tool_that_kills_the_zygote_does_not_outlive_it(tmp_path: Path) -> None:
    """It dies before the runtime has noticed the death of the zygote."""
    middle = GatedCall(tmp_path)
    async with Zygote() as zygote:
        outcome = await run_task(zygote, make_task("kill_the_zygote", middle.args))
        assert isinstance(outcome, Died)
        middle.gate.let_one_through()
        assert await run_task(zygote, make_task("add", {"a": 1})) == Returned(value=2)
    assert not middle.effect.exists()


async def test_a_call_of_a_zygote_that_cannot_start_has_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outcome says that the call had no effect."""
    monkeypatch.setattr(
        "midrun.driver.subprocess.zygote_client.BOOT_CODE", "raise SystemExit(1)"
    )
    async with Zygote() as zygote:
        outcome = await run_task(zygote, make_task("add", {"a": 1}))
        assert outcome == Died(started=False, detail=ZYGOTE_DIED)


async def test_a_call_of_a_frozen_zygote_can_be_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime then kills the process itself."""
    monkeypatch.setattr("midrun.driver.subprocess.zygote_client.KILL_TIMEOUT_S", 0.05)
    async with Zygote() as zygote:
        async with run_to_gate(zygote, tmp_path, "hold", timedelta()) as middle:
            watch = ProcessEnd(middle.pids[0])
            (link,) = zygote._processes.values()
            frozen = link._process.pid
            os.kill(frozen, signal.SIGSTOP)
        await watch.wait_for_end()
        os.kill(frozen, signal.SIGCONT)
        assert isinstance(middle.running.final_outcome, Died)
        assert await run_task(zygote, make_task("add", {"a": 1})) == Returned(value=2)
    assert not middle.effect.exists()


async def test_calls_are_killed_when_the_deadline_has_passed(tmp_path: Path) -> None:
    """The zygote kills them with their process groups; the runtime may be frozen."""
    async with Zygote() as zygote:
        async with run_to_gate(zygote, tmp_path, "hold_with_family") as middle:
            watches = [ProcessEnd(pid) for pid in middle.pids]
            zygote.set_deadline(read_boot_clock())
            for watch in watches:
                await watch.wait_for_end()
            assert await middle.wait_for_outcome() == Died(signal=9, detail="killed by SIGKILL")
        refused = await run_task(zygote, make_task("add", {"a": 1}))
        assert refused == LAPSED
        zygote.set_deadline(read_boot_clock() + TIMEOUT_S)
        assert await run_task(zygote, make_task("add", {"a": 1})) == Returned(value=2)
    assert len(watches) == 3
    assert not middle.effect.exists()


async def test_a_deadline_that_is_moved_in_time_kills_no_call(tmp_path: Path) -> None:
    """The newest deadline counts, also one that was set before the zygote started."""
    async with Zygote() as zygote:
        zygote.set_deadline(read_boot_clock() + TIMEOUT_S)
        async with run_to_gate(zygote, tmp_path, "hold") as middle:
            moved = read_boot_clock() + 0.05
            zygote.set_deadline(moved)
            zygote.set_deadline(moved + TIMEOUT_S)
            await wait_until(lambda: read_boot_clock() > moved)
            assert await run_task(zygote, make_task("add", {"a": 1})) == Returned(value=2)
            middle.gate.let_one_through()
            assert await middle.wait_for_outcome() == Returned(value="held")


async def test_sigint_and_sigterm_do_not_end_the_zygote(
    tmp_path: Path,
) -> None:
    """Ctrl-C and service managers signal all processes; only the driver stops calls."""
    async with Zygote() as zygote, run_to_gate(zygote, tmp_path, "hold") as middle:
        (link,) = zygote._processes.values()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(link._process.pid, number)
        middle.gate.let_one_through()
        assert await middle.wait_for_outcome() == Returned(value="held")


async def test_closing_the_zygote_ends_its_process() -> None:
    """The same holds when the context is left and when it is cancelled."""
    pids = []
    for cancelled in (False, True):
        with anyio.CancelScope() as scope:
            async with Zygote() as zygote:
                await run_task(zygote, make_task("add", {"a": 1}))
                (link,) = zygote._processes.values()
                pids.append(link._process.pid)
                if cancelled:
                    scope.cancel()
                    await anyio.sleep_forever()
    assert not [pid for pid in pids if process_exists(pid)]
    assert len(pids) == 2


async def test_no_zygote_process_starts_without_a_blocking_call() -> None:
    """Agents without blocking tools need no process."""
    async with Zygote() as zygote:
        assert not zygote._processes


def test_no_runtime_starts_while_tools_are_imported() -> None:
    """It would start a zygote, which would import the tools, and so on."""
    with (
        mark_importing("shop"),
        pytest.raises(Misconfigured, match="if __name__ == '__main__'"),
    ):
        Zygote()
    Zygote()


# ── programs ─────────────────────────────────────────────────────────────────


def test_the_zygote_finds_the_tools_of_a_script() -> None:
    """The part under `if __name__ == "__main__"` runs once."""
    with script("guarded.py") as process:
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert printed.splitlines() == [
        "imported as __main__",
        "Returned(value='hello from __midrun_main__', problem='', shown='', files=())",
    ]


def test_the_zygote_finds_the_tools_of_a_module_that_was_run_by_name() -> None:
    """`python -m` gives the script a package and relative imports."""
    command = [sys.executable, "-m", "tests.unit.driver.subprocess.scripts.guarded"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S603 - our own
    assert "hello from __midrun_main__" in done.stdout


def test_a_tool_of_a_script_without_a_main_guard_raises_with_advice() -> None:
    """Without the check, the zygote would run the agent again, in a zygote of its own."""
    with script("unguarded.py") as process:
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    (line,) = printed.splitlines()
    assert line.startswith("Raised(kind='ImportError'")
    assert "put the part that runs the agent under if __name__ == '__main__':" in line


def test_a_run_of_a_script_without_a_main_guard_fails() -> None:
    """Only the author of the script can correct it, so the run must not complete."""
    with script("unguarded_agent.py") as process:
        printed, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    (line,) = printed.splitlines()
    assert line.startswith("tool_not_importable: ImportError: ")
    assert "it starts a runtime while its tools are being imported" in line


# ── many calls ───────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_calls_leave_neither_descriptors_nor_zombies_behind(tmp_path: Path) -> None:
    """A runtime may make calls for months."""
    async with Zygote() as zygote:
        await run_task(zygote, make_task("add", {"a": 1}))
        (link,) = zygote._processes.values()
        server = link._process.pid
        gc.collect()  # else objects of earlier tests may be closed in between
        before = _count_descriptors(os.getpid()), _count_descriptors(server)
        for n in range(200):
            assert await run_task(zygote, make_task("add", {"a": n})) == Returned(value=n + 1)
            if n % 40 == 0:
                await run_task(zygote, make_task("crash"))
                await run_task(zygote, make_task("no.such.module:fn"))
                folder = tmp_path / str(n)
                folder.mkdir()
                async with run_to_gate(zygote, folder, "hold", LONG_GRACE) as middle:
                    pass
                middle.fifo.close()
                middle.gate.close()
        with anyio.fail_after(TIMEOUT_S):
            await wait_until(
                lambda: (_count_descriptors(os.getpid()), _count_descriptors(server)) == before
            )
            await wait_until(lambda: not _list_children(server))
        (link,) = zygote._processes.values()
        assert not link._observers
        assert not link._pids


def _count_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _list_children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


async def test_fifty_calls_run_in_parallel(tmp_path: Path) -> None:
    """All wait at their gates before the first gate opens."""
    outcomes: list[FunctionOutcome] = []
    folders = [tmp_path / str(n) for n in range(50)]
    for folder in folders:
        folder.mkdir()
    middles = [GatedCall(folder) for folder in folders]
    async with Zygote() as zygote, anyio.create_task_group() as group:

        async def run(middle: GatedCall) -> None:
            it = make_task("hold", middle.args)
            outcomes.append(await run_to_end(zygote, it, grace=LONG_GRACE))

        for middle in middles:
            group.start_soon(run, middle)
        for middle in middles:
            await middle.fifo.read_numbers()
        for middle in middles:
            middle.gate.let_one_through()
    assert outcomes == [Returned(value="held")] * 50
    assert all(middle.effect.exists() for middle in middles)
