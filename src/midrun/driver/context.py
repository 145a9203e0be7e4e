"""The means: what drivers of one process share. Everything from outside is handed in here."""

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
    """What a driver works with. `chance` returns numbers between 0 and 1."""

    store: Store
    holder: Holder
    agents: Mapping[str, Agent]
    model_of: Callable[[Agent], Model]
    zygote: Zygote
    user_tasks: UserTasks
    threads: CapacityLimiter  # of tools that block one; nobody else's
    live: Live
    news: News
    vault: Vault  # of secrets, which the journal must not have
    hear: Callable[[RunId, State], None]  # of what was just appended to a run, here
    limits_on: Callable[[State], Mapping[str, int]]  # of the fleet, on taking a run up
    clock: Clock
    chance: Callable[[], float]
    alone: Alone = field(default_factory=Alone)  # who makes a call that may kill
    tasks: TaskGroup  # where calls run: one that ignores its abort must not hold up its run
