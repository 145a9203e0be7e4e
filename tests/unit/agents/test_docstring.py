"""What is read out of docstrings."""

import pytest

from midrun.agents.signature import parse_docstring

GOOGLE = """Fetch a page.

    It may be large: mind that.

    Args:
        url (str): Where it is,
            on two lines.

            And a paragraph.
        sizes (dict[str, int], optional): How many: at most.
        quiet: Say nothing.

    Returns:
        page: Not a parameter.
    """
NUMPY = """Fetch a page.

    It may be large: mind that.

    Parameters
    ----------
    url : str
        Where it is,
        on two lines.

        And a paragraph.
    sizes, others : dict of str, optional
        How many: at most.
    quiet
        Say nothing.

    Returns
    -------
    page : str
        Not a parameter.
    """
SPHINX = """Fetch a page.

    It may be large: mind that.

    :param str url: Where it is,
        on two lines.

        And a paragraph.
    :param sizes: How many: at most.
    :type sizes: dict
    :keyword quiet: Say nothing.
    :returns: Not a parameter.
    """


@pytest.mark.parametrize("doc", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_says_the_same(doc: str) -> None:
    """Nobody rewrites docstrings for us."""
    text, parameters = parse_docstring(doc)
    assert text == "Fetch a page.\n\nIt may be large: mind that."
    parameters.pop("others", None)
    assert parameters == {
        "url": "Where it is, on two lines. And a paragraph.",
        "sizes": "How many: at most.",
        "quiet": "Say nothing.",
    }


@pytest.mark.parametrize(
    ("doc", "text", "parameters"),
    [
        (None, "", {}),
        ("", "", {}),
        ("One line.", "One line.", {}),
        ("Args:\n    n: Only this.", "", {"n": "Only this."}),
        ("Do.\n\nArgs: in a sentence.\n", "Do.\n\nArgs: in a sentence.", {}),
        ("Do.\n\n:class:`X` is made.", "Do.\n\n:class:`X` is made.", {}),
        ("Do.\n\nRaises:\n    ValueError: Never.", "Do.", {}),
        ("Do.\n\nArgs:\n    n:\n", "Do.", {}),
        ("Do.\n\nParameters\n---", "Do.", {}),
    ],
)
def test_anything_else_is_text_or_nothing(
    doc: str | None, text: str, parameters: dict[str, str]
) -> None:
    """A docstring is for people first, and never an error."""
    assert parse_docstring(doc) == (text, parameters)
