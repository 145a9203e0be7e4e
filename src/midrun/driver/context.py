"""The driver context: the objects that all run loops of one worker share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from anyio import CapacityLimiter
from anyio.abc import TaskGroup

from midrun.agents.agent import Agent
from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.driver.heartbeat import Holder
from midrun.driver.live import Live
from midrun.driver.notifications import News
from midrun.driver.redaction import Vault
from midrun.driver.subprocess.zygote_client import Zygote
from midrun.driver.suspect_calls import Alone
from midrun.driver.user_tasks import UserTasks
from midrun.ports.environment import Clock
from midrun.ports.model import Model
from midrun.ports.store import Store


@dataclass(frozen=True, kw_only=True)
class Means:
    """The dependencies of run loops and dispatchers, built once by the worker.

    `on_appended` is called with the new state of a run after this process appended to it, for
    example to a child run, so that the worker need not wait for the store's notification.
    `get_limits` returns the concurrency limits that apply to a run. `random_unit` returns
    random numbers between 0 and 1, which spread retries.
    """

    store: Store
    holder: Holder
    agents: Mapping[str, Agent]
    model_of: Callable[[Agent], Model]
    zygote: Zygote
    user_tasks: UserTasks
    threads: CapacityLimiter  # for tools in threads, so that they do not use up AnyIO's own
    live: Live
    news: News
    vault: Vault
    hear: Callable[[RunId, State], None]
    limits_on: Callable[[State], Mapping[str, int]]
    clock: Clock
    chance: Callable[[], float]
    alone: Alone = field(default_factory=Alone)
    tasks: TaskGroup  # the worker's: a call that ignores its abort must not hold up its run
