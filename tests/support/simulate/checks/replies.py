"""Every reply ever given, against the journal: one request, one outcome, and no lies."""

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
    """Compare what people were told with what the journal says.

    Raises:
        Violation: a reply was wrong, or a repeat of a request heard something else.
    """
    first: dict[str, ControlReply] = {}
    for one in env.replies:
        _check_reply(one, records)
        request = one.control.request
        if request:
            _check_repeat(first.setdefault(request, one), one)


def _check_repeat(first: ControlReply, later: ControlReply) -> None:
    """Every repeat of a request hears what the first one was told (I20)."""
    if first is later:
        return
    heard, now = _summarize(first.verdict), _summarize(later.verdict)
    if later.control.reason != first.control.reason:
        if now != ("refused", "request_id_reused"):
            raise Violation("I20", f"{later.control} reused an id, and was told {now}")
        return
    if isinstance(first.verdict, Accepted):
        heard = ("already", "duplicate_request")
        if isinstance(later.verdict, NoChange) and later.verdict.seq != first.entry_seq:
            text = f"{later.control} was applied at {first.entry_seq}, told {later.verdict}"
            raise Violation("I20", text)
    if now != heard:
        raise Violation("I20", f"{later.control} was told {heard}, then {now}")


def _summarize(verdict: Verdict) -> tuple[str, str]:
    if isinstance(verdict, Accepted):
        return ("accepted", "")
    if isinstance(verdict, NoChange):
        return ("already", verdict.name)
    return ("refused", verdict.reason)


def _check_reply(one: ControlReply, records: list[Record]) -> None:
    """A reply is true where it was given, and an accepted control is in the journal (I22)."""
    if isinstance(one.verdict, Accepted):
        written = tuple(r.entry for r in records[one.seq :][: len(one.verdict.entries)])
        if written != one.verdict.entries or not one.entry_seq:
            raise Violation("I22", f"accepted {one.control}, but the journal does not say so")
        ended = any(isinstance(r.entry, RunCompleted) for r in records[one.entry_seq :])
        if isinstance(one.control, Cancel) and ended:
            raise Violation("I22", "a cancel was accepted, and the run completed")
        return
    _, name = _summarize(one.verdict)
    prefix, _, phase = name.partition("_")
    if prefix not in {"is", "already"} or phase not in set(Phase):
        return
    repeat = bool(one.control.request) and not one.verdict.entries  # of what was true then
    halted = one.phase is Phase.HALTED and phase == Phase.CANCELLING
    if not (repeat or halted) and one.phase != phase:
        raise Violation("I22", f"{one.control} was told {name} of a run that is {one.phase}")
    if phase == Phase.COMPLETED and not _has_entry(records[: one.seq], RunCompleted):
        raise Violation("I22", f"{one.control} was told {name} too early")
    if phase == Phase.CANCELLED and not _has_entry(records[: one.seq], RunCancelled):
        raise Violation("I22", f"{one.control} was told {name} too early")


def _has_entry(records: list[Record], kind: type[RunCompleted | RunCancelled]) -> bool:
    return any(isinstance(r.entry, kind) for r in records)


def check_messages(records: list[Record]) -> None:
    """Nobody's words are lost: each reached the agent, or came back, once.

    Raises:
        Violation: some did neither, or both.
    """
    waiting: set[int] = set()
    for record in records:
        entry = record.entry
        gone = 0
        match entry:
            case MessageReceived() | RedirectRequested():
                waiting.add(record.seq)
            case RunResumed(instruction=text) if text:
                waiting.add(record.seq)
            case MessageTaken(message=seq) | MessageClosed(message=seq):
                gone = seq
            case FramePushed(message=seq):
                gone = seq
            case RedirectApplied(redirect=seq) | RedirectClosed(redirect=seq):
                gone = seq
            case _:
                continue
        if gone and gone not in waiting:
            raise Violation("WORDS", f"{record.seq} deals with {gone}, which does not wait")
        waiting.discard(gone)
    if waiting:
        raise Violation("WORDS", f"what was said at {sorted(waiting)} was lost")
