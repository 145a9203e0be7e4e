"""Strict JSON: check user data before it enters a journal.

A value that cannot be stored as JSON and read back unchanged is refused, with the path of the
offending part. There is no fallback format. `normalize_json` checks Python data and returns
plain JSON data; `parse_json` reads JSON text from outside and then does the same.
`encode_in_steps` does it for large data without blocking the event loop, and encodes it on the
way.

The standard library and msgspec are not strict enough: `json` writes `NaN`, reads `1e999` as
infinity, keeps the last of two equal keys and accepts lone surrogates; msgspec writes NaN as
null and bytes as base64. Hence the walk in this module.

The walk never calls methods of a value (`__iter__`, `__len__`, `isinstance` via `__class__`): a
subclass could lie, raise or block. It uses the methods of the base types directly.
"""

import json
import math
from collections.abc import Generator, Iterator
from decimal import Decimal
from typing import Final, NoReturn, TypeGuard, TypeVar

import msgspec
from msgspec import Struct

from midrun.codec.safe_repr import safe_repr
from midrun.errors import NotJson, TooLarge

T = TypeVar("T")

INTEGER_MAX: Final = 2**53 - 1
"""JavaScript rounds integers beyond this silently; the page would show another number."""

DIGITS_MAX: Final = 17
"""Integers in range have at most 16 digits and a sign. Longer ones are not converted: that
takes quadratic time."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one value. `max_bytes` is the length of its JSON text."""

    depth: int = 64
    size: int = 8 * 1024 * 1024


DEFAULT: Final = Limits()

STEP_LEAVES: Final = 256
"""The number of items between two yields; they take about a millisecond."""

SHALLOW_MAX: Final = 16
"""A container with at most this many leaves, and no containers, is encoded without a yield."""

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def checked(value: object, path: str = "$", limits: Limits = DEFAULT) -> object:
    """Return `value` as plain JSON data: None, bool, int, float, str, list, dict with str keys.

    Tuples become lists; instances of subclasses of str, int and float (enums, for example)
    become plain values. No code of the value is run: only its real type counts. The result
    shares no container with `value`.

    Raises:
        NotJson: JSON cannot represent some part; `path` names it, as in `$.items[3].price`.
        TooLarge: the text would be longer than `limits.max_bytes`.
    """
    walk = _Walk(limits, path)
    try:
        return walk.plain(value)
    except _Flaw as flaw:
        raise NotJson(path + flaw.trail(), flaw.problem) from None


def encode_in_steps(
    value: object, path: str = "$", limits: Limits = DEFAULT
) -> Generator[None, None, tuple[object, bytes]]:
    """Return the plain form of `value`, as `normalize_json` does, and its canonical JSON text.

    Yields after every `STEP_LEAVES` items, so that the caller can let the event loop run.

    Raises:
        NotJson, TooLarge: as `normalize_json` does.
    """
    walk = _StepWalk(limits, path)
    try:
        made = yield from walk.pieces(value)
    except _Flaw as flaw:
        raise NotJson(path + flaw.trail(), flaw.problem) from None
    text = b"".join(walk.chunks)
    if len(text) > limits.size:
        raise TooLarge(path, len(text), limits.size)
    return made, text


