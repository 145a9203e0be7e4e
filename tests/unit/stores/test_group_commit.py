"""GroupCommit: which requests share a commit, and who learns of its failure."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from itertools import chain
from typing import Literal

import anyio
import pytest
from anyio.lowlevel import checkpoint

from midrun.errors import StoreClosed, StoreError, StoreUnreachable
from midrun.stores.group_commit import (
    GROUP_MAX_BYTES,
    GROUP_MAX_REQUESTS,
    Failure,
    GroupCommit,
    PendingWrite,
)


class Write(PendingWrite[int], kw_only=True):
    """A request with a number, which is also its result."""

    number: int


class Disk:
    """Records the groups that are committed; a commit waits while `is_open` is not set."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.is_open = anyio.Event()
        self.is_committing = anyio.Event()
        self.before_commit: Callable[[list[Write]], Awaitable[None]] | None = None
        self.group_commit = GroupCommit("disk", self.commit_group)

    async def commit_group(self, group: list[Write]) -> None:
        self.groups.append([request.number for request in group])
        self.is_committing.set()
        await self.is_open.wait()
        if self.before_commit is not None:
            await self.before_commit(group)
        for request in group:
            request.outcome = request.number

    async def write(self, number: int, *, size_bytes: int = 0) -> int:
        request = Write(number=number, size_bytes=size_bytes)
        await self.group_commit.submit(request)
        return request.get_result()

    async def write_or_fail(self, number: int) -> int | StoreError:
        try:
            return await self.write(number)
        except StoreError as failure:
            return failure


def make_disk(*, is_open: bool = True) -> Disk:
    disk = Disk()
    if is_open:
        disk.is_open.set()
    return disk


async def write_all(disk: Disk, sizes: list[int]) -> None:
    async with anyio.create_task_group() as tasks:
        for number, size_bytes in enumerate(sizes):
            tasks.start_soon(partial(disk.write, number, size_bytes=size_bytes))


