"""User data as strict JSON: normalized, parsed, or refused with a path."""

import json
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import NamedTuple, Never, cast
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midrun.codec import strict_json
from midrun.codec.redaction import run_steps
from midrun.codec.strict_json import (
    INTEGER_MAX,
    JsonLimits,
    _iter_items,
    _JsonProblem,
    encode_in_steps,
    normalize_json,
    parse_json,
)
from midrun.errors import MidrunError, NotJson, TooLarge


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class RaisingText(str):
    """A string whose own methods must not be called."""

    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Point(NamedTuple):
    x: int
    y: int


class FloatSubclass(float):
    """A subclass without methods of its own."""


def nest_lists(levels: int) -> object:
    """Return this many nested lists."""
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def make_cycle() -> object:
    """Return a value with a cycle."""
    value: dict[str, object] = {}
    value["me"] = [value]
    return value


def is_plain(value: object) -> bool:
    """Tell whether a value consists of JSON types only, without subclasses."""
    if type(value) is dict:
        return all(type(k) is str and is_plain(v) for k, v in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return type(value) in {type(None), bool, int, float, str}


def get_outcome(work: Callable[[], tuple[object, bytes]]) -> object:
    """Return the result or the error of `work`; a float as text, because 0.0 equals -0.0."""
    try:
        plain, text = work()
    except (NotJson, TooLarge) as error:
        return type(error)  # which of several problems is found first may differ
    return repr(plain) if isinstance(plain, float) else plain, text


NOT_JSON: list[tuple[object, str, str]] = [
    (float("nan"), "$", "nan"),
    ({"a": [1, float("inf")]}, "$.a[1]", "inf"),
    (-float("inf"), "$", "-inf"),
    ({"a": "\ud800"}, "$.a", "surrogate"),
    ({"\udfff": 1}, "$", "surrogate"),
    ({"items": [0, 0, 0, {"price": {1, 2}}]}, "$.items[3].price", "set"),
    ({1: "a"}, "$", "int, not a string"),
    ({1: "a", "1": "b"}, "$", "int, not a string"),
    ({None: 1}, "$", "NoneType"),
    ({b"k": 1}, "$", "bytes"),
    ({RaisingText("k"): 1, RaisingText("k"): 2}, "$", "two keys become"),
    (INTEGER_MAX + 1, "$", "beyond"),
    ({"n": -INTEGER_MAX - 1}, "$.n", "beyond"),
    (10**5000, "$", "beyond"),
    ([b"bytes"], "$[0]", "bytes"),
    (bytearray(b"x"), "$", "bytearray"),
    (nest_lists(65), "$" + "[0]" * 64, "deeper than 64"),
    (nest_lists(100_000), "$" + "[0]" * 64, "deeper than 64"),
    (make_cycle(), "$" + ".me[0]" * 32, "contains itself"),
    ((n for n in range(3)), "$", "generator"),
    (len, "$", "builtin_function"),
    (lambda: None, "$", "function"),
    (Colour, "$", "EnumType"),
    (object(), "$", "object"),
    (1j, "$", "complex"),
    (ValueError("x"), "$", "ValueError"),
    ({"with space": [range(3)]}, '$["with space"][0]', "range"),
]


@pytest.mark.parametrize(
    ("value", "path", "problem"), NOT_JSON, ids=[str(n) for n in range(len(NOT_JSON))]
)
def test_a_value_that_is_not_json_is_refused_with_its_path(
    value: object, path: str, problem: str
) -> None:
    """There is no second format: formats such as pickle can run code."""
    with pytest.raises(NotJson) as refused:
        normalize_json(value)
    assert refused.value.path == path
    assert problem in refused.value.problem


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({"c": Colour.RED, Colour.RED: 1}, {"c": "red", "red": 1}),
        ([Level.HIGH, True, None], [3, True, None]),
        (OrderedDict(a=1), {"a": 1}),
        (Point(1, 2), [1, 2]),
        (FloatSubclass(0.5), 0.5),
        ({"a": ""}, {"a": ""}),
        (nest_lists(64), nest_lists(64)),
        ("\0", "\0"),
        (-0.0, -0.0),
    ],
)
def test_tuples_enums_and_subclasses_become_plain_json(value: object, plain: object) -> None:
    normalized = normalize_json(value)
    assert normalized == plain
    assert json.dumps(normalized) == json.dumps(plain)
    assert is_plain(normalized)


def test_methods_of_a_str_subclass_are_not_called() -> None:
    assert normalize_json([RaisingText("x"), {RaisingText("k"): 1}]) == ["x", {"k": 1}]


