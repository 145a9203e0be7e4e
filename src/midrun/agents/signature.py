"""What a function takes: the JSON Schema a model is shown, and the check of what it sends.

Both come from the signature, through msgspec. The check is strict: a model that sends "3" for
a number, or an argument nobody asked for, is told so in words and can do better; guessing
would make calls that nobody wanted. One thing is forgiven, because JSON has a single kind of
number: 3.0 is good for an int, as 3 is for a float.

What is inside of an argument is checked by its type's own rules: dataclasses and TypedDicts
pass over fields they do not know, pydantic models validate as they are configured to.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, time
from inspect import Parameter, cleandoc, signature
from textwrap import dedent
from typing import Annotated, Final, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec
from msgspec.json import schema_components

from midrun.agents.tool_context import Call
from midrun.codec.redaction import is_secret_name
from midrun.codec.safe_repr import safe_str
from midrun.codec.strict_json import checked
from midrun.core.placeholders import join_path
from midrun.core.values import Json
from midrun.errors import Misconfigured, NotJson, TooLarge

# What a docstring says to a model: the text, and a line for each parameter.
#
# Google, NumPy and Sphinx styles are understood. What is not understood stays in the text or is
# left out; a docstring is never an error.


class Described(NamedTuple):
    """`text` is all that stands before the first section; `parameters` are by name."""

    text: str
    parameters: dict[str, str]


_ARGUMENTS: Final = {
    "Args",
    "Arguments",
    "Keyword Args",
    "Keyword Arguments",
    "Other Parameters",
    "Parameters",
    "Params",
}
_OTHERS: Final = (
    "Attributes|Examples?|Notes?|Raises|References|Returns?|See Also|Todo|Warnings?|Warns"
    "|Yields?"
)
_HEADING: Final = re.compile(  # gives its name, and how it is marked: `:`, or underlined
    rf"^({'|'.join(sorted(_ARGUMENTS))}|{_OTHERS})(:|[ \t]*\n-{{3,}})[ \t]*(?:\n|\Z)",
    re.MULTILINE,
)
_FIELD: Final = re.compile(
    r"^:(?:arg|key|keyword|param|raises?|returns?|rtype|type|yields?)\b", re.MULTILINE
)

# An entry gives its name or names, and the lines that are indented below.
_BELOW: Final = r"(?:\n(?:[ \t]+.*)?)*"
_GOOGLE: Final = re.compile(rf"^(\w+)(?: *\(.*?\))?:(.*{_BELOW})", re.MULTILINE)
_NUMPY: Final = re.compile(rf"^(\w+(?:, *\w+)*)(?: *:.*)?({_BELOW})", re.MULTILINE)
_SPHINX: Final = re.compile(
    rf"^:(?:arg|key|keyword|param) +(?:[^:\n]+ )?(\w+):(.*{_BELOW})", re.MULTILINE
)


def described(doc: str | None) -> Described:
    """Return what `doc` says; nothing where there is none."""
    text, *sections = _HEADING.split(cleandoc(doc or ""))
    field = _FIELD.search(text)
    found = _SPHINX.findall(text)
    for name, mark, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True):
        if name in _ARGUMENTS:
            found += (_GOOGLE if mark == ":" else _NUMPY).findall(dedent(body))
    return Described(
        text=text[: field.start() if field else None].rstrip(),
        parameters={
            name: line
            for names, words in found
            for name in names.replace(",", " ").split()
            if (line := " ".join(words.split()))
        },
    )


Function: TypeAlias = Callable[..., object]  # type: ignore[explicit-any]  # any function at all

REFS: Final = "#/$defs/{name}"
PROBLEM_MAX: Final = 300
"""Characters of one problem: a model may have sent megabytes, and need not read them again."""

_ANYTHING: Final[dict[str, Json]] = {"$comment": "anything"}
"""Marks `object` until the schema is whole: msgspec takes an empty answer for none."""

_PLACED: Final = re.compile(r"(.*?)(?: - at `(?:key` in `)?\$(.*)`)?", re.DOTALL)


class BadArguments(Exception):
    """The arguments do not fit. The text is for the model: which one, and what was expected."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument, as a model is told of it and as it is read."""

    name: str
    schema: dict[str, Json]
    required: bool
    decoder: "msgspec.json.Decoder[object]"
    choices: list[Json]

    def read(self, value: Json) -> object:
        """Return `value` as the type that the function wants; it shares nothing with `value`.

        Raises:
            BadArguments: it is not of that type.
        """
        try:
            try:
                return self.decoder.decode(msgspec.json.encode(value))
            except msgspec.ValidationError:
                return self.decoder.decode(msgspec.json.encode(_wholes_as_ints(value)))
        except msgspec.ValidationError as error:
            what = str(error)
            raise BadArguments(self._in_words(what[:1].lower() + what[1:])) from None
        except Exception as error:  # noqa: BLE001 - a type's own validator may raise anything
            raise BadArguments(self._in_words(f"{type(error).__name__}: {error}")) from None

    def _in_words(self, problem: str) -> str:
        placed = _PLACED.fullmatch(problem)
        assert placed
        what, trail = placed[1], placed[2] or ""
        if what.startswith("invalid enum value") and self.choices and not trail:
            what += f", expected one of {msgspec.json.encode(self.choices).decode()}"
        return safe_str(f"{self.name}{trail}: {what}", PROBLEM_MAX)


