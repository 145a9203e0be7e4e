"""The change of a text that a call would make, found in its arguments."""

import pytest

from midrun.core.values import FileRef, Json
from midrun.text.changes import COMPARED_LINES_MAX, find_change, list_changed_lines

NOTICE = FileRef(name="notice.md", media_type="text/markdown", size=5, hash="h1")
PICTURE = FileRef(name="tree.png", media_type="image/png", size=5, hash="h2")
FILES = {"notice.md": NOTICE, "tree.png": PICTURE}


@pytest.mark.parametrize(
    ("old", "new"),
    [("old", "new"), ("old_text", "new_text"), ("before", "after"), ("oldstr", "newstr")],
)
def test_a_pair_of_arguments_is_a_change(old: str, new: str) -> None:
    found = find_change({old: "12", new: "15", "path": "notice.md"}, {})
    assert found is not None
    assert (found.before, found.after, found.file) == ("12", "15", None)
    assert found.rest == {"path": "notice.md"}


def test_the_new_content_of_an_artifact_is_a_change() -> None:
    found = find_change({"name": "notice.md", "content": "# Trees"}, FILES)
    assert found is not None
    assert (found.file, found.after, found.rest) == (NOTICE, "# Trees", {"name": "notice.md"})


@pytest.mark.parametrize(
    "args",
    [
        None,
        ["old", "new"],
        {"old": "a"},
        {"old": 1, "new": 2},
        {"older": "a", "newer": "b"},
        {"to": "ada", "content": "Hello"},
        {"name": "tree.png", "content": "Hello"},
        {"name": "notice.md"},
    ],
)
def test_other_arguments_are_no_change(args: Json) -> None:
    assert find_change(args, FILES) is None


def test_changed_lines_have_some_lines_around_them() -> None:
    before = "\n".join(f"line {number}" for number in range(20))
    after = before.replace("line 2\n", "two\n").replace("line 18\n", "")
    lines = list_changed_lines(before, after)
    assert lines is not None
    assert lines[:5] == [
        ("same", "line 0"),
        ("same", "line 1"),
        ("removed", "line 2"),
        ("added", "two"),
        ("same", "line 3"),
    ]
    assert ("gap", "…") in lines
    assert ("removed", "line 18") in lines
    assert list_changed_lines("a", "a") == []
    assert list_changed_lines("a", "\n" * COMPARED_LINES_MAX) is None
