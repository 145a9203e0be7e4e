"""The signature of a tool: the JSON Schema for the model, and the check of its arguments.

Both are derived from the annotations, through msgspec; descriptions come from the docstring.
The check is strict. A model that sends "3" for an int, or an unknown argument, gets an error
text and can try again; a guess could make a call that was not intended. One conversion is
made, because JSON has only one kind of number: 3.0 is accepted for an int, and 3 for a float.

The inside of an argument follows the rules of its type: dataclasses and TypedDicts ignore
unknown fields, and pydantic models validate as they are configured.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from inspect import Parameter, cleandoc, isawaitable, signature
from textwrap import dedent
from typing import Annotated, Final, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec.json import schema_components

from midrun.agents.tool_context import Call
from midrun.codec.redaction import is_secret_name
from midrun.codec.safe_repr import safe_str
from midrun.codec.strict_json import normalize_json
from midrun.core.placeholders import join_path
from midrun.core.values import Json
from midrun.errors import Misconfigured, ModelRetry, NotJson, TooLarge

# Docstrings: the description of a tool, and one of each parameter.
#
# Google, NumPy and Sphinx styles are recognized. A part in any other form stays in the text or
# is left out. No docstring is an error.


class ParsedDocstring(NamedTuple):
    """The text before the first section, and the descriptions of parameters by name."""

    text: str
    parameters: dict[str, str]


_ARGUMENT_TITLES: Final = {
    "Args",
    "Arguments",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
    "Parameters",
    "Params",
}
_OTHER_TITLES: Final = (
    "Attributes|Examples?|Notes?|Raises|References|Returns?|See Also|Todo|Warnings?|Warns"
    "|Yields?"
)
_HEADING: Final = re.compile(  # two groups: the title, and its mark: ":" or a line of dashes
    rf"^({'|'.join(sorted(_ARGUMENT_TITLES))}|{_OTHER_TITLES})"
    r"(:|[ \t]*\n-{3,})[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
_SPHINX_FIELD: Final = re.compile(
    r"^:(?:arg|key|keyword|param|raises?|returns?|rtype|type|yields?)\b", re.MULTILINE
)

# An entry of a section. Two groups: its name or names, and its text with the indented lines.
_INDENTED_LINES: Final = r"(?:\n(?:[ \t]+.*)?)*"
_GOOGLE_ENTRY: Final = re.compile(rf"^(\w+)(?: *\(.*?\))?:(.*{_INDENTED_LINES})", re.MULTILINE)
_NUMPY_ENTRY: Final = re.compile(
    rf"^(\w+(?:, *\w+)*)(?: *:.*)?({_INDENTED_LINES})", re.MULTILINE
)
_SPHINX_ENTRY: Final = re.compile(
    rf"^:(?:arg|key|keyword|param) +(?:[^:\n]+ )?(\w+):(.*{_INDENTED_LINES})", re.MULTILINE
)


def parse_docstring(doc: str | None) -> ParsedDocstring:
    """Parse a docstring; None gives an empty result."""
    # `split` returns the text before the first heading, then for each heading its two groups
    # and the body behind it.
    text, *sections = _HEADING.split(cleandoc(doc or ""))
    field = _SPHINX_FIELD.search(text)
    entries = _SPHINX_ENTRY.findall(text)
    for name, mark, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        if name in _ARGUMENT_TITLES:
            entries += (_GOOGLE_ENTRY if mark == ":" else _NUMPY_ENTRY).findall(dedent(body))
    return ParsedDocstring(
        text=text[: field.start() if field else None].rstrip(),
        parameters={
            name: line
            for names, description in entries
            for name in names.replace(",", " ").split()
            if (line := " ".join(description.split()))
        },
    )


Function: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # any function at all

REF_TEMPLATE: Final = "#/$defs/{name}"
PROBLEM_MAX_CHARS: Final = 300
"""Characters of the description of one problem, which may quote megabytes that a model sent."""

_ANY_VALUE_MARKER: Final[dict[str, Json]] = {"$comment": "anything"}
"""Stands for the empty schema `{}` (any value) while the schema is built: msgspec takes an
empty result of a schema hook for no result. `_remove_markers` removes it."""

_MSGSPEC_MESSAGE: Final = re.compile(r"(.*?)(?: - at `(?:key` in `)?\$(.*)`)?", re.DOTALL)
"""A message of msgspec. Two groups: the problem, and the path to the value, if there is one."""


class BadArguments(Exception):
    """The arguments do not match the schema. The text is for the model."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a tool: its schema for the model, and its decoder."""

    name: str
    schema: dict[str, Json]
    required: bool
    decoder: "msgspec.json.Decoder[object]"
    choices: list[Json]

    def decode(self, value: Json) -> object:
        """Convert a JSON value to the annotated type. The result shares nothing with `value`.

        Raises:
            BadArguments: It is not of that type.
        """
        try:
            # Encoded and decoded, so that the tool cannot change the journaled arguments: the
            # result shares no list or dict with them.
            try:
                return self.decoder.decode(msgspec.json.encode(value))
            except msgspec.ValidationError:
                # Second chance: 3.0 for an int. Not done first, or 3.0 for a float would
                # arrive as an int where the type allows both.
                return self.decoder.decode(msgspec.json.encode(_convert_integral_floats(value)))
        except msgspec.ValidationError as error:
            text = str(error)
            raise BadArguments(self._format_problem(text[:1].lower() + text[1:])) from None
        except Exception as error:  # noqa: BLE001 - a type's own validator may raise anything
            raise BadArguments(
                self._format_problem(f"{type(error).__name__}: {error}")
            ) from None

    def _format_problem(self, text: str) -> str:
        match = _MSGSPEC_MESSAGE.fullmatch(text)
        assert match  # the pattern matches every text
        problem, path = match[1], match[2] or ""
        # msgspec does not list the values that an enum allows.
        if problem.startswith("invalid enum value") and self.choices and not path:
            problem += f", expected one of {msgspec.json.encode(self.choices).decode()}"
        return safe_str(f"{self.name}{path}: {problem}", PROBLEM_MAX_CHARS)


