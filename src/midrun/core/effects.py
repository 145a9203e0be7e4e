"""Effects: the work that the scheduler wants from the driver now, as data.

`scheduler.plan_effects` computes them from the state alone. The driver performs them and
reports the results as driver inputs. A worker that has just loaded a journal gets the same
effects as one that never stopped, so recovery is the normal path.

Some effects need no I/O and are answered with an input at once: `Advance` with `CrossBoundary`,
`Settle` with `SettlePhase`, `GiveBackLease` with `StandDown`. An effect that leaves the process
is performed only after its start is in the journal.
"""

from typing import Literal, dataclass_transform

from msgspec import Struct, field

from midrun.core.ids import CallId, Micros, RunId
from midrun.core.values import CallPurpose, CleanupAction, UndoSet

AbortReason = Literal["paused", "redirected", "cancelled", "halted"]
"""The reason to abort a call in flight."""

ChildControl = Literal["pause", "cancel", "halt"]
"""A control that a parent run passes on to its child run."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _DriverEffectBase(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all effects."""


class Advance(_DriverEffectBase, kw_only=True):
    """Send `CrossBoundary`: redirects, messages or asks wait for the step boundary."""


class CallModel(_DriverEffectBase, kw_only=True):
    """Call the model; `call` is the id that the call will have."""

    call: CallId
    purpose: CallPurpose = "step"
    not_before: Micros | None = None  # not before this time: backoff after a failed attempt


class CallTool(_DriverEffectBase, kw_only=True):
    """Make a tool call, or drive a child run."""

    call: CallId
    child: RunId | None = None


class CheckCall(_DriverEffectBase, kw_only=True):
    """Run the tool's check to find out whether an unknown call took effect."""

    call: CallId


class EvaluateStopCondition(_DriverEffectBase, kw_only=True):
    """Evaluate the custom stop condition of this name; send `RecordStopVerdict`."""

    name: str


class AbortCall(_DriverEffectBase, kw_only=True):
    """Stop a call in flight: close the stream, cancel the task, or kill the process."""

    call: CallId
    reason: AbortReason


class ControlChild(_DriverEffectBase, kw_only=True):
    """Pass a control of this run on to the child run of a call in flight."""

    call: CallId
    child: RunId
    control: ChildControl
    now: bool = False
    undo: UndoSet = "in_flight"


class Undo(_DriverEffectBase, kw_only=True):
    """Undo the effect of a call."""

    call: CallId
    action: CleanupAction = "undo"
    not_before: Micros | None = None


class Release(_DriverEffectBase, kw_only=True):
    """Release the resource that a call holds; for a child run, end it."""

    call: CallId
    action: CleanupAction = "release"
    not_before: Micros | None = None


class RunHost(_DriverEffectBase, kw_only=True):
    """Run the hosted agent; its calls come back as `ProposeCall`.

    A hosted agent is a program of the user that chooses its calls itself; Midrun calls no model
    for it. The program proposes calls (`ProposeCall`) and ends with `FinishHostedAgent`.
    `RequestedCall.position` is the place of a call in the program. With it, a driver can run
    the program again after a restart, and return the journaled results of its earlier calls.

    No driver performs this effect yet, and no interface starts a run with `hosted=True`. The
    rules are complete in `core`; only the simulator in `tests/support` performs them.
    """


class WakeAt(_DriverEffectBase, kw_only=True):
    """Send `Wake` at this time, unless something else happens before."""

    at: Micros


class Settle(_DriverEffectBase, kw_only=True):
    """Send `SettlePhase`: the run has nothing left to do in its phase."""


class GiveBackLease(_DriverEffectBase, kw_only=True):
    """Give the lease back; the run leaves memory until a control or a timer wakes it."""


DriverEffect = (
    Advance
    | CallModel
    | CallTool
    | CheckCall
    | EvaluateStopCondition
    | AbortCall
    | ControlChild
    | Undo
    | Release
    | RunHost
    | WakeAt
    | Settle
    | GiveBackLease
)