def test_normalized_data_is_a_copy() -> None:
    """The caller may change its own data later."""
    inner = [1]
    normalized = normalize_json({"a": inner})
    inner.append(2)
    assert normalized == {"a": [1]}


@pytest.mark.parametrize(
    "value",
    [
        "x" * 101,
        {"k": "x" * 100},
        {"x" * 101: 1},
        "é" * 51,
        [1] * 51,
        {str(n): 1 for n in range(99)},
    ],
)
def test_data_above_the_size_limit_is_refused_before_it_is_encoded(value: object) -> None:
    """Encoding it first would double the memory."""
    with pytest.raises(TooLarge) as refused:
        normalize_json(value, limits=JsonLimits(max_bytes=100))
    assert refused.value.limit == 100 < refused.value.size


def test_a_value_that_appears_twice_is_not_a_cycle() -> None:
    shared = {"a": 1}
    assert normalize_json([shared, shared, {"b": shared}]) == [
        {"a": 1},
        {"a": 1},
        {"b": {"a": 1}},
    ]


NOT_JSON_TEXTS: list[tuple[str | bytes, str, str]] = [
    ('{"a":1,"a":2}', "$", 'key "a" appears twice'),
    ('{"x":[{"a":1,"b":2,"a":1}]}', "$.x[0]", 'key "a" appears twice'),
    ('{"a":NaN}', "$.a", "NaN is not JSON"),
    ("[-Infinity]", "$[0]", "-Infinity is not JSON"),
    ("1e999", "$", "inf"),
    ("[1, -1e999]", "$[1]", "-inf"),
    ("9007199254740992", "$", "beyond"),
    ("1" * 5000, "$", "beyond"),
    ("9007199254740993.0", "$", "not a double"),
    ("[-9007199254740993e0]", "$[0]", "not a double"),
    ("123456789012345678901.5", "$", "not a double"),
    ("1" * 5000 + ".0", "$", "inf"),
    ('"\\ud800"', "$", "surrogate"),
    ("[" * 100 + "]" * 100, "$" + "[0]" * 64, "deeper than 64"),
    ("[" * 100_000, "$", "deeper than 64"),
    ("{} x", "$", "line 1, column 4"),
    ("", "$", "line 1, column 1"),
    ("{'a':1}", "$", "line 1, column 2"),
    ("[1,]", "$", "line 1"),
    ('"a\nb"', "$", "line 1, column 3"),
    (b"\xff", "$", "byte 0 is not UTF-8"),
    (b"\xef\xbb\xbf{}", "$", "line 1, column 1"),
    ("{}".encode("utf-16"), "$", "not UTF-8"),
]


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    NOT_JSON_TEXTS,
    ids=[str(n) for n in range(len(NOT_JSON_TEXTS))],
)
def test_text_that_is_not_strict_json_is_refused_with_its_position(
    text: str | bytes, path: str, problem: str
) -> None:
    """A text that two parsers read differently could pass a check."""
    with pytest.raises(NotJson) as refused:
        parse_json(text)
    assert refused.value.path == path
    assert problem in refused.value.problem


def test_text_above_the_size_limit_is_not_parsed() -> None:
    with pytest.raises(TooLarge):
        parse_json("[" * 200, JsonLimits(max_bytes=100))


@pytest.mark.parametrize(
    "text", ["9007199254740992.0", "1e22", "1e23", "1.7976931348623157e308", "-1E+20", "0.1"]
)
def test_large_numbers_that_a_double_can_hold_are_parsed(text: str) -> None:
    """They are written in full, or in the shortest form that reads back the same."""
    assert parse_json(text) == float(text)


def test_valid_json_is_parsed() -> None:
    assert parse_json(b' {"a": [1, -0.0, 1e2, "\\u00e9", null, true]} ') == {
        "a": [1, -0.0, 100.0, "é", None, True]
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-INTEGER_MAX, INTEGER_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@given(JSON)
@example(-0.0)
@example([1, 1.0, 1e16, 1e22, 5e-324, 1.7976931348623157e308])
def test_decoded_json_is_encoded_to_the_same_bytes(value: object) -> None:
    """The numbers 1, 1.0 and -0.0 stay different."""
    encode: Callable[[object], bytes] = msgspec.json.Encoder(order="sorted").encode
    data = encode(normalize_json(value))
    assert encode(msgspec.json.decode(data)) == data
    assert encode(parse_json(data)) == data
    assert parse_json(data) == normalize_json(value)


PYTHON_DATA = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers())
    ),
)


