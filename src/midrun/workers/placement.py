"""The protocol of a scheduler that decides where runs are driven.

Without one, every worker starts each drivable run that it finds, and the lease decides.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from midrun.agents.agent import Agent
from midrun.core.ids import RunId
from midrun.ports.store import Store
from midrun.workers.local import LocalWorker


class RunPlacement(Protocol):
    """Have `worker.drive_until_released(run)` called at least once, in some process, soon.

    Calling it too often is harmless: a run is driven only by the process that has its lease.
    """

    def place(self, run: RunId) -> None:
        """Schedule a drivable run.

        The worker calls this again for as long as the run is not driven.
        """
        ...

    def running(
        self, worker: LocalWorker, store: Store, agents: Mapping[str, Agent]
    ) -> AbstractAsyncContextManager[None]:
        """Place runs, and drive those that are placed here, while the context is open."""
        ...
