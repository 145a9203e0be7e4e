"""What a docstring says to a model: the text, and a line for each parameter.

Google, NumPy and Sphinx styles are understood. What is not understood stays in the text or is
left out; a docstring is never an error.
"""

import re
from inspect import cleandoc
from textwrap import dedent
from typing import Final, NamedTuple


class Described(NamedTuple):
    """`text` is all that stands before the first section; `parameters` are by name."""

    text: str
    parameters: dict[str, str]


_ARGUMENTS: Final = {
    "Args",
    "Arguments",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
    "Parameters",
    "Params",
}
_OTHERS: Final = (
    "Attributes|Examples?|Notes?|Raises|References|Returns?|See Also|Todo|Warnings?|Warns"
    "|Yields?"
)
_HEADING: Final = re.compile(  # gives its name, and how it is marked: `:`, or underlined
    rf"^({'|'.join(sorted(_ARGUMENTS))}|{_OTHERS})(:|[ \t]*\n-{{3,}})[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
_FIELD: Final = re.compile(
    r"^:(?:arg|key|keyword|param|raises?|returns?|rtype|type|yields?)\b", re.MULTILINE
)

# An entry gives its name or names, and the lines that are indented below.
_BELOW: Final = r"(?:\n(?:[ \t]+.*)?)*"
_GOOGLE: Final = re.compile(rf"^(\w+)(?: *\(.*?\))?:(.*{_BELOW})", re.MULTILINE)
_NUMPY: Final = re.compile(rf"^(\w+(?:, *\w+)*)(?: *:.*)?({_BELOW})", re.MULTILINE)
_SPHINX: Final = re.compile(
    rf"^:(?:arg|key|keyword|param) +(?:[^:\n]+ )?(\w+):(.*{_BELOW})", re.MULTILINE
)


def described(doc: str | None) -> Described:
    """Return what `doc` says; nothing where there is none."""
    text, *sections = _HEADING.split(cleandoc(doc or ""))
    field = _FIELD.search(text)
    found = _SPHINX.findall(text)
    for name, mark, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        if name in _ARGUMENTS:
            found += (_GOOGLE if mark == ":" else _NUMPY).findall(dedent(body))
    return Described(
        text=text[: field.start() if field else None].rstrip(),
        parameters={
            name: line
            for names, words in found
            for name in names.replace(",", " ").split()
            if (line := " ".join(words.split()))
        },
    )
