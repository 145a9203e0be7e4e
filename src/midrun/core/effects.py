"""Effects: the work that a worker must run now, as data.

`scheduler.list_effects` computes them from the state alone. They need no entry of their own:
an abort, a control for a child run, a check, a custom stop condition. The driver carries them
out and reports the results as driver inputs. Starts of calls and undos are not effects: they
are entries, which `scheduler.advance` returns, and the call is made after the append.
"""

from typing import Literal, dataclass_transform

from msgspec import Struct, field

from midrun.core.ids import CallId, RunId
from midrun.core.values import UndoSet

AbortReason = Literal["paused", "redirected", "cancelled", "halted"]
"""The reason to abort a call in flight."""

ChildControl = Literal["pause", "cancel", "halt"]
"""A control that a parent run passes on to its child run."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _DriverEffectBase(Struct, frozen=True, kw_only=True, gc=False):
    """Base of all effects."""


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


class RunHost(_DriverEffectBase, kw_only=True):
    """Run the program of a hosted agent; its calls come back as `ProposeCall`.

    The loop of a hosted agent is code of the user, which makes its model and tool calls through
    the driver (`driver.program_runner`). The effect is listed for as long as the program must
    run: while it computes, and while it waits for its calls. It ends with `FinishHostedAgent`.
    """


DriverEffect = AbortCall | CheckCall | ControlChild | EvaluateStopCondition | RunHost
