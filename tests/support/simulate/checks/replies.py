"""Compare all replies to controls with the journal: one request has one outcome."""

from midrun.core.controls import Cancel
from midrun.core.entries import (
    FramePushed,
    MessageClosed,
    MessageReceived,
    MessageTaken,
    Record,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RunCancelled,
    RunCompleted,
    RunResumed,
)
from midrun.core.transitions import Accepted, NoChange, Verdict
from midrun.core.values import Phase
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import ControlReply, Environment


def check_replies(env: Environment, records: list[Record]) -> None:
    """Compare the replies to controls with the journal.

    Raises:
        Violation: a reply was wrong, or a repeated request got another reply.
    """
    first: dict[str, ControlReply] = {}
    for reply in env.replies:
        _check_reply(reply, records)
        request = reply.control.request_id
        if request:
            _check_repeat(first.setdefault(request, reply), reply)


def _check_repeat(first: ControlReply, later: ControlReply) -> None:
    """Check that a repeated request gets the reply of the first one (I20)."""
    if first is later:
        return
    expected, now = _summarize(first.verdict), _summarize(later.verdict)
    if later.control.reason != first.control.reason:
        if now != ("refused", "request_id_reused"):
            raise Violation("I20", f"{later.control} reused an id, and got {now}")
        return
    if isinstance(first.verdict, Accepted):
        expected = ("already", "duplicate_request")
        if isinstance(later.verdict, NoChange) and later.verdict.seq != first.entry_seq:
            expected_seq = first.entry_seq
            text = f"{later.control} was applied at {expected_seq}, repeat: {later.verdict}"
            raise Violation("I20", text)
    if now != expected:
        raise Violation("I20", f"{later.control} got {expected}, then {now}")


def _summarize(verdict: Verdict) -> tuple[str, str]:
    if isinstance(verdict, Accepted):
        return ("accepted", "")
    if isinstance(verdict, NoChange):
        return ("already", verdict.name)
    return ("refused", verdict.reason)


def _check_reply(reply: ControlReply, records: list[Record]) -> None:
    """Check a reply against the phase at its time and the entries after it (I22)."""
    if isinstance(reply.verdict, Accepted):
        written = tuple(r.entry for r in records[reply.seq :][: len(reply.verdict.entries)])
        if written != reply.verdict.entries or not reply.entry_seq:
            raise Violation("I22", f"accepted {reply.control}, but it is not in the journal")
        ended = any(isinstance(r.entry, RunCompleted) for r in records[reply.entry_seq :])
        if isinstance(reply.control, Cancel) and ended:
            raise Violation("I22", "a cancel was accepted, and the run completed")
        return
    _, name = _summarize(reply.verdict)
    prefix, _, phase = name.partition("_")
    if prefix not in {"is", "already"} or phase not in set(Phase):
        return
    # A repeated request is answered with the phase at the time of the first one.
    repeat = bool(reply.control.request_id) and not reply.verdict.entries
    halted = reply.phase is Phase.HALTED and phase == Phase.CANCELLING
    if not (repeat or halted) and reply.phase != phase:
        raise Violation("I22", f"{reply.control} got {name} of a run that is {reply.phase}")
    if phase == Phase.COMPLETED and not _has_entry(records[: reply.seq], RunCompleted):
        raise Violation("I22", f"{reply.control} got {name} too early")
    if phase == Phase.CANCELLED and not _has_entry(records[: reply.seq], RunCancelled):
        raise Violation("I22", f"{reply.control} got {name} too early")


def _has_entry(records: list[Record], kind: type[RunCompleted | RunCancelled]) -> bool:
    return any(isinstance(r.entry, kind) for r in records)


def check_messages(records: list[Record]) -> None:
    """Check that each message and instruction is delivered or closed exactly once.

    Raises:
        Violation: a text was lost, or was handled twice.
    """
    waiting: set[int] = set()
    for record in records:
        entry = record.entry
        closed_seq = 0
        match entry:
            case MessageReceived() | RedirectRequested():
                waiting.add(record.seq)
            case RunResumed(instruction=text) if text:
                waiting.add(record.seq)
            case MessageTaken(message=seq) | MessageClosed(message=seq):
                closed_seq = seq
            case FramePushed(message=seq):
                closed_seq = seq
            case RedirectApplied(redirect=seq) | RedirectClosed(redirect=seq):
                closed_seq = seq
            case _:
                continue
        if closed_seq and closed_seq not in waiting:
            raise Violation(
                "MESSAGES", f"entry {record.seq} closes {closed_seq}, which is not pending"
            )
        waiting.discard(closed_seq)
    if waiting:
        raise Violation("MESSAGES", f"the texts at {sorted(waiting)} were lost")
