"""Receipts: what somebody who asked something of a run gets back, or why not."""

from midrun.core import controls as c
from midrun.core.ids import Seq
from midrun.core.table import enabled, name_of
from midrun.core.values import Phase, Value
from midrun.core.verdicts import Already, Refused
from midrun.driver.control import Ruled
from midrun.errors import ControlRefused


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


def receipt(control: c.Control, ruled: Ruled) -> Receipt:
    """Return the receipt for `control`.

    Raises:
        ControlRefused: it was refused, and changed nothing.
    """
    verdict, after = ruled.verdict, ruled.after
    if isinstance(verdict, Refused):
        raise ControlRefused(
            after.run,
            name_of(type(control)),
            verdict.reason,
            after.phase,
            enabled(after.phase),
            verdict.by,
            verdict.seq,
        )
    pausing = isinstance(control, c.Pause | c.TakeOver) and after.phase is Phase.PAUSING
    if isinstance(verdict, Already):
        return Receipt(
            seq=verdict.seq,
            phase=after.phase,
            applied=not pausing,
            already=verdict.name,
            by=verdict.by,
        )
    waits = pausing or any(p.seq >= ruled.seq for p in after.pending)
    said = next((ack for entry in ruled.entries if (ack := getattr(entry, "ack", ""))), "")
    return Receipt(
        seq=ruled.seq, phase=after.phase, applied=not waits, by=control.by.name, said=said
    )
