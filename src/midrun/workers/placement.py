"""Placing: what decides where runs are driven, if it is not simply whoever is there first."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from midrun.agents.agent import Agent
from midrun.core.ids import RunId
from midrun.ports.store import Store
from midrun.workers.local import Local


class Placing(Protocol):
    """Sees to it that `local.driven(run)` is called at least once, somewhere, soon.

    Too often does no harm: a run is driven by whoever has its lease, and by nobody else.
    """

    def place(self, run: RunId) -> None:
        """Hear that `run` can be driven; it is told again for as long as nobody does."""
        ...

    def running(
        self, local: Local, store: Store, agents: Mapping[str, Agent]
    ) -> AbstractAsyncContextManager[None]:
        """Place runs, and drive what is placed here, while the context is open."""
        ...
