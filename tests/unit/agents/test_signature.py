"""Signatures of tools: the JSON schema for the model, the parsed arguments, and docstrings."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Annotated, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from midrun.agents.signature import Arguments, BadArguments, Function, parse_docstring
from midrun.agents.tool_context import Call
from midrun.core.values import Json
from midrun.errors import Misconfigured


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    """A place."""

    x: int
    y: float = 1.5


@dataclass
class Line:
    ends: list[Point]


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


def make_arguments(fn: Function, **described: str) -> Arguments:
    """Return the arguments of `fn`, with descriptions from its docstring."""
    return Arguments("tool t", fn, described)


def make_one_argument(kind: object) -> Arguments:
    """Return the arguments of a function with one parameter, x, of type `kind`."""

    def fn(x: object) -> None: ...

    fn.__annotations__["x"] = kind
    return make_arguments(fn)


POINT: dict[str, Json] = {
    "title": "Point",
    "description": "A place.",
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number", "default": 1.5}},
    "required": ["x"],
}
NULL = {"type": "null"}


@pytest.mark.parametrize(
    ("kind", "schema", "sent", "parsed"),
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
def test_a_type_becomes_a_json_schema_and_values_are_parsed_to_it(
    kind: object, schema: Json, sent: Json, parsed: object
) -> None:
    """A value that fits the schema arrives with the annotated type."""
    arguments = make_one_argument(kind)
    assert arguments.schema == {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "additionalProperties": False,
    }
    got = arguments.parse({"x": sent})["x"]
    assert (got, type(got)) == (parsed, type(parsed))


@pytest.mark.parametrize(
    ("kind", "schema", "defs", "sent", "parsed"),
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
    kind: object, schema: Json, defs: Json, sent: Json, parsed: object
) -> None:
    """Providers follow references only into the `$defs` of the same schema."""
    arguments = make_one_argument(kind)
    assert arguments.schema["properties"] == {"x": schema}
    assert arguments.schema["$defs"] == defs
    assert arguments.parse({"x": sent}) == {"x": parsed}


@pytest.mark.parametrize("kind", [Tree, Node])
def test_a_type_may_contain_itself(kind: object) -> None:
    arguments = make_one_argument(kind)
    assert arguments.schema["properties"] == {"x": {"$ref": f"#/$defs/{kind.__name__}"}}  # type: ignore[attr-defined]
    assert arguments.parse({"x": {"children": [{}]}})


def test_an_optional_model_of_pydantic_may_be_null() -> None:
    """`Address | None = None` is the usual way to write it."""
    arguments = make_one_argument(Address | None)
    assert arguments.parse({"x": None}) == {"x": None}
    assert arguments.parse({"x": {"street": {"number": 1}}})["x"] == Address(
        street=Street(number=1)
    )


def test_defaults_are_in_the_schema_and_missing_arguments_stay_missing() -> None:
    """The function's own default applies, also one that JSON cannot express."""

    def fn(
        n: int, mode: Colour = Colour.RED, then: object = int, tags: object = ()
    ) -> None: ...

    arguments = make_arguments(fn)
    assert arguments.schema["required"] == ["n"]
    assert arguments.schema["properties"] == {
        "n": {"type": "integer"},
        "mode": {"$ref": "#/$defs/Colour", "default": "red"},
        "then": {},
        "tags": {"default": []},
    }
    assert arguments.parse({"n": 1}) == {"n": 1}


def test_a_description_comes_from_the_annotation_or_else_from_the_docstring() -> None:
    def fn(a: Annotated[int, "near"], b: int, c: Address) -> None: ...

    properties = make_arguments(fn, a="far", b="far", c="home").schema["properties"]
    assert isinstance(properties, dict)
    assert [each["description"] for each in properties.values()] == ["near", "far", "home"]


def test_parsed_arguments_are_a_copy() -> None:
    """A tool that changes its argument must not change the journaled one."""
    sent: dict[str, Json] = {"x": {"deep": [1]}}
    parsed = make_one_argument(dict[str, object]).parse(sent)
    assert parsed == sent
    assert parsed["x"] is not sent["x"]
    assert parsed["x"]["deep"] is not sent["x"]["deep"]  # type: ignore[index]


@pytest.mark.parametrize("sent", [None, {}])
def test_no_arguments_may_be_null_or_an_empty_object(sent: Json) -> None:
    """Providers differ in what they send for a tool without parameters."""

    def fn() -> None: ...

    assert make_arguments(fn).parse(sent) == {}


