"""A stored journal as a person reads it: what `midrun feed` prints, in Greenwich time."""

from collections.abc import Iterable
from datetime import UTC

from midrun.cli.reading import Reading
from midrun.core.entries import Record
from midrun.handles.item import Happened
from tools.golden.facts import RUN


def read_aloud(records: Iterable[Record]) -> str:
    """Return the journal as text, a line for each entry and each day."""
    reading = Reading(RUN, zone=UTC)
    return "".join(f"{line}\n" for record in records for line in reading.lines(_item(record)))


def _item(record: Record) -> Happened:
    return Happened(
        seq=record.seq,
        at=record.at,
        kind=type(record.entry).__name__,
        entry=record.entry,
        epoch=record.epoch,
    )
