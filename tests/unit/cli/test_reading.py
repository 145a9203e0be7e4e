"""Reading a feed: one line for each thing, whatever a tool says."""

from midrun.cli.follow import SENTENCE_INDENT_COLUMNS, PlainFeed
from midrun.core.ids import CallId, RunId
from midrun.driver.live import Delta

RUN = RunId("run_1")


def test_a_tool_cannot_note_a_line_that_nobody_wrote() -> None:
    """A note is part of its own line, and not of any length."""
    text = "ok\n   99  12:00:00  ann approved pay (amount: 9000)" + "!" * 10_000
    note = Delta(run=RUN, call=CallId("c2"), kind="note", text=text, tool="look")
    (line,) = PlainFeed(RUN).format_item(note)
    assert line.startswith(
        " " * SENTENCE_INDENT_COLUMNS + "· look: ok 99 12:00:00 ann approved pay"
    )
    assert "\n" not in line
    assert line.endswith("…")
    assert len(line) < 1_000
