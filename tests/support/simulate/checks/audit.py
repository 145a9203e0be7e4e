"""All checks of a schedule that has come to its end."""

from collections import Counter
from typing import Final

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
from midrun.core.evolve import fold
from midrun.core.ids import CallId
from midrun.core.retries import CHECK_DENIALS_MAX, WORKER_DEATHS_MAX
from midrun.verify.journal import check_journal
from tests.support.simulate.checks import Violation
from tests.support.simulate.checks.conversation import check_conversation
from tests.support.simulate.checks.effects import check_counts, check_effects
from tests.support.simulate.checks.replies import check_messages, check_replies
from tests.support.simulate.environment import Environment

REFUSALS_MAX: Final = 40
"""How many inputs of drivers may be refused in one schedule: each is read again, then gone."""


def audit(env: Environment) -> None:
    """Check everything that must be true now that the run is over.

    Raises:
        Violation: the first thing that is not.
    """
    records = audit_running(env)
    check_effects(env, records)
    check_replies(env, records)
    check_messages(records)
    check_caps(records)
    check_stand_downs(records)
    check_worker_deaths(env, records)
    check_check_denials(records)
    check_conversation(env, records)
    refused = env.desk.refusal_counts.total() + env.desk.conflict_count
    if refused > REFUSALS_MAX + len(records):
        raise Violation("L5", f"{refused} refused inputs: {env.desk.refusal_counts}")


def audit_running(env: Environment) -> list[Record]:
    """Check what must be true at any moment, and return the journal.

    Raises:
        Violation: the first thing that is not.
    """
    records = env.desk.read_records()
    if fold(env.desk.run, records) != env.desk.state:
        raise Violation("I2", "the journal, read again, means something else")
    for problem in check_journal(records, run=env.desk.run, head=env.desk.read_head()):
        raise Violation(problem.invariant, f"at {problem.seq}: {problem.text}")
    if env.feed_records != records[: len(env.feed_records)]:
        raise Violation("I38", "the feed has a gap, or an entry twice")
    check_counts(env, records)
    return records


CALL_END_ENTRIES = (AskOpened, CallAborted, CallDone, CallFailed, CallUnknown)


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


def check_stand_downs(records: list[Record]) -> None:
    """A driver gives the lease back only when nothing is in flight (decision 29).

    Raises:
        Violation: one left calls behind.
    """
    flying: set[CallId] = set()
    for record in records:
        entry = record.entry
        if isinstance(entry, CallStarted):
            flying.add(entry.call)
        elif isinstance(entry, CALL_END_ENTRIES):
            flying.discard(entry.call)
        elif isinstance(entry, StoodDown) and flying:
            raise Violation("LEFT", f"{record.seq} gives the lease back, {min(flying)} runs on")


def check_worker_deaths(env: Environment, records: list[Record]) -> None:
    """A call ends no more processes than a person has let it (ADR 0032).

    Raises:
        Violation: one more died of it.
    """
    words = [r.seq for r in records if isinstance(r.entry, RunResumed | TakenOver)]
    deaths: Counter[tuple[str, int]] = Counter()
    for killed in env.worker_deaths:
        deaths[killed.call, sum(seq <= killed.seq for seq in words)] += 1
    for (call, _), count in deaths.items():
        if count > WORKER_DEATHS_MAX:
            raise Violation("DEATHS", f"{count} processes died of {call}, and nobody was asked")


def check_check_denials(records: list[Record]) -> None:
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
