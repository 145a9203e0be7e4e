"""The typed output of an agent: its schema for the model, and the check of each answer.

The model gives its answer by calling the tool `output`, whose arguments have the declared type;
a text that is JSON of that type counts, too. The worker never executes the tool. It checks
the arguments (`Output.settle`), calls the validators, and journals the value as JSON. If they
refuse it, the problem is journaled with the reply, and the core decides whether the agent tries
again.
"""

import re
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from inspect import Parameter
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.agents.json_schema import SchemaCheck, find_unknown_keyword
from midrun.agents.signature import (
    BadArguments,
    CallFunction,
    Function,
    make_argument,
    make_schemas,
)
from midrun.agents.tool_context import Call
from midrun.codec.safe_repr import safe_repr, safe_str
from midrun.codec.strict_json import normalize_json, parse_json
from midrun.core.journaled_text import format_output
from midrun.core.values import Json, Reply, RequestedCall
from midrun.errors import Misconfigured, ModelRetry, NotJson, TooLarge
from midrun.ports.model import ToolSpec

OUTPUT_NAME: Final = "output"
"""The tool by which a model gives a typed output."""

OUTPUT_WITH_CALLS_TEXT: Final = (
    "not taken: the same reply made other calls; give the output again when they have ended"
)

DESCRIPTION: Final = "Give the result of the task. Call it once, when the task is done."
NO_OUTPUT_TEXT: Final = (
    f"The answer to the task must be a call of the tool `{OUTPUT_NAME}`, not a text."
)
OUTPUT_RETRIES: Final = 2
"""The default number of further attempts at an output that is not valid."""

PROBLEM_MAX_CHARS: Final = 2_000
PROBLEMS_MAX: Final = 10
VALUE_FIELD: Final = "value"
"""The argument of the tool for a type that is not an object in JSON, such as a list."""

CODE_FENCE: Final = re.compile(r"\A\s*```(?:json)?\s*\n(.*)\n\s*```\s*\Z", re.DOTALL)


class _TypeReader:
    """Reads values of a Python type."""

    def __init__(self, where: str, kind: object) -> None:
        parameter = Parameter(OUTPUT_NAME, Parameter.KEYWORD_ONLY, annotation=kind)
        (schema,), defs = make_schemas(where, [parameter])
        name = str(schema.get("$ref", "")).rpartition("/")[2]
        found = defs.get(name, schema)
        assert isinstance(found, dict)
        self._argument = make_argument(parameter, schema, defs)
        # The type itself is a definition, too, which is needed only if it refers to itself.
        others = {key: part for key, part in defs.items() if key != name}
        if f'"#/$defs/{name}"' in msgspec.json.encode([found, others]).decode():
            others = defs
        self.schema: dict[str, Json] = {**found, **({"$defs": others} if others else {})}

    def read(self, value: Json) -> object:
        """Return `value` as the type.

        Raises:
            BadArguments: It does not fit. The text is for the model.
        """
        return self._argument.decode(value)


class _SchemaReader:
    """Reads values that a JSON Schema describes."""

    def __init__(self, where: str, schema: dict[str, Json]) -> None:
        if keyword := find_unknown_keyword(schema):
            problem = f"output has a schema whose part {keyword!r} cannot be checked. Drop it."
            raise Misconfigured(where, problem)
        self.schema = schema
        self._check = SchemaCheck(schema)

    def read(self, value: Json) -> object:
        """Return a copy of `value`.

        Raises:
            BadArguments: It does not fit. The text is for the model.
        """
        if problems := self._check.list_problems(value):
            raise BadArguments("; ".join(problems[:PROBLEMS_MAX]))
        return deepcopy(value)