class Arguments:
    """The arguments of one function. `schema` is their JSON Schema, with its own `$defs`.

    `takes_call` is True if the function takes a `Call` before them.
    """

    def __init__(self, where: str, fn: Function, descriptions: Mapping[str, str]) -> None:
        self.takes_call, parameters = _read_parameters(where, fn)
        schemas, defs = make_schemas(where, parameters)
        arguments = [
            make_argument(parameter, schema, defs, descriptions.get(parameter.name, ""))
            for parameter, schema in zip(parameters, schemas, strict=True)
        ]
        self._by_name = {argument.name: argument for argument in arguments}
        self.schema: dict[str, Json] = {
            "type": "object",
            "properties": {argument.name: argument.schema for argument in arguments},
            "required": [argument.name for argument in arguments if argument.required],
            "additionalProperties": False,
        }
        if defs:
            self.schema["$defs"] = defs

    def parse(self, args: Json) -> dict[str, object]:
        """Convert JSON arguments to keyword arguments for the function.

        None means no arguments. Defaults are not filled in. The result shares nothing with
        `args`.

        Raises:
            BadArguments: They do not match the schema. The text names up to ten problems.
        """
        values = {} if args is None else args
        if not isinstance(values, dict):
            raise BadArguments(f"expected an object with {self._format_names()}")
        problems: list[str] = []
        for name, argument in self._by_name.items():
            if argument.required and name not in values:
                problems.append(f"{name}: is required")
        converted: dict[str, object] = {}
        for name, value in values.items():
            if name not in self._by_name:
                problems.append(
                    f"{safe_str(name, 60)}: no such argument, {self._format_names()}"
                )
                continue
            try:
                converted[name] = self._by_name[name].decode(value)
            except BadArguments as problem:
                problems.append(str(problem))
        if problems:
            raise BadArguments("; ".join(problems[:10]))
        return converted

    def _format_names(self) -> str:
        return f"the arguments: {', '.join(self._by_name)}" if self._by_name else "no arguments"