@pytest.mark.slow
@given(PYTHON_DATA)
def test_any_python_data_is_normalized_or_refused(value: object) -> None:
    """Normalized data is equal after it was encoded and parsed."""
    try:
        normalized = normalize_json(value)
    except MidrunError as refusal:
        assert refusal.args[0].startswith("$")  # noqa: PT017 - both results are allowed
    else:
        assert parse_json(msgspec.json.encode(normalized)) == normalized


@given(st.text() | st.binary())
def test_any_text_is_parsed_or_refused(text: str | bytes) -> None:
    """No other error than `NotJson` may be raised."""
    try:
        parse_json(text)
    except NotJson as refusal:
        assert refusal.problem  # noqa: PT017 - as above


@given(value=PYTHON_DATA, steps=st.integers(1, 5), shallow=st.integers(0, 3))
def test_encode_in_steps_gives_the_result_of_normalize_and_encode(
    value: object, steps: int, shallow: int
) -> None:
    def encode_at_once() -> tuple[object, bytes]:
        plain = normalize_json(value)
        return plain, msgspec.json.encode(plain, order="sorted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "STEP_LEAVES", steps)
        patch.setattr(strict_json, "SHALLOW_MAX_ITEMS", shallow)
        in_steps = get_outcome(lambda: run_steps(encode_in_steps(value)))
    assert in_steps == get_outcome(encode_at_once)


def test_encode_in_steps_has_the_same_limits_and_names_the_path() -> None:
    """The limit also holds if only the escaped text is too long."""
    with pytest.raises(NotJson, match=r"\$\.a\[1\]\.b as JSON: bytes is not JSON"):
        run_steps(encode_in_steps({"a": [[[0]], {"b": b"", "c": [[]]}]}))
    for value in (["x" * 20], ["\x01" * 6], [[["x"]] * 8], {"a": ["x" * 20, []]}):
        with pytest.raises(TooLarge):
            run_steps(encode_in_steps(value, limits=JsonLimits(max_bytes=20)))


# ── hostile values ─────────────────────────────────────────────────────────────────────


class LyingInt(int):
    """An int whose methods report a wrong value or raise."""

    def __le__(self, other: int) -> bool:
        return True

    __lt__ = __ge__ = __gt__ = __le__

    def __int__(self) -> int:
        return 1

    def __repr__(self) -> str:
        raise AssertionError

    __str__ = __repr__


class LyingFloat(float):
    """A float whose methods report a wrong value or raise."""

    def __float__(self) -> float:
        return 1.0

    def __repr__(self) -> str:
        raise AssertionError


class RaisingMeta(type):
    """A metaclass that raises when its classes are inspected."""

    def __subclasscheck__(cls, other: type) -> bool:
        raise AssertionError

    __instancecheck__ = __subclasscheck__

    @property
    def __mro__(cls) -> tuple[type, ...]:
        raise AssertionError


class RaisingObject(metaclass=RaisingMeta):
    __module__ = property(lambda self: self)

    def __repr__(self) -> str:
        raise AssertionError

    __hash__ = object.__hash__


class UnreadableDict(dict[str, object]):
    """A dict whose methods raise."""

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
        (LyingInt(2**60), "$", "beyond"),
        ([LyingInt(-(2**53))], "$[0]", "beyond"),
        (LyingFloat("nan"), "$", "nan"),
        (RaisingObject(), "$", "RaisingObject is not JSON"),
        ({RaisingObject(): 1}, "$", "RaisingObject, not a string"),
        ({LyingInt(7): 1}, "$", "LyingInt, not a string"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_methods_of_a_hostile_value_are_not_called(
    value: object, path: str, problem: str
) -> None:
    with pytest.raises(NotJson) as refused:
        normalize_json(value)
    assert refused.value.path == path
    assert problem in refused.value.problem


def test_subclasses_are_normalized_by_their_base_type() -> None:
    """Their own methods would return other values."""
    normalized = normalize_json(
        [LyingInt(7), LyingFloat(0.5), UnreadableDict(a=1), Point(1, 2)]
    )
    assert normalized == [7, 0.5, {"a": 1}, [1, 2]]
    assert isinstance(normalized, list)
    assert [type(part) for part in normalized] == [int, float, dict, list]


def test_data_that_changes_while_it_is_read_is_refused() -> None:
    """A thread reads large values while the caller may change them."""
    value: dict[str, object] = {"a": 1, "b": 2}
    items = _iter_items(cast("dict[object, object]", value))
    next(items)
    value["c"] = 3
    with pytest.raises(_JsonProblem, match="changed while it was read"):
        next(items)


def test_a_large_container_is_refused_before_its_items_are_read() -> None:
    items: list[object] = [Mock(spec=dict)]
    with pytest.raises(TooLarge):
        normalize_json(items * 1000, limits=JsonLimits(max_bytes=1000))
