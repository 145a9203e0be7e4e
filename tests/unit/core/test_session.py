"""The session of a worker with a run: which operation follows which result.

There is no store. Each test plays the shell: it answers the operations by hand.
"""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from midrun.core.controls import Cancel, Control, Halt, Lift, Pause, Resume, Say
from midrun.core.driver_inputs import AskPerson, CloseCall, DriverInput, TakeLease
from midrun.core.entries import (
    AskOpened,
    CallDone,
    CallFailed,
    CallStarted,
    CapReached,
    Entry,
    LeaseReleased,
    LeaseTaken,
    Record,
    RunCompleted,
    RunHalted,
    RunPaused,
)
from midrun.core.ids import CallId, Epoch, Micros, Seq
from midrun.core.scheduler import AbortCall, EvaluateStopCondition, reserve_nothing
from midrun.core.session import (
    AppendBatch,
    Appended,
    Finish,
    HaltSet,
    JournalGrew,
    JournalRead,
    LeaseLost,
    NotAppended,
    Operation,
    Proceed,
    ReadFailed,
    ReadJournal,
    Ready,
    Session,
    StandDownRequested,
    Step,
    WaitForNews,
    WaitForStore,
)
from midrun.core.state import CallState
from midrun.core.stops import Custom
from midrun.core.values import Phase, Reply, RequestedCall, WorkKind
from midrun.testing.scenario import LEASED_RUN, START_TIME, Scenario, given
from midrun.text.status import build_status_line

E1, C1, C2, C3 = Epoch(1), CallId("c1"), CallId("c2"), CallId("c3")
MAIL = RequestedCall(tool="mail", args={})
OPERATOR_HALT = Halt(scope="all")


class Shell:
    """Answers the operations of a session, and is the journal of its run."""

    def __init__(self, run: Scenario | None = None) -> None:
        self.journal = run or given(LEASED_RUN[0])
        self.now = START_TIME
        self.may_start = True
        take = TakeLease(holder="w1", agent_fingerprint="")
        self.session = Session(
            self.journal.state, take, reserve_nothing, lambda *_: self.may_start
        )

    def ready(self, *inputs: DriverInput, unjournaled_work: bool = False) -> Step:
        """Begin a turn with these inputs."""
        return self.session.receive(
            Ready(inputs=inputs, unjournaled_work=unjournaled_work), self.now
        )

    def append(self, operation: Operation) -> Step:
        """Append the batch of `operation`, and report it."""
        batch = self.write(operation)
        epoch = None if batch.lease == "none" else self.journal.state.epoch
        return self.session.receive(Appended(at=batch.batch.now, epoch=epoch), self.now)

    def write(self, operation: Operation) -> AppendBatch:
        """Append the batch of `operation`; the session does not learn of it."""
        assert isinstance(operation, AppendBatch)
        assert operation.batch.base.seq == self.journal.state.seq
        self.journal = self.journal.follows(operation.batch.entries)
        return operation

    def send(self, new_input: Control | TakeLease) -> Seq:
        """Append a control or take the lease, as another process does; return its seq."""
        self.journal = self.journal.when(new_input)
        return self.journal.state.seq

    def lose(self, *inputs: DriverInput) -> Operation:
        """Begin a turn whose append is not answered; return the operation."""
        operation = self.ready(*inputs).operation
        assert isinstance(operation, AppendBatch)
        step = self.session.receive(NotAppended(reason="unknown"), self.now)
        assert (step.operation, step.appended, step.recorded_count) == (WaitForStore(), (), 0)
        return operation

    def read(self, operation: Operation) -> Step:
        """Read the journal for the session."""
        assert isinstance(operation, ReadJournal)
        records = self.journal.records[operation.after :]
        return self.session.receive(JournalRead(records=records), self.now)

    def take_lease(self) -> Step:
        """Take the lease; the model call c1 is in flight then."""
        return self.append(self.ready().operation)

    def reply(self, *uses: RequestedCall, call: CallId = C1, text: str = "") -> DriverInput:
        """Return the input that ends a model call."""
        done = CallDone(call=call, reply=Reply(uses=uses, text=text))
        return CloseCall(epoch=self.journal.state.epoch, outcome=done)