def parse(text: str | bytes, limits: Limits = DEFAULT) -> object:
    """Parse JSON text from outside.

    Stricter than the standard: no duplicate keys, no lone surrogates, no integers beyond 53
    bits, no numbers beyond the range of a double, no byte order mark, limited depth and size,
    nothing after the value. Fractions are rounded to the nearest double, as usual. Large whole
    numbers are not: `9007199254740993.0` is refused, because no double is equal to it.

    Raises:
        NotJson: the text is not acceptable; `path` or `problem` names the place.
        TooLarge: the text is longer than the limit; it was not parsed.
    """
    if len(text) > limits.size:
        raise TooLarge("$", len(text), limits.size)
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(),
            object_pairs_hook=_unique,
            parse_constant=_literal,
            parse_int=_integer,
            parse_float=_real,
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
    """A problem found in the walk. Each level that it passes adds its key to the path.

    So a valid value costs nothing for paths.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.keys: list[str] = []

    def trail(self) -> str:
        return "".join(reversed(self.keys))


class _Refused:
    """Replaces a forbidden part of parsed text, until the walk reaches it with its path.

    The hooks of `json.loads` do not know the path of the value that they are given.
    """

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


def _real(literal: str) -> object:
    value = float(literal)
    if abs(value) <= INTEGER_MAX or not math.isfinite(value):
        return value  # the walk refuses infinity
    # Accept the exact decimal value of the double, and the shortest form that Python writes.
    if Decimal(literal) in {Decimal(value), Decimal(repr(value))}:
        return value
    return _Refused(f"{literal[:40]} is not a double; send it as a string")


_TOO_BIG: Final = f"integer beyond ±{INTEGER_MAX}; send it as a string"


class _Walk:
    """One walk over one value. Counts the bytes and keeps the containers that it is inside."""

    def __init__(self, limits: Limits, path: str) -> None:
        self._depth = limits.depth
        self._limit = limits.size
        self._left = limits.size
        self._path = path
        self._inside: list[int] = []

    def plain(self, value: object) -> object:
        # Exact types first, the most frequent ones before the others: this is the hot path.
        if value is None or value is True or value is False:
            return value
        if type(value) is str:
            return self._text(value)
        if type(value) is dict:
            return self._object(value)
        if type(value) is list:
            return self._array(value, len(value), iter(value))
        if type(value) is int:
            return _whole(value)
        if type(value) is float:
            return _finite(value)
        return self._descended(value)

    def _descended(self, value: object) -> object:
        """Return the plain form of an instance of a subclass, or of a tuple."""
        if _descends(value, str):
            return self._text(str.__str__(value))
        if _descends(value, dict):
            return self._object(value)
        if _descends(value, list):
            return self._array(value, list.__len__(value), list.__iter__(value))
        if _descends(value, tuple):
            return self._array(value, tuple.__len__(value), tuple.__iter__(value))
        # bool cannot be subclassed, so an int here is never a bool.
        if _descends(value, int):
            return _whole(int.__int__(value))
        if _descends(value, float):
            return _finite(float.__float__(value))
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
        # The sum is a lower bound of the encoded size (it ignores escapes and numbers). Huge
        # data is refused before it is encoded.
        self._left -= size
        if self._left < 0:
            raise TooLarge(self._path, self._limit - self._left, self._limit)

    def _object(self, value: dict[object, object]) -> dict[str, object]:
        self._enter(value)
        self._count(2 * dict.__len__(value))  # a colon, and a comma or brace, for each item
        made: dict[str, object] = {}
        for key, item in _items(value):
            name = self._key(key)
            if name in made:  # keys of str subclasses may differ and become equal
                raise _Flaw(f"two keys become {_brief(name)}")
            try:
                made[name] = self.plain(item)
            except _Flaw as flaw:
                flaw.keys.append(f".{name}" if name.isidentifier() else f"[{_brief(name)}]")
                raise
        self._inside.pop()
        return made

    def _key(self, key: object) -> str:
        if not _descends(key, str):
            shown = f" {safe_repr(key, 40)}" if type(key) in _SPEAKING else ""
            raise _Flaw(f"key{shown} is {_named(key)}, not a string")
        name = str.__str__(key)
        try:
            return self._text(name)
        except _Flaw as flaw:
            raise _Flaw(f"key {_brief(name)}: {flaw.problem}") from None

    def _array(self, value: object, size: int, items: Iterator[object]) -> list[object]:
        self._enter(value)
        self._count(2 * size)
        made: list[object] = []
        for item in items:
            try:
                made.append(self.plain(item))
            except _Flaw as flaw:
                flaw.keys.append(f"[{len(made)}]")
                raise
        self._inside.pop()
        return made

    def _enter(self, value: object) -> None:
        if len(self._inside) >= self._depth:
            # A cycle always reaches the depth limit, so it is searched for only here.
            if len(set(self._inside)) < len(self._inside):
                raise _Flaw("the value contains itself")
            raise _Flaw(f"nested deeper than {self._depth} levels")
        self._inside.append(id(value))


class _StepWalk(_Walk):
    """A walk that yields after every `STEP_LEAVES` items and collects the JSON text."""

    def __init__(self, limits: Limits, path: str) -> None:
        super().__init__(limits, path)
        self.chunks: list[bytes] = []
        self._work = 0

    def pieces(self, value: object) -> Generator[None, None, object]:
        """Return the plain form of `value` and add its text to `chunks`."""
        if _descends(value, dict):
            return (yield from self._object_pieces(value))
        if _descends(value, list):
            items = list.__iter__(value)
            return (yield from self._array_pieces(value, list.__len__(value), items))
        if _descends(value, tuple):
            items = tuple.__iter__(value)
            return (yield from self._array_pieces(value, tuple.__len__(value), items))
        made = self.plain(value)
        self.chunks.append(_ENCODER.encode(made))
        return made

    def _object_pieces(self, value: dict[object, object]) -> Generator[None, None, object]:
        self._enter(value)
        self._count(2 * dict.__len__(value))
        # First all keys, because the text has them in order; then the items in that order.
        named: dict[str, object] = {}
        for key, item in _items(value):
            name = self._key(key)
            if name in named:
                raise _Flaw(f"two keys become {_brief(name)}")
            named[name] = item
            if self._is_time():
                yield
        separator = b"{"
        for name in sorted(named):
            self.chunks += (separator, _ENCODER.encode(name), b":")
            separator = b","
            try:
                if _is_shallow(item := named[name]):
                    made = named[name] = self.plain(item)
                    self.chunks.append(_ENCODER.encode(made))
                else:
                    named[name] = yield from self.pieces(item)
            except _Flaw as flaw:
                flaw.keys.append(f".{name}" if name.isidentifier() else f"[{_brief(name)}]")
                raise
            if self._is_time():
                yield
        self.chunks.append(b"}" if named else b"{}")
        self._inside.pop()
        return named

    def _array_pieces(
        self, value: object, size: int, items: Iterator[object]
    ) -> Generator[None, None, object]:
        self._enter(value)
        self._count(2 * size)
        made: list[object] = []
        # Shallow items are encoded in runs: one call of the encoder for many items, whose own
        # brackets are cut off. `done` is the number of items whose text is in `chunks`.
        separator, done = b"[", 0
        for item in items:
            try:
                if _is_shallow(item):
                    made.append(self.plain(item))
                else:
                    if done < len(made):
                        self.chunks += (separator, _ENCODER.encode(made[done:])[1:-1])
                        separator = b","
                    self.chunks.append(separator)
                    separator = b","
                    deep = yield from self.pieces(item)
                    made.append(deep)
                    done = len(made)
            except _Flaw as flaw:
                flaw.keys.append(f"[{len(made)}]")
                raise
            if self._is_time():
                if done < len(made):
                    self.chunks += (separator, _ENCODER.encode(made[done:])[1:-1])
                    separator, done = b",", len(made)
                yield
        if done < len(made):
            self.chunks += (separator, _ENCODER.encode(made[done:])[1:-1])
        self.chunks.append(b"]" if made else b"[]")
        self._inside.pop()
        return made

    def _is_time(self) -> bool:
        self._work = (self._work + 1) % STEP_LEAVES
        return not self._work


def _is_shallow(value: object) -> bool:
    """Tell whether `value` is a leaf, or a small container of leaves."""
    if type(value) in _LEAVES:
        return True
    if type(value) is dict:
        return len(value) <= SHALLOW_MAX and all(type(v) in _LEAVES for v in value.values())
    if type(value) is list:
        return len(value) <= SHALLOW_MAX and all(type(v) in _LEAVES for v in value)
    return False


def _descends(value: object, kind: type[T]) -> TypeGuard[T]:
    """Tell whether the real type of `value` is a subclass of `kind`.

    `isinstance` also consults `value.__class__`, which user code can override.
    """
    return issubclass(type(value), kind)


def _items(value: dict[object, object]) -> Iterator[tuple[object, object]]:
    try:
        yield from dict.items(value)
    except RuntimeError:
        # Another thread changed it: data of a tool is still reachable for the tool.
        raise _Flaw("it was changed while it was read") from None


def _whole(value: int) -> int:
    if -INTEGER_MAX <= value <= INTEGER_MAX:
        return value
    raise _Flaw(_TOO_BIG)


def _finite(value: float) -> float:
    if math.isfinite(value):
        return value
    raise _Flaw(f"{value!r} is not a JSON number")


def _refuse(value: object) -> NoReturn:
    if type(value) is _Refused:
        raise _Flaw(value.problem)
    raise _Flaw(f"{_named(value)} is not JSON")


_SPEAKING: Final = (int, float, bool, bytes, type(None))
"""Keys of exactly these types are shown in the message; their `__repr__` is safe to call."""

_QUALNAME: Final = type.__dict__["__qualname__"].__get__
_MODULE: Final = type.__dict__["__module__"].__get__


def _named(value: object) -> str:
    """Return the name of the type of `value`, without the help of its metaclass."""
    kind = type(value)
    module, name = _MODULE(kind), str.__str__(_QUALNAME(kind))
    return f"{module}.{name}" if type(module) is str and module != "builtins" else name


def _brief(text: str) -> str:
    return json.dumps(text[:40])