class SchemaArguments:
    """The arguments of a tool of an MCP server or another framework, by their JSON Schema.

    Only simple rules are checked here: the arguments are an object, required ones are present
    and forbidden ones are absent. The server or the framework checks the rest of the schema.
    """

    takes_call = True

    def __init__(self, declared: dict[str, Json]) -> None:
        properties = declared.get("properties")
        required = declared.get("required")
        self._properties = properties if isinstance(properties, dict) else {}
        self._required = required if isinstance(required, list) else []
        self._is_closed = declared.get("additionalProperties") is False
        self.schema: dict[str, Json] = {
            **declared,
            "type": "object",
            "properties": self._properties,
        }

    def parse(self, args: Json) -> dict[str, object]:
        """Check the arguments, and return them unchanged.

        Raises:
            BadArguments: They do not match the schema. The text names up to ten problems.
        """
        values = {} if args is None else args
        names = ", ".join(self._properties) or "none"
        if not isinstance(values, dict):
            raise BadArguments(f"expected an object with the arguments: {names}")
        problems = [f"{name}: is required" for name in self._required if name not in values]
        # `patternProperties` may allow further names; the owner of the tool checks those.
        if self._is_closed and "patternProperties" not in self.schema:
            problems += [
                f"{safe_str(name, 60)}: no such argument, the arguments: {names}"
                for name in values
                if name not in self._properties
            ]
        if problems:
            raise BadArguments("; ".join(problems[:10]))
        return dict(values)  # not the journaled object itself


def find_secret_paths(schema: dict[str, Json]) -> tuple[str, ...]:
    """Return the paths of the fields in `schema` whose names stand for secrets.

    The author of a tool declares a secret by giving a parameter, or a field of a parameter's
    type, such a name. The keys of a dictionary are not in the schema, because the model chooses
    them.
    """
    defs = _require_object(schema.get("$defs", {}))
    found: dict[str, None] = {}

    def walk(part: Json, path: str, inside: tuple[str, ...]) -> None:
        if isinstance(part, list):
            for item in part:
                walk(item, path, inside)
        if not isinstance(part, dict):
            return
        ref = str(part.get("$ref", "")).removeprefix(REF_TEMPLATE.format(name=""))
        if ref in defs and ref not in inside:  # a type may contain itself: enter it once
            walk(defs[ref], path, (*inside, ref))
        for keyword in ("anyOf", "oneOf", "allOf", "items", "prefixItems"):
            walk(part.get(keyword), path, inside)
        for name, field in _require_object(part.get("properties", {})).items():
            if is_secret_name(name):
                found[join_path(path, name)] = None  # all that is below it is secret, too
            else:
                walk(field, join_path(path, name), inside)

    walk(schema, "", ())
    return tuple(sorted(found))


class FunctionFailed(Exception):
    """A function of an agent, such as an output validator, raised an unexpected error."""


class CallFunction:
    """A function of an agent that may take a `Call` before its other arguments.

    It is async, or returns at once: it runs in the event loop of the worker.

    Args:
        where: The agent, for errors.
        label: The role of the function, for errors.
        fn: The function.
        parameters: The names of its other arguments.

    Raises:
        Misconfigured: It cannot be called like that.
    """

    def __init__(self, where: str, label: str, fn: Function, *parameters: str) -> None:
        name = getattr(fn, "__name__", safe_str(fn, 80))
        self.label: Final = f"{label} {name}"
        self._fn = fn
        try:
            hints = get_type_hints(fn)
            declared = list(signature(fn).parameters.values())
            first = [p.replace(annotation=hints.get(p.name, p.empty)) for p in declared[:1]]
            self.takes_call = bool(first) and _is_call(first[0])
            signature(fn).bind(*range(len(parameters) + self.takes_call))
        except (TypeError, ValueError, NameError) as error:
            forms = [f"({', '.join(names)})" for names in (parameters, ("call", *parameters))]
            problem = (
                f"{self.label} must be a function that takes {' or '.join(forms)}: {error}"
            )
            raise Misconfigured(where, problem) from error

    async def apply(self, call: Call | None, *args: object) -> object:
        """Call the function, and await its result if it is awaitable.

        Raises:
            ModelRetry: The function raised it: the model must try again.
            FunctionFailed: It raised any other error.
        """
        try:
            made = self._fn(call, *args) if self.takes_call else self._fn(*args)
            return await made if isawaitable(made) else made
        except ModelRetry:
            raise
        except Exception as error:
            text = f"{self.label}: {type(error).__name__}: {safe_str(error)}"
            raise FunctionFailed(text) from error


