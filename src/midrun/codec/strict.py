"""Strict JSON: what user data must be before it may enter a journal.

There is no fallback and no second format: a value that cannot be stored as JSON and come back
the same is refused with the path of the offending field. `checked` walks data that Python code
made, `parse` reads JSON text from outside; both end in the same walk.

Python's own `json` writes `NaN`, reads `1e999` as infinity, keeps the last of two equal keys
and lets lone surrogates through; msgspec writes NaN as null and bytes as base64. Hence a walk
of our own.
"""

import json
import math
from typing import Final, NoReturn

from msgspec import Struct

from midrun.codec.brief import safe_repr
from midrun.errors import NotJson, TooLarge

INTEGER_MAX: Final = 2**53 - 1
"""Beyond this a JavaScript reader, a page for example, would silently see another number."""

DIGITS_MAX: Final = 17
"""No integer in bounds is longer; longer ones are not even converted."""


class Limits(Struct, frozen=True, kw_only=True):
    """The bounds of one value. `size` is in bytes of JSON text."""

    depth: int = 64
    size: int = 8 * 1024 * 1024


DEFAULT: Final = Limits()


def checked(value: object, path: str = "$", limits: Limits = DEFAULT) -> object:
    """Return `value` as plain JSON data: None, bool, int, float, str, list, dict with str keys.

    Tuples become lists, subclasses of str, int and float (enums, for example) their plain
    values. Nothing of the value's own code is run. The result shares no container with `value`.

    Raises:
        NotJson: some part has no place in JSON; the error's `path` reads `$.items[3].price`.
        TooLarge: the text would be longer than `limits.size`.
    """
    walk = _Walk(limits, path)
    try:
        return walk.plain(value)
    except _Flaw as flaw:
        raise NotJson(path + flaw.trail(), flaw.problem) from None


def parse(text: str | bytes, limits: Limits = DEFAULT) -> object:
    """Return what JSON text from outside says, or refuse it.

    Stricter than the standard: no duplicate keys, no lone surrogates, no numbers that a double
    or 53 bits cannot hold, no byte order mark, bounded depth and size, nothing after the value.

    Raises:
        NotJson: the text is not acceptable; `path` or `problem` says where.
        TooLarge: refused before parsing.
    """
    if len(text) > limits.size:
        raise TooLarge("$", len(text), limits.size)
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(),
            object_pairs_hook=_unique,
            parse_constant=_literal,
            parse_int=_integer,
        )
    except UnicodeDecodeError as error:
        raise NotJson("$", f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJson("$", f"not JSON at {where}: {error.msg}") from None
    except RecursionError:
        raise NotJson("$", f"nested deeper than {limits.depth} levels") from None
    return checked(value, "$", limits)


class _Flaw(Exception):
    """A problem on its way up; each level adds the key it passed through."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.keys: list[str] = []

    def trail(self) -> str:
        return "".join(reversed(self.keys))


class _Refused:
    """Stands in parsed text for what must not be there, until the walk knows its path."""

    def __init__(self, problem: str) -> None:
        self.problem = problem


def _unique(pairs: list[tuple[str, object]]) -> object:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _Refused(f"key {_brief(key)} appears twice")
        seen.add(key)
    raise AssertionError


def _literal(name: str) -> object:
    return _Refused(f"{name} is not JSON")


def _integer(digits: str) -> object:
    return int(digits) if len(digits) <= DIGITS_MAX else _Refused(_TOO_BIG)


_TOO_BIG: Final = f"integer beyond ±{INTEGER_MAX}; send it as a string"


class _Walk:
    """One walk over one value: counts text, remembers the containers it is inside of."""

    def __init__(self, limits: Limits, path: str) -> None:
        self._depth = limits.depth
        self._limit = limits.size
        self._left = limits.size
        self._path = path
        self._inside: list[int] = []

    def plain(self, value: object) -> object:
        if value is None or value is True or value is False:
            return value
        kind = type(value)
        if kind is str:
            return self._text(value)  # type: ignore[arg-type]  # its type was just asked for
        if kind is dict or isinstance(value, dict):
            return self._object(value)  # type: ignore[arg-type]  # as above
        if kind is list or isinstance(value, list | tuple):
            return self._array(value)  # type: ignore[arg-type]  # as above
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            if -INTEGER_MAX <= value <= INTEGER_MAX:
                return int.__int__(value)
            raise _Flaw(_TOO_BIG)
        if isinstance(value, float):
            if math.isfinite(value):
                return float.__float__(value)
            raise _Flaw(f"{float.__repr__(value)} is not a JSON number")
        return _refuse(value)

    def _text(self, value: str) -> str:
        if value.isascii():
            size = len(value)
        else:
            try:
                size = len(value.encode())
            except UnicodeEncodeError as error:
                raise _Flaw(f"lone surrogate at character {error.start}") from None
        self._count(size)
        return value

    def _count(self, size: int) -> None:
        # A lower bound of the encoded size, so that huge data is refused before it is encoded.
        self._left -= size
        if self._left < 0:
            raise TooLarge(self._path, self._limit - self._left, self._limit)

    def _object(self, value: dict[object, object]) -> dict[str, object]:
        self._enter(value)
        made: dict[str, object] = {}
        for key, item in dict.items(value):
            name = self._key(key)
            if name in made:
                raise _Flaw(f"two keys become {_brief(name)}")
            try:
                made[name] = self.plain(item)
            except _Flaw as flaw:
                flaw.keys.append(f".{name}" if name.isidentifier() else f"[{_brief(name)}]")
                raise
        self._count(2 * len(made))
        self._inside.pop()
        return made

    def _key(self, key: object) -> str:
        if not isinstance(key, str):
            raise _Flaw(f"key {safe_repr(key, 40)} is {_named(key)}, not a string")
        try:
            return self._text(key if type(key) is str else str.__str__(key))
        except _Flaw as flaw:
            raise _Flaw(f"key {_brief(key)}: {flaw.problem}") from None

    def _array(self, value: list[object] | tuple[object, ...]) -> list[object]:
        self._enter(value)
        made: list[object] = []
        items = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        for item in items:
            try:
                made.append(self.plain(item))
            except _Flaw as flaw:
                flaw.keys.append(f"[{len(made)}]")
                raise
        self._count(2 * len(made))
        self._inside.pop()
        return made

    def _enter(self, value: object) -> None:
        if len(self._inside) >= self._depth:
            # Looked for only here: a cycle cannot hide, it always ends at the depth limit.
            if len(set(self._inside)) < len(self._inside):
                raise _Flaw("the value contains itself")
            raise _Flaw(f"nested deeper than {self._depth} levels")
        self._inside.append(id(value))


def _refuse(value: object) -> NoReturn:
    if isinstance(value, _Refused):
        raise _Flaw(value.problem)
    raise _Flaw(f"{_named(value)} is not JSON")


def _named(value: object) -> str:
    kind = type(value)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _brief(text: str) -> str:
    return json.dumps(str.__str__(text)[:40])