class Arguments:
    """The arguments of one function. `schema` is their JSON Schema, with its own `$defs`.

    `takes_call` tells that the function wants a `Call` before them.
    """

    def __init__(self, where: str, fn: Function, described: Mapping[str, str]) -> None:
        self.takes_call, parameters = _parameters(where, fn)
        schemas, defs = _schemas(where, parameters)
        found = [
            _argument(parameter, schema, defs, described.get(parameter.name, ""))
            for parameter, schema in zip(parameters, schemas, strict=True)
        ]
        self._found = {argument.name: argument for argument in found}
        self.schema: dict[str, Json] = {
            "type": "object",
            "properties": {argument.name: argument.schema for argument in found},
            "required": [argument.name for argument in found if argument.required],
            "additionalProperties": False,
        }
        if defs:
            self.schema["$defs"] = defs

    def parse(self, args: Json) -> dict[str, object]:
        """Return the keyword arguments for the function; what was left out stays left out.

        None is as good as no arguments. The result shares nothing with `args`.

        Raises:
            BadArguments: they do not fit; every problem is named.
        """
        given = {} if args is None else args
        if not isinstance(given, dict):
            raise BadArguments(f"expected an object with {self._names()}")
        problems = [
            f"{name}: is required"
            for name, argument in self._found.items()
            if argument.required and name not in given
        ]
        made: dict[str, object] = {}
        for name, value in given.items():
            if name not in self._found:
                problems.append(f"{safe_str(name, 60)}: no such argument, {self._names()}")
                continue
            try:
                made[name] = self._found[name].read(value)
            except BadArguments as problem:
                problems.append(str(problem))
        if problems:
            raise BadArguments("; ".join(problems[:10]))
        return made

    def _names(self) -> str:
        return f"the arguments: {', '.join(self._found)}" if self._found else "no arguments"


