"""What a model is told of a signature, and what it may send back."""

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from midrun.agents.signature import Arguments, BadArguments, Function
from midrun.core.values import Json


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A place."""

    x: int
    y: float = 1.5


class Shape(TypedDict):
    sides: int
    name: NotRequired[str]


class Street(pydantic.BaseModel):  # type: ignore[explicit-any]  # pydantic's own
    number: int = pydantic.Field(ge=1)


class Address(pydantic.BaseModel):  # type: ignore[explicit-any]  # as above
    street: Street


class Tree(pydantic.BaseModel):  # type: ignore[explicit-any]  # as above
    children: list["Tree"] = []


class Node(msgspec.Struct):
    children: "list[Node]" = []


def arguments(fn: Function, **described: str) -> Arguments:
    """Return what `fn` takes."""
    return Arguments("tool t", fn, described)


def takes(kind: object) -> Arguments:
    """Return the arguments of a function with one parameter, x, of this kind."""

    def fn(x: object) -> None: ...

    fn.__annotations__["x"] = kind
    return arguments(fn)


POINT: dict[str, Json] = {
    "title": "Point",
    "description": "A place.",
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 1.5}},
    "required": ["x"],
}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("kind", "schema", "sent", "read"),
    [
        (int, {"type": "integer"}, 3, 3),
        (int, {"type": "integer"}, 3.0, 3),
        (float, {"type": "number"}, 3, 3.0),
        (bool, {"type": "boolean"}, True, True),
        (str, {"type": "string"}, "3", "3"),
        (object, {}, [3.0, None], [3.0, None]),
        (int | None, {"anyOf": [{"type": "integer"}, NULL]}, None, None),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, 3.0, 3),
        (Literal["a", 2], {"enum": [2, "a"]}, "a", "a"),
        (list[int], {"type": "array", "items": {"type": "integer"}}, [1, 2.0], [1, 2]),
        (list, {"type": "array"}, [1, "a"], [1, "a"]),
        (dict[str, object], {"type": "object", "additionalProperties": {}}, {"a": 1}, {"a": 1}),
        (
            dict[int, str],
            {"type": "object", "additionalProperties": {"type": "string"}},
            {"1": "a"},
            {1: "a"},
        ),
        (date, {"type": "string", "format": "date"}, "2026-11-15", date(2026, 11, 15)),
        (
            datetime,
            {"type": "string", "format": "date-time"},
            "2026-11-15T00:00:00Z",
            datetime(2026, 11, 15, tzinfo=UTC),
        ),
        (
            datetime | None,
            {"anyOf": [{"type": "string", "format": "date-time"}, NULL]},
            None,
            None,
        ),
        (
            Annotated[datetime | None, "when"],
            {"anyOf": [{"type": "string", "format": "date-time"}, NULL], "description": "when"},
            None,
            None,
        ),
        (bytes, {"type": "string", "contentEncoding": "base64"}, "aGk=", b"hi"),
        (Annotated[str, "a name"], {"type": "string", "description": "a name"}, "n", "n"),
        (
            Annotated[int, msgspec.Meta(ge=1, description="how many")],
            {"type": "integer", "minimum": 1, "description": "how many"},
            1,
            1,
        ),
    ],
)
def test_a_type_is_told_in_json_schema_and_read_back(
    kind: object, schema: Json, sent: Json, read: object
) -> None:
    """The schema is a promise: what fits it arrives as what the function is annotated with."""
    made = takes(kind)
    assert made.schema == {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
    }
    got = made.parse({"x": sent})["x"]
    assert (got, type(got)) == (read, type(read))


@pytest.mark.parametrize(
    ("kind", "schema", "defs", "sent", "read"),
    [
        (
            Colour,
            {"$ref": "#/$defs/Colour"},
            {"Colour": {"title": "Colour", "enum": ["blue", "red"]}},
            "red",
            Colour.RED,
        ),
        (Point, {"$ref": "#/$defs/Point"}, {"Point": POINT}, {"x": 1}, Point(1)),
        (
            list[Point],
            {"type": "array", "items": {"$ref": "#/$defs/Point"}},
            {"Point": POINT},
            [{"x": 1.0, "y": 2}],
            [Point(1, 2.0)],
        ),
        (
            Shape,
            {"$ref": "#/$defs/Shape"},
            {
                "Shape": {
                    "title": "Shape",
                    "type": "object",
                    "properties": {"sides": {"type": "integer"}, "name": {"type": "string"}},
                    "required": ["sides"],
                }
            },
            {"sides": 3},
            {"sides": 3},
        ),
        (
            Address,
            {
                "title": "Address",
                "type": "object",
                "properties": {"street": {"$ref": "#/$defs/Street"}},
                "required": ["street"],
            },
            {
                "Street": {
                    "title": "Street",
                    "type": "object",
                    "properties": {
                        "number": {"title": "Number", "type": "integer", "minimum": 1}
                    },
                    "required": ["number"],
                }
            },
            {"street": {"number": 7}},
            Address(street=Street(number=7)),
        ),
    ],
)
def test_named_types_are_defined_once_and_referred_to(
    kind: object, schema: Json, defs: Json, sent: Json, read: object
) -> None:
    """Providers follow references only into the `$defs` of the same schema."""
    made = takes(kind)
    assert made.schema["properties"] == {"x": schema}
    assert made.schema["$defs"] == defs
    assert made.parse({"x": sent}) == {"x": read}


@pytest.mark.parametrize("kind", [Tree, Node])
def test_a_type_may_contain_itself(kind: object) -> None:
    """A plan with parts that have parts is an ordinary argument."""
    made = takes(kind)
    assert made.schema["properties"] == {"x": {"$ref": f"#/$defs/{kind.__name__}"}}  # type: ignore[attr-defined]
    assert made.parse({"x": {"children": [{}]}})


def test_an_optional_model_of_pydantic_may_be_null() -> None:
    """`Address | None = None` is the usual way to write it."""
    made = takes(Address | None)
    assert made.parse({"x": None}) == {"x": None}
    assert made.parse({"x": {"street": {"number": 1}}})["x"] == Address(street=Street(number=1))


def test_what_was_left_out_stays_left_out_and_the_default_is_told() -> None:
    """The function's own default applies, also one that JSON cannot say."""

    def fn(
        n: int, mode: Colour = Colour.RED, then: object = int, tags: object = ()
    ) -> None: ...

    made = arguments(fn)
    assert made.schema["required"] == ["n"]
    assert made.schema["properties"] == {
        "n": {"type": "integer"},
        "mode": {"$ref": "#/$defs/Colour", "default": "red"},
        "then": {},
        "tags": {"default": []},
    }
    assert made.parse({"n": 1}) == {"n": 1}


