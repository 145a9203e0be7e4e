"""The default title of a call, for tools that declare none, and the preview of an answer."""

import pytest

from midrun.core.values import Json, RequestedCall
from midrun.text.phrases import PREVIEW_MAX_CHARS, preview_output
from midrun.text.titles import TITLE_MAX_CHARS, format_title


@pytest.mark.parametrize(
    ("tool", "args", "title"),
    [
        ("send_mail", {"to": "ada", "copies": 2}, "Send mail: to “ada”, copies 2"),
        ("sendMail", {"urgent": True, "cc": None, "bcc": []}, "Send Mail: urgent yes"),
        ("list-files", {}, "List files"),
        ("list-files", None, "List files"),
        ("tag", {"names": ["a", "b", "c", "d"]}, "Tag: names “a”, “b”, “c” and 1 more"),
        ("put", {"row": {"id": 7}}, "Put: row (id 7)"),
        ("plan", {"items": ["Read"]}, "Update the plan"),
        ("ask_human", {"question": "Why?"}, "Ask a person"),
        ("", None, "Call the model"),
    ],
)
def test_a_call_without_a_declared_title_is_named_with_its_arguments(
    tool: str, args: Json, title: str
) -> None:
    assert format_title(RequestedCall(tool=tool, args=args)) == title


def test_a_text_cannot_end_its_quotation() -> None:
    use = RequestedCall(tool="wire", args={"to": "ada”, amount 1, to “eve\u200b"})
    assert format_title(use) == "Wire: to “ada', amount 1, to 'eve⟨U+200B⟩”"


@pytest.mark.parametrize("key", ["approved by ada, to", "to\u3164", "x" * 99, "", "a”, b “c"])
def test_a_name_of_an_argument_that_is_no_identifier_is_quoted(key: str) -> None:
    """A tool that accepts any arguments gets their names from the model."""
    title = format_title(RequestedCall(tool="wire", args={key: 5}))
    assert title.startswith("Wire: “")
    assert title.endswith("” 5")
    assert (title.count("“"), title.count("”")) == (1, 1)


def test_a_title_is_one_line_of_bounded_length() -> None:
    use = RequestedCall(tool="write", args={f"part{n}": "word\n" * 99 for n in range(99)})
    for title in (format_title(use), format_title(RequestedCall(tool="t", title="x\n" * 999))):
        assert len(title) <= TITLE_MAX_CHARS
        assert "\n" not in title


@pytest.mark.parametrize(
    ("output", "value", "preview"),
    [
        ("# Memo\n\nAcme is **late**,\nsays *Ada*.\n\nMore.", None, "Acme is late, says Ada."),
        ("## Only a heading", None, "Only a heading"),
        ("- `one`", None, "one"),
        ("See [the list](https://a.example/x).", None, "See the list."),
        ("| who | sum |\n|---|---|\n| Ada | 5 |", None, "who | sum | Ada | 5 |"),
        ('{"sum": 5}', {"sum": 5, "to": "Ada"}, "sum: 5, to: “Ada”"),
        ("a" * 999, None, "a" * (PREVIEW_MAX_CHARS - 1) + "…"),
        ("", None, ""),
    ],
)
def test_the_preview_of_an_answer_is_one_line_of_plain_text(
    output: str, value: Json, preview: str
) -> None:
    assert preview_output(output, value) == preview
