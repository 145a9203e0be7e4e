"""Live: what happens between two entries, for whoever watches. Nothing depends on it.

Tokens, notes and signs of life are not stored: a watcher that is slow or late loses them, and
finds what counts in the journal. Those who watch in this process are told at once; for those in
others, on the same store, deltas are gathered and sent through its relay, if it has one.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint

from midrun.core.ids import RunId
from midrun.driver.bell import Bell
from midrun.driver.delta import Delta
from midrun.driver.hiding import Screen
from midrun.driver.outbox import Outbox, unpacked
from midrun.ports.relay import Relay

__all__ = ["BACKLOG", "Delta", "Live"]

BACKLOG: Final = 1024
"""How many deltas a watcher may be behind before it loses the oldest."""

GAP_S: Final = 0.02
"""How long deltas are gathered before they are sent; the first of a burst leaves at once."""


class Live:
    """Hands deltas to those who watch a run right now, here and in other processes."""

    def __init__(self, relay: Relay | None = None, screen: Screen | None = None) -> None:
        self._relay = relay
        self._screen = screen
        self._watching: dict[RunId, list[tuple[deque[Delta], Bell]]] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._bell = Bell()

    def tell(self, delta: Delta) -> None:
        """Tell everybody who watches, without secrets; nobody is waited for."""
        shown = delta if self._screen is None else self._screen.passed(delta)
        if shown is None:
            return
        self._hand_on(shown)
        if self._relay is None:
            return
        for listener in self._relay.listeners(delta.run):
            outbox = self._outboxes.get(listener)
            if outbox is None:
                outbox = self._outboxes[listener] = Outbox(self._relay.limit)
            outbox.add(shown)
            self._bell.ring()

    def watched(self, run: RunId) -> bool:
        """Tell whether anybody watches `run`, so that it is worth telling."""
        if run in self._watching:
            return True
        return self._relay is not None and bool(self._relay.listeners(run))

    @contextmanager
    def watch(self, run: RunId, bell: Bell) -> Iterator[deque[Delta]]:
        """Give the deltas of `run` from now on, and ring `bell` for each."""
        watching = (deque[Delta](maxlen=BACKLOG), bell)
        if self._relay is not None and run not in self._watching:
            self._relay.listen(run)
        self._watching.setdefault(run, []).append(watching)
        try:
            yield watching[0]
        finally:
            left = self._watching[run]
            left.remove(watching)
            if not left:
                del self._watching[run]
                if self._relay is not None:
                    self._relay.leave(run)

    async def carry(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry deltas to other processes, and from them, until cancelled."""
        task_status.started()
        if self._relay is None:
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, self._relay)
                tasks.start_soon(self._receive, self._relay)
        finally:
            self._relay.close()

    async def _send(self, relay: Relay) -> None:
        while True:
            # Without a bell only if somebody has no room: it is tried again after the gap.
            await self._bell.wait(GAP_S if self._outboxes else None)
            for listener, outbox in tuple(self._outboxes.items()):
                while outbox and await relay.send(listener, outbox.message()):
                    outbox.taken()
                if not outbox:
                    del self._outboxes[listener]
            await anyio.sleep(GAP_S)

    async def _receive(self, relay: Relay) -> None:
        while True:
            for delta in unpacked(await relay.receive()):
                self._hand_on(delta)
            await checkpoint()  # a flood of them is nobody else's problem

    def _hand_on(self, delta: Delta) -> None:
        for deltas, bell in self._watching.get(delta.run, ()):
            deltas.append(delta)
            bell.ring()
