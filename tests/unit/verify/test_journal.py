"""Checks of seqs, states, leases and hashes: I1, I2, I4, I6 to I8 and I42."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from midrun.codec.journal import format_record, hash_line, hash_run_id
from midrun.core.entries import (
    AskClosed,
    AskOpened,
    CallDone,
    CallUnknown,
    CancelRequested,
    LateResult,
    LeaseReleased,
    LeaseTaken,
    PauseRequested,
    Record,
    RunCancelled,
    RunImported,
    RunPaused,
    RunResumed,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.evolve import fold
from midrun.core.ids import AskId, Epoch, RunId, Seq
from midrun.core.run_head import build_head
from midrun.core.values import Phase
from midrun.testing.scenario import RUN
from midrun.verify.journal import check_chain, check_imports, check_journal
from tests.unit.verify.journal_builder import (
    C2,
    C3,
    DRAFT,
    LEASE_2,
    LEASED_RUN,
    MAIL,
    STARTED,
    find_violations,
    make_call_in_flight,
    make_journal,
    make_step,
    with_epoch,
)


def test_a_sound_journal_has_no_problems() -> None:
    """Nor has any prefix of it: a journal is checked while it grows."""
    records = make_journal(*make_call_in_flight(MAIL), CallDone(call=C2), *make_step(call=C3))
    for length in range(len(records) + 1):
        assert check_journal(records[:length]) == ()


def test_a_gap_or_a_repeat_in_the_seqs_is_reported() -> None:
    """I1."""
    records = make_journal(*LEASED_RUN, LeaseReleased())
    gap = replace(records[2], seq=Seq(4))
    assert [p.invariant for p in check_journal((*records[:2], gap))] == ["I1"]
    repeat = replace(records[2], seq=Seq(2))
    assert [p.invariant for p in check_journal((*records[:2], repeat))] == ["I1"]


def test_an_entry_that_the_phase_does_not_allow_is_reported() -> None:
    """I2."""
    assert find_violations(*LEASED_RUN, RunPaused()) == []
    assert find_violations(*LEASED_RUN, RunCancelled()) == ["I2"]
    assert find_violations(LEASE_2) == ["I2"]


def test_an_ask_about_a_call_that_does_not_exist_is_reported() -> None:
    """I2: the fold cannot continue. The check reports that and does not raise."""
    assert find_violations(
        *LEASED_RUN, AskOpened(ask=AskId("a1"), ask_kind="question", call=C2)
    ) == ["I2"]


def test_entries_after_an_invalid_one_are_not_folded() -> None:
    """I2 is reported once; checks that need no fold go on."""
    assert find_violations(*LEASED_RUN, RunCancelled(), RunCancelled()) == ["I2", "I5"]


def test_a_stored_head_that_differs_from_the_journal_is_reported() -> None:
    """I2: lists and wake-ups depend on the head."""
    records = make_journal(*LEASED_RUN)
    head = build_head(fold(RUN, records))
    assert check_journal(records, head=head) == ()
    wrong = replace(head, phase=Phase.PAUSED)
    assert [p.invariant for p in check_journal(records, head=wrong)] == ["I2"]


def test_a_state_that_differs_from_the_journal_is_reported() -> None:
    """I2: the state may come from a snapshot or from the memory of a process."""
    records = make_journal(*LEASED_RUN)
    state = fold(RUN, records)
    assert check_journal(records, state=state) == ()
    wrong = replace(state, phase=Phase.PAUSED)
    assert [p.invariant for p in check_journal(records, state=wrong)] == ["I2"]


def test_epochs_only_grow() -> None:
    """I6: two leases with the same epoch would not fence each other."""
    assert find_violations(*LEASED_RUN, LeaseReleased(), LEASE_2) == []
    assert find_violations(*LEASED_RUN, LeaseReleased(), LeaseTaken(epoch=Epoch(1))) == ["I6"]


def test_only_the_holder_of_the_lease_appends_driver_entries() -> None:
    """I6: not without an epoch, not with a later one, and not without a lease."""
    assert find_violations(*LEASED_RUN, with_epoch(None, LeaseReleased())) == ["I6"]
    assert find_violations(*LEASED_RUN, with_epoch(2, LeaseReleased())) == ["I6"]
    assert find_violations(STARTED, with_epoch(1, LeaseReleased()))[:1] == ["I6"]


def test_an_older_epoch_appends_no_driver_entry() -> None:
    """I7."""
    assert find_violations(*LEASED_RUN, LEASE_2, with_epoch(2, LeaseReleased())) == []
    assert find_violations(*LEASED_RUN, LEASE_2, with_epoch(1, LeaseReleased())) == ["I7"]


def test_an_older_epoch_may_report_a_late_result() -> None:
    """I7: a late result starts no call."""
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    lost = (*make_call_in_flight(MAIL), LEASE_2, CallUnknown(call=C2))
    assert find_violations(*lost, with_epoch(1, late)) == []
    assert find_violations(*lost, with_epoch(1, replace(late, epoch=Epoch(3)))) == ["I7"]


def test_only_a_late_result_of_the_unknown_attempt_closes_its_ask() -> None:
    """I7."""
    ask = AskOpened(ask=AskId("a1"), ask_kind="unsure", call=C2)
    lost = (*make_call_in_flight(MAIL), LEASE_2, CallUnknown(call=C2), ask)
    closed = AskClosed(ask=AskId("a1"), why="evidence")
    late = LateResult(call=C2, attempt=1, epoch=Epoch(1))
    assert find_violations(*lost, late, closed) == []
    assert find_violations(*lost, replace(late, attempt=2), closed) == ["I7"]
    assert find_violations(*lost, closed) == ["I7"]


def test_a_new_lease_closes_every_orphaned_call_at_once() -> None:
    """I8: no other entry comes between the lease and the last of them."""
    in_flight = make_call_in_flight(MAIL)
    assert find_violations(*in_flight, LEASE_2, CallUnknown(call=C2)) == []
    assert find_violations(*in_flight, LEASE_2) == ["I8"]
    assert find_violations(*in_flight, LEASE_2, PauseRequested(), CallUnknown(call=C2)) == [
        "I8"
    ]


def test_a_new_lease_closes_an_orphaned_undo() -> None:
    """I8: the next attempt has the same key, so the last one must be closed."""
    undoing = (
        *make_call_in_flight(DRAFT),
        CancelRequested(),
        CallDone(call=C2),
        UndoStarted(call=C2),
    )
    assert find_violations(*undoing, LEASE_2, UndoUnknown(call=C2)) == []
    assert find_violations(*undoing, LEASE_2) == ["I8"]


def test_a_lease_that_was_returned_is_not_used() -> None:
    """I6: no worker drives a paused run."""
    paused = (*LEASED_RUN, PauseRequested(), RunPaused())
    assert find_violations(*paused, RunResumed()) == []
    assert find_violations(*paused, with_epoch(1, LeaseReleased()))[:1] == ["I6"]


# ── the hash chain ─────────────────────────────────────────────────────────────────────


FIRST_HASH = hash_run_id(RunId("run_1"))
StoredLine = tuple[bytes, bytes]


def make_lines() -> list[StoredLine]:
    """Return a stored journal: its lines with their hashes."""
    stored: list[StoredLine] = []
    previous = FIRST_HASH
    for record in make_journal(*LEASED_RUN, *make_step(MAIL), LeaseReleased()):
        data = format_record(record)
        previous = hash_line(previous, data)
        stored.append((data, previous))
    return stored


def find_first_fault(
    stored: Sequence[StoredLine], head: tuple[int, bytes] | None = None
) -> list[int]:
    """Return the seq of the first fault in a list, or an empty list."""
    problems = check_chain(stored, chain=hash_line, first_hash=FIRST_HASH, head=head)
    assert {problem.invariant for problem in problems} <= {"I4"}
    return [problem.seq for problem in problems]


def test_an_unchanged_chain_is_sound() -> None:
    """This holds with and without a stored head."""
    stored = make_lines()
    assert find_first_fault(stored) == []
    assert find_first_fault([]) == []
    for seq, (_, line_hash) in enumerate(stored, start=1):
        assert find_first_fault(stored, head=(seq, line_hash)) == []


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_changed_line_or_hash_is_reported(seq: int) -> None:
    stored = make_lines()
    data, line_hash = stored[seq - 1]
    for changed in ((data.replace(b'"v":1', b'"v":2'), line_hash), (data, bytes(32))):
        assert find_first_fault([*stored[: seq - 1], changed, *stored[seq:]]) == [seq]


def test_an_import_with_another_head_is_reported() -> None:
    """I42: the head is compared with the one that the entry names."""
    exported = make_journal(*LEASED_RUN, *make_step(MAIL), PauseRequested(), RunPaused())
    head = FIRST_HASH
    for record in exported:
        head = hash_line(head, format_record(record))
    for named_head, violations in ((head.hex(), []), ("00" * 32, ["I42"])):
        entry = RunImported(checkpoint=RunId("run_1"), head=named_head)
        records = [
            *exported,
            Record(seq=Seq(len(exported) + 1), at=exported[-1].at, entry=entry),
        ]
        problems = check_imports(
            map(format_record, records), records, chain=hash_line, first_hash=FIRST_HASH
        )
        assert [problem.invariant for problem in problems] == violations


def test_a_missing_line_is_reported() -> None:
    stored = make_lines()
    assert find_first_fault([*stored[:2], *stored[3:]]) == [3]


def test_an_inserted_line_is_reported() -> None:
    """Even if it is a copy of an earlier line."""
    stored = make_lines()
    assert find_first_fault([*stored[:3], stored[1], *stored[3:]]) == [4]


def test_two_swapped_lines_are_reported() -> None:
    stored = make_lines()
    assert find_first_fault([stored[0], stored[2], stored[1], *stored[3:]]) == [2]


def test_a_truncated_journal_is_reported_only_with_a_stored_head() -> None:
    """The chain alone does not contain its length."""
    stored = make_lines()
    head = (5, stored[4][1])
    assert find_first_fault(stored[:3]) == []
    assert find_first_fault(stored[:3], head=head) == [4]


def test_a_rewritten_journal_is_reported_only_with_a_stored_head() -> None:
    """An attacker who can write to the store can also compute the hashes."""
    stored = make_lines()
    forged, previous = [], FIRST_HASH
    for data, _ in stored:
        previous = hash_line(previous, data.replace(b"clerk", b"crook"))
        forged.append((data.replace(b"clerk", b"crook"), previous))
    assert find_first_fault(forged) == []
    assert find_first_fault(forged, head=(3, stored[2][1])) == [3]
