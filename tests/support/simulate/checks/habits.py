"""Habits decided upon that have no number: caps hold, and drivers leave nothing behind."""

from collections import Counter

from midrun.core.entries import (
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallSettled,
    CallStarted,
    CallUnknown,
    CancelRequested,
    CapRaised,
    CapReached,
    HandedBack,
    PauseWithdrawn,
    Record,
    RunResumed,
    StoodDown,
    TakenOver,
)
from midrun.core.ids import CallId
from midrun.core.retries import CHECK_DENIALS_MAX, WORKER_DEATHS_MAX
from tests.support.simulate.scene import Scene
from tests.support.simulate.violation import Violation

ENDINGS = (AskOpened, CallAborted, CallDone, CallFailed, CallUnknown)


def check_caps(records: list[Record]) -> None:
    """Nobody but who raised the cap, or had the wheel, takes a run past it (decision 7).

    Raises:
        Violation: a run went on from a cap that nobody raised.
    """
    cap = ""
    for record in records:
        match record.entry:
            case CapReached(cap=name):
                cap = name
            case CapRaised(caps=raised) if cap in raised:
                cap = ""
            case HandedBack() | CancelRequested():
                cap = ""
            case RunResumed() | PauseWithdrawn() if cap:
                raise Violation("CAP", f"{record.seq} goes past the cap on {cap}")
            case _:
                continue


def check_leaving(records: list[Record]) -> None:
    """A driver gives the lease back only when nothing is in flight (decision 29).

    Raises:
        Violation: one left calls behind.
    """
    flying: set[CallId] = set()
    for record in records:
        entry = record.entry
        if isinstance(entry, CallStarted):
            flying.add(entry.call)
        elif isinstance(entry, ENDINGS):
            flying.discard(entry.call)
        elif isinstance(entry, StoodDown) and flying:
            raise Violation("LEFT", f"{record.seq} gives the lease back, {min(flying)} runs on")


def check_deaths(scene: Scene, records: list[Record]) -> None:
    """A call ends no more processes than a person has let it (ADR 0032).

    Raises:
        Violation: one more died of it.
    """
    words = [r.seq for r in records if isinstance(r.entry, RunResumed | TakenOver)]
    deaths: Counter[tuple[str, int]] = Counter()
    for killed in scene.killed:
        deaths[killed.call, sum(seq <= killed.seq for seq in words)] += 1
    for (call, _), count in deaths.items():
        if count > WORKER_DEATHS_MAX:
            raise Violation("DEATHS", f"{count} processes died of {call}, and nobody was asked")


def check_denials(records: list[Record]) -> None:
    """A call is not made again for as often as its check says that it was not done (ADR 0032).

    Raises:
        Violation: one was made once more.
    """
    denials: Counter[CallId] = Counter()
    for record in records:
        match record.entry:
            case CallSettled(call=call, happened=False, by=by) if by.startswith("check:"):
                denials[call] += 1
            case CallStarted(call=call) if denials[call] >= CHECK_DENIALS_MAX:
                raise Violation("DENIALS", f"{record.seq} makes {call} again, never done")
            case _:
                continue
