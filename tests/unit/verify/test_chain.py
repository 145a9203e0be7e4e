"""The chain: I4, I42."""

from collections.abc import Sequence

import pytest

from midrun.codec.journal import format_record, hash_line, hash_run_id
from midrun.core.entries import PauseRequested, Record, RunImported, RunPaused, StoodDown
from midrun.core.ids import RunId, Seq
from midrun.verify.journal import check_chain, check_imports
from tests.unit.verify.books import BEGUN, MAIL, journal, step

FIRST = hash_run_id(RunId("run_1"))
Line = tuple[bytes, bytes]


def lines() -> list[Line]:
    """Return a stored journal: its lines with their hashes."""
    stored: list[Line] = []
    before = FIRST
    for record in journal(*BEGUN, *step(MAIL), StoodDown()):
        data = format_record(record)
        before = hash_line(before, data)
        stored.append((data, before))
    return stored


def first_bad(stored: Sequence[Line], head: tuple[int, bytes] | None = None) -> list[int]:
    """Return where the check finds the first fault, if anywhere."""
    problems = check_chain(stored, chain=hash_line, first_hash=FIRST, head=head)
    assert {problem.invariant for problem in problems} <= {"I4"}
    return [problem.seq for problem in problems]


def test_a_chain_that_nobody_touched_is_sound() -> None:
    """With and without a head that somebody kept."""
    stored = lines()
    assert first_bad(stored) == []
    assert first_bad([]) == []
    for seq, (_, kept) in enumerate(stored, start=1):
        assert first_bad(stored, head=(seq, kept)) == []


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_changed_line_is_found(seq: int) -> None:
    """One bit, in the line or in its hash."""
    stored = lines()
    data, kept = stored[seq - 1]
    for changed in ((data.replace(b'"v":1', b'"v":2'), kept), (data, bytes(32))):
        assert first_bad([*stored[: seq - 1], changed, *stored[seq:]]) == [seq]


def test_an_import_that_names_other_lines_is_found() -> None:
    """I42: where the run came from, its head can be compared with the one that is named."""
    before = journal(*BEGUN, *step(MAIL), PauseRequested(), RunPaused())
    head = FIRST
    for record in before:
        head = hash_line(head, format_record(record))
    for named, found in ((head.hex(), []), ("00" * 32, ["I42"])):
        entry = RunImported(checkpoint=RunId("run_1"), head=named)
        records = [*before, Record(seq=Seq(len(before) + 1), at=before[-1].at, entry=entry)]
        problems = check_imports(
            map(format_record, records), records, chain=hash_line, first_hash=FIRST
        )
        assert [problem.invariant for problem in problems] == found


def test_a_missing_line_is_found() -> None:
    """Together with its hash: the next one does not fit."""
    stored = lines()
    assert first_bad([*stored[:2], *stored[3:]]) == [3]


def test_an_inserted_line_is_found() -> None:
    """Even a copy of one that is there already."""
    stored = lines()
    assert first_bad([*stored[:3], stored[1], *stored[3:]]) == [4]


def test_two_swapped_lines_are_found() -> None:
    """At the first of them."""
    stored = lines()
    assert first_bad([stored[0], stored[2], stored[1], *stored[3:]]) == [2]


def test_a_tail_that_was_cut_off_is_found_by_a_kept_head() -> None:
    """And only by that: a chain alone cannot know how long it was."""
    stored = lines()
    head = (5, stored[4][1])
    assert first_bad(stored[:3]) == []
    assert first_bad(stored[:3], head=head) == [4]


def test_a_rewritten_history_is_found_by_a_kept_head() -> None:
    """Whoever can write the store can also compute hashes."""
    stored = lines()
    forged, before = [], FIRST
    for data, _ in stored:
        before = hash_line(before, data.replace(b"clerk", b"crook"))
        forged.append((data.replace(b"clerk", b"crook"), before))
    assert first_bad(forged) == []
    assert first_bad(forged, head=(3, stored[2][1])) == [3]
