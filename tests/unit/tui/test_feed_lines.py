"""Lines above the bar: the streamed text of a model, row by row, and the lines of entries."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.utils import get_cwidth

from midrun.core import entries as e
from midrun.core.driver_inputs import CloseCall
from midrun.core.ids import CallId, Epoch, RunId, Seq
from midrun.core.values import RequestedCall
from midrun.events import RunEvent, TextDelta, ToolNote
from midrun.runs.event_stream import EventBuilder
from midrun.runs.feed import make_feed_entry
from midrun.testing.scenario import LEASED_RUN
from midrun.testing.scenario import given as make_scenario
from midrun.text.phrases import Tone, format_value
from midrun.tui.feed_lines import (
    ICON_BY_TONE,
    INTERRUPTED_MARK,
    LIVE_MAX_CHARS,
    FeedLines,
    StreamedText,
)
from midrun.tui.markdown import find_open_block, render_markdown
from midrun.tui.styled_text import SGR_BY_STYLE, StyledLine, plain_text
from midrun.tui.wrap import wrap_indented, wrap_text

C1, C2 = CallId("c1"), CallId("c2")


def get_texts(lines: list[StyledLine]) -> list[str]:
    """Return the texts of lines, without their styles."""
    return [plain_text(line) for line in lines]


@given(st.text(st.characters(categories=("L", "N", "Z", "S"))), st.integers(2, 40))
def test_a_row_is_never_wider_than_the_terminal(text: str, width: int) -> None:
    """Wide characters count as two columns; only blanks may be lost."""
    rows = wrap_text(text, width)
    assert all(get_cwidth(row) <= width or len(row) == 1 for row in rows)
    assert "".join(rows).replace(" ", "") == text.replace(" ", "")


def test_rows_break_between_words() -> None:
    """A word is broken only if it is longer than a row."""
    assert wrap_text("one two three", 8) == ["one two", "three"]
    assert wrap_text("日本語の文字", 6) == ["日本語", "の文字"]
    assert wrap_text("incomprehensible", 6) == ["incomp", "rehens", "ible"]


def test_a_styled_line_is_wrapped_with_its_styles_and_indented() -> None:
    line: StyledLine = [("good", "✓ read"), ("dim", " all of the news of today")]
    assert wrap_indented(line, 80) == [line]
    assert wrap_indented(line, 16) == [
        [("good", "✓ read"), ("dim", " all of")],
        [("", "  "), ("dim", "the news of")],
        [("", "  "), ("dim", "today")],
    ]
    assert get_texts(wrap_indented([("", "  ○ incomprehensible")], 12))[0] == "  ○"


@given(st.lists(st.text(max_size=12), max_size=20), st.integers(4, 30))
def test_streamed_pieces_make_the_same_rows_as_the_whole_text(
    pieces: list[str], width: int
) -> None:
    """However the provider splits the text."""
    text = "".join(pieces).replace("\r", "").replace("\t", " ")
    streamed, whole = StreamedText(), StreamedText()
    lines = [
        line
        for piece in pieces
        for line in streamed.add_piece(C1, piece.replace("\r", "").replace("\t", " "), width)
    ]
    lines += streamed.finish_call(C1, text, width, interrupted=False)
    expected = whole.finish_call(C1, text, width, interrupted=False)
    assert "".join(get_texts(lines)).split() == "".join(get_texts(expected)).split()
    assert not streamed.is_open


def test_the_end_of_a_call_prints_only_the_rest_of_its_text() -> None:
    """The entry has the whole text."""
    streamed = StreamedText()
    assert get_texts(streamed.add_piece(C1, "First part.\n\nsecond", 40)) == ["First part."]
    assert get_texts(streamed.draw_rows(40)) == ["second"]
    assert get_texts(
        streamed.finish_call(C1, "First part.\n\nsecond half", 40, interrupted=False)
    ) == ["", "second half"]


def test_an_interrupted_text_is_marked() -> None:
    streamed = StreamedText()
    streamed.add_piece(C1, "The answer is", 40)
    (row,) = get_texts(streamed.finish_call(C1, "The answer is not", 40, interrupted=True))
    assert row == f"The answer is not{INTERRUPTED_MARK}"
    assert streamed.finish_call(C2, "", 40, interrupted=True) == []  # no text, no mark


def test_the_text_of_another_attempt_starts_on_a_new_row() -> None:
    """The text of the failed attempt stays and is marked."""
    streamed = StreamedText()
    streamed.add_piece(C1, "Cats are", 40)
    assert get_texts(streamed.add_piece(C2, "Dogs", 40)) == [f"Cats are{INTERRUPTED_MARK}"]
    assert get_texts(streamed.draw_rows(40)) == ["Dogs"]


def test_a_text_that_was_followed_from_its_middle_is_printed_as_a_whole_at_its_end() -> None:
    """It is not marked as interrupted."""
    streamed = StreamedText()
    streamed.add_piece(C1, "the mat", 40)
    assert get_texts(
        streamed.finish_call(C1, "The cat sat on the mat.", 40, interrupted=False)
    ) == [
        "the mat",
        "The cat sat on the mat.",
    ]


def test_an_opening_prints_only_the_text_that_is_new() -> None:
    """Printed rows cannot be changed, so the text continues after them."""
    streamed = StreamedText()
    assert get_texts(streamed.add_piece(C1, "one\n\ntwo ", 80, opening=True)) == ["one"]
    more = "one\n\ntwo three\n\nfour"
    assert get_texts(streamed.add_piece(C1, more, 80, opening=True)) == ["", "two three"]
    assert get_texts(streamed.finish_call(C1, more, 80, interrupted=False)) == ["", "four"]


def test_an_opening_of_another_attempt_is_printed_from_its_beginning() -> None:
    """The text of the first attempt is marked."""
    streamed = StreamedText()
    streamed.add_piece(C1, "one two", 80)
    rows = get_texts(streamed.add_piece(C1, "Well,\n\nno", 80, opening=True))
    assert rows == [f"one two{INTERRUPTED_MARK}", "Well,"]
    assert get_texts(streamed.draw_rows(80)) == ["no"]


MARKDOWN = """# Ticket

