"""The typed output of an agent: its schema for the model, and the check of each answer."""

import re
from dataclasses import dataclass
from datetime import date
from typing import Literal, TypedDict

import pytest
from msgspec import Struct
from pydantic import BaseModel, Field

from midrun import Agent, Call, Misconfigured, ModelRetry, tool
from midrun.agents.json_schema import SchemaCheck
from midrun.agents.output import NO_OUTPUT_TEXT, OUTPUT_WITH_CALLS_TEXT, Output
from midrun.agents.signature import FunctionFailed
from midrun.core.values import Json, Reply, RequestedCall
from midrun.models import ScriptedModel


class Line(Struct):
    text: str
    cents: int


class Invoice(Struct):
    number: str
    lines: list[Line]
    due: date | None = None


class Aliased(BaseModel):  # type: ignore[explicit-any]  # of pydantic's own
    total: int = Field(alias="Total")


class Rating(BaseModel):  # type: ignore[explicit-any]  # of pydantic's own
    stars: int = Field(ge=1, le=5)
    note: str = ""


@dataclass
class Place:
    city: str
    zip: int = 0


class Tag(TypedDict):
    name: str


RATING_SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {"stars": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["stars"],
    "additionalProperties": False,
}
LINE = {"text": "Tea", "cents": 300}


def declare(kind: object, *validators: object) -> Output:
    """Return the output of an agent that is declared with `kind`."""
    return Output("agent clerk", kind, validators)  # type: ignore[arg-type]  # checked there


async def settle(output: Output, args: Json, text: str = "") -> Reply:
    """Return the settled reply of a model that called the output tool with `args`."""
    use = RequestedCall(tool="output", args=args)
    return await output.settle(Reply(text=text, uses=(use,)), None)


@pytest.mark.parametrize(
    ("kind", "args", "value"),
    [
        (
            Invoice,
            {"number": "7", "lines": [LINE]},
            {"number": "7", "lines": [LINE], "due": None},
        ),
        (Rating, {"stars": 5}, {"stars": 5, "note": ""}),
        (Aliased, {"Total": 5}, {"Total": 5}),  # as `Aliased.model_validate` reads it
        (Place, {"city": "Bonn"}, {"city": "Bonn", "zip": 0}),
        (Tag, {"name": "red"}, {"name": "red"}),
        (RATING_SCHEMA, {"stars": 2}, {"stars": 2}),
        (list[Rating], {"value": [{"stars": 1}]}, [{"stars": 1, "note": ""}]),
        (Literal["yes", "no"], {"value": "no"}, "no"),
        (int | None, {"value": 3.0}, 3),
    ],
)
async def test_an_output_that_fits_is_the_answer_with_its_value(
    kind: object, args: Json, value: Json
) -> None:
    reply = await settle(declare(kind), args)
    assert (reply.value, reply.uses, reply.invalid_output) == (value, (), "")
    assert reply.text


@pytest.mark.parametrize(
    ("kind", "args", "problem"),
    [
        (Invoice, {"number": "7"}, "output: object missing required field `lines`"),
        (Invoice, {"number": "7", "lines": [{"text": "Tea"}]}, r"output.lines\[0\]"),
        (Rating, {"stars": 9}, "stars: Input should be less than or equal to 5"),
        (Place, {"city": 1}, "output.city: expected `str`, got `int`"),
        (RATING_SCHEMA, {"stars": 9}, "output.stars: must be at most 5, got 9"),
        (RATING_SCHEMA, {"stars": 1, "x": 2}, "output.x: is not allowed"),
        (list[str], {"values": []}, "value: is required"),
    ],
)
async def test_an_output_that_does_not_fit_is_refused_with_the_problem(
    kind: object, args: Json, problem: str
) -> None:
    reply = await settle(declare(kind), args)
    (use,) = reply.uses
    assert use.refused == reply.invalid_output
    assert re.search(problem, use.refused), use.refused


@pytest.mark.parametrize(
    "text", ['{"stars": 4}', '```json\n{"stars": 4}\n```', ' {"stars":4} ']
)
async def test_a_text_that_is_json_counts_as_the_output(text: str) -> None:
    """Small models often write the output instead of calling the tool."""
    reply = await declare(Rating).settle(Reply(text=text), None)
    assert (reply.value, reply.text) == ({"stars": 4, "note": ""}, text)