def kinds(entries: Sequence[Entry] | Sequence[Record]) -> list[type]:
    """Return the types of entries."""
    return [type(entry) for entry in entries]


def test_the_lease_and_the_first_start_are_one_append_and_then_the_call_is_made() -> None:
    shell = Shell()
    step = shell.ready()
    assert isinstance(step.operation, AppendBatch)
    assert step.operation.lease == "take"
    assert step.appended == ()
    step = shell.append(step.operation)
    assert kinds(step.appended) == [LeaseTaken, CallStarted]
    assert step.operation == WaitForNews(until=None)


def test_a_run_that_cannot_be_driven_is_not_taken() -> None:
    shell = Shell(given(LEASED_RUN[0]).when(Pause()))
    assert shell.ready().operation == Finish()


def test_a_lease_of_another_worker_ends_the_session() -> None:
    shell = Shell()
    shell.ready()
    step = shell.session.receive(NotAppended(reason="leased"), shell.now)
    assert step.operation == Finish()


def test_the_end_of_one_call_and_the_start_of_the_next_are_one_append() -> None:
    shell = Shell()
    shell.take_lease()
    step = shell.ready(shell.reply(MAIL))
    assert isinstance(step.operation, AppendBatch)
    assert kinds(step.operation.batch.entries) == [CallDone, CallStarted]
    assert step.recorded_count == 0
    step = shell.append(step.operation)
    assert (step.recorded_count, step.late) == (1, frozenset())


def test_a_used_quota_pauses_the_run_in_place_of_its_next_model_call() -> None:
    """No cap has to be raised before a resume: the quotas are compared again then."""
    shell, full = Shell(), NotAppended(reason="quota", quota="the quota of user ann is used up")
    shell.ready()
    assert shell.session.receive(full, shell.now).operation == Proceed()
    shell.read(shell.ready().operation)
    step = shell.append(shell.ready().operation)
    assert kinds(step.appended) == [LeaseTaken, CapReached, RunPaused]
    pause = shell.journal.state.pause
    assert pause is not None
    assert (pause.reason, pause.cap_name, pause.condition) == ("cap", "", full.quota)
    assert "quota of user ann" in build_status_line(shell.journal.state).note
    shell.send(Resume())
    resumed = Shell(shell.journal)
    assert kinds(resumed.take_lease().appended) == [LeaseTaken, CallStarted]


def test_a_session_ends_when_the_run_has_ended() -> None:
    shell = Shell()
    shell.take_lease()
    step = shell.append(shell.ready(shell.reply(text="done")).operation)
    assert kinds(step.appended) == [CallDone, RunCompleted]
    assert step.has_changed
    assert step.operation == Finish()


def test_a_control_that_came_first_is_read_before_anything_is_decided() -> None:
    shell = Shell()
    shell.take_lease()
    assert shell.session.take_notice(JournalGrew(seq=shell.send(Pause())))
    step = shell.read(shell.ready(shell.reply(MAIL)).operation)
    assert step.has_changed
    assert step.operation == Proceed()
    step = shell.ready()
    assert step.effects == (AbortCall(call=C1, reason="paused"),)
    assert isinstance(step.operation, WaitForNews)


