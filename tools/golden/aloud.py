"""Render a stored journal as `midrun feed` prints it, in UTC."""

from collections.abc import Iterable
from datetime import UTC

from midrun.cli.follow import PlainFeed
from midrun.core.entries import Record
from midrun.runs.event_stream import EventBuilder
from midrun.runs.feed import make_feed_entry
from tools.golden.facts import RUN


def read_aloud(records: Iterable[Record]) -> str:
    """Return the journal as text, a line for each entry and each day."""
    builder, lines = EventBuilder(RUN), PlainFeed(UTC)
    return "".join(
        f"{line}\n"
        for record in records
        for line in lines.format_event(builder.build_next(make_feed_entry(record)))
    )