async def test_any_other_text_is_no_output() -> None:
    reply = await declare(Rating).settle(Reply(text="Four stars."), None)
    assert (reply.value, reply.invalid_output, reply.uses) == (None, NO_OUTPUT_TEXT, ())


async def test_an_output_beside_other_calls_is_given_again_later() -> None:
    """The model has not seen their results."""
    uses = (RequestedCall(tool="look"), RequestedCall(tool="output", args={"stars": 1}))
    reply = await declare(Rating).settle(Reply(uses=uses), None)
    assert [use.refused for use in reply.uses] == ["", OUTPUT_WITH_CALLS_TEXT]
    assert (reply.value, reply.invalid_output) == (None, "")


async def test_validators_change_the_value_or_ask_for_another_try() -> None:
    seen: list[object] = []

    async def round_up(value: Rating) -> Rating:
        return Rating(stars=min(5, value.stars + 1))

    def refuse_low(call: Call, value: Rating) -> None:
        seen.append(call)
        if value.stars < 3:
            raise ModelRetry("Be kind.")

    output = declare(Rating, round_up, refuse_low)
    assert output.takes_call
    assert (await settle(output, {"stars": 4})).value == {"stars": 5, "note": ""}
    assert (await settle(output, {"stars": 1})).invalid_output == "Be kind."


async def test_the_error_of_a_validator_names_the_validator() -> None:
    def divide(value: Rating) -> float:
        return value.stars / 0

    with pytest.raises(FunctionFailed, match="output validator divide: ZeroDivisionError"):
        await settle(declare(Rating, divide), {"stars": 4})


@tool
async def output() -> str:
    """Take the name of the output tool."""
    return ""


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"output": object, "tools": [output]}, "Cannot have a tool 'output' and an output"),
        ({"output": {"type": "object", "if": {}}}, "whose part 'if' cannot be checked"),
        ({"output": type(len)}, "cannot be expressed in JSON"),
        ({"output_validators": [print]}, "Add output=…"),
        ({"output": Rating, "output_validators": ["no"]}, "must be a function that takes"),
        (
            {"output": Rating, "output_validators": [lambda: 1]},
            "takes .value. or .call, value.",
        ),
        ({"output": Rating, "output_retries": -1}, "output_retries must be an int >= 0"),
    ],
)
def test_an_output_that_cannot_work_is_refused_where_it_is_declared(
    options: dict[str, object], advice: str
) -> None:
    with pytest.raises(Misconfigured, match=advice):
        Agent("clerk", model=ScriptedModel([]), **options)  # type: ignore[arg-type]  # on purpose


def test_the_schema_of_the_output_is_part_of_the_fingerprint() -> None:
    """A checkpoint of an agent with another output must not be resumed."""

    def fingerprint(**options: object) -> str:
        return Agent("clerk", model=ScriptedModel([]), **options).fingerprint  # type: ignore[arg-type]

    assert fingerprint(output=Rating) != fingerprint() != fingerprint(output=Place)
    described = {**RATING_SCHEMA, "description": "How good it was."}
    assert fingerprint(output=described) == fingerprint(output=RATING_SCHEMA)
    assert fingerprint(output=Rating, output_validators=[print]) == fingerprint(output=Rating)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a", 1]}, "a", True),
        ({"const": None}, None, 0),
        ({"type": ["string", "null"]}, None, 1),
        ({"type": "integer"}, 3.0, True),
        ({"type": "array", "items": {"type": "number"}, "minItems": 1}, [1.5], []),
        ({"prefixItems": [{"type": "string"}], "items": False}, ["a"], ["a", "b"]),
        ({"type": "string", "pattern": "^a", "maxLength": 2}, "ab", "ba"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 3),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1.5, 1),
        ({"allOf": [{"minimum": 1}, {"exclusiveMaximum": 3}]}, 2, 3),
        ({"not": {"type": "null"}}, 1, None),
        ({"type": "array", "uniqueItems": True}, [1, 2], [1, 1]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": "b"}),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"multipleOf": 2}}}, 4, 3),
    ],
)
def test_a_json_schema_is_checked_keyword_by_keyword(
    schema: dict[str, Json], good: Json, bad: Json
) -> None:
    check = SchemaCheck(schema)
    assert check.list_problems(good) == []
    assert check.list_problems(bad)
