"""User data: what may enter a journal, what is refused, and where the refusal points."""

import json
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from midrun.codec import strict_json
from midrun.codec.redaction import run_steps
from midrun.codec.strict_json import (
    INTEGER_MAX,
    JsonLimits,
    encode_in_steps,
    normalize_json,
    parse_json,
)
from midrun.errors import MidrunError, NotJson, TooLarge


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Loud(str):
    """A string whose own methods must not be asked."""

    __slots__ = ()

    def __str__(self) -> str:
        raise AssertionError

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Place(NamedTuple):
    x: int
    y: int


class Half(float):
    """A float that is one only by descent."""


def deep(levels: int) -> object:
    """Return so many lists in one another."""
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def inside_itself() -> object:
    """Return a value with a cycle."""
    value: dict[str, object] = {}
    value["me"] = [value]
    return value


BAD: list[tuple[object, str, str]] = [
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
    ({Loud("k"): 1, Loud("k"): 2}, "$", "two keys become"),
    (INTEGER_MAX + 1, "$", "beyond"),
    ({"n": -INTEGER_MAX - 1}, "$.n", "beyond"),
    (10**5000, "$", "beyond"),
    ([b"bytes"], "$[0]", "bytes"),
    (bytearray(b"x"), "$", "bytearray"),
    (deep(65), "$" + "[0]" * 64, "deeper than 64"),
    (deep(100_000), "$" + "[0]" * 64, "deeper than 64"),
    (inside_itself(), "$" + ".me[0]" * 32, "contains itself"),
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
    ("value", "path", "problem"), BAD, ids=[str(n) for n in range(len(BAD))]
)
def test_what_json_cannot_say_is_refused_with_its_path(
    value: object, path: str, problem: str
) -> None:
    """There is no fallback: a second format is how others got remote code execution."""
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
        (Place(1, 2), [1, 2]),
        (Half(0.5), 0.5),
        ({"a": ""}, {"a": ""}),
        (deep(64), deep(64)),
        ("\0", "\0"),
        (-0.0, -0.0),
    ],
)
def test_what_has_a_plain_form_becomes_it(value: object, plain: object) -> None:
    """Enums and tuples are everywhere in Python and lose nothing that JSON could keep."""
    sound = normalize_json(value)
    assert sound == plain
    assert json.dumps(sound) == json.dumps(plain)
    assert _only_plain(sound)


def test_a_strings_own_methods_are_never_asked() -> None:
    """The value comes from a tool; its code has run long enough."""
    assert normalize_json([Loud("x"), {Loud("k"): 1}]) == ["x", {"k": 1}]


def test_the_data_that_was_checked_is_not_shared() -> None:
    """Whoever gave it may change it later; the entry must not change with it."""
    inner = [1]
    sound = normalize_json({"a": inner})
    inner.append(2)
    assert sound == {"a": [1]}


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
def test_data_beyond_its_bound_is_refused_before_it_is_encoded(value: object) -> None:
    """Encoding it first would double the memory that it already takes."""
    with pytest.raises(TooLarge) as refused:
        normalize_json(value, limits=JsonLimits(max_bytes=100))
    assert refused.value.limit == 100 < refused.value.size


def test_the_same_data_twice_in_one_value_is_no_cycle() -> None:
    """Only a value inside itself is."""
    shared = {"a": 1}
    assert normalize_json([shared, shared, {"b": shared}]) == [
        {"a": 1},
        {"a": 1},
        {"b": {"a": 1}},
    ]


TEXTS: list[tuple[str | bytes, str, str]] = [
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
    ("text", "path", "problem"), TEXTS, ids=[str(n) for n in range(len(TEXTS))]
)
def test_text_that_is_not_strictly_json_is_refused_with_its_place(
    text: str | bytes, path: str, problem: str
) -> None:
    """Two parsers that read the same text differently are a way around a check."""
    with pytest.raises(NotJson) as refused:
        parse_json(text)
    assert refused.value.path == path
    assert problem in refused.value.problem