def test_a_conflict_starts_nothing_and_decides_again_on_the_new_state() -> None:
    shell = Shell()
    shell.take_lease()
    shell.ready(shell.reply(MAIL))
    shell.send(Pause())
    step = shell.session.receive(NotAppended(reason="conflict"), shell.now)
    assert (step.operation, step.appended, step.recorded_count) == (Proceed(), (), 0)
    step = shell.read(shell.ready(shell.reply(MAIL)).operation)
    step = shell.append(shell.ready(shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, RunPaused]
    assert step.operation == Finish()


def test_the_announcement_of_our_own_append_ends_no_wait() -> None:
    shell = Shell()
    operation = shell.ready().operation
    shell.write(operation)
    assert not shell.session.take_notice(JournalGrew(seq=shell.journal.state.seq))


def test_the_announcement_of_an_entry_that_was_read_ends_no_wait() -> None:
    shell = Shell()
    shell.take_lease()
    shell.ready(shell.reply(MAIL))
    seq = shell.send(Pause())
    shell.session.receive(NotAppended(reason="conflict"), shell.now)
    shell.read(shell.ready(shell.reply(MAIL)).operation)
    assert not shell.session.take_notice(JournalGrew(seq=seq))


def test_announcements_may_come_in_any_order() -> None:
    shell = Shell()
    shell.take_lease()
    seq = shell.send(Pause())
    assert shell.session.take_notice(JournalGrew(seq=seq))
    assert not shell.session.take_notice(JournalGrew(seq=Seq(1)))
    assert shell.session.is_behind


def test_a_control_that_is_announced_during_a_read_is_read_next() -> None:
    """A failed append has left the session with a seq that does not exist."""
    shell = Shell()
    shell.take_lease()
    shell.ready(shell.reply(MAIL))
    shell.session.receive(NotAppended(reason="unavailable"), shell.now)
    operation = shell.ready(shell.reply(MAIL)).operation
    records = shell.journal.records[shell.session.state.seq :]
    shell.session.take_notice(JournalGrew(seq=shell.send(Cancel())))
    shell.session.receive(JournalRead(records=records), shell.now)
    assert isinstance(operation, ReadJournal)
    assert isinstance(shell.ready().operation, ReadJournal)


def test_a_read_that_failed_is_repeated() -> None:
    shell = Shell()
    shell.take_lease()
    shell.session.take_notice(JournalGrew(seq=shell.send(Pause())))
    shell.ready()
    assert shell.session.receive(ReadFailed(), shell.now).operation == WaitForStore()
    assert isinstance(shell.ready().operation, ReadJournal)


def test_an_append_that_the_store_refused_for_now_is_tried_again() -> None:
    shell = Shell()
    shell.take_lease()
    shell.ready(shell.reply(MAIL))
    step = shell.session.receive(NotAppended(reason="unavailable"), shell.now)
    assert (step.operation, step.recorded_count) == (WaitForStore(), 0)
    shell.read(shell.ready(shell.reply(MAIL)).operation)
    step = shell.append(shell.ready(shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, CallStarted]


def test_a_batch_whose_reply_was_lost_is_recognized_although_a_read_fails() -> None:
    """Its calls are made: the journal has them as started."""
    shell = Shell()
    shell.take_lease()
    shell.write(shell.ready(shell.reply(MAIL)).operation)
    step = shell.session.receive(NotAppended(reason="unknown"), shell.now)
    assert (step.operation, step.appended) == (WaitForStore(), ())
    shell.ready(shell.reply(MAIL))
    shell.session.receive(ReadFailed(), shell.now)
    shell.send(Pause())
    step = shell.read(shell.ready(shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, CallStarted]
    assert step.recorded_count == 1
    assert shell.session.state == shell.journal.state


def test_a_batch_whose_reply_was_lost_and_that_is_not_in_the_journal_is_decided_again() -> None:
    shell = Shell()
    shell.take_lease()
    shell.ready(shell.reply(MAIL))
    shell.session.receive(NotAppended(reason="unknown"), shell.now)
    step = shell.read(shell.ready(shell.reply(MAIL)).operation)
    assert (step.appended, step.recorded_count) == ((), 0)
    assert isinstance(shell.ready(shell.reply(MAIL)).operation, AppendBatch)


def test_a_batch_that_is_appended_after_the_read_is_recognized() -> None:
    """A server may finish an append although it has lost its client."""
    shell = Shell()
    shell.take_lease()
    first = shell.lose(shell.reply(MAIL))
    assert shell.read(shell.ready(shell.reply(MAIL)).operation).recorded_count == 0
    shell.ready(shell.reply(MAIL), shell.reply(MAIL))
    shell.write(first)
    shell.session.receive(NotAppended(reason="conflict"), shell.now)
    step = shell.read(shell.ready(shell.reply(MAIL), shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, CallStarted]
    assert step.recorded_count == 1
    assert step.has_changed


def test_of_two_batches_without_a_reply_the_one_in_the_journal_is_recognized() -> None:
    shell = Shell()
    shell.take_lease()
    shell.append(shell.ready(shell.reply(MAIL, MAIL)).operation)
    mails = [CloseCall(epoch=E1, outcome=CallDone(call=call)) for call in (C2, C3)]
    shell.lose(mails[0])
    shell.read(shell.ready(*mails).operation)
    shell.write(shell.lose(*mails))
    step = shell.read(shell.ready(*mails).operation)
    assert kinds(step.appended) == [CallDone, CallDone, CallStarted]
    assert step.recorded_count == 2


def test_a_batch_that_another_writer_has_overtaken_is_not_recognized_later() -> None:
    """The same entry may be written again, by another process and for another reason."""
    shell = Shell()
    shell.take_lease()
    late = CloseCall(epoch=Epoch(9), outcome=CallDone(call=C1))
    shell.session.take_notice(HaltSet(halt=OPERATOR_HALT))
    shell.lose(late)
    shell.send(Say(text="Hello"))
    assert shell.read(shell.ready(late).operation).recorded_count == 0
    shell.ready(late)
    shell.send(OPERATOR_HALT)
    shell.session.receive(NotAppended(reason="conflict"), shell.now)
    assert shell.read(shell.ready(late).operation).recorded_count == 0


def test_a_late_input_of_a_batch_whose_reply_was_lost_is_reported() -> None:
    shell = Shell()
    shell.take_lease()
    shell.write(shell.lose(shell.reply(MAIL), shell.reply(MAIL)))
    step = shell.read(shell.ready().operation)
    assert (step.recorded_count, step.late) == (2, frozenset({1}))


def test_calls_are_not_made_if_another_worker_has_the_lease_after_a_lost_reply() -> None:
    shell = Shell()
    shell.take_lease()
    shell.write(shell.lose(shell.reply(MAIL)))
    shell.send(TakeLease(holder="w2"))
    step = shell.read(shell.ready().operation)
    assert (step.appended, step.recorded_count) == ((), 1)


def test_a_session_ends_when_another_worker_has_taken_the_lease() -> None:
    shell = Shell()
    shell.take_lease()
    shell.session.take_notice(JournalGrew(seq=shell.send(TakeLease(holder="w2"))))
    shell.read(shell.ready().operation)
    assert shell.ready(shell.reply(MAIL)).operation == Finish()


def test_a_lease_whose_reply_was_lost_is_taken_again() -> None:
    shell = Shell()
    shell.write(shell.ready().operation)
    shell.session.receive(NotAppended(reason="unknown"), shell.now)
    step = shell.read(shell.ready().operation)
    assert step.appended == ()
    operation = shell.ready().operation
    assert isinstance(operation, AppendBatch)
    assert operation.lease == "take"


def test_a_retry_time_that_passes_during_the_append_is_not_forgotten() -> None:
    shell = Shell()
    shell.take_lease()
    retry_at = Micros(shell.now + 5)
    failed = CallFailed(call=C1, error="529", transient=True, retry_at=retry_at)
    operation = shell.ready(CloseCall(epoch=E1, outcome=failed)).operation
    shell.write(operation)
    shell.now = Micros(shell.now + 10)
    step = shell.session.receive(Appended(at=START_TIME, epoch=E1), shell.now)
    assert step.operation == WaitForNews(until=retry_at)
    assert kinds(shell.append(shell.ready().operation).appended) == [CallStarted]


def test_a_retry_that_must_wait_for_something_else_does_not_make_the_session_spin() -> None:
    shell = Shell()
    shell.take_lease()
    shell.may_start = False
    retry_at = Micros(shell.now + 5)
    failed = CallFailed(call=C1, error="529", transient=True, retry_at=retry_at)
    step = shell.append(shell.ready(CloseCall(epoch=E1, outcome=failed)).operation)
    assert step.operation == WaitForNews(until=retry_at)
    shell.now = retry_at
    assert shell.ready().operation == WaitForNews(until=None)


def test_an_input_whose_call_was_closed_without_it_is_late() -> None:
    shell = Shell()
    shell.take_lease()
    step = shell.append(shell.ready(shell.reply(MAIL), shell.reply(MAIL)).operation)
    assert (step.recorded_count, step.late) == (2, frozenset({1}))
    step = shell.ready(shell.reply(MAIL))
    assert (step.recorded_count, step.late) == (1, frozenset({0}))


def test_a_question_that_a_cancel_has_overtaken_ends_its_call() -> None:
    shell = Shell()
    shell.take_lease()
    shell.append(shell.ready(shell.reply(MAIL)).operation)
    shell.session.take_notice(JournalGrew(seq=shell.send(Cancel())))
    shell.read(shell.ready().operation)
    step = shell.append(shell.ready(AskPerson(epoch=E1, call=C2, question="?")).operation)
    assert AskOpened not in kinds(step.appended)
    assert shell.session.state.phase is Phase.CANCELLED
    assert step.late == frozenset({0})


def test_a_halt_is_recorded_and_the_lease_is_given_back_after_the_last_call() -> None:
    shell = Shell()
    shell.take_lease()
    assert shell.session.take_notice(HaltSet(halt=OPERATOR_HALT))
    step = shell.append(shell.ready().operation)
    assert kinds(step.appended) == [RunHalted]
    assert step.effects == (AbortCall(call=C1, reason="halted"),)
    step = shell.append(shell.ready(shell.reply(text="done")).operation)
    assert kinds(step.appended) == [CallDone, LeaseReleased]
    assert step.operation == Finish()


def test_a_halt_that_is_set_during_an_append_is_recorded_by_the_next() -> None:
    shell = Shell()
    shell.take_lease()
    operation = shell.ready(shell.reply(MAIL)).operation
    shell.session.take_notice(HaltSet(halt=OPERATOR_HALT))
    shell.append(operation)
    assert kinds(shell.append(shell.ready().operation).appended) == [RunHalted]


def test_a_halt_that_the_store_reports_is_recorded_under_the_lease() -> None:
    shell = Shell()
    shell.take_lease()
    shell.ready(shell.reply(MAIL))
    halted = NotAppended(reason="halted", halt=OPERATOR_HALT)
    assert shell.session.receive(halted, shell.now).operation == Proceed()
    shell.read(shell.ready(shell.reply(MAIL)).operation)
    step = shell.append(shell.ready(shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, RunHalted, LeaseReleased]


def test_a_run_that_is_not_taken_yet_is_halted_without_a_lease() -> None:
    shell = Shell()
    shell.ready()
    shell.session.receive(NotAppended(reason="halted", halt=OPERATOR_HALT), shell.now)
    shell.read(shell.ready().operation)
    operation = shell.ready().operation
    assert isinstance(operation, AppendBatch)
    assert operation.lease == "none"
    step = shell.append(operation)
    assert step.operation == Proceed()
    assert step.has_changed
    assert shell.ready().operation == Finish()
    assert shell.journal.state.phase is Phase.HALTED


def test_a_run_that_is_lifted_before_it_is_taken_is_not_halted_again() -> None:
    shell = Shell()
    shell.session.take_notice(HaltSet(halt=OPERATOR_HALT))
    shell.append(shell.ready().operation)
    shell.session.take_notice(JournalGrew(seq=shell.send(Lift())))
    shell.read(shell.ready().operation)
    operation = shell.ready().operation
    assert isinstance(operation, AppendBatch)
    assert operation.lease == "take"


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_halt_that_is_recorded_is_not_recorded_again_after_a_lift(
    is_answered: bool,
) -> None:
    shell = Shell()
    shell.take_lease()
    shell.session.take_notice(HaltSet(halt=OPERATOR_HALT))
    if is_answered:
        shell.append(shell.ready().operation)
    else:
        shell.write(shell.lose())
        shell.read(shell.ready().operation)
    shell.session.take_notice(JournalGrew(seq=shell.send(Lift())))
    shell.read(shell.ready().operation)
    step = shell.ready(shell.reply(text="done"))
    assert isinstance(step.operation, AppendBatch)
    assert RunHalted not in kinds(step.operation.batch.entries)


def test_timers_are_appended_without_the_lease_and_before_the_inputs() -> None:
    run = given(LEASED_RUN[0])
    shell = Shell(run)
    shell.take_lease()
    until = Micros(shell.now + 5)
    shell.session.take_notice(JournalGrew(seq=shell.send(Pause(until=until))))
    shell.read(shell.ready().operation)
    assert shell.ready().operation == WaitForNews(until=until)
    shell.now = until
    shell.journal = shell.journal.at(until)
    operation = shell.ready(shell.reply(MAIL)).operation
    assert isinstance(operation, AppendBatch)
    assert operation.lease == "none"
    step = shell.append(operation)
    assert (step.operation, step.recorded_count) == (Proceed(), 0)
    step = shell.append(shell.ready(shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, CallStarted]


def test_a_lost_reply_to_a_timer_does_not_drop_the_inputs() -> None:
    shell = Shell()
    shell.take_lease()
    until = Micros(shell.now + 5)
    shell.session.take_notice(JournalGrew(seq=shell.send(Pause(until=until))))
    shell.read(shell.ready().operation)
    late = CloseCall(epoch=Epoch(9), outcome=CallDone(call=C1))
    assert shell.ready(late).recorded_count == 1
    shell.now = until
    shell.journal = shell.journal.at(until)
    shell.write(shell.ready(shell.reply(MAIL)).operation)
    shell.session.receive(NotAppended(reason="unknown"), shell.now)
    step = shell.read(shell.ready(shell.reply(MAIL)).operation)
    assert step.recorded_count == 0


def test_a_worker_that_stands_down_stops_its_calls_and_gives_the_lease_back() -> None:
    shell = Shell()
    shell.take_lease()
    assert shell.session.take_notice(StandDownRequested(reason="shutdown"))
    step = shell.ready()
    assert step.is_leaving
    assert isinstance(step.operation, WaitForNews)
    step = shell.append(shell.ready(shell.reply(MAIL)).operation)
    assert kinds(step.appended) == [CallDone, LeaseReleased]
    assert step.operation == Finish()


def test_a_run_does_not_rest_while_a_check_or_a_stop_condition_runs() -> None:
    shell = Shell()
    shell.take_lease()
    shell.session.take_notice(JournalGrew(seq=shell.send(Pause())))
    shell.read(shell.ready().operation)
    step = shell.ready(shell.reply(text="done"), unjournaled_work=True)
    assert shell.append(step.operation).operation == WaitForNews(until=None)
    step = shell.append(shell.ready().operation)
    assert kinds(step.appended) == [RunPaused]


def test_a_worker_that_stands_down_waits_for_a_check_too() -> None:
    shell = Shell()
    shell.take_lease()
    shell.session.take_notice(StandDownRequested(reason="shutdown"))
    step = shell.append(shell.ready(shell.reply(MAIL), unjournaled_work=True).operation)
    assert kinds(step.appended) == [CallDone]
    assert isinstance(step.operation, WaitForNews)


def test_a_worker_that_stands_down_stops_its_calls_before_it_waits_for_the_store() -> None:
    shell = Shell()
    shell.take_lease()
    shell.session.take_notice(StandDownRequested(reason="shutdown"))
    assert shell.ready(shell.reply(MAIL)).is_leaving
    shell.session.receive(NotAppended(reason="unavailable"), shell.now)
    step = shell.ready(shell.reply(MAIL))
    assert isinstance(step.operation, ReadJournal)
    assert step.is_leaving


def test_a_worker_that_stands_down_takes_no_lease() -> None:
    shell = Shell()
    shell.session.take_notice(StandDownRequested(reason="shutdown"))
    assert shell.ready().operation == Finish()


def test_a_worker_that_stands_down_evaluates_no_stop_condition() -> None:
    started = replace(LEASED_RUN[0], stop=Custom("judge"))
    shell = Shell(given(started))
    assert shell.take_lease().effects == (EvaluateStopCondition(name="judge"),)
    shell.session.take_notice(StandDownRequested(reason="shutdown"))
    assert shell.ready(unjournaled_work=True).effects == ()


def test_a_worker_that_stands_down_repeats_no_attempt() -> None:
    shell = Shell()
    shell.take_lease()
    retry_at = Micros(shell.now + 5)
    failed = CallFailed(call=C1, error="529", transient=True, retry_at=retry_at)
    shell.append(shell.ready(CloseCall(epoch=E1, outcome=failed)).operation)
    shell.session.take_notice(StandDownRequested(reason="shutdown"))
    assert shell.ready(unjournaled_work=True).operation == WaitForNews(until=None)


def test_nothing_is_read_or_appended_after_the_lease_is_lost() -> None:
    shell = Shell()
    shell.take_lease()
    operation = shell.ready(shell.reply(MAIL)).operation
    assert shell.session.take_notice(LeaseLost())
    assert shell.append(operation).operation == Finish()
    assert shell.ready(shell.reply(MAIL)).operation == Finish()
    shell = Shell()
    shell.session.take_notice(LeaseLost())
    assert shell.ready().operation == Finish()


@pytest.mark.parametrize("stamped_at", [START_TIME, START_TIME + 5, START_TIME + 7])
def test_the_state_has_the_time_that_the_store_has_stamped(stamped_at: int) -> None:
    shell = Shell()
    shell.now = Micros(START_TIME + 5)
    operation = shell.ready().operation
    assert isinstance(operation, AppendBatch)
    shell.journal = shell.journal.at(stamped_at).follows(operation.batch.entries)
    shell.session.receive(Appended(at=Micros(stamped_at), epoch=E1), shell.now)
    assert shell.session.state == shell.journal.state


def test_the_calls_of_a_reply_are_decided_together_and_start_in_order() -> None:
    """The worker is asked once for each call, and not again for all after each start."""
    shell, asked = Shell(), []

    def note_call(call: CallState | None, _: WorkKind) -> bool:
        asked.append(None if call is None else call.id)
        return True

    shell.session = Session(
        shell.journal.state, TakeLease(holder="w1"), reserve_nothing, note_call
    )
    shell.take_lease()
    asked.clear()
    step = shell.ready(shell.reply(*[MAIL] * 100))
    assert isinstance(step.operation, AppendBatch)
    _, *starts = step.operation.batch.entries
    assert asked == [CallId(f"c{number}") for number in range(2, 102)]
    first = shell.journal.state.seq + 1
    assert [(start.call, start.seen) for start in starts if isinstance(start, CallStarted)] == [
        (call, first + position) for position, call in enumerate(asked)
    ]
