"""The driver context: the objects that all run loops of one worker share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from anyio import CapacityLimiter
from anyio.abc import TaskGroup

from midrun.agents.agent import Agent
from midrun.agents.file import File
from midrun.core.entries import RunStarted
from midrun.core.ids import RunId
from midrun.core.lru import LruDict
from midrun.core.state import State
from midrun.driver.call_contexts import CallContexts
from midrun.driver.heartbeat import LeaseHeartbeat
from midrun.driver.live import LiveOutput
from midrun.driver.notifications import ChangeNotifier
from midrun.driver.redaction import SecretRegistry
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.driver.suspect_calls import SuspectCallGate
from midrun.driver.user_code import UserTasks
from midrun.errors import StoreError
from midrun.ports.environment import Clock
from midrun.ports.model import Model
from midrun.ports.store import Store

FILE_CACHE_MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of files that a worker keeps for the next model calls of its runs."""

FILE_CACHE_MAX_FILES: Final = 1_000


class Quotas(Protocol):
    """The quotas that bound the spend and the storage of runs while they work."""

    async def find_used_spend(self, before: State, after: State) -> str:
        """Return the quota on spend that is used up, as text for the journal; "" for none.

        `before` is the state that the store has, `after` the one with the calls that have
        ended since.
        """
        ...

    def add_spend(self, before: State, after: State) -> None:
        """Count what the run has spent with the append that led from `before` to `after`."""
        ...

    async def find_storage_problem(self, started: RunStarted, files: Sequence[File]) -> str:
        """Say which quota leaves no room for `files` of this run; "" if they fit."""
        ...


@dataclass(frozen=True, kw_only=True)
class DriverContext:
    """The dependencies of run loops and dispatchers, built once by the worker.

    `on_appended` is called with the new state of a run after this process appended to it, for
    example to a child run, so that the worker need not wait for the store's notification.
    `get_models` returns the model of an agent, and then its fallbacks. `get_limits` returns the
    concurrency limits that apply to a run. `random_unit` returns random numbers between 0 and
    1, which spread retries. `quotas` bound all runs of their users and tenants. `file_cache`
    has the bodies of files by run and hash.
    """

    store: Store
    heartbeat: LeaseHeartbeat
    agents: Mapping[str, Agent]
    get_models: Callable[[Agent], Sequence[Model]]
    zygote: Zygote
    user_tasks: UserTasks
    call_contexts: CallContexts
    thread_limiter: (
        CapacityLimiter  # for tools in threads, so that they do not use up AnyIO's own
    )
    live_output: LiveOutput
    change_notifier: ChangeNotifier
    secret_registry: SecretRegistry
    on_appended: Callable[[RunId, State], None]
    get_limits: Callable[[State], Mapping[str, int]]
    quotas: Quotas | None = None  # None: there are no quotas
    clock: Clock
    random_unit: Callable[[], float]
    suspect_gate: SuspectCallGate = field(default_factory=SuspectCallGate)
    file_cache: LruDict[tuple[RunId, str], bytes] = field(
        default_factory=partial(
            LruDict, max_items=FILE_CACHE_MAX_FILES, max_weight=FILE_CACHE_MAX_BYTES
        )
    )
    task_group: (
        TaskGroup  # the worker's: a call that ignores its abort must not hold up its run
    )

    async def find_storage_problem(self, started: RunStarted, files: Sequence[File]) -> str:
        """Say which quota leaves no room for `files` of a call; "" if they fit.

        If the store does not answer, the files are accepted: the call has taken effect, and an
        error here would make its outcome unknown.
        """
        if self.quotas is None or not files:
            return ""
        try:
            return await self.quotas.find_storage_problem(started, files)
        except StoreError:
            return ""

    def drop_files(self, run: RunId) -> None:
        """Drop the files of a run that is not driven here any more."""
        for key in [key for key in self.file_cache if key[0] == run]:
            self.file_cache.pop(key)
