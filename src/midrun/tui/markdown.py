"""Render the agent's Markdown as styled rows that fit the terminal.

Rich lays out headings, lists, tables and code. Its segments become the styled pieces of
`styled_text`, so that everything printed is escaped and coloured in one place. HTML is shown as
text, and a link with its address. A line break in a paragraph is kept, as in a chat.
"""

from collections.abc import Iterator
from functools import cache
from io import StringIO
from typing import ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from rich.theme import Theme

from midrun.tui.styled_text import StyledLine, escape_controls, plain_text

_CODE_COLOUR: Final = "cyan"
_THEME: Final = Theme(
    {
        "markdown.code": _CODE_COLOUR,
        "markdown.code_block": _CODE_COLOUR,
        "markdown.link_url": "underline",
        "markdown.link": "underline",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.item.bullet": "",
        "markdown.item.number": "",
        "markdown.list": "",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    },
    inherit=True,
)


class _PlainHeading(Heading):
    """A heading in bold at the left margin; Rich would centre it in a frame."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.stylize("bold")
        self.text.justify = "left"
        yield self.text


class _PlainCode(CodeBlock):
    """Code in one colour, indented; long lines are folded, never cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = Text(str(self.text).rstrip("\n"), style=_CODE_COLOUR, overflow="fold")
        yield Padding(text, (0, 0, 0, 2))


class _TerminalMarkdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False)
        self.parsed = tokens


@cache
def _get_parser() -> MarkdownIt:
    # Without HTML: its tags would vanish from the text.
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


def _parse(text: str) -> list[Token]:
    tokens = _get_parser().parse(text)
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return tokens


def find_open_block(text: str) -> int:
    """Return the position in `text` where the block begins that more text could change.

    Only the last block is open: the next text may continue a paragraph, a list, a table or a
    block of code. A blank line ends a paragraph and a heading.
    """
    blocks = [t for t in _get_parser().parse(text) if t.level == 0 and t.map]
    if not blocks:
        return 0
    last = blocks[-1]
    if last.type in {"paragraph_open", "heading_open"} and text.endswith("\n\n"):
        return len(text)
    assert last.map is not None
    return sum(len(line) + 1 for line in text.split("\n")[: last.map[0]])


def render_markdown(text: str, width: int) -> list[StyledLine]:
    """Return Markdown as rows of at most `width` columns."""
    console = Console(
        file=StringIO(),
        width=max(width, 4),
        theme=_THEME,
        force_terminal=True,
        legacy_windows=False,
    )
    document = _TerminalMarkdown(_parse(escape_controls(text)))
    rendered = console.render_lines(document, console.options, pad=False)
    rows = [_strip_row(list(_convert_row(segments))) for segments in rendered]
    while rows and not plain_text(rows[-1]):
        rows.pop()
    while rows and not plain_text(rows[0]):
        del rows[0]
    return rows


def _convert_row(segments: list[Segment]) -> Iterator[tuple[str, str]]:
    for segment in segments:
        if not segment.control and segment.text:
            # Again: an entity such as `&#27;` becomes its character only when it is parsed.
            yield _name_style(segment.style), escape_controls(segment.text.replace("\n", ""))


def _name_style(style: Style | None) -> str:
    if style is None:
        return ""
    is_code = style.color is not None and style.color.name == _CODE_COLOUR
    names = {
        "code": is_code,
        "bold": style.bold,
        "em": style.italic,
        "underline": style.underline,
        "strike": style.strike,
        "dim": style.dim,
    }
    return " ".join(name for name, is_set in names.items() if is_set)


def _strip_row(row: StyledLine) -> StyledLine:
    """Return the row without blanks at its end."""
    while row and not row[-1][1].strip():
        row = row[:-1]
    return [*row[:-1], (row[-1][0], row[-1][1].rstrip())] if row else [("", "")]
