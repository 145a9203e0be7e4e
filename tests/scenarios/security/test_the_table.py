"""The table of defences names tests that are there."""

import re

from tests.support.processes import ROOT

PAGE = ROOT / "docs" / "security.md"
WORD = re.compile(r"`([\w/.-]+)`")


def named() -> list[tuple[str, str]]:
    """Return each file and test that the page names, a test with the file before it."""
    found: list[tuple[str, str]] = []
    file = ""
    for word in WORD.findall(PAGE.read_text()):
        if word.endswith(".py") and (ROOT / word).is_file():
            file = word
        elif word.startswith("test_"):
            found.append((file, word))
    return found


def test_every_test_that_the_page_names_is_there() -> None:
    """A defence whose test was renamed or removed is one that nobody checks."""
    missing = [
        f"{file} {test}"
        for file, test in named()
        if f"def {test}(" not in (ROOT / file).read_text()
    ]
    assert len(named()) > 40
    assert not missing


def test_every_place_in_the_code_that_the_page_names_is_there() -> None:
    """In `src/midrun`, or from the top."""
    places = {word for word in WORD.findall(PAGE.read_text()) if "/" in word}
    assert not [
        place
        for place in places
        if not (ROOT / "src" / "midrun" / place).exists() and not (ROOT / place).exists()
    ]


def test_every_defence_has_its_row() -> None:
    """Numbered from 1, without a gap."""
    rows = re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) >= 19
