"""Check a value against a JSON Schema that a user wrote as a dict.

Only the keywords of `CHECKED_KEYWORDS` are checked, which is what providers accept for a typed
output. A schema with any other keyword is refused when the agent is declared: a rule that its
author wrote must not be ignored.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from midrun.codec.safe_repr import safe_repr
from midrun.core.values import Json

REF_PREFIX: Final = "#/$defs/"
SHOWN_MAX_CHARS: Final = 60

ANNOTATION_KEYWORDS: Final = frozenset(
    {"$schema", "$id", "$comment", "$defs", "title", "description", "default", "examples"}
    | {"format", "deprecated", "readOnly", "writeOnly", "strict"}
)
"""Keywords that inform the model and restrict nothing."""

TYPE_CHECKS: Final[Mapping[str, Callable[[Json], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    # JSON has one kind of number: 3.0 is an integer.
    "integer": lambda value: (
        not isinstance(value, bool)
        and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}


def find_unknown_keyword(schema: Json) -> str:
    """Return the first keyword of `schema` that cannot be checked, or ""."""
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, dict):
        return safe_repr(schema, SHOWN_MAX_CHARS)
    known = ANNOTATION_KEYWORDS | CHECKED_KEYWORDS
    if unknown := [keyword for keyword in schema if keyword not in known]:
        return str(unknown[0])
    parts: list[Json] = []
    for keyword in ("properties", "$defs"):
        group = schema.get(keyword, {})
        parts += group.values() if isinstance(group, dict) else [group]
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        group = schema.get(keyword, [])
        parts += group if isinstance(group, list) else [group]
    parts += [schema[k] for k in ("items", "additionalProperties", "not") if k in schema]
    return next(filter(None, map(find_unknown_keyword, parts)), "")


class SchemaCheck:
    """Checks values against one JSON Schema."""

    def __init__(self, schema: dict[str, Json]) -> None:
        self._root = schema

    def list_problems(self, value: Json) -> list[str]:
        """Return the problems of `value`, each with its path; [] if it is valid."""
        return list(self.iter_problems(self._root, value, "output"))

    def iter_problems(self, schema: Json, value: Json, path: str) -> Iterator[str]:
        """Yield the problems of `value` at `path` under a part of the schema."""
        if isinstance(schema, bool):
            if not schema:
                yield f"{path}: is not allowed"
            return
        assert isinstance(schema, dict)  # `find_unknown_keyword` has refused others
        for keyword, rule in schema.items():
            if keyword in KEYWORD_CHECKS:
                yield from KEYWORD_CHECKS[keyword](self, schema, rule, value, path)

    def resolve(self, reference: str) -> Json:
        """Return the part of the schema that `reference` names."""
        if reference == "#":
            return self._root
        found = self._root.get("$defs")
        name = reference.removeprefix(REF_PREFIX)
        return found.get(name, False) if isinstance(found, dict) else False


def _check_ref(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    return check.iter_problems(check.resolve(str(rule)), value, path)


def _check_type(
    _: SchemaCheck, __: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    names = [str(name) for name in rule] if isinstance(rule, list) else [str(rule)]
    if not any(TYPE_CHECKS.get(name, bool)(value) for name in names):
        yield f"{path}: expected {' or '.join(names)}, got {_show(value)}"


def _check_choices(
    _: SchemaCheck, __: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    choices = rule if isinstance(rule, list) else [rule]
    # `True == 1` in Python, but not in JSON.
    if not any(value == c and isinstance(value, bool) is isinstance(c, bool) for c in choices):
        expected = ", ".join(map(_show, choices))
        yield f"{path}: expected one of {expected}, got {_show(value)}"


def _check_properties(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(rule, dict):
        for name, part in rule.items():
            if name in value:
                yield from check.iter_problems(part, value[name], f"{path}.{name}")


def _check_required(
    _: SchemaCheck, __: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    if isinstance(value, dict) and isinstance(rule, list):
        yield from (f"{path}.{name}: is required" for name in rule if name not in value)


def _check_other_properties(
    check: SchemaCheck, schema: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    listed = schema.get("properties", {})
    if isinstance(value, dict) and isinstance(listed, dict):
        for name in value.keys() - listed.keys():
            yield from check.iter_problems(rule, value[name], f"{path}.{name}")


def _check_items(
    check: SchemaCheck, schema: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    first = schema.get("prefixItems", [])
    if isinstance(value, list) and isinstance(first, list):
        for index, item in enumerate(value[len(first) :], len(first)):
            yield from check.iter_problems(rule, item, f"{path}[{index}]")


def _check_first_items(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    if isinstance(value, list) and isinstance(rule, list):
        for index, (part, item) in enumerate(zip(rule, value, strict=False)):
            yield from check.iter_problems(part, item, f"{path}[{index}]")


def _check_all(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    for part in rule if isinstance(rule, list) else []:
        yield from check.iter_problems(part, value, path)


def _check_any(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    parts = rule if isinstance(rule, list) else []
    problems = [list(check.iter_problems(part, value, path)) for part in parts]
    if all(problems):
        yield min(problems, key=len)[0] if problems else f"{path}: is not allowed"


def _check_one(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    yield from _check_any(check, {}, rule, value, path)
    parts = rule if isinstance(rule, list) else []
    if sum(not list(check.iter_problems(part, value, path)) for part in parts) > 1:
        yield f"{path}: fits more than one of its alternatives"


def _check_not(
    check: SchemaCheck, _: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    if not list(check.iter_problems(rule, value, path)):
        yield f"{path}: {_show(value)} is not allowed"


def _check_pattern(
    _: SchemaCheck, __: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    if isinstance(value, str) and not re.search(str(rule), value):
        yield f"{path}: does not match {rule}"


def _check_unique(
    _: SchemaCheck, __: dict[str, Json], rule: Json, value: Json, path: str
) -> Iterator[str]:
    if rule and isinstance(value, list):
        repeated = (item for n, item in enumerate(value) if item in value[:n])
        yield from (f"{path}: has {_show(item)} twice" for item in repeated)


def _show(value: Json) -> str:
    return safe_repr(value, SHOWN_MAX_CHARS)


_KeywordCheck = Callable[[SchemaCheck, dict[str, Json], Json, Json, str], Iterator[str]]


def _limit(
    measure: Callable[[Json], float | None], holds: Callable[[float, float], bool], text: str
) -> _KeywordCheck:
    """Return the check of a keyword that bounds a size or a number."""

    def check(
        _: SchemaCheck, __: dict[str, Json], rule: Json, value: Json, path: str
    ) -> Iterator[str]:
        size = measure(value)
        if size is not None and isinstance(rule, int | float) and not holds(size, rule):
            yield f"{path}: {text} {rule}, got {_show(value)}"

    return check


def _measure_number(value: Json) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number else None  # type: ignore[return-value]  # narrowed above


def _measure_text(value: Json) -> float | None:
    return len(value) if isinstance(value, str) else None


def _measure_list(value: Json) -> float | None:
    return len(value) if isinstance(value, list) else None


KEYWORD_CHECKS: Final[Mapping[str, _KeywordCheck]] = {
    "$ref": _check_ref,
    "type": _check_type,
    "enum": _check_choices,
    "const": lambda check, schema, rule, value, path: _check_choices(
        check, schema, [rule], value, path
    ),
    "properties": _check_properties,
    "required": _check_required,
    "additionalProperties": _check_other_properties,
    "items": _check_items,
    "prefixItems": _check_first_items,
    "allOf": _check_all,
    "anyOf": _check_any,
    "oneOf": _check_one,
    "not": _check_not,
    "pattern": _check_pattern,
    "uniqueItems": _check_unique,
    "minimum": _limit(_measure_number, lambda size, rule: size >= rule, "must be at least"),
    "maximum": _limit(_measure_number, lambda size, rule: size <= rule, "must be at most"),
    "exclusiveMinimum": _limit(_measure_number, lambda a, b: a > b, "must be greater than"),
    "exclusiveMaximum": _limit(_measure_number, lambda a, b: a < b, "must be less than"),
    "multipleOf": _limit(_measure_number, lambda a, b: not a % b, "must be a multiple of"),
    "minLength": _limit(_measure_text, lambda a, b: a >= b, "its length must be at least"),
    "maxLength": _limit(_measure_text, lambda a, b: a <= b, "its length must be at most"),
    "minItems": _limit(_measure_list, lambda a, b: a >= b, "its length must be at least"),
    "maxItems": _limit(_measure_list, lambda a, b: a <= b, "its length must be at most"),
}

CHECKED_KEYWORDS: Final = frozenset(KEYWORD_CHECKS)
