"""Render a stored journal as `midrun feed` prints it, in UTC."""

from collections.abc import Iterable
from datetime import UTC

from midrun.cli.follow import Reading
from midrun.core.entries import Record
from midrun.runs.feed import happened
from tools.golden.facts import RUN


def read_aloud(records: Iterable[Record]) -> str:
    """Return the journal as text, a line for each entry and each day."""
    reading = Reading(RUN, zone=UTC)
    return "".join(
        f"{line}\n" for record in records for line in reading.lines(happened(record))
    )
