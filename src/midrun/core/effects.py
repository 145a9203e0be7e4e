"""Orders: what the driver must do next, as data. Imperative; they follow from the state alone.

An order says nothing about how: the driver performs it and brings evidence. Because orders
depend on the state only, a driver that has just re-read its journal orders what one that
never stopped would order: recovery is the normal path.
"""

from typing import Literal, dataclass_transform

from msgspec import Struct, field

from midrun.core.ids import CallId, Micros, RunId
from midrun.core.values import Action, Purpose, UndoSet

Because = Literal["paused", "redirected", "cancelled", "halted"]
"""Why a call in flight must stop."""

Passed = Literal["pause", "cancel", "halt"]
"""What a child run is asked when its parent is."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _Order(Struct, frozen=True, kw_only=True, gc=False):
    """Base of the orders."""


class Advance(_Order, kw_only=True):
    """Bring `Advanced`: what waits for a boundary is taken up: redirects, messages, asks."""


class CallModel(_Order, kw_only=True):
    """Ask the model; `call` is the id the call will have."""

    call: CallId
    purpose: Purpose = "step"
    after: Micros | None = None  # not before this time: an earlier attempt failed


class CallTool(_Order, kw_only=True):
    """Make the tool call, or drive the child run."""

    call: CallId
    child: RunId | None = None


class CheckCall(_Order, kw_only=True):
    """Ask the tool's own check whether the unknown call happened."""

    call: CallId


class Judge(_Order, kw_only=True):
    """Evaluate the custom stop condition of this name and bring its verdict."""

    name: str


class AbortCall(_Order, kw_only=True):
    """Stop the call in flight: close the stream, cancel the tool, kill what blocks."""

    call: CallId
    because: Because


class ControlChild(_Order, kw_only=True):
    """Pass what was asked of this run on to the child run of a call in flight."""

    call: CallId
    child: RunId
    control: Passed
    now: bool = False
    undo: UndoSet = "in_flight"


class Undo(_Order, kw_only=True):
    """Take the effect of a call back."""

    call: CallId
    action: Action = "undo"
    after: Micros | None = None


class Release(_Order, kw_only=True):
    """Give back what a call holds."""

    call: CallId
    action: Action = "release"
    after: Micros | None = None


class RunHost(_Order, kw_only=True):
    """Let the hosted agent run; its calls come back as `Propose`."""


class WakeAt(_Order, kw_only=True):
    """Bring `Wake` at this time if nothing else happens before."""

    at: Micros


class Settle(_Order, kw_only=True):
    """Bring `Settled`: the run has nothing left to do in its phase."""


class Park(_Order, kw_only=True):
    """Let go of the run: it leaves memory until something wakes it."""


Order = (
    Advance
    | CallModel
    | CallTool
    | CheckCall
    | Judge
    | AbortCall
    | ControlChild
    | Undo
    | Release
    | RunHost
    | WakeAt
    | Settle
    | Park
)
