"""Receipts: what somebody who asked something of a run gets back."""

from midrun.core.ids import Seq
from midrun.core.values import Phase, Value


class Receipt(Value, kw_only=True):
    """A control is in the journal, or was so already.

    `applied` is False while it waits for its boundary: a pause whose call still finishes, a
    redirect or a message that the agent has not been given yet. `already` names the no-op if
    nothing changed, and `by` who had asked for it first.
    """

    seq: Seq
    phase: Phase
    applied: bool = True
    already: str | None = None
    by: str = ""
    said: str = ""  # what the runtime says to it at once: "Hold on — finishing *X* first"
