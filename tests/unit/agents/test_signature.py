"""Which signatures can be a tool's, and which are refused where they are written."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
import pydantic
import pytest

from midrun.agents.signature import Arguments, Function
from midrun.agents.tool_context import Call
from midrun.errors import Misconfigured


@dataclass
class Point:
    x: int


@dataclass
class Line:
    ends: list[Point]


class Street(pydantic.BaseModel):  # type: ignore[explicit-any]  # pydantic's own
    number: int


def arguments(fn: Function) -> Arguments:
    """Return what `fn` takes."""
    return Arguments("tool t", fn, {})


def test_a_call_is_recognised_by_its_type_or_by_its_bare_name() -> None:
    """It is not an argument: no model fills it in."""

    def typed(context: Call, n: int) -> None: ...
    def bare(call, n: int) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001
    def other(call: str, n: int) -> None: ...

    assert [list(arguments(fn).schema["properties"]) for fn in (typed, bare, other)] == [  # type: ignore[call-overload]
        ["n"],
        ["n"],
        ["call", "n"],
    ]
    assert [arguments(fn).takes_call for fn in (typed, bare, other)] == [True, True, False]


def test_annotations_may_be_strings() -> None:
    """As they all are under `from __future__ import annotations`."""

    def fn(call: "Call", where: "list[Point]") -> None: ...

    made = arguments(fn)
    assert made.takes_call
    assert made.parse({"where": [{"x": 1}]}) == {"where": [Point(1)]}


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
def test_a_signature_that_no_model_could_fill_is_refused_at_once(
    fn: Function, advice: str
) -> None:
    """At import, by name, with what to do; not at three in the morning, by a stack trace."""
    with pytest.raises(Misconfigured, match=f"(?s)tool t: .*{advice}"):
        arguments(fn)


def test_a_parameter_without_annotation_takes_anything() -> None:
    """A tool is a function somebody had; not all of them are annotated."""

    def fn(n): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202

    assert arguments(fn).schema["properties"] == {"n": {}}
    assert arguments(fn).parse({"n": [None]}) == {"n": [None]}


def test_two_types_of_one_name_are_refused_where_they_cannot_be_told_apart() -> None:
    """A silently wrong reference would have the model fill in the wrong thing."""
    one = pydantic.create_model("Outer", part=(Street, ...))
    other = pydantic.create_model(
        "Outer2", part=(pydantic.create_model("Street", a=(int, 1)), ...)
    )

    def fn(a: object, b: object) -> None: ...

    fn.__annotations__.update(a=one, b=other)
    with pytest.raises(Misconfigured, match="Two of its types have the name Street"):
        arguments(fn)
    fn.__annotations__.update(b=msgspec.defstruct("Street", ["a"]))
    with pytest.raises(Misconfigured, match="Two of its types have the name Street"):
        arguments(fn)
