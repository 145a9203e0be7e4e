"""Updates of a run in its feed, so that a page needs no other request.

An update is the view of the run and the caller's overlay, after the entries that it includes.
It has only the fields of the view and the turns that differ from the update before.
"""

import math
from typing import Final

import anyio
from msgspec.structs import replace

from midrun.core.ids import RunId
from midrun.core.state import State
from midrun.core.values import DRIVABLE_PHASES, Actor
from midrun.runs.turns import TurnView, count_turns, list_changed_turns, list_turns
from midrun.runs.values import RunView
from midrun.runs.wire import RunOverlay, RunUpdate
from midrun.server.events import format_sse
from midrun.server.request_context import EFFECTS_MAX, ServerState
from midrun.server.runs import TURNS_PER_PAGE
from midrun.server.schemas import to_wire

DRIVEN_POLL_S: Final = 5.0
RESTING_POLL_S: Final = 20.0
"""Seconds between two looks at facts that append no entry: lost workers, halts."""


class RunUpdates:
    """Makes the updates of one stream: the view of the run as its caller sees it.

    A page that reads them needs no other request. An update has only the fields of the view
    and the turns that differ from the update before. `after` is the seq of the last update
    that the client has received on an earlier connection, None if it has none.
    """

    def __init__(
        self, server: ServerState, run: RunId, actor: Actor, after: int | None
    ) -> None:
        self._server, self._run, self._actor = server, run, actor
        self._after = after
        self._sent_state: State | None = None
        self._sent_view: dict[str, object] = {}
        self._sent_overlay: RunOverlay | None = None
        self._poll_at = -math.inf  # then the overlay is compared although no entry came
        self._not_before = -math.inf

    def forget_client(self) -> None:
        """Send all newest turns first: the client has entries that the journal has not."""
        self._after = None

    def has_sent(self, seq: int) -> bool:
        """Return whether the client has an update for the entry `seq`."""
        return self._sent_state is not None and self._sent_state.seq >= seq

    def is_due(self, last_seq: int) -> bool:
        """Return whether to make an update; `last_seq` is the newest entry."""
        now = anyio.current_time()
        return now >= self._poll_at or (now >= self._not_before and not self.has_sent(last_seq))

    def wait_s(self, last_seq: int) -> float:
        """Return the seconds until the next update is due without a new entry."""
        due = self._poll_at if self.has_sent(last_seq) else self._not_before
        return max(due - anyio.current_time(), 0)

    async def format_update(self, state: State) -> bytes:
        """Return the update for `state` as an event; empty if nothing has changed."""
        started_at = anyio.current_time()
        server = self._server
        await self._load_client_state()
        view = await server.views.show_state(state, EFFECTS_MAX)
        overlay = await server.overlays.build(state, self._actor)
        fields = _to_wire_fields(view)
        # The default is a value that no field has, so that a field which is None is sent once.
        changed = {n: v for n, v in fields.items() if self._sent_view.get(n, ...) != v}
        turns = self._list_turns(state)
        is_same = not changed and not turns and _is_same_overlay(self._sent_overlay, overlay)
        self._sent_state, self._sent_view, self._sent_overlay = state, fields, overlay
        now = anyio.current_time()
        # The view of a long run takes time to make: spend at most half of the time on it.
        self._not_before = now + (now - started_at)
        is_driven = state.phase in DRIVABLE_PHASES
        self._poll_at = now + (DRIVEN_POLL_S if is_driven else RESTING_POLL_S)
        if is_same:
            return b""
        update = RunUpdate(seq=state.seq, run=changed, overlay=overlay, turns=turns)
        return format_sse("run.updated", update)

    async def _load_client_state(self) -> None:
        """Restore the run as the client has it from an earlier connection."""
        # No server remembers its clients. The view at `after` is computed again from the
        # journal, so the first update of this connection has only the difference, as all others
        # do.
        if self._sent_state is None and self._after is not None:
            state = await self._server.events.load_state(self._run, self._after)
            view = await self._server.views.show_state(state, EFFECTS_MAX)
            self._sent_state, self._sent_view = state, _to_wire_fields(view)

    def _list_turns(self, state: State) -> tuple[TurnView, ...]:
        if self._sent_state is None or self._sent_state.seq > state.seq:
            return list_turns(
                state, max(count_turns(state) - TURNS_PER_PAGE, 0), TURNS_PER_PAGE
            )
        return list_changed_turns(self._sent_state, state)


def _to_wire_fields(view: RunView) -> dict[str, object]:
    fields = to_wire(view)
    assert isinstance(fields, dict)
    return fields


def _is_same_overlay(before: RunOverlay | None, now: RunOverlay) -> bool:
    """Return whether two overlays differ only in their times."""
    if before is None:
        return False
    times = {"now": now.now, "elapsed": now.elapsed, "seq": now.seq}
    silent = {"worker_silent_since": now.worker_silent_since}
    return replace(before, **times, **({} if now.worker_lost else silent)) == now