def secret_paths(schema: dict[str, Json]) -> tuple[str, ...]:
    """Return the paths of the fields in `schema` that are named for a secret.

    The author of a tool declares a secret by giving a parameter, or a field of a parameter's
    own type, such a name. The keys of a dictionary are not in the schema: the model
    chooses them.
    """
    defs = _object(schema.get("$defs", {}))
    found: dict[str, None] = {}

    def walk(part: Json, path: str, inside: tuple[str, ...]) -> None:
        if isinstance(part, list):
            for item in part:
                walk(item, path, inside)
        if not isinstance(part, dict):
            return
        ref = str(part.get("$ref", "")).removeprefix(REFS.format(name=""))
        if ref in defs and ref not in inside:  # or it is a type that contains itself
            walk(defs[ref], path, (*inside, ref))
        for word in ("anyOf", "oneOf", "allOf", "items", "prefixItems"):
            walk(part.get(word), path, inside)
        for name, field in _object(part.get("properties", {})).items():
            if is_secret_name(name):
                found[join_path(path, name)] = None
            else:
                walk(field, join_path(path, name), inside)

    walk(schema, "", ())
    return tuple(sorted(found))


# ── the signature ────────────────────────────────────────────────────────────


def _parameters(where: str, fn: Function) -> tuple[bool, list[Parameter]]:
    """Return whether `fn` takes a `Call` first, and the parameters that a model fills."""
    try:
        hints = get_type_hints(fn, include_extras=True)
        given = list(signature(fn).parameters.values())
    except Exception as error:
        problem = f"its signature cannot be read ({error}); annotate it with names that exist"
        raise Misconfigured(where, f"{problem} when the module is loaded") from error
    resolved = [each.replace(annotation=hints.get(each.name, each.empty)) for each in given]
    takes_call = bool(resolved) and _is_call(resolved[0])
    parameters = resolved[takes_call:]
    for parameter in parameters:
        if problem := _unusable(parameter):
            raise Misconfigured(where, f"parameter {parameter}: {problem}")
    return takes_call, parameters


def _is_call(parameter: Parameter) -> bool:
    if parameter.kind not in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}:
        return False
    unnamed = parameter.annotation is Parameter.empty and parameter.name == "call"
    return unnamed or parameter.annotation is Call


def _unusable(parameter: Parameter) -> str:
    if parameter.kind in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}:
        return "a model must know what to fill in; name the arguments one by one"
    if parameter.kind is Parameter.POSITIONAL_ONLY:
        return "arguments are given by name; take the / out of the signature"
    if parameter.annotation is Call:
        return "a Call comes first, before the arguments, and can be given by position"
    if parameter.name == "why":
        return "every call may say why it is made under this name already; choose another"
    if parameter.name in {"self", "cls"}:
        return "a method is a tool once it is bound: give tools=[thing.method] to the agent"
    return ""


# ── from a type to its schema ────────────────────────────────────────────────


def _schemas(
    where: str, parameters: list[Parameter]
) -> tuple[list[dict[str, Json]], dict[str, Json]]:
    """Return a schema for each parameter, and the definitions that they refer to."""
    foreign: dict[str, Json] = {}

    def from_elsewhere(kind: object) -> dict[str, Json]:
        """Return the schema of a type that msgspec does not know."""
        if kind is object:
            return _ANYTHING
        speak = getattr(kind, "model_json_schema", None)  # pydantic, without importing it
        if speak is None:
            raise TypeError(f"{kind!r} is nothing that JSON can say")
        schema: dict[str, Json] = checked(speak(ref_template="#/$defs/{model}"))  # type: ignore[assignment]  # an object, by its definition
        for name, definition in _object(schema.pop("$defs", {})).items():
            _define(foreign, name, definition)
        return schema

    for parameter in parameters:  # one by one, to name the one that is wrong
        try:
            schema_components([_kind(parameter)], schema_hook=from_elsewhere)
        except Exception as error:
            raise Misconfigured(where, f"parameter {parameter}: {error}") from error
    try:
        schemas, defs = schema_components(
            map(_kind, parameters), schema_hook=from_elsewhere, ref_template=REFS
        )
        for name, definition in foreign.items():
            _define(defs, name, definition)
    except ValueError as error:
        raise Misconfigured(where, str(error)) from error
    return [_object(_unmarked(schema)) for schema in schemas], _object(_unmarked(defs))