# ── the signature ────────────────────────────────────────────────────────────


def _read_parameters(where: str, fn: Function) -> tuple[bool, list[Parameter]]:
    """Return whether `fn` takes a `Call` first, and the parameters that the model fills."""
    try:
        hints = get_type_hints(fn, include_extras=True)
        declared = list(signature(fn).parameters.values())
    except Exception as error:
        problem = (
            f"Cannot read its signature: {error}. Annotate it with names that exist when the "
            "module is loaded."
        )
        raise Misconfigured(where, problem) from error
    # Annotations may be strings (`from __future__ import annotations`); use resolved ones.
    resolved = [each.replace(annotation=hints.get(each.name, each.empty)) for each in declared]
    takes_call = bool(resolved) and _is_call(resolved[0])
    parameters = resolved[takes_call:]
    for parameter in parameters:
        if problem := _find_parameter_problem(parameter):
            raise Misconfigured(where, f"parameter {parameter}: {problem}")
    return takes_call, parameters


def _is_call(parameter: Parameter) -> bool:
    if parameter.kind not in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}:
        return False
    has_call_name = parameter.annotation is Parameter.empty and parameter.name == "call"
    return has_call_name or parameter.annotation is Call


def _find_parameter_problem(parameter: Parameter) -> str:
    """Return a description of the reason why a model cannot fill the parameter, or ""."""
    if parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        return "A model needs to know each argument. Name the arguments one by one."
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        return "Arguments are passed by name. Remove the / from the signature."
    if parameter.annotation is Call:
        return "The Call must be the first parameter, and must be accepted by position."
    if parameter.name == "why":
        return "The name `why` is reserved for the model's reason. Use another name."
    if parameter.name in {"self", "cls"}:
        return "A method must be bound first. Pass tools=[thing.method] to the agent."
    return ""


# ── from a type to its schema ────────────────────────────────────────────────


def make_schemas(
    where: str, parameters: list[Parameter]
) -> tuple[list[dict[str, Json]], dict[str, Json]]:
    """Return a schema for each parameter, and the definitions that they refer to."""
    pydantic_defs: dict[str, Json] = {}

    def make_foreign_schema(kind: object) -> dict[str, Json]:
        """Return the schema of a type that msgspec does not know."""
        if kind is object:
            return _ANY_VALUE_MARKER
        # A pydantic model, recognized by its method: pydantic may not be installed.
        make_schema = getattr(kind, "model_json_schema", None)
        if make_schema is None:
            raise TypeError(f"{kind!r} cannot be expressed in JSON")
        schema: dict[str, Json] = normalize_json(make_schema(ref_template="#/$defs/{model}"))  # type: ignore[assignment]  # always an object
        for name, definition in _require_object(schema.pop("$defs", {})).items():
            _add_definition(pydantic_defs, name, definition)
        return schema

    # Each one alone first, only to name the parameter in the error. Then all together, so that
    # two different types with the same name are found.
    for parameter in parameters:
        try:
            schema_components([_find_type(parameter)], schema_hook=make_foreign_schema)
        except Exception as error:
            raise Misconfigured(where, f"parameter {parameter}: {error}") from error
    try:
        schemas, defs = schema_components(
            map(_find_type, parameters),
            schema_hook=make_foreign_schema,
            ref_template=REF_TEMPLATE,
        )
        for name, definition in pydantic_defs.items():
            _add_definition(defs, name, definition)
    except ValueError as error:
        raise Misconfigured(where, str(error)) from error
    return [_require_object(_remove_markers(schema)) for schema in schemas], _require_object(
        _remove_markers(defs)
    )


def _remove_markers(part: Json) -> Json:
    match part:
        case list():
            return [_remove_markers(item) for item in part]
        case dict():
            return {
                k: _remove_markers(v) for k, v in part.items() if k not in _ANY_VALUE_MARKER
            }
        case _:
            return part


