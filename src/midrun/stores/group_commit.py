"""Group commit: writes that are handed in at the same time share one commit.

**Groups.** A commit costs one fsync, and one round trip to a server, whether it holds one write
or two hundred. So the tasks of an event loop do not commit themselves. `GroupCommit.submit`
adds a request to the pending ones, starts the *committer* if it does not run, and returns a
future for the caller to await. The committer is a task that takes the pending requests as a
group, commits them, wakes their callers and repeats that until no request is pending; then it
ends. It starts in the next turn of the loop, so every task that is ready now joins the first
group. The requests that arrive while a group is being committed form the next group.

**Cancellation.** A request that was handed in is carried out exactly once, also if the caller
that waits for it is cancelled: the caller only leaves. (It cannot know the outcome then; it has
to read the journal.) This is why the committer is a task of its own and not the first caller. A
caller could shield a commit from AnyIO's cancel scopes, but not from asyncio's own
`Task.cancel`, which `asyncio.timeout` uses: a caller that is cancelled in the middle of a
commit would take the whole group with it. No scope of a caller contains the committer.
`GroupCommit.close` waits for it, so it does not outlive its store.

**Errors.** The store's `commit_group` sets the outcome of each request that it has decided: a
result, or a `Failure` with the reason of a refusal. If it raises, the requests of this group
that have no outcome yet fail, and no others:

- An `Exception` is their failure.
- Any other exception (KeyboardInterrupt, say) interrupts the commit, which may have taken
  effect. They fail with `StoreUnreachable`, and the exception reaches the event loop. A new
  committer takes the pending requests.
- The event loop cancels all tasks when it shuts down, the committer and the callers alike. A
  caller may still write while it cleans up: a new committer takes such a request, too.
"""

import asyncio
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Generic, TypeVar

from anyio.lowlevel import checkpoint
from msgspec import UNSET, Struct, UnsetType

from midrun.errors import StoreClosed, StoreUnreachable
from midrun.stores.cross_thread import Waiter, wake_waiters

GROUP_MAX_REQUESTS: Final = 256
"""The most requests in one group."""

GROUP_MAX_BYTES: Final = 4 * 1024 * 1024
"""The most bytes in one group. A request that is longer is a group of its own."""

ResultT_co = TypeVar("ResultT_co", covariant=True)


class Failure(Struct, frozen=True):
    """The outcome of a request that was refused or failed."""

    error: Exception


class PendingWrite(Struct, Generic[ResultT_co], eq=False, kw_only=True):
    """A request on its way through the committer. A store adds the operation."""

    size_bytes: int = 0
    outcome: ResultT_co | Failure | UnsetType = UNSET
    waiter: Waiter | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the caller still waits."""
        return self.waiter is not None and not self.waiter.done()

    def get_result(self) -> ResultT_co:
        """Return the result of the operation, or raise its failure."""
        outcome = self.outcome
        if isinstance(outcome, Failure):
            raise outcome.error
        assert outcome is not UNSET
        return outcome


RequestT = TypeVar("RequestT", bound=PendingWrite[object])


class GroupCommit(Generic[RequestT]):
    """Commit the requests of one event loop in groups.

    `commit_group` commits a group and sets the outcome of each request. The groups are
    committed one after the other. `store_name` stands in the errors. `committer` is None while
    no request is pending and none is being committed.
    """

    def __init__(
        self, store_name: str, commit_group: Callable[[list[RequestT]], Awaitable[None]]
    ) -> None:
        self._store_name = store_name
        self._commit_group = commit_group
        self._pending: list[RequestT] = []
        self.committer: asyncio.Task[None] | None = None
        self._closed = False

    def submit(self, request: RequestT) -> Waiter:
        """Hand in `request`; return a future that is done when it has an outcome."""
        # This is not a coroutine: once it returns, the request is handed in. A cancellation
        # arrives either before that or while the caller awaits the future.
        if self._closed:
            raise StoreClosed(self._store_name)
        request.waiter = waiter = asyncio.get_running_loop().create_future()
        self._pending.append(request)
        if self.committer is None:
            self._start_committer()
        return waiter

    async def close(self) -> None:
        """Refuse new requests; return when the others have an outcome."""
        self._closed = True
        while self.committer is not None:
            # `wait` leaves the task alone if its own caller is cancelled.
            await asyncio.wait([self.committer])

    def _start_committer(self) -> None:
        self.committer = asyncio.get_running_loop().create_task(self._commit_pending())
        # An exception that ends the committer was raised from the event loop already, and the
        # callers have it as a cause. asyncio need not log it as unseen.
        self.committer.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _commit_pending(self) -> None:
        try:
            while self._pending:
                await self._commit_next_group()
                # The callers that were woken run first and can join the next group. Groups that
                # are committed without suspending do not block the event loop for long.
                if self._pending:
                    await checkpoint()
        except CancelledError:
            # The loop shuts down. A new committer for callers that are gone would not end
            # before the loop does.
            self._pending = [request for request in self._pending if request.is_awaited]
            raise
        except GeneratorExit:
            # The loop was closed without a shutdown, and the garbage collector frees the task,
            # perhaps while another loop runs: that one must not get the requests.
            self._pending.clear()
            raise
        finally:
            # No await from the last look at `_pending` to here: a request that arrives now
            # starts a new committer.
            self.committer = None
            if self._pending:
                self._start_committer()

    async def _commit_next_group(self) -> None:
        group = self._take_group()
        try:
            await self._commit_group(group)
        except BaseException as error:
            fail_requests(group, error, self._store_name)
            if not isinstance(error, Exception):
                raise
        finally:
            wake_waiters([request.waiter for request in group if request.waiter is not None])

    def _take_group(self) -> list[RequestT]:
        """Take the pending requests that fit into one group, at least one."""
        count = size_bytes = 0
        for request in self._pending[:GROUP_MAX_REQUESTS]:
            size_bytes += request.size_bytes
            if count and size_bytes > GROUP_MAX_BYTES:
                break
            count += 1
        group, self._pending = self._pending[:count], self._pending[count:]
        return group


def fail_requests(
    requests: Iterable[PendingWrite[object]], error: BaseException, store_name: str
) -> None:
    """Fail the requests that have no outcome yet, because `error` ended their commit."""
    if not isinstance(error, Exception):
        problem = (
            f"{type(error).__name__} interrupted a commit, which may have taken effect: read"
            " the run to find out"
        )
        interrupt, error = error, StoreUnreachable(store_name, problem)
        error.__cause__ = interrupt
    for request in requests:
        if request.outcome is UNSET:
            request.outcome = Failure(error)
