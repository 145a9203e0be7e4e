"""The documentation says what the program does, because parts of it are drawn from it."""

from tools.draw_table import PAGE, page


def test_the_page_of_phases_is_drawn_from_the_table_as_it_is_now() -> None:
    """A picture that disagrees with the machine is worse than none."""
    assert PAGE.read_text() == page(), "run `make docs`"
