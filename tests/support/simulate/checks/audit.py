"""All checks of a schedule, and those of decisions that have no invariant number."""

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
    LeaseReleased,
    PauseWithdrawn,
    Record,
    RunResumed,
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
"""More late inputs and conflicts per schedule mean that one is repeated without end."""


def audit(env: Environment) -> None:
    """Check a run that has ended.

    Raises:
        Violation: the first rule that is broken.
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
    late, conflicts = env.journal.late_count, env.journal.conflict_count
    if late + conflicts > REFUSALS_MAX + len(records):
        raise Violation("L5", f"{late} inputs were late, {conflicts} appends conflicted")


def audit_running(env: Environment) -> list[Record]:
    """Check the rules that hold at any moment, and return the journal.

    Raises:
        Violation: the first rule that is broken.
    """
    records = env.journal.read_records()
    if fold(env.journal.run, records) != env.journal.state:
        raise Violation("I2", "the fold of the stored journal differs from the state")
    for problem in check_journal(records, run=env.journal.run, head=env.journal.read_head()):
        raise Violation(problem.invariant, f"at {problem.seq}: {problem.text}")
    if env.feed_records != records[: len(env.feed_records)]:
        raise Violation("I38", "the feed has a gap or a duplicate entry")
    check_counts(env, records)
    return records


CALL_END_ENTRIES = (AskOpened, CallAborted, CallDone, CallFailed, CallUnknown)


def check_caps(records: list[Record]) -> None:
    """Check that a run passes a cap only after the cap was raised or a take-over (decision 7).

    Raises:
        Violation: a run was resumed at a cap that was not raised.
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
                raise Violation("CAP", f"entry {record.seq} continues past the cap on {cap}")
            case _:
                continue


def check_stand_downs(records: list[Record]) -> None:
    """Check that a driver returns its lease only with no call in flight (decision 29).

    Raises:
        Violation: a lease was returned with calls in flight.
    """
    in_flight: set[CallId] = set()
    for record in records:
        entry = record.entry
        if isinstance(entry, CallStarted):
            in_flight.add(entry.call)
        elif isinstance(entry, CALL_END_ENTRIES):
            in_flight.discard(entry.call)
        elif isinstance(entry, LeaseReleased) and in_flight:
            text = f"entry {record.seq} returns the lease while {min(in_flight)} is in flight"
            raise Violation("STANDDOWN", text)


def check_worker_deaths(env: Environment, records: list[Record]) -> None:
    """Check that a call kills no more workers than allowed between two resumes (ADR 0032).

    Raises:
        Violation: a call killed one worker too many.
    """
    resumes = [r.seq for r in records if isinstance(r.entry, RunResumed | TakenOver)]
    deaths: Counter[tuple[str, int]] = Counter()
    for death in env.worker_deaths:
        deaths[death.call, sum(seq <= death.seq for seq in resumes)] += 1
    for (call, _), count in deaths.items():
        if count > WORKER_DEATHS_MAX:
            raise Violation("DEATHS", f"{call} killed {count} processes without an ask")


def check_check_denials(records: list[Record]) -> None:
    """Check that a call is not repeated without end if its check denies it (ADR 0032).

    Raises:
        Violation: a call was started after the last allowed denial.
    """
    denials: Counter[CallId] = Counter()
    for record in records:
        match record.entry:
            case CallSettled(call=call, happened=False, by=by) if by.startswith("check:"):
                denials[call] += 1
            case CallStarted(call=call) if denials[call] >= CHECK_DENIALS_MAX:
                raise Violation(
                    "DENIALS", f"entry {record.seq} repeats {call} after too many denials"
                )
            case _:
                continue
