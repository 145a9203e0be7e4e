"""Helpers of the handlers: actor fields, and wake-ups of waiting runs."""

from hashlib import sha256
from typing import TypedDict

import msgspec
from msgspec.structs import replace

from midrun.core.controls import Control
from midrun.core.entries import Entry, RunWaiting, RunWoken
from midrun.core.evolve import apply_entries
from midrun.core.scheduler import orphaned_child_cleanup
from midrun.core.state import State
from midrun.core.values import Phase


class ActorFields(TypedDict):
    """The actor fields of an entry that follows from a control."""

    by: str
    role: str


class RequestFields(ActorFields):
    """The fields of the entry that records a control itself."""

    request: str
    digest: str
    reason: str


def make_request_fields(control: Control) -> RequestFields:
    """Return the fields of the entry that records `control` itself."""
    return RequestFields(
        **make_actor_fields(control),
        request=control.request,
        digest=compute_digest(control) if control.request else "",
        reason=control.reason,
    )


def make_actor_fields(control: Control) -> ActorFields:
    """Return the fields of an entry that only follows from `control`."""
    return ActorFields(by=control.by.name, role=control.by.role)


def compute_digest(control: Control) -> str:
    """Return a digest of the control's content, to detect a reused request id."""
    # `seen` is left out: a client that retries a request may have seen a newer revision.
    plain = replace(control, request="", seen=None)
    return sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()[:16]


def add_wakeup(state: State, entries: tuple[Entry, ...], reason: str) -> tuple[Entry, ...]:
    """Append `RunWoken` if `entries` give a waiting run something to do."""
    if state.phase is Phase.WAITING and can_continue(apply_entries(state, entries)):
        return (*entries, RunWoken(why=reason))
    return entries


def add_waiting(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Append `RunWaiting` if `entries` queue the run but a worker could do nothing.

    Without this, a worker would take the run, find only open asks, and let it go again.
    """
    after = apply_entries(state, entries)
    if after.phase is Phase.QUEUED and not can_continue(after):
        return (*entries, RunWaiting())
    return entries


def can_continue(state: State) -> bool:
    """Tell whether a worker would find something to do although asks are open.

    This mirrors the scheduler: a redirect, a child run to end, a call that does not wait for a
    person, a message that can be taken now, or the next model call.
    """
    if (
        state.pending_redirects
        or not state.open_asks
        or orphaned_child_cleanup(state) is not None
    ):
        return True
    if any(not state.is_waiting_for_person(state.calls[n - 1]) for n in state.open_calls):
        return True
    # The same rules as for messages in `step_boundary`: with an answer a message is taken
    # without a frame; without one it needs room on the stack.
    room = len(state.frames) < state.run_started.frame_depth
    at_hand = state.answer is not None and not state.open_calls
    takeable = (
        p.kind == "message"
        and p.due_at is None
        and (at_hand or (p.urgency != "later" and room))
        for p in state.pending
    )
    thinking = not state.open_calls and (state.answer is None or bool(state.frames))
    return thinking or any(takeable)
