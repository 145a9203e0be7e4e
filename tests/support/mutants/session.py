"""Faults in the session of a worker: in its turns, and after a failure of the store."""

from msgspec.structs import replace

from midrun.core import session
from midrun.core.driver_inputs import DriverInput, StandDown
from midrun.core.entries import Record
from midrun.core.ids import Epoch, Micros
from midrun.core.session import (
    Appended,
    Batch,
    NotAppended,
    Ready,
    Result,
    Session,
    Step,
    WaitForNews,
)
from tests.support.mutants.replacements import Mutant, replace_attribute

_RECEIVE = Session.receive
_APPEND = Session._append


def _start_before_append(self: Session, turn: session._Turn, lease: str) -> Step:
    """Make the calls of a batch while it is being appended."""
    step = _APPEND(self, turn, lease)  # type: ignore[arg-type]  # passed through
    return replace(step, appended=tuple(turn.batch.entries))


def _make_refused_input() -> DriverInput:
    return StandDown(epoch=Epoch(0))


def _ignore_conflict(self: Session, result: Result, now: Micros) -> Step:
    if isinstance(result, NotAppended) and result.reason == "conflict" and self._epoch:
        return _RECEIVE(self, Appended(at=now, epoch=self._epoch), now)
    return _RECEIVE(self, result, now)


def _settle_at_conflict(self: Session, result: Result, now: Micros) -> Step:
    step = _RECEIVE(self, result, now)
    if isinstance(result, NotAppended) and self._turn is not None:
        return replace(step, recorded_count=self._turn.input_count)
    return step


def _forget_unanswered(self: Session, result: Result, now: Micros) -> Step:
    step = _RECEIVE(self, result, now)
    self._unanswered.clear()
    return step


def _forget_unanswered_after_a_read(self: Session, result: Result, now: Micros) -> Step:
    step = _RECEIVE(self, result, now)
    if isinstance(result, session.JournalRead):
        self._unanswered.clear()
    return step


def _lower_known_seq_after_the_read(self: Session, result: Result, now: Micros) -> Step:
    step = _RECEIVE(self, result, now)
    if isinstance(result, session.JournalRead):
        self._known_seq = self.state.seq
    return step


def _forget_any_halt(self: Session, _: session._Turn) -> None:
    self._pending_halt = None


def _wait_without_lease(self: Session, ready: Ready, now: Micros) -> Step:
    if self.is_lease_lost:
        return Step(operation=WaitForNews(until=None))
    return _BEGIN_TURN(self, ready, now)


_BEGIN_TURN = Session._begin_turn


def _recognize_anything(records: list[Record], _: session._Turn) -> bool:
    return bool(records)


def _ignore_hooks(self: Session, ready: Ready, batch: Batch) -> Step:
    return _DECIDE(self, replace(ready, unjournaled_work=False), batch)


_DECIDE = Session._decide


SESSION_MUTANTS = (
    Mutant(
        name="effect_before_its_start_is_journaled",
        description="a call takes effect before its start is in the journal",
        plant=lambda: replace_attribute(Session, "_append", _start_before_append),
    ),
    Mutant(
        name="fenced_process_never_returns",
        description="a session whose lease is lost waits, and its process does not go on",
        plant=lambda: replace_attribute(Session, "_begin_turn", _wait_without_lease),
    ),
    Mutant(
        name="conflict_ignored",
        description="the calls of a batch are made although another writer was first",
        plant=lambda: replace_attribute(Session, "receive", _ignore_conflict),
    ),
    Mutant(
        name="outcome_lost_at_a_conflict",
        description="the inputs of a batch that was not appended are dropped",
        plant=lambda: replace_attribute(Session, "receive", _settle_at_conflict),
    ),
    Mutant(
        name="unanswered_batch_forgotten",
        description="a batch whose reply was lost is not recognized in the journal",
        plant=lambda: replace_attribute(Session, "receive", _forget_unanswered),
    ),
    Mutant(
        name="unanswered_batch_forgotten_too_early",
        description="a batch that the store appends after the next read is not recognized",
        plant=lambda: replace_attribute(Session, "receive", _forget_unanswered_after_a_read),
    ),
    Mutant(
        name="unanswered_batch_taken_for_appended",
        description="entries of another writer are taken for the batch whose reply was lost",
        plant=lambda: replace_attribute(session, "_starts_with", _recognize_anything),
    ),
    Mutant(
        name="announcement_overlooked",
        seed=1825,
        description="an entry that is announced during a read is not read",
        plant=lambda: replace_attribute(Session, "receive", _lower_known_seq_after_the_read),
    ),
    Mutant(
        name="halt_forgotten_during_an_append",
        seed=644,
        description="a halt that is set during an append is not recorded",
        plant=lambda: replace_attribute(Session, "_forget_halt", _forget_any_halt),
    ),
    Mutant(
        name="refused_question_stays_in_flight",
        description="a call whose question is refused stays in flight",
        plant=lambda: replace_attribute(session, "_close_refused_question", lambda *_: None),
    ),
    Mutant(
        name="rests_while_a_check_runs",
        seed=1709,
        description="a run rests or goes on while a check of its call runs",
        plant=lambda: replace_attribute(Session, "_decide", _ignore_hooks),
    ),
    Mutant(
        name="timers_ignored",
        seed=727,
        description="the worker of a run does not append the entries of its timers",
        plant=lambda: replace_attribute(session, "Wake", _make_refused_input),
    ),
    Mutant(
        name="retries_not_awaited",
        description="a session does not wake up to repeat a failed attempt",
        plant=lambda: replace_attribute(session, "find_retry_time", lambda *_: None),
    ),
    Mutant(
        name="never_stands_down",
        description="a worker that shuts down keeps the run",
        plant=lambda: replace_attribute(session, "StandDown", _make_refused_stand_down),
    ),
)


def _make_refused_stand_down(epoch: Epoch, why: str) -> DriverInput:
    return StandDown(epoch=Epoch(epoch - 1), why=why)