class Output:
    """The declared output of an agent, and its validators.

    Args:
        where: The agent, for errors.
        kind: A type (a msgspec Struct, pydantic model, dataclass, TypedDict, or any type that
            a tool may have as an argument), or a JSON Schema as a dict.
        validators: Functions of the value, or of a `Call` and the value. They return the value
            to take, or None to leave it as it is, and raise `ModelRetry` to refuse it.

    Raises:
        Misconfigured: The type cannot be expressed in JSON, or a validator cannot be called.
    """

    def __init__(self, where: str, kind: object, validators: Sequence[Function]) -> None:
        self._reader = (
            _SchemaReader(where, kind) if isinstance(kind, dict) else _TypeReader(where, kind)
        )
        schema = self._reader.schema
        self._is_object = schema.get("type") == "object" and "properties" in schema
        self._validators = [
            CallFunction(where, "output validator", fn, "value") for fn in validators
        ]
        self.takes_call = any(validator.takes_call for validator in self._validators)
        self.spec: Final = ToolSpec(
            name=OUTPUT_NAME,
            description=DESCRIPTION,
            schema=schema if self._is_object else _wrap_schema(schema),
        )

    async def settle(self, reply: Reply, call: Call | None) -> Reply:
        """Return the reply as the answer with its value, or with the problem of its output.

        A reply that makes other calls stays as it is: the agent is still at work.

        Raises:
            FunctionFailed: A validator raised an error other than `ModelRetry`.
        """
        outputs = [use for use in reply.uses if use.tool == OUTPUT_NAME]
        if len(outputs) < len(reply.uses):
            return replace(reply, uses=tuple(map(_postpone_output, reply.uses)))
        try:
            value = await self._take(reply.text, outputs, call)
        except (BadArguments, ModelRetry) as error:
            problem = safe_str(error, PROBLEM_MAX_CHARS)
            refused = tuple(replace(use, refused=problem) for use in outputs)
            return replace(reply, uses=refused, invalid_output=problem)
        text = format_output(value) if outputs else reply.text
        return replace(reply, uses=(), value=value, text=text)

    async def _take(
        self, text: str, outputs: Sequence[RequestedCall], call: Call | None
    ) -> Json:
        """Return the value of the first output, or of the text, as JSON."""
        if outputs:
            if outputs[0].refused:  # cut off, or not JSON
                raise BadArguments(outputs[0].refused)
            found = outputs[0].args
            found = found if self._is_object else _unwrap(found)
        else:
            found = _parse_text(text)
        value = self._reader.read(found)
        for validator in self._validators:
            changed = await validator.apply(call, value)
            value = value if changed is None else changed
        try:
            plain = msgspec.to_builtins(_expand(value), enc_hook=_dump_foreign)
            return normalize_json(plain, "output")
        except (NotJson, TooLarge, TypeError) as error:
            raise BadArguments(f"the output cannot be stored: {error}") from error


def _postpone_output(use: RequestedCall) -> RequestedCall:
    is_output = use.tool == OUTPUT_NAME and not use.refused
    return replace(use, refused=OUTPUT_WITH_CALLS_TEXT) if is_output else use


def _wrap_schema(schema: dict[str, Json]) -> dict[str, Json]:
    """Return the schema of an object that has the output in one field."""
    defs = {"$defs": schema["$defs"]} if "$defs" in schema else {}
    inner = {name: part for name, part in schema.items() if name != "$defs"}
    return {
        "type": "object",
        "properties": {VALUE_FIELD: inner},
        "required": [VALUE_FIELD],
        "additionalProperties": False,
        **defs,
    }


def _unwrap(args: Json) -> Json:
    if not isinstance(args, dict) or VALUE_FIELD not in args:
        raise BadArguments(f"{VALUE_FIELD}: is required")
    return args[VALUE_FIELD]


def _parse_text(text: str) -> Json:
    """Return the JSON that `text` is, also in a code fence."""
    fenced = CODE_FENCE.match(text)
    try:
        return parse_json(fenced[1] if fenced else text)
    except (NotJson, TooLarge) as error:
        raise BadArguments(NO_OUTPUT_TEXT) from error


def _expand(value: object) -> object:
    """Return dataclasses as dicts of all fields; msgspec would leave out their defaults."""
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _expand(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, list | tuple):
        return [_expand(item) for item in value]
    if isinstance(value, dict):
        return {key: _expand(item) for key, item in value.items()}
    return value


def _dump_foreign(value: object) -> object:
    """Return a pydantic model as data that it validates; it is recognized by its method."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{safe_repr(value, 80)} cannot be expressed in JSON")
    return dump(mode="json", by_alias=True)
