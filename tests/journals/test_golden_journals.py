"""Stored journals, read again for ever: what somebody has on disk must go on meaning the same.

`python -m tools.make_golden` adds new ones. One that fails here is not written again: the
entry that changed needs an upcast.
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


def read(path: Path) -> list[Record]:
    """Return what a stored journal says."""
    return decode_lines(RUN, path.read_bytes().splitlines())


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_means_what_it_always_meant(path: Path) -> None:
    """Its phase, its calls, its asks, its words; and the hash of its last line."""
    stored = path.with_suffix(".facts.json").read_bytes()
    assert facts_of(read(path)).decode() == stored.decode()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_is_written_again_byte_for_byte(path: Path) -> None:
    """What is read and written gives the same bytes, or no chain could be checked."""
    assert text_of(read(path)) == path.read_bytes()


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_keeps_every_promise(path: Path) -> None:
    """And so does every beginning of it that ends between two appends."""
    records = read(path)
    assert check_journal(records) == ()
    before, links = hash_run_id(RUN), []
    for record in records:
        before = hash_line(before, format_record(record))
        links.append((format_record(record), before))
    assert (
        check_chain(
            links, chain=hash_line, first_hash=hash_run_id(RUN), head=(len(links), before)
        )
        == ()
    )


@pytest.mark.parametrize("path", STORED, ids=lambda path: str(path.stem))
def test_a_stored_journal_can_be_read_on_from_anywhere(path: Path) -> None:
    """The fold of the rest on top of the fold of the beginning is the fold of all."""
    records = read(path)
    whole = fold(RUN, records)
    for cut in range(len(records)):
        assert fold(RUN, records[cut:], fold(RUN, records[:cut])) == whole


def test_every_kind_of_entry_is_in_some_stored_journal() -> None:
    """An entry that no stored journal holds could change without anybody noticing."""
    held = {type(record.entry) for path in STORED for record in read(path)}
    assert [kind.__name__ for kind in ENTRY_TYPES if kind not in held] == []


def test_every_story_is_stored_and_has_its_facts() -> None:
    """A story that was written and not stored protects nothing."""
    assert {path.stem for path in STORED} >= set(SCENARIOS)
    assert all(path.with_suffix(".facts.json").exists() for path in STORED)