@pytest.mark.parametrize(
    ("kind", "sent", "message"),
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
def test_bad_arguments_name_the_argument_and_the_expected_type(
    kind: object, sent: Json, message: str
) -> None:
    """The model reads this text before its next attempt."""
    with pytest.raises(BadArguments) as refusal:
        make_one_argument(kind).parse(sent)
    assert str(refusal.value) == message


def test_the_text_of_bad_arguments_is_short() -> None:
    """It is journaled and sent to the model."""
    sent: dict[str, Json] = {"x": "a" * 1_000_000, **{f"{n}" * 1000: n for n in range(100)}}
    with pytest.raises(BadArguments) as refusal:
        make_one_argument(Literal["a"]).parse(sent)
    assert len(str(refusal.value)) < 2000


def test_an_exception_of_a_validator_becomes_bad_arguments() -> None:
    """A validator is user code that runs on a model's data; neither may end the run."""

    @dataclass
    class Odd:
        n: int

        def __post_init__(self) -> None:
            raise LookupError(self.n)

    with pytest.raises(BadArguments, match="x: LookupError: 3"):
        make_one_argument(Odd).parse({"x": {"n": 3}})


def test_a_type_with_the_methods_of_pydantic_is_treated_like_a_model() -> None:
    """Midrun looks for the methods and never imports pydantic here."""

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

    arguments = make_one_argument(list[Even])
    assert arguments.schema["properties"] == {
        "x": {"type": "array", "items": {"type": "integer", "multipleOf": 2}}
    }
    assert isinstance(arguments.parse({"x": [2]})["x"], list)
    with pytest.raises(BadArguments, match=r"x\[1\]: odd"):
        arguments.parse({"x": [2, 3]})


# ── refused signatures ───────────────────────────────────────────────────────


def test_the_call_parameter_is_found_by_its_type_or_by_its_name() -> None:
    """It is not an argument of the schema: no model fills it in."""

    def typed(context: Call, n: int) -> None: ...
    def bare(call, n: int) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
    def other(call: str, n: int) -> None: ...

    assert [list(make_arguments(fn).schema["properties"]) for fn in (typed, bare, other)] == [  # type: ignore[call-overload]
        ["n"],
        ["n"],
        ["call", "n"],
    ]
    assert [make_arguments(fn).takes_call for fn in (typed, bare, other)] == [True, True, False]


def test_annotations_may_be_strings() -> None:
    """As all annotations are under `from __future__ import annotations`."""

    def fn(call: "Call", where: "list[Point]") -> None: ...

    arguments = make_arguments(fn)
    assert arguments.takes_call
    assert arguments.parse({"where": [{"x": 1}]}) == {"where": [Point(1)]}


def _args(*n: int) -> None: ...
def _kwargs(**n: int) -> None: ...
def _positional(n: int, /) -> None: ...
def _why(why: str) -> None: ...
def _self(self: object) -> None: ...
def _late_call(n: int, call: Call) -> None: ...
def _keyword_call(*, call: Call) -> None: ...
def _complex(n: complex) -> None: ...
def _callable(n: Callable[[], None]) -> None: ...
def _two(n: Point | Line) -> None: ...
def _field(n: Annotated[int, pydantic.Field(ge=1)]) -> None: ...
def _missing(n: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("fn", "advice"),
    [
        (_args, "Name the arguments one by one"),
        (_kwargs, "Name the arguments one by one"),
        (_positional, "Remove the /"),
        (_why, "Use another name"),
        (_self, r"tools=\[thing.method\]"),
        (_late_call, "The Call must be the first"),
        (_keyword_call, "The Call must be the first"),
        (_complex, "complex.* cannot be expressed in JSON"),
        (_callable, "Callable.* cannot be expressed in JSON"),
        (_two, "Type unions may not contain more than one"),
        (_field, "use msgspec.Meta"),
        (_missing, "'Nowhere' is not defined"),
    ],
)
def test_a_signature_that_a_model_cannot_fill_is_refused(fn: Function, advice: str) -> None:
    """At import, with the name of the tool and the remedy."""
    with pytest.raises(Misconfigured, match=f"(?s)tool t: .*{advice}"):
        make_arguments(fn)


def test_a_parameter_without_annotation_takes_anything() -> None:
    """Existing functions are not all annotated."""

    def fn(n): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    assert make_arguments(fn).schema["properties"] == {"n": {}}
    assert make_arguments(fn).parse({"n": [None]}) == {"n": [None]}


def test_two_types_with_the_same_name_are_refused() -> None:
    """A wrong reference would make the model fill in the wrong type."""
    one = pydantic.create_model("Outer", part=(Street, ...))
    other = pydantic.create_model(
        "Outer2", part=(pydantic.create_model("Street", a=(int, 1)), ...)
    )

    def fn(a: object, b: object) -> None: ...

    fn.__annotations__.update(a=one, b=other)
    with pytest.raises(Misconfigured, match="Two of its types have the name Street"):
        make_arguments(fn)
    fn.__annotations__.update(b=msgspec.defstruct("Street", ["a"]))
    with pytest.raises(Misconfigured, match="Two of its types have the name Street"):
        make_arguments(fn)


# ── docstrings ───────────────────────────────────────────────────────────────


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
def test_google_numpy_and_sphinx_docstrings_are_parsed_alike(doc: str) -> None:
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
def test_other_docstrings_are_plain_text_or_empty(
    doc: str | None, text: str, parameters: dict[str, str]
) -> None:
    """A docstring is written for people and is never an error."""
    assert parse_docstring(doc) == (text, parameters)
