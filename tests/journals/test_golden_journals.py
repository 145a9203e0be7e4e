"""Every version of Midrun reads the stored journals, and computes the same state from them.

`python -m tools.make_golden` adds a journal for a new story. If a test here fails, do not store
the journal again: users have such journals, too. Add an upcast for the entry that changed.
"""

from pathlib import Path

import pytest

from midrun.codec.journal import decode_lines, format_record, hash_line, hash_run_id
from midrun.core.entries import ENTRY_TYPES, Record
from midrun.core.evolve import fold
from midrun.verify.journal import check_chain, check_journal
from tools.golden.facts import RUN, facts_of, text_of
from tools.golden.scenarios import SCENARIOS

STORED = sorted(Path(__file__).parent.glob("*.jsonl"))


def read_journal(path: Path) -> list[Record]:
    """Return the records of a stored journal."""
    return decode_lines(RUN, path.read_bytes().splitlines())


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_folds_into_the_stored_facts(path: Path) -> None:
    """The facts are its phase, calls, asks, texts, and the hash of its last line."""
    stored = path.with_suffix(".facts.json").read_bytes()
    assert facts_of(read_journal(path)).decode() == stored.decode()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_is_written_again_byte_for_byte(path: Path) -> None:
    """Other bytes would have other hashes, and the check of the chain would fail."""
    assert text_of(read_journal(path)) == path.read_bytes()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_breaks_no_invariant(path: Path) -> None:
    """Its hash chain is intact, too."""
    records = read_journal(path)
    assert check_journal(records) == ()
    head_hash, lines = hash_run_id(RUN), []
    for record in records:
        head_hash = hash_line(head_hash, format_record(record))
        lines.append((format_record(record), head_hash))
    head = len(lines), head_hash
    assert check_chain(lines, chain=hash_line, first_hash=hash_run_id(RUN), head=head) == ()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_fold_can_continue_after_any_record(path: Path) -> None:
    """A fold of the first records, continued with the others, equals the fold of all."""
    records = read_journal(path)
    whole = fold(RUN, records)
    for cut in range(len(records)):
        assert fold(RUN, records[cut:], fold(RUN, records[:cut])) == whole


def test_every_entry_class_is_in_a_stored_journal() -> None:
    """No test here fails when an entry changes that no stored journal has."""
    stored = {type(record.entry) for path in STORED for record in read_journal(path)}
    assert [entry.__name__ for entry in ENTRY_TYPES if entry not in stored] == []


def test_every_story_is_stored_with_its_facts() -> None:
    assert {path.stem for path in STORED} >= set(SCENARIOS)
    assert all(path.with_suffix(".facts.json").exists() for path in STORED)