async def test_requests_that_arrive_during_a_commit_form_the_next_group() -> None:
    disk = make_disk(is_open=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(disk.write, 1)
        tasks.start_soon(disk.write, 2)
        await disk.is_committing.wait()
        tasks.start_soon(disk.write, 3)
        tasks.start_soon(disk.write, 4)
        await checkpoint()
        disk.is_open.set()
    assert disk.groups == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([0] * (2 * GROUP_MAX_REQUESTS + 1), [GROUP_MAX_REQUESTS, GROUP_MAX_REQUESTS, 1]),
        ([GROUP_MAX_BYTES // 2] * 5, [2, 2, 1]),
        ([1, GROUP_MAX_BYTES + 1, 1, 1], [1, 1, 2]),
    ],
)
async def test_a_group_is_bounded_in_requests_and_bytes(
    sizes: list[int], lengths: list[int]
) -> None:
    """A request that is longer than a group is committed alone."""
    disk = make_disk()
    await write_all(disk, sizes)
    assert [len(group) for group in disk.groups] == lengths
    assert [*chain(*disk.groups)] == [*range(len(sizes))]


@pytest.mark.parametrize("moment", ["pending", "committing"])
@pytest.mark.parametrize("library", ["anyio", "asyncio"])
async def test_the_write_of_a_cancelled_caller_is_carried_out_once(
    library: Literal["anyio", "asyncio"], moment: Literal["pending", "committing"]
) -> None:
    """Also if the caller was the first of its group, and the others are not disturbed.

    AnyIO's shields do not protect from asyncio's `Task.cancel`, which `asyncio.timeout` uses.
    """
    disk = make_disk(is_open=False)
    results: list[int] = []
    scope = anyio.CancelScope()
    callers: list[asyncio.Task[object] | None] = []

    async def write_and_be_cancelled() -> None:
        callers.append(asyncio.current_task())
        with scope:
            try:
                await disk.write(1)
            except asyncio.CancelledError:
                if library == "anyio":
                    raise

    async def write() -> None:
        results.append(await disk.write(2))

    async with anyio.create_task_group() as tasks:
        if moment == "pending":
            tasks.start_soon(disk.write, 0)
            await disk.is_committing.wait()
        tasks.start_soon(write_and_be_cancelled)
        tasks.start_soon(write)
        await checkpoint()
        await disk.is_committing.wait()
        (caller,) = callers
        assert caller is not None
        if library == "anyio":
            scope.cancel()
        else:
            caller.cancel()
        await checkpoint()
        disk.is_open.set()
    assert disk.groups == ([[0], [1, 2]] if moment == "pending" else [[1, 2]])
    assert results == [2]


async def test_an_error_fails_only_the_requests_of_its_group_without_an_outcome() -> None:
    disk = make_disk(is_open=False)
    outcomes: dict[int, int | StoreError] = {}

    async def fail_first_group(group: list[Write]) -> None:
        if group[0].number == 1:
            group[0].outcome = 1
            group[1].outcome = Failure(StoreClosed("refused"))
            raise StoreUnreachable("disk", "broken")

    async def write(number: int) -> None:
        outcomes[number] = await disk.write_or_fail(number)

    disk.before_commit = fail_first_group
    async with anyio.create_task_group() as tasks:
        for number in (1, 2, 3):
            tasks.start_soon(write, number)
        await disk.is_committing.wait()
        tasks.start_soon(write, 4)
        await checkpoint()
        disk.is_open.set()
    assert outcomes[1] == 1
    assert isinstance(outcomes[2], StoreClosed)
    assert isinstance(outcomes[3], StoreUnreachable)
    assert outcomes[4] == 4


def test_a_keyboard_interrupt_fails_its_group_and_the_next_writes_are_committed() -> None:
    """Python raises it in whichever task runs. The cleanup of the program still writes."""
    disk = Disk()

    async def interrupt(_: list[Write]) -> None:
        disk.before_commit = None
        raise KeyboardInterrupt

    async def write_two_groups() -> list[int | StoreError]:
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(disk.write_or_fail(1))
            await disk.is_committing.wait()
            second = tasks.create_task(disk.write_or_fail(2))
            await checkpoint()
            disk.is_open.set()
        return [first.result(), second.result()]

    disk.before_commit = interrupt
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(write_two_groups())
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(task)
        interrupted, written = runner.get_loop().run_until_complete(task)
        assert runner.run(disk.write(3)) == 3
    assert isinstance(interrupted, StoreUnreachable)
    assert "may have taken effect: read the run" in str(interrupted)
    assert written == 2


def test_a_caller_can_write_while_its_loop_shuts_down() -> None:
    """A worker gives its leases back. The loop has cancelled the committer, too."""
    disk = Disk()
    results: list[int] = []

    async def write_and_clean_up() -> None:
        try:
            await disk.write(1)
        finally:
            disk.is_open.set()
            results.append(await disk.write(2))

    async def start() -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(write_and_clean_up())
        await disk.is_committing.wait()
        return task

    with asyncio.Runner() as runner:
        caller = runner.run(start())
    assert caller.cancelled()
    assert results == [2]
    assert disk.group_commit.committer is None


def test_the_requests_of_a_closed_loop_are_not_committed_in_another() -> None:
    """A loop can be closed without a shutdown; its tasks are freed while another loop runs."""
    disk = Disk()
    loop = asyncio.new_event_loop()
    callers = [loop.create_task(disk.write(1))]
    loop.run_until_complete(disk.is_committing.wait())
    callers.append(loop.create_task(disk.write(2)))
    loop.run_until_complete(checkpoint())
    loop.close()

    async def free_committer() -> None:
        assert disk.group_commit.committer is not None
        committer = disk.group_commit.committer.get_coro()
        assert isinstance(committer, Coroutine)
        committer.close()

    asyncio.run(free_committer())
    assert disk.group_commit.committer is None
    assert disk.groups == [[1]]


async def test_close_waits_for_the_pending_requests_and_refuses_new_ones() -> None:
    disk = make_disk(is_open=False)
    results: list[int] = []

    async def write(number: int) -> None:
        results.append(await disk.write(number))

    async with anyio.create_task_group() as tasks:
        for number in (1, 2):
            tasks.start_soon(write, number)
            await disk.is_committing.wait()
        await checkpoint()
        disk.is_open.set()
        await disk.group_commit.close()
        assert disk.group_commit.committer is None
    assert results == [1, 2]
    with pytest.raises(StoreClosed):
        await disk.write(3)
