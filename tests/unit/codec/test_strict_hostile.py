"""User data that is not what it claims to be, or does not hold still."""

from typing import NamedTuple, Never, cast
from unittest.mock import Mock

import pytest

from midrun.codec.strict_json import JsonLimits, _iter_items, _JsonProblem, normalize_json
from midrun.errors import NotJson, TooLarge


class Place(NamedTuple):
    x: int
    y: int


class Sly(int):
    """A number that lies about its size, and says so in words of its own."""

    def __le__(self, other: int) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__

    def __int__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise AssertionError

    __str__ = __repr__


class Vague(float):
    """A float that says it is another."""

    def __float__(self) -> float:
        return 1.0

    def __repr__(self) -> str:
        raise AssertionError


class Meta(type):
    """A metaclass that has a say in everything it can have a say in."""

    def __subclasscheck__(cls, other: type) -> bool:
        raise AssertionError

    __instancecheck__ = __subclasscheck__

    @property
    def __mro__(cls) -> tuple[type, ...]:
        raise AssertionError


class Odd(metaclass=Meta):
    __module__ = property(lambda self: self)

    def __repr__(self) -> str:
        raise AssertionError

    __hash__ = object.__hash__


class Stubborn(dict[str, object]):
    """A dictionary that does not let itself be looked at."""

    def __iter__(self) -> Never:
        raise AssertionError

    items = keys = __len__ = __iter__


@pytest.mark.parametrize(
    ("value", "path", "problem"),
    [
        (Mock(spec=dict), "$", "unittest.mock.Mock is not JSON"),
        ({"a": [Mock(spec=list)]}, "$.a[0]", "Mock"),
        (Mock(spec=str), "$", "Mock"),
        (Mock(spec=float), "$", "Mock"),
        ({Mock(spec=str): 1}, "$", "Mock, not a string"),
        (Sly(2**60), "$", "beyond"),
        ([Sly(-(2**53))], "$[0]", "beyond"),
        (Vague("nan"), "$", "nan"),
        (Odd(), "$", "Odd is not JSON"),
        ({Odd(): 1}, "$", "Odd, not a string"),
        ({Sly(7): 1}, "$", "Sly, not a string"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_value_says_of_itself_is_not_asked(
    value: object, path: str, problem: str
) -> None:
    """Nor does any of its code run, whatever it claims to be."""
    with pytest.raises(NotJson) as refused:
        normalize_json(value)
    assert refused.value.path == path
    assert problem in refused.value.problem


def test_values_are_what_they_are_by_descent() -> None:
    """Their own methods would say something else."""
    sound = normalize_json([Sly(7), Vague(0.5), Stubborn(a=1), Place(1, 2)])
    assert sound == [7, 0.5, {"a": 1}, [1, 2]]
    assert isinstance(sound, list)
    assert [type(part) for part in sound] == [int, float, dict, list]


def test_data_that_changes_while_it_is_read_is_refused() -> None:
    """Large values are read in a thread, while their owner may go on."""
    value: dict[str, object] = {"a": 1, "b": 2}
    items = _iter_items(cast("dict[object, object]", value))
    next(items)
    value["c"] = 3
    with pytest.raises(_JsonProblem, match="changed while it was read"):
        next(items)


def test_a_large_container_is_refused_before_it_is_walked() -> None:
    """A million small things take a long time to walk."""
    walked: list[object] = [Mock(spec=dict)]
    with pytest.raises(TooLarge):
        normalize_json(walked * 1000, limits=JsonLimits(max_bytes=1000))