def _add_definition(defs: dict[str, Json], name: str, definition: Json) -> None:
    if defs.setdefault(name, definition) != definition:
        raise ValueError(f"Two of its types have the name {name}. Rename one.")


def _find_type(parameter: Parameter) -> object:
    """Return the annotated type; `object`, which accepts any value, without an annotation."""
    if parameter.annotation is parameter.empty:
        return object
    for extra in _list_metadata(parameter):
        if not isinstance(extra, str | msgspec.Meta):
            # msgspec would ignore it, and the bound that its author wanted would not hold.
            raise TypeError(f"{extra!r} has no effect here; use msgspec.Meta, or a plain str")
    kind: object = parameter.annotation
    return kind


def _list_metadata(parameter: Parameter) -> tuple[object, ...]:
    kind = parameter.annotation
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def make_argument(
    parameter: Parameter,
    schema: dict[str, Json],
    defs: dict[str, Json],
    doc_description: str = "",
) -> Argument:
    """Return the argument of `parameter`, with its description and its default."""
    choices = _find_choices(schema, defs)
    extras = _list_metadata(parameter)
    # A description in the annotation wins over the one in the docstring.
    texts = [extra for extra in extras if isinstance(extra, str)]
    texts += [m.description for m in extras if isinstance(m, msgspec.Meta) and m.description]
    if description := next(iter(texts), doc_description):
        schema["description"] = description
    _add_time_format(parameter, schema)
    required = parameter.default is parameter.empty
    if not required:
        schema.update(_make_default(parameter.default))
    return Argument(
        name=parameter.name,
        schema=schema,
        required=required,
        decoder=msgspec.json.Decoder(_find_type(parameter), dec_hook=_decode_foreign_type),
        choices=choices,
    )


def _list_alternatives(schema: dict[str, Json]) -> list[dict[str, Json]]:
    """Return the schema itself, and the alternatives of its `anyOf`."""
    alternatives = schema.get("anyOf", [])
    assert isinstance(alternatives, list)
    return [schema, *alternatives]


def _find_choices(schema: dict[str, Json], defs: dict[str, Json]) -> list[Json]:
    """Return the values that an enum or a literal allows, for error texts."""
    for part in _list_alternatives(schema):
        name = str(part.get("$ref", "")).rpartition("/")[2]
        values = _require_object(defs.get(name, part)).get("enum")
        if isinstance(values, list):
            return values
    return []


def _add_time_format(parameter: Parameter, schema: dict[str, Json]) -> None:
    """Add the format of dates and times to `schema`.

    msgspec leaves it out, because it also accepts times without a zone.
    """
    kind = parameter.annotation
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for time_type, format_ in ((datetime, "date-time"), (time, "time")):
        for part in _list_alternatives(schema):
            if time_type in (bare, *get_args(bare)) and part.get("type") == "string":
                part.setdefault("format", format_)


def _make_default(value: object) -> dict[str, Json]:
    """Return the keyword `default` of a schema; nothing if JSON cannot express the value."""
    # It only informs the model. The function itself applies its default.
    try:
        return {"default": normalize_json(msgspec.to_builtins(value))}
    except (TypeError, ValueError, NotJson, TooLarge):
        return {}


def _require_object(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


# ── reading values ───────────────────────────────────────────────────────────


def _decode_foreign_type(kind: type, value: object) -> object:
    """Decode a value of a type that msgspec does not know: `object`, or a pydantic model."""
    if kind is object:
        return value
    try:
        return kind.model_validate(value)  # type: ignore[attr-defined]  # see make_foreign_schema
    except ValueError as error:
        # The text of a pydantic error is long and has links; take only location and message.
        list_errors = getattr(error, "errors", None)
        if list_errors is None:
            raise
        lines = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in list_errors())
        raise ValueError("; ".join(lines)) from None


def _convert_integral_floats(value: Json) -> Json:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_convert_integral_floats(item) for item in value]
        case dict():
            return {key: _convert_integral_floats(item) for key, item in value.items()}
        case _:
            return value
