"""The documentation says what the program does, because parts of it are drawn from it."""

import re
from pathlib import Path

from midrun import errors
from tools.draw_phases import picture
from tools.draw_table import PAGE, PICTURE
from tools.draw_table import page as drawn


def test_the_page_of_phases_is_drawn_from_the_table_as_it_is_now() -> None:
    """A picture that disagrees with the machine is worse than none."""
    assert PAGE.read_text() == drawn(), "run `make docs`"
    assert PICTURE.read_text() == picture(), "run `make docs`"


def test_every_error_has_its_heading() -> None:
    """Whoever meets an error can look up what happened, and what to do."""
    page = Path("docs/errors.md").read_text()
    headings = set(re.findall(r"^### `(\w+)`$", page, re.MULTILINE))
    assert headings == {
        kind.code
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.MidrunError)
    }
