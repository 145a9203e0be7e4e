"""The change that a call would make to a text, found in its arguments.

A person who approves an edit reads the lines that change, not two long texts. The page has the
same rules in `static/file-preview.js`; `tests/browser/test_artifacts.py` and
`tests/unit/text/test_changes.py` have the same cases.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from itertools import islice
from typing import Final, Literal, TypeAlias

from midrun.core.values import FileRef, Json, Value

_OLD_NAME: Final = re.compile(r"(?P<word>old|before)(_?(text|str|string|content|value|lines))?")
_NEW_WORDS: Final = {"old": "new", "before": "after"}
_CONTENT_NAMES: Final = ("content", "text", "body", "markdown")
_TEXT_TYPES: Final = frozenset(
    {"application/json", "application/xml", "application/yaml", "application/toml"}
)

COMPARED_LINES_MAX: Final = 2000
"""Texts with more lines are not compared: the time grows with the square of their length."""

CONTEXT_LINES: Final = 3

LineKind = Literal["same", "added", "removed", "gap"]
ChangedLine: TypeAlias = tuple[LineKind, str]


class TextChange(Value, kw_only=True):
    """A text before and after a call. `file` has the text before, unless it is an argument."""

    before: str = ""
    after: str
    file: FileRef | None = None
    rest: dict[str, Json] = {}  # noqa: RUF012 - msgspec copies an empty default
    """The arguments that are not part of the change."""


def find_change(args: Json, files: Mapping[str, FileRef]) -> TextChange | None:
    """Return the change that the arguments describe; None if they describe none.

    They have a pair of texts, such as `old_text` and `new_text`, or the new content of an
    artifact that another argument names. `files` has the newest version of each artifact.
    """
    if not isinstance(args, dict):
        return None
    for name, value in args.items():
        found = _OLD_NAME.fullmatch(name)
        if found is None:
            continue
        word = found["word"]
        changed = name.replace(word, _NEW_WORDS[word], 1)
        after = args.get(changed)
        if isinstance(value, str) and isinstance(after, str):
            rest = _drop_arguments(args, name, changed)
            return TextChange(before=value, after=after, rest=rest)
    content = next((name for name in _CONTENT_NAMES if isinstance(args.get(name), str)), "")
    rest = _drop_arguments(args, content)
    named = [value for value in rest.values() if isinstance(value, str) and value in files]
    if not content or not named or not _is_text(files[named[-1]]):
        return None
    return TextChange(after=args[content], file=files[named[-1]], rest=rest)


def _drop_arguments(args: dict[str, Json], *names: str) -> dict[str, Json]:
    return {name: value for name, value in args.items() if name not in names}


def _is_text(file: FileRef) -> bool:
    kind = file.media_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in _TEXT_TYPES


def list_changed_lines(before: str, after: str) -> list[ChangedLine] | None:
    """Return the changed lines with some lines around them; None for too many lines."""
    old, new = before.split("\n"), after.split("\n")
    if max(len(old), len(new)) > COMPARED_LINES_MAX:
        return None
    return list(_walk_changes(old, new))


def _walk_changes(old: list[str], new: list[str]) -> Iterator[ChangedLine]:
    groups = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT_LINES)
    for number, group in enumerate(groups):
        if number:
            yield "gap", "…"
        for tag, old_from, old_to, new_from, new_to in group:
            if tag == "equal":
                yield from (("same", line) for line in islice(old, old_from, old_to))
                continue
            yield from (("removed", line) for line in islice(old, old_from, old_to))
            yield from (("added", line) for line in islice(new, new_from, new_to))
