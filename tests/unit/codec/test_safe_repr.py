"""Descriptions of results and errors that are not JSON."""

import pytest

from midrun.codec.safe_repr import safe_repr, safe_str


class RaisesInStr(Exception):
    """An exception whose `__str__` and `__repr__` raise."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class ReprIsNotText:
    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]  # on purpose


def test_safe_repr_describes_a_value_whose_repr_raises() -> None:
    """The tool has taken effect: a broken `__repr__` must not make its call fail."""
    assert safe_repr(RaisesInStr()) == "<RaisesInStr, RuntimeError while describing it>"
    assert safe_str(RaisesInStr()) == safe_repr(RaisesInStr())
    text = safe_repr([ReprIsNotText()])
    assert "ReprIsNotText" in text or "list" in text


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
def test_safe_repr_is_short_and_can_be_stored(value: object) -> None:
    """A tool that returns many megabytes must not fill the journal."""
    for text in (safe_repr(value), safe_repr(value, 40)):
        assert 0 < len(text.encode()) <= 4 * 400 + 40
        assert text.encode().decode() == text


def test_safe_repr_describes_a_value_with_a_cycle() -> None:
    """A cycle is not JSON, so such values are described instead."""
    value: list[object] = []
    value.append(value)
    assert safe_repr(value).startswith("[")


def test_safe_str_of_an_error_is_its_message() -> None:
    assert safe_str(ValueError("no such order")) == "no such order"
    assert safe_str("x" * 1000, 10) == "x" * 9 + "…"
