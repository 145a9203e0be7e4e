"""`docs/security.md` names files and tests that exist."""

import re

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "security.md"
WORD = re.compile(r"`([\w/.-]+)`")


def list_named_tests() -> list[tuple[str, str]]:
    """Return each test that the page names, with the file that it names before it."""
    found: list[tuple[str, str]] = []
    file = ""
    for word in WORD.findall(PAGE.read_text()):
        if word.endswith(".py") and (ROOT / word).is_file():
            file = word
        elif word.startswith("test_"):
            found.append((file, word))
    return found


def test_every_test_that_the_page_names_exists() -> None:
    """Else a defence could lose its test without notice."""
    missing = [
        f"{file} {test}"
        for file, test in list_named_tests()
        if f"def {test}(" not in (ROOT / file).read_text()
    ]
    assert len(list_named_tests()) > 40
    assert not missing


def test_every_file_that_the_page_names_exists() -> None:
    """Paths are relative to `src/midrun`, or to the root of the repository."""
    places = {word for word in WORD.findall(PAGE.read_text()) if "/" in word}
    assert not [
        place
        for place in places
        if not (ROOT / "src" / "midrun" / place).exists() and not (ROOT / place).exists()
    ]


def test_the_defences_are_numbered_without_a_gap() -> None:
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 19
