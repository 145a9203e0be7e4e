"""Words for results that are not JSON: a call that took effect must not fail over them."""

import pytest

from midrun.codec.safe_repr import safe_repr, safe_str


class Weird(Exception):
    """An exception that cannot speak."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class NotEvenText:
    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]  # that is the point


def test_a_value_that_cannot_describe_itself_is_described_all_the_same() -> None:
    """The effect has happened: a broken `__repr__` must not turn it into a failure."""
    assert safe_repr(Weird()) == "<Weird, RuntimeError while describing it>"
    assert safe_str(Weird()) == safe_repr(Weird())
    assert "NotEvenText" in safe_repr([NotEvenText()]) or "list" in safe_repr([NotEvenText()])


@pytest.mark.parametrize(
    "value",
    [
        b"x" * 10_000_000,
        bytearray(10_000_000),
        "é" * 10_000_000,
        [*range(1_000_000)],
        {n: n for n in range(100_000)},
        10**5000,
        "\ud800" * 1000,
        {1, 2, 3},
        (n for n in range(3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_words_are_few_and_can_be_stored(value: object) -> None:
    """A tool that returns half a gigabyte of bytes must not fill the journal with it."""
    for words in (safe_repr(value), safe_repr(value, 40)):
        assert 0 < len(words.encode()) <= 4 * 400 + 40
        assert words.encode().decode() == words


def test_a_value_inside_itself_is_described() -> None:
    """Cycles are a reason for not being JSON, so they come here."""
    value: list[object] = []
    value.append(value)
    assert safe_repr(value).startswith("[")


def test_an_error_is_told_in_its_own_words() -> None:
    """What people read in the timeline is the message, not its wrapping."""
    assert safe_str(ValueError("no such order")) == "no such order"
    assert safe_str("x" * 1000, 10) == "x" * 9 + "…"