def _unmarked(part: Json) -> Json:
    match part:
        case list():
            return [_unmarked(item) for item in part]
        case dict():
            return {k: _unmarked(v) for k, v in part.items() if k not in _ANYTHING}
        case _:
            return part


def _define(defs: dict[str, Json], name: str, definition: Json) -> None:
    if defs.setdefault(name, definition) != definition:
        raise ValueError(f"two of its types are called {name}; rename one")


def _kind(parameter: Parameter) -> object:
    """Return the type to read; anything at all where nothing is said."""
    if parameter.annotation is parameter.empty:
        return object
    for extra in _extras(parameter):
        if not isinstance(extra, str | msgspec.Meta):
            raise TypeError(f"{extra!r} says nothing here; use msgspec.Meta, or a plain string")
    kind: object = parameter.annotation
    return kind


def _extras(parameter: Parameter) -> tuple[object, ...]:
    kind = parameter.annotation
    return get_args(kind)[1:] if get_origin(kind) is Annotated else ()


def _argument(
    parameter: Parameter, schema: dict[str, Json], defs: dict[str, Json], described: str
) -> Argument:
    choices = _choices(schema, defs)
    extras = _extras(parameter)
    meant = [extra for extra in extras if isinstance(extra, str)]
    meant += [m.description for m in extras if isinstance(m, msgspec.Meta) and m.description]
    if description := next(iter(meant), described):
        schema["description"] = description
    _say_that_it_is_a_time(parameter, schema)
    required = parameter.default is parameter.empty
    if not required:
        schema.update(_default(parameter.default))
    return Argument(
        name=parameter.name,
        schema=schema,
        required=required,
        decoder=msgspec.json.Decoder(_kind(parameter), dec_hook=_read_elsewhere),
        choices=choices,
    )


def _parts(schema: dict[str, Json]) -> list[dict[str, Json]]:
    """Return the schema itself, and those it chooses from."""
    others = schema.get("anyOf", [])
    assert isinstance(others, list)
    return [schema, *others]


def _choices(schema: dict[str, Json], defs: dict[str, Json]) -> list[Json]:
    """Return the values that an enum or a literal allows, to be told when one is wrong."""
    for part in _parts(schema):
        name = str(part.get("$ref", "")).rpartition("/")[2]
        found = _object(defs.get(name, part)).get("enum")
        if isinstance(found, list):
            return found
    return []


def _say_that_it_is_a_time(parameter: Parameter, schema: dict[str, Json]) -> None:
    """Add the format that msgspec leaves out, because it takes times without a zone too."""
    kind = parameter.annotation
    bare = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    for moment, form in ((datetime, "date-time"), (time, "time")):
        for part in _parts(schema):
            if moment in (bare, *get_args(bare)) and part.get("type") == "string":
                part.setdefault("format", form)


def _default(value: object) -> dict[str, Json]:
    """Return the default as a schema says it; nothing where JSON cannot say it."""
    try:
        return {"default": checked(msgspec.to_builtins(value))}
    except (TypeError, ValueError, NotJson, TooLarge):
        return {}


def _object(value: Json) -> dict[str, Json]:
    assert isinstance(value, dict)
    return value


# ── reading values ───────────────────────────────────────────────────────────


def _read_elsewhere(kind: type, value: object) -> object:
    """Read a value of a type that msgspec does not know; as `from_elsewhere` above."""
    if kind is object:
        return value
    try:
        return kind.model_validate(value)  # type: ignore[attr-defined]  # its schema had one
    except ValueError as error:
        listed = getattr(error, "errors", None)  # pydantic's own text is long, and links
        if listed is None:
            raise
        lines = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in listed())
        raise ValueError("; ".join(lines)) from None


def _wholes_as_ints(value: Json) -> Json:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_wholes_as_ints(item) for item in value]
        case dict():
            return {key: _wholes_as_ints(item) for key, item in value.items()}
        case _:
            return value
