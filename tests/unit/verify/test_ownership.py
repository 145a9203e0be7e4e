"""Numbers, meaning and ownership: I1, I2, I6, I7, I8."""

from msgspec.structs import replace

from midrun.core.entries import (
    AskClosed,
    AskOpened,
    CallDone,
    CallUnknown,
    CancelRequested,
    LateResult,
    LeaseTaken,
    PauseRequested,
    RunCancelled,
    RunPaused,
    RunResumed,
    StoodDown,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.evolve import fold
from midrun.core.ids import AskId, Epoch, Seq
from midrun.core.run_head import build_head
from midrun.core.values import Phase
from midrun.testing.scenario import RUN as RUN_ID
from midrun.verify.journal import check_journal
from tests.unit.verify.books import (
    BEGUN,
    C2,
    C3,
    DRAFT,
    MAIL,
    RUN,
    broken,
    journal,
    start,
    step,
    under,
)

AGAIN = LeaseTaken(epoch=Epoch(2))


def test_a_sound_journal_has_no_problems() -> None:
    """And neither has every beginning of it: a journal is checked while it grows."""
    records = journal(*BEGUN, *step(MAIL), start(C2), CallDone(call=C2), *step(call=C3))
    for length in range(len(records) + 1):
        assert check_journal(records[:length]) == ()


def test_a_gap_in_the_numbers_is_reported() -> None:
    """I1: somebody took an entry away, or numbered two writers' entries."""
    records = journal(*BEGUN, StoodDown())
    late = replace(records[2], seq=Seq(4))
    assert [p.invariant for p in check_journal((*records[:2], late))] == ["I1"]
    again = replace(records[2], seq=Seq(2))
    assert [p.invariant for p in check_journal((*records[:2], again))] == ["I1"]


def test_an_entry_that_cannot_stand_there_is_reported() -> None:
    """I2: the table knows what may follow in each phase."""
    assert broken(*BEGUN, RunPaused()) == []
    assert broken(*BEGUN, RunCancelled()) == ["I2"]
    assert broken(AGAIN) == ["I2"]


def test_an_entry_about_an_ask_that_never_was_is_reported() -> None:
    """I2: the fold cannot go on, and says so instead of raising."""
    assert broken(*BEGUN, AskOpened(ask=AskId("a1"), ask_kind="question", call=C2)) == ["I2"]


def test_nothing_is_said_about_what_follows_an_entry_that_cannot_be() -> None:
    """The fold does not guess."""
    assert broken(*BEGUN, RunCancelled(), RunCancelled()) == ["I2", "I5"]


def test_a_stored_head_that_says_something_else_is_reported() -> None:
    """I2: lists and wake-ups trust the head; it must be what the journal means."""
    records = journal(*BEGUN)
    head = build_head(fold(RUN_ID, records))
    assert check_journal(records, head=head) == ()
    wrong = replace(head, phase=Phase.PAUSED)
    assert [p.invariant for p in check_journal(records, head=wrong)] == ["I2"]


def test_a_state_that_is_not_what_the_journal_means_is_reported() -> None:
    """I2: a snapshot, or what a process has in memory, must be what reading again gives."""
    records = journal(*BEGUN)
    state = fold(RUN_ID, records)
    assert check_journal(records, state=state) == ()
    wrong = replace(state, phase=Phase.PAUSED)
    assert [p.invariant for p in check_journal(records, state=wrong)] == ["I2"]


def test_epochs_only_grow() -> None:
    """I6: a lease that is taken twice with one number fences nobody off."""
    assert broken(*BEGUN, StoodDown(), AGAIN) == []
    assert broken(*BEGUN, StoodDown(), LeaseTaken(epoch=Epoch(1))) == ["I6"]


def test_only_the_holder_of_the_lease_writes_what_drivers_write() -> None:
    """I6: not nobody, not somebody from the future, and not after it was given back."""
    assert broken(*BEGUN, under(None, StoodDown())) == ["I6"]
    assert broken(*BEGUN, under(2, StoodDown())) == ["I6"]
    assert broken(RUN, under(1, StoodDown()))[:1] == ["I6"]


def test_an_older_epoch_writes_nothing() -> None:
    """I7: a zombie is fenced off, whatever it believes."""
    assert broken(*BEGUN, AGAIN, under(2, StoodDown())) == []
    assert broken(*BEGUN, AGAIN, under(1, StoodDown())) == ["I7"]


def test_an_older_epoch_may_bring_a_late_result() -> None:
    """I7: authority is fenced, evidence is not."""
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    lost = (*BEGUN, *step(MAIL), start(C2), AGAIN, CallUnknown(call=C2))
    assert broken(*lost, under(1, late)) == []
    assert broken(*lost, under(1, replace(late, epoch=Epoch(3)))) == ["I7"]


def test_only_evidence_of_the_unknown_attempt_settles_it() -> None:
    """I7: what another attempt did says nothing about this one."""
    ask = AskOpened(ask=AskId("a1"), ask_kind="unsure", call=C2)
    lost = (*BEGUN, *step(MAIL), start(C2), AGAIN, CallUnknown(call=C2), ask)
    closed = AskClosed(ask=AskId("a1"), why="evidence")
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    assert broken(*lost, late, closed) == []
    assert broken(*lost, replace(late, attempt=2), closed) == ["I7"]
    assert broken(*lost, closed) == ["I7"]


def test_who_takes_the_lease_closes_every_orphan_at_once() -> None:
    """I8: between taking the lease and closing the orphans nothing may happen."""
    flying = (*BEGUN, *step(MAIL), start(C2))
    assert broken(*flying, AGAIN, CallUnknown(call=C2)) == []
    assert broken(*flying, AGAIN) == ["I8"]
    paused = PauseRequested()
    assert broken(*flying, AGAIN, paused, CallUnknown(call=C2)) == ["I8"]


def test_who_takes_the_lease_closes_an_orphaned_undo() -> None:
    """I8: the next attempt goes under the same key, but the last one must be over."""
    undoing = (
        *(*BEGUN, *step(DRAFT), start(C2), CancelRequested()),
        *(CallDone(call=C2), UndoStarted(call=C2)),
    )
    assert broken(*undoing, AGAIN, UndoUnknown(call=C2)) == []
    assert broken(*undoing, AGAIN) == ["I8"]


def test_a_lease_that_was_given_back_is_not_used() -> None:
    """I6: paused means that nobody drives the run."""
    rest = (*BEGUN, PauseRequested(), RunPaused())
    assert broken(*rest, RunResumed()) == []
    assert broken(*rest, under(1, StoodDown()))[:1] == ["I6"]
