"""Workers that die on the host of another worker: their leases do not have to expire.

The leases of these tests last for hours, so only the proof that the holder is gone ends them.
"""

import os
import select
import signal
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from midrun import Midrun
from midrun.core.entries import LeaseTaken
from midrun.core.ids import RunId
from midrun.driver import holder_socket
from midrun.driver.holder_socket import HolderSocket, is_holder_gone, read_host_id
from midrun.ports.environment import Environment
from midrun.workers import local
from tests.crash.child import LONG_LEASE
from tests.crash.conftest import ChildProcess, start_child
from tests.crash.recording_tools import make_waiting_agent, read_actions
from tests.support.conditions import wait_until
from tests.support.store_choice import get_store_url

LEASE_S = 60 * LONG_LEASE.total_seconds()


class Judgments:
    """The judgments of the worker in this process about other holders, in order."""

    def __init__(self) -> None:
        self.made: list[bool] = []

    def judge(self, holder_name: str) -> bool:
        is_gone = is_holder_gone(holder_name)
        self.made.append(is_gone)
        return is_gone

    async def wait_for_two_more(self) -> None:
        """Wait until the holder was judged twice from now on."""
        count = len(self.made)
        await wait_until(lambda: len(self.made) >= count + 2)


@pytest.fixture
def judgments(monkeypatch: pytest.MonkeyPatch) -> Judgments:
    judgments = Judgments()
    monkeypatch.setattr(local, "is_holder_gone", judgments.judge)
    return judgments


def open_worker(path: Path, tool: str) -> Midrun:
    agent = make_waiting_agent(tool, path.parent)
    environment = Environment(lease=LONG_LEASE)
    return Midrun(get_store_url(path), agents=[agent], outside=environment)


async def count_leases(midrun: Midrun, run_id: str) -> int:
    records = await midrun.store.read(RunId(run_id))
    return sum(isinstance(record.entry, LeaseTaken) for record in records)


async def wait_for_first_action(path: Path) -> int:
    """Wait until the tool has begun; return the pid of the process that it runs in."""
    await wait_until(lambda: bool(read_actions(path.parent)))
    return read_actions(path.parent)[0].pid


def find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def kill(process: ChildProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)


async def test_the_run_of_a_killed_worker_goes_on_before_its_lease_expires(path: Path) -> None:
    with start_child("drive", path.parent, "linger", LEASE_S) as process:
        run_id = await process.read_line()
        await wait_for_first_action(path)
        await anyio.Path(path.parent / "open").touch()
        kill(process)
        await process.wait()
        async with open_worker(path, "linger") as midrun:
            run = await midrun.get(run_id)
            await run.until("completed")
            assert await count_leases(midrun, run_id) == 2


async def test_a_frozen_worker_keeps_its_lease(path: Path, judgments: Judgments) -> None:
    with start_child("drive", path.parent, "linger", LEASE_S) as process:
        run_id = await process.read_line()
        await wait_for_first_action(path)
        process.freeze()
        async with open_worker(path, "linger") as midrun:
            await judgments.wait_for_two_more()
            assert await count_leases(midrun, run_id) == 1
            kill(process)
            await anyio.Path(path.parent / "open").touch()
            await (await midrun.get(run_id)).until("completed")
    assert judgments.made.count(True) == 1  # one judgment, and its leases were free


async def test_a_dead_worker_keeps_its_lease_while_its_tool_process_lives(
    path: Path, judgments: Judgments
) -> None:
    """The zygote is frozen, so it cannot kill the tool. Then it wakes and does."""
    os.mkfifo(path.parent / "gate-1")
    with start_child("drive", path.parent, "labour", LEASE_S) as process:
        run_id = await process.read_line()
        tool_pid = await wait_for_first_action(path)
        tool_fd = os.pidfd_open(tool_pid)
        zygote_pid = find_parent(tool_pid)
        os.kill(zygote_pid, signal.SIGSTOP)
        try:
            kill(process)
            await process.wait()
            async with open_worker(path, "labour") as midrun:
                await judgments.wait_for_two_more()
                assert await count_leases(midrun, run_id) == 1
                os.kill(zygote_pid, signal.SIGCONT)
                run = await midrun.get(run_id)
                view = await run.until("waiting")
                assert [ask.kind for ask in view.asks] == ["unsure"]
                # A descriptor of a process is readable when the process has ended.
                assert select.select([tool_fd], [], [], 0)[0]
                await run.cancel()
                await run.until("cancelled")
        finally:
            os.close(tool_fd)
            with suppress(ProcessLookupError):
                os.kill(zygote_pid, signal.SIGCONT)


def test_a_holder_is_gone_when_its_socket_is_closed() -> None:
    with HolderSocket("p_1") as holder:
        assert holder.holder_name == f"p_1@{read_host_id()}"
        assert not is_holder_gone(holder.holder_name)
    assert is_holder_gone(holder.holder_name)


@pytest.mark.parametrize("name", ["p_2", "p_2@", "p_2@0123456789abcdef"])
def test_a_holder_of_another_or_an_unknown_host_is_not_judged(name: str) -> None:
    assert not is_holder_gone(name)


@pytest.mark.parametrize("source", ["BOOT_ID_PATH", "NAMESPACE_PATH"])
def test_without_a_host_id_no_holder_is_judged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str
) -> None:
    """A host id needs both: a container shares the boot id, but not the namespace."""
    known = f"p_3@{read_host_id()}"
    monkeypatch.setattr(holder_socket, source, tmp_path / "missing")
    with HolderSocket("p_3") as holder:
        assert (holder.holder_name, holder.fd) == ("p_3", None)
    assert not is_holder_gone(known)


def test_two_namespaces_have_different_host_ids(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ours, link = read_host_id(), tmp_path / "net"
    link.symlink_to("net:[1]")
    monkeypatch.setattr(holder_socket, "NAMESPACE_PATH", link)
    assert read_host_id() not in {"", ours}


def test_a_name_that_is_taken_proves_nothing() -> None:
    """Two workers with the same id: the second has no socket, and its name no host id."""
    with HolderSocket("p_4") as first, HolderSocket("p_4") as second:
        assert first.fd is not None
        assert (second.holder_name, second.fd) == ("p_4", None)
