"""Receipts: what somebody who asked something of a run gets back, or why not."""

from midrun.core import controls as c
from midrun.core.placeholders import check_hidden
from midrun.core.possible import possible
from midrun.core.sentences.asks import describe_closure
from midrun.core.table import name_of
from midrun.core.values import Phase
from midrun.core.verdicts import Already, Refused
from midrun.driver.control import Ruled
from midrun.errors import ControlRefused
from midrun.errors.runs import LOST_ASK
from midrun.handles.receipt import Receipt


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
            possible(after),
            verdict.by,
            verdict.seq,
            _describe_refusal(control, ruled),
        )
    pausing = isinstance(control, c.Pause | c.TakeOver) and after.phase is Phase.PAUSING
    if isinstance(control, c.Cancel) and after.phase is Phase.HALTED:
        pausing = True  # taken down at once, and carried out when the latch is lifted
    if isinstance(verdict, Already):
        waits = pausing or any(p.seq == verdict.seq for p in after.pending)
        return Receipt(
            seq=verdict.seq,
            phase=after.phase,
            applied=not waits,
            already=verdict.name,
            by=verdict.by,
        )
    waits = pausing or any(p.seq >= ruled.seq for p in after.pending)
    said = next((ack for entry in ruled.entries if (ack := getattr(entry, "ack", ""))), "")
    return Receipt(
        seq=ruled.seq, phase=after.phase, applied=not waits, by=control.by.name, said=said
    )


def _describe_refusal(control: c.Control, ruled: Ruled) -> str:
    """Return the decision that a refused one lost to, or the arguments that are hidden."""
    verdict, ask = ruled.verdict, ruled.after.ask(getattr(control, "ask", ""))
    if isinstance(control, c.Approve) and getattr(verdict, "reason", "") == "hidden_argument":
        call = None if ask is None else ruled.after.call(ask.call)
        return (
            "" if ask is None or call is None else check_hidden(ask, call.use, control.args)[0]
        )
    lost = isinstance(verdict, Refused) and verdict.reason in LOST_ASK
    return describe_closure(ask) if lost and ask is not None else ""