def test_text_beyond_its_bound_is_not_even_parsed() -> None:
    """Limits come before work."""
    with pytest.raises(TooLarge):
        parse_json("[" * 200, JsonLimits(max_bytes=100))


@pytest.mark.parametrize(
    "text", ["9007199254740992.0", "1e22", "1e23", "1.7976931348623157e308", "-1E+20", "0.1"]
)
def test_whole_numbers_that_a_double_can_hold_are_read(text: str) -> None:
    """In full, or in the shortest form that reads back the same."""
    assert parse_json(text) == float(text)


def test_plain_text_is_read_as_it_is() -> None:
    """Strict means strict about what is wrong only."""
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
def test_what_is_read_and_written_again_gives_the_same_bytes(value: object) -> None:
    """Canonical: 1 and 1.0 and -0.0 stay what they are."""
    encode: Callable[[object], bytes] = msgspec.json.Encoder(order="sorted").encode
    first = encode(normalize_json(value))
    assert encode(msgspec.json.decode(first)) == first
    assert encode(parse_json(first)) == first
    assert parse_json(first) == normalize_json(value)


ANYTHING = st.recursive(
    st.none() | st.integers() | st.floats() | st.text() | st.binary() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers())
    ),
)


@given(ANYTHING)
def test_any_python_data_is_accepted_as_plain_or_refused_by_name(value: object) -> None:
    """Accepted means that another parser reads the same."""
    try:
        sound = normalize_json(value)
    except MidrunError as refusal:
        assert refusal.args[0].startswith("$")  # noqa: PT017 - either way is fine
    else:
        assert parse_json(msgspec.json.encode(sound)) == sound


@given(st.text() | st.binary())
def test_any_text_is_parsed_or_refused(text: str | bytes) -> None:
    """Nothing but our own error may come out."""
    try:
        parse_json(text)
    except NotJson as refusal:
        assert refusal.problem  # noqa: PT017 - as above


@given(value=ANYTHING, steps=st.integers(1, 5), shallow=st.integers(0, 3))
def test_data_that_is_encoded_in_steps_is_the_same(
    value: object, steps: int, shallow: int
) -> None:
    """The plain data, its canonical text, and what is refused where."""

    def at_once() -> tuple[object, bytes]:
        plain = normalize_json(value)
        return plain, msgspec.json.encode(plain, order="sorted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strict_json, "STEP_LEAVES", steps)
        patch.setattr(strict_json, "SHALLOW_MAX_ITEMS", shallow)
        made = _outcome(lambda: run_steps(encode_in_steps(value)))
    assert made == _outcome(at_once)


def _outcome(work: Callable[[], tuple[object, bytes]]) -> object:
    """Return what came of `work`; of two equal floats, their text says which it is."""
    try:
        plain, text = work()
    except (NotJson, TooLarge) as error:
        return type(error)  # of several problems, either may be the first
    return repr(plain) if isinstance(plain, float) else plain, text


def test_data_beyond_its_bound_is_refused_in_steps_too() -> None:
    """Also where only its text is too long. A refusal says where."""
    with pytest.raises(NotJson, match=r"\$\.a\[1\]\.b as JSON: bytes is not JSON"):
        run_steps(encode_in_steps({"a": [[[0]], {"b": b"", "c": [[]]}]}))
    for value in (["x" * 20], ["\x01" * 6], [[["x"]] * 8], {"a": ["x" * 20, []]}):
        with pytest.raises(TooLarge):
            run_steps(encode_in_steps(value, limits=JsonLimits(max_bytes=20)))


def _only_plain(value: object) -> bool:
    if type(value) is dict:
        return all(type(k) is str and _only_plain(v) for k, v in value.items())
    if type(value) is list:
        return all(map(_only_plain, value))
    return type(value) in {type(None), bool, int, float, str}