The **price** is `12`, see [the list](https://example.com).
It is final.

- one
- two

| kind | many |
|------|------|
| oak  | 3    |

```
if x < 3:  # *not* emphasised
```

<b>No tag</b>"""


def test_markdown_is_rendered() -> None:
    """HTML stays text, a link shows its address, and a line break is kept."""
    lines = StreamedText().finish_call(C1, MARKDOWN, 60, interrupted=False)
    texts = [text for text in get_texts(lines) if text]
    assert texts == [
        "Ticket",
        "The price is 12, see the list (https://example.com).",
        "It is final.",
        " • one",
        " • two",
        " kind  many",
        " ──────────",
        " oak   3",
        "  if x < 3:  # *not* emphasised",
        "<b>No tag</b>",
    ]
    assert ("bold", "price") in [piece for line in lines for piece in line]
    assert ("code", "12") in [piece for line in lines for piece in line]


def test_markdown_streams_without_printing_a_row_twice() -> None:
    """A table is not printed before its columns have their final widths."""
    streamed = StreamedText()
    printed: list[str] = []
    for character in MARKDOWN:
        printed += get_texts(streamed.add_piece(C1, character, 60))
    printed += get_texts(streamed.finish_call(C1, MARKDOWN, 60, interrupted=False))
    whole = get_texts(StreamedText().finish_call(C1, MARKDOWN, 60, interrupted=False))
    assert [row for row in printed if row] == [row for row in whole if row]


def test_markdown_cannot_control_the_terminal() -> None:
    """An entity becomes its character only when the Markdown is parsed."""
    lines = StreamedText().finish_call(
        C1, "a\x1b[2Jb &#27;]0;c&#7; `d&#27;`\n\n```\n\x1b[31me\n```", 60, interrupted=False
    )
    assert not any(ord(character) < 32 for text in get_texts(lines) for character in text)


# ── lines of entries ─────────────────────────────────────────────────────────


def make_lines(*later: e.Entry) -> list[StyledLine]:
    """Return the lines of the entries of a run that has been taken by a worker."""
    builder, feed = EventBuilder(RunId("run_1")), FeedLines()
    records = make_scenario(*LEASED_RUN, *later).records
    events = [builder.build_next(make_feed_entry(record)) for record in records]
    return [line for event in events for line in feed.format_event(event, 80)]


def test_each_tone_but_detail_has_an_icon_and_a_colour() -> None:
    assert {*ICON_BY_TONE, "detail"} == set(get_args(Tone))
    assert ICON_BY_TONE.keys() <= SGR_BY_STYLE.keys()


def test_an_entry_is_its_sentence_behind_the_icon_of_its_tone() -> None:
    """The bar shows the entries of the tone `detail`, such as the lease."""
    lines = make_lines(e.PauseRequested(by="ada", reason="lunch"), e.RunPaused(why="user"))
    assert get_texts(lines)[1:] == [
        "‖ ada asked the run to pause, because: lunch",
        "‖ the run is paused",
    ]
    assert lines[1] == [
        ("hold", "‖ ada asked the run to pause"),
        ("dim", ", because: lunch"),
    ]


def test_long_values_are_truncated_with_an_ellipsis() -> None:
    """A result of a megabyte is one line; the journal has the rest."""
    assert len(format_value("x" * 10_000)) == 400
    assert format_value("x" * 10_000).endswith("…")
    assert format_value({"a": [1, 2]}) == "(a: (1, 2))"
    assert format_value("two\nlines") == "two lines"


# ── text, notes and results together ─────────────────────────────────────────


def make_note(text: str, call: CallId = C2) -> ToolNote:
    return ToolNote(seq=Seq(1), sentence=f"read: {text}", call=call, text=text, tool="read")


def test_a_notice_comes_after_the_paragraph() -> None:
    """Before, the line of an entry was printed in the middle of a sentence."""
    builder, feed = EventBuilder(RunId("run_1")), FeedLines()
    started = e.CallStarted(call=C1, call_kind="model", attempt=1, seen=Seq(2))
    records = make_scenario(*LEASED_RUN, started, e.PauseRequested(by="ada")).records
    *before, paused = [builder.build_next(make_feed_entry(record)) for record in records]
    for event in before:
        feed.format_event(event, 80)
    piece = TextDelta(seq=Seq(3), sentence="", call=C1, text="The answer")
    assert feed.format_event(piece, 80) == []
    assert feed.format_event(paused, 80) == []
    piece = TextDelta(seq=Seq(4), sentence="", call=C1, text=" is long.\n\nNext")
    assert get_texts(feed.format_event(piece, 80)) == ["The answer is long."]
    assert get_texts(feed.end(80)) == ["", "Next", "‖ ada asked the run to pause"]


def test_progress_is_replaced_and_not_repeated() -> None:
    feed = FeedLines()
    for number in range(3):
        assert feed.format_event(make_note(f"page {number}"), 80) == []
    assert get_texts(feed.draw_rows(80, 10)) == ["  · read: page 2"]


def list_tool_events(end: e.Entry) -> list[RunEvent]:
    """Return the events of a run with one tool call, up to `end`."""
    builder = EventBuilder(RunId("run_1"))
    use = RequestedCall(tool="read", args={"url": "x"})
    scenario = make_scenario(*LEASED_RUN).replies(use).starts("c2")
    records = scenario.after(CloseCall(epoch=Epoch(1), outcome=end)).records  # type: ignore[arg-type]  # ends of calls
    return [builder.build_next(make_feed_entry(record)) for record in records]


def test_the_progress_of_a_stopped_call_stays() -> None:
    *before, end = list_tool_events(e.CallAborted(call=C2))
    feed = FeedLines()
    for event in before:
        feed.format_event(event, 80)
    feed.format_event(make_note("page 7"), 80)
    assert "  · read: page 7" in get_texts(feed.format_event(end, 80))
    assert feed.draw_rows(80, 10) == []


def test_a_result_is_one_line_and_can_be_expanded() -> None:
    result = {"text": "word " * 100, "pages": 3}
    feed = FeedLines()
    events = list_tool_events(e.CallDone(call=C2, result=result))
    *_, lines = [get_texts(feed.format_event(event, 40)) for event in events]
    assert [len(line) <= 40 and line.endswith("…") for line in lines] == [True]
    expanded = get_texts(feed.expand_result())
    assert expanded[0] == "▾ Read: url “x”"
    assert "  pages: 3" in expanded
    assert get_texts(feed.expand_result()) == ["no results to show"]


def test_the_work_for_a_long_block_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is drawn until it is complete; then it is printed like any block."""
    parsed: list[int] = []
    drawn: list[int] = []

    def count_parsed(text: str) -> int:
        parsed.append(len(text))
        return find_open_block(text)

    def count_drawn(text: str, width: int) -> list[StyledLine]:
        drawn.append(len(text))
        return render_markdown(text, width)

    monkeypatch.setattr("midrun.tui.feed_lines.find_open_block", count_parsed)
    monkeypatch.setattr("midrun.tui.feed_lines.render_markdown", count_drawn)
    items = [f"- item {number} of a list with many words\n" for number in range(400)]
    text, streamed, seen = "".join(items), StreamedText(), 0
    for number, item in enumerate(items):
        assert streamed.add_piece(C1, item, 60) == []
        seen += len(item)
        if seen > LIVE_MAX_CHARS and number % 20 == 0:
            assert get_texts(streamed.draw_rows(60))[-1].endswith(item.strip("- \n"))
    assert max(drawn) <= LIVE_MAX_CHARS
    assert sum(size for size in parsed if size > LIVE_MAX_CHARS) < 6 * len(text)
    rows = streamed.finish_call(C1, text, 60, interrupted=False)
    assert rows == render_markdown(text, 60)


def test_the_end_of_long_code_is_drawn_as_code() -> None:
    streamed = StreamedText()
    streamed.add_piece(C1, "```python\n" + "# not a heading\n" * 500, 60)
    assert streamed.draw_rows(60)[-1] == [("", "  "), ("code", "# not a heading")]
