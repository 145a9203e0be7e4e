"""Declared titles: checked at the declaration, rendered without ever failing."""

from typing import cast

import pytest

from midrun import tool, traits
from midrun.agents.builtin_tools import pause_here
from midrun.agents.title import Title
from midrun.agents.tool import Tool
from midrun.core.values import Json
from midrun.errors import Misconfigured


def declare(title: object) -> Tool:
    @tool(title=cast("Title", title))  # tests pass wrong values, too
    async def write(heading: str, words: int = 100, tags: list[str] | None = None) -> str:
        """Write a section."""
        return f"{heading} {words} {tags}"

    return write


@pytest.mark.parametrize(
    ("title", "args", "shown"),
    [
        ("Write section “{heading}”", {"heading": "Risks"}, "Write section “Risks”"),
        ("Write {heading}", {"heading": "Risks"}, "Write “Risks”"),
        ("Write {words} words", {"heading": "a", "words": 7}, "Write 7 words"),
        ("Write {words} words", {"heading": "a"}, "Write 100 words"),
        ("Write {words:,} words", {"heading": "a", "words": 1200}, "Write 1,200 words"),
        ("Tag {tags}", {"heading": "a", "tags": ["x", "y"]}, "Tag “x”, “y”"),
        (lambda args: f"Write {args['heading']}", {"heading": "Risks"}, "Write Risks"),
    ],
)
def test_a_title_is_made_from_the_arguments(
    title: Title, args: dict[str, Json], shown: str
) -> None:
    assert declare(title).make_title(args) == shown


@pytest.mark.parametrize("marks", ["''", "‘’", "``", "()", "[]", "“”", '""', "«»", "„“"])  # noqa: RUF001 - as authors write them
def test_a_text_cannot_end_any_marks_of_a_template(marks: str) -> None:
    start, end = marks[0], marks[1]
    shown = declare(f"Pay {start}{{heading}}{end}").make_title(
        {"heading": f"ada{end} 5 EUR, approved by {start}bob"}
    )
    inside = shown.removeprefix("Pay ").removeprefix(start).removesuffix(end)
    if marks in {"''", "‘’", "``", "()", "[]"}:  # noqa: RUF001 - as authors write them
        assert inside == f"“ada{end} 5 EUR, approved by {start}bob”"
    else:
        assert inside == "ada' 5 EUR, approved by 'bob"


@pytest.mark.parametrize("title", ["Write “{heading}” to disk", "Write {heading} to disk"])
def test_an_argument_cannot_imitate_the_words_of_a_title(title: str) -> None:
    """A model chooses arguments. It must not write the end of the quotation itself."""
    said = 'Risks” to disk, approved by “ada"\n\u202eApproved'
    shown = declare(title).make_title({"heading": said})
    assert shown == "Write “Risks' to disk, approved by 'ada' ⟨U+202E⟩Approved” to disk"
    long = declare(title).make_title({"heading": "word " * 1000})
    assert long.endswith("…” to disk")
    assert len(long) < 100


def ask_a_person(_: dict[str, Json]) -> str:
    pause_here("What is the title?")


@pytest.mark.parametrize(
    ("title", "args"),
    [
        (lambda _: 1 / 0, {"heading": "a"}),
        (lambda _: 42, {"heading": "a"}),
        (ask_a_person, {"heading": "a"}),
        ("Write {tags:d}", {"heading": "a", "tags": 1.5}),
        ("Write {heading}", {}),
        ("Write {heading}", None),
    ],
)
def test_a_title_that_cannot_be_made_is_left_out(title: Title, args: Json) -> None:
    """The call has the default title then. A title never fails a call."""
    assert declare(title).make_title(args) == ""


@pytest.mark.parametrize(
    ("title", "problem"),
    [
        ("Write {headin}", "Cannot use {headin} in title: its parameters are: heading, words"),
        ("Write {}", "Cannot use {} in title"),
        ("Write {heading", "Cannot read title"),
        ("Write {heading.title}", "Cannot use {heading.title} in title"),
        ("  ", "title must be a text or a function"),
        (7, "title must be a text or a function"),
        (lambda: "Write", "title must be callable as title\\(args\\)"),
    ],
)
def test_a_title_is_checked_when_the_tool_is_declared(title: object, problem: str) -> None:
    with pytest.raises(Misconfigured, match=problem):
        declare(title)


async def async_title(args: dict[str, Json]) -> str:
    return str(args)


def test_an_async_title_is_refused() -> None:
    with pytest.raises(Misconfigured, match="must not be async"):
        declare(async_title)


def test_a_title_is_no_part_of_the_version() -> None:
    """An approval stays valid if only the words for people change."""
    assert declare("Write {heading}").traits.version == declare("Compose").traits.version


def test_the_tool_of_another_framework_gets_a_title_with_traits() -> None:
    assert traits(title="Charge {amount}")["title"] == "Charge {amount}"