def test_a_description_comes_from_the_annotation_or_else_from_the_docstring() -> None:
    """What stands nearest to the parameter is the one that is kept up to date."""

    def fn(a: Annotated[int, "near"], b: int, c: Address) -> None: ...

    properties = arguments(fn, a="far", b="far", c="home").schema["properties"]
    assert isinstance(properties, dict)
    assert [each["description"] for each in properties.values()] == ["near", "far", "home"]


def test_what_is_read_shares_nothing_with_what_was_sent() -> None:
    """A tool that changes its argument must not change the journal's."""
    sent: dict[str, Json] = {"x": {"deep": [1]}}
    read = takes(dict[str, object]).parse(sent)
    assert read == sent
    assert read["x"] is not sent["x"]
    assert read["x"]["deep"] is not sent["x"]["deep"]  # type: ignore[index]


@pytest.mark.parametrize("sent", [None, {}])
def test_nothing_may_be_said_in_two_ways(sent: Json) -> None:
    """Providers differ in what they send for a tool without parameters."""

    def fn() -> None: ...

    assert arguments(fn).parse(sent) == {}


@pytest.mark.parametrize(
    ("kind", "sent", "words"),
    [
        (int, {"x": "3"}, "x: expected `int`, got `str`"),
        (int, {"x": 3.5}, "x: expected `int`, got `float`"),
        (int, {"x": True}, "x: expected `int`, got `bool`"),
        (str, {"x": 3}, "x: expected `str`, got `int`"),
        (int, {"x": None}, "x: expected `int`, got `null`"),
        (list[int], {"x": [1, "2"]}, "x[1]: expected `int`, got `str`"),
        (Point, {"x": {"x": "1"}}, "x.x: expected `int`, got `str`"),
        (Point, {"x": {}}, "x: object missing required field `x`"),
        (Colour, {"x": "no"}, 'x: invalid enum value \'no\', expected one of ["blue","red"]'),
        (
            Colour | None,
            {"x": "no"},
            'x: invalid enum value \'no\', expected one of ["blue","red"]',
        ),
        (Literal["a"], {"x": "b"}, "x: invalid enum value 'b', expected one of [\"a\"]"),
        (Annotated[int, msgspec.Meta(ge=1)], {"x": 0}, "x: expected `int` >= 1"),
        (int, {}, "x: is required"),
        (int, None, "x: is required"),
        (int, {"x": 1, "y": 2}, "y: no such argument, the arguments: x"),
        (int, {"y": 2}, "x: is required; y: no such argument, the arguments: x"),
        (int, [1], "expected an object with the arguments: x"),
        (
            Address,
            {"x": {"street": {"number": 0}}},
            "x: street.number: Input should be greater than or equal to 1",
        ),
        (list[Address], {"x": [{}]}, "x[0]: street: Field required"),
    ],
)
def test_what_does_not_fit_is_refused_in_words_for_the_model(
    kind: object, sent: Json, words: str
) -> None:
    """It has one look at this text to do better: which argument, and what was expected."""
    with pytest.raises(BadArguments) as refusal:
        takes(kind).parse(sent)
    assert str(refusal.value) == words


def test_a_refusal_does_not_repeat_megabytes() -> None:
    """It goes into the journal, and back to the model."""
    sent: dict[str, Json] = {"x": "a" * 1_000_000, **{f"{n}" * 1000: n for n in range(100)}}
    with pytest.raises(BadArguments) as refusal:
        takes(Literal["a"]).parse(sent)
    assert len(str(refusal.value)) < 2000


def test_whatever_a_validator_raises_is_a_refusal() -> None:
    """It is the user's code, run on a model's data; the run must survive both."""

    @dataclass
    class Odd:
        n: int

        def __post_init__(self) -> None:
            raise LookupError(self.n)

    with pytest.raises(BadArguments, match="x: LookupError: 3"):
        takes(Odd).parse({"x": {"n": 3}})


def test_a_type_with_the_manners_of_pydantic_is_treated_alike() -> None:
    """What counts is how it speaks of itself: pydantic is never imported here."""

    class Even:
        @staticmethod
        def model_json_schema(ref_template: str) -> dict[str, Json]:
            del ref_template
            return {"type": "integer", "multipleOf": 2}

        @classmethod
        def model_validate(cls, value: int) -> "Even":
            if value % 2:
                raise ValueError("odd")
            return cls()

    made = takes(list[Even])
    assert made.schema["properties"] == {
        "x": {"type": "array", "items": {"type": "integer", "multipleOf": 2}}
    }
    assert isinstance(made.parse({"x": [2]})["x"], list)
    with pytest.raises(BadArguments, match=r"x\[1\]: odd"):
        made.parse({"x": [2, 3]})
