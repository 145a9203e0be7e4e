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

INTEGER_MAX_DIGITS: Final = 17
"""Integers in range have at most 16 digits and a sign. Longer ones are not converted: that
takes quadratic time."""


class JsonLimits(Struct, frozen=True, kw_only=True):
    """The limits of one value. `max_bytes` is the length of its JSON text."""

    max_depth: int = 64
    max_bytes: int = 8 * 1024 * 1024


DEFAULT_LIMITS: Final = JsonLimits()

STEP_LEAVES: Final = 256
"""The number of items between two yields; they take about a millisecond."""

SHALLOW_MAX_ITEMS: Final = 16
"""A container with at most this many leaves, and no containers, is encoded without a yield."""

_LEAF_TYPES: Final = frozenset({str, int, float, bool, type(None)})
_ENCODER: Final = msgspec.json.Encoder(order="sorted")


def normalize_json(
    value: object, path: str = "$", limits: JsonLimits = DEFAULT_LIMITS
) -> object:
    """Return `value` as plain JSON data: None, bool, int, float, str, list, dict with str keys.

    Tuples become lists; instances of subclasses of str, int and float (enums, for example)
    become plain values. No code of the value is run: only its real type counts. The result
    shares no container with `value`.

    Raises:
        NotJson: JSON cannot represent some part; `path` names it, as in `$.items[3].price`.
        TooLarge: the text would be longer than `limits.max_bytes`.
    """
    # Nearly all results are short texts, and nearly all arguments are small flat objects. They
    # are checked here without the walk, which takes about ten calls for each.
    if type(value) is str and value.isascii() and len(value) <= limits.max_bytes:
        return value
    if type(value) is dict and (copied := _copy_flat_object(value, limits)) is not None:
        return copied
    walk = _JsonWalk(limits, path)
    try:
        return walk.normalize(value)
    except _JsonProblem as flaw:
        raise NotJson(path + flaw.format_path(), flaw.problem) from None


def encode_in_steps(
    value: object, path: str = "$", limits: JsonLimits = DEFAULT_LIMITS
) -> Generator[None, None, tuple[object, bytes]]:
    """Return the plain form of `value`, as `normalize_json` does, and its canonical JSON text.

    Yields after every `STEP_LEAVES` items, so that the caller can let the event loop run.

    Raises:
        NotJson, TooLarge: as `normalize_json` does.
    """
    walk = _JsonStepWalk(limits, path)
    try:
        made = yield from walk.encode(value)
    except _JsonProblem as flaw:
        raise NotJson(path + flaw.format_path(), flaw.problem) from None
    text = b"".join(walk.chunks)
    # The cheapest check comes first: nothing of a text that is too long is parsed.
    if len(text) > limits.max_bytes:
        raise TooLarge(path, len(text), limits.max_bytes)
    return made, text


def parse_json(text: str | bytes, limits: JsonLimits = DEFAULT_LIMITS) -> object:
    """Parse JSON text from outside.

    Stricter than the standard: no duplicate keys, no lone surrogates, no integers beyond 53
    bits, no numbers beyond the range of a double, no byte order mark, limited depth and size,
    nothing after the value. Fractions are rounded to the nearest double, as usual. Large whole
    numbers are not: `9007199254740993.0` is refused, because no double is equal to it.

    Raises:
        NotJson: the text is not acceptable; `path` or `problem` names the place.
        TooLarge: the text is longer than the limit; it was not parsed.
    """
    if len(text) > limits.max_bytes:
        raise TooLarge("$", len(text), limits.max_bytes)
    try:
        value = json.loads(
            text if isinstance(text, str) else text.decode(),
            object_pairs_hook=_refuse_duplicate_keys,
            parse_constant=_refuse_constant,
            parse_int=_parse_integer,
            parse_float=_parse_float,
        )
    except UnicodeDecodeError as error:
        raise NotJson("$", f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NotJson("$", f"not JSON at {where}: {error.msg}") from None
    except RecursionError:
        raise NotJson("$", f"nested deeper than {limits.max_depth} levels") from None
    return normalize_json(value, "$", limits)


def parse_json_or_text(text: str) -> object:
    """Return the value of a typed answer: parsed JSON, or the text if it is not JSON."""
    try:
        return parse_json(text)
    except NotJson:
        return text


def _copy_flat_object(
    value: dict[object, object], limits: JsonLimits
) -> dict[object, object] | None:
    """Copy a small object of ASCII texts and numbers; None if it needs the walk."""
    if len(value) > SHALLOW_MAX_ITEMS:
        return None
    # A lower bound, as in the walk: quotes and escapes are not counted. The store measures the
    # text.
    size = 2 * len(value)
    for key, item in value.items():
        if type(key) is not str or not key.isascii():
            return None
        size += len(key)
        if type(item) is str:
            if not item.isascii():
                return None
            size += len(item)
        elif type(item) is int:
            if not -INTEGER_MAX <= item <= INTEGER_MAX:
                return None
        elif not (item is None or item is True or item is False):
            return None
    return value.copy() if size <= limits.max_bytes else None


class _JsonProblem(Exception):
    """A problem found in the walk. Each level that it passes adds its key to the path.

    So a valid value costs nothing for paths.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path_parts: list[str] = []

    def format_path(self) -> str:
        return "".join(reversed(self.path_parts))


class _RefusedLiteral:
    """Replaces a forbidden part of parsed text, until the walk reaches it with its path.

    The hooks of `json.loads` do not know the path of the value that they are given.
    """

    def __init__(self, problem: str) -> None:
        self.problem = problem


def _refuse_duplicate_keys(pairs: list[tuple[str, object]]) -> object:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return _RefusedLiteral(f"key {_quote(key)} appears twice")
        seen.add(key)
    raise AssertionError


def _refuse_constant(name: str) -> object:
    return _RefusedLiteral(f"{name} is not JSON")


def _parse_integer(digits: str) -> object:
    return (
        int(digits) if len(digits) <= INTEGER_MAX_DIGITS else _RefusedLiteral(_INTEGER_TOO_BIG)
    )


def _parse_float(literal: str) -> object:
    value = float(literal)
    if abs(value) <= INTEGER_MAX or not math.isfinite(value):
        return value  # the walk refuses infinity
    # Accept the exact decimal value of the double, and the shortest form that Python writes.
    if Decimal(literal) in {Decimal(value), Decimal(repr(value))}:
        return value
    return _RefusedLiteral(f"{literal[:40]} is not a double; send it as a string")


_INTEGER_TOO_BIG: Final = f"integer beyond ±{INTEGER_MAX}; send it as a string"


class _JsonWalk:
    """One walk over one value. Counts the bytes and keeps the containers that it is inside."""

    def __init__(self, limits: JsonLimits, path: str) -> None:
        self._max_depth = limits.max_depth
        self._max_bytes = limits.max_bytes
        self._bytes_left = limits.max_bytes
        self._path = path
        self._enclosing_ids: list[int] = []

    def normalize(self, value: object) -> object:
        # Exact types first, the most frequent ones before the others: this is the hot path.
        if value is None or value is True or value is False:
            return value
        if type(value) is str:
            return self._normalize_text(value)
        if type(value) is dict:
            return self._normalize_object(value)
        if type(value) is list:
            return self._normalize_array(value, len(value), iter(value))
        if type(value) is int:
            return _check_integer(value)
        if type(value) is float:
            return _check_float(value)
        return self._normalize_subclass(value)

    def _normalize_subclass(self, value: object) -> object:
        """Return the plain form of an instance of a subclass, or of a tuple."""
        if _is_instance(value, str):
            return self._normalize_text(str.__str__(value))
        if _is_instance(value, dict):
            return self._normalize_object(value)
        if _is_instance(value, list):
            return self._normalize_array(value, list.__len__(value), list.__iter__(value))
        if _is_instance(value, tuple):
            return self._normalize_array(value, tuple.__len__(value), tuple.__iter__(value))
        # bool cannot be subclassed, so an int here is never a bool.
        if _is_instance(value, int):
            return _check_integer(int.__int__(value))
        if _is_instance(value, float):
            return _check_float(float.__float__(value))
        return _refuse_value(value)

    def _normalize_text(self, value: str) -> str:
        if value.isascii():
            size = len(value)
        else:
            try:
                size = len(value.encode())
            except UnicodeEncodeError as error:
                raise _JsonProblem(f"lone surrogate at character {error.start}") from None
        self._charge_bytes(size)
        return value

    def _charge_bytes(self, size: int) -> None:
        # The sum is a lower bound of the encoded size (it ignores escapes and numbers). Huge
        # data is refused before it is encoded.
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooLarge(self._path, self._max_bytes - self._bytes_left, self._max_bytes)

    def _normalize_object(self, value: dict[object, object]) -> dict[str, object]:
        self._enter_container(value)
        # A colon, and a comma or a brace, for each item.
        self._charge_bytes(2 * dict.__len__(value))
        made: dict[str, object] = {}
        for key, item in _list_items(value):
            # Nearly all keys and items are ASCII text and small numbers: without further calls.
            if type(key) is str and key.isascii() and len(key) <= self._bytes_left:
                name = key
                self._bytes_left -= len(key)
            else:
                name = self._normalize_key(key)
            if name in made:  # keys of str subclasses may differ and become equal
                raise _JsonProblem(f"two keys become {_quote(name)}")
            if type(item) is str and item.isascii() and len(item) <= self._bytes_left:
                self._bytes_left -= len(item)
                made[name] = item
                continue
            if item is None or item is True or item is False:
                made[name] = item
                continue
            try:
                made[name] = self.normalize(item)
            except _JsonProblem as flaw:
                flaw.path_parts.append(
                    f".{name}" if name.isidentifier() else f"[{_quote(name)}]"
                )
                raise
        self._enclosing_ids.pop()
        return made

    def _normalize_key(self, key: object) -> str:
        if not _is_instance(key, str):
            shown = f" {safe_repr(key, 40)}" if type(key) in _SHOWN_KEY_TYPES else ""
            raise _JsonProblem(f"key{shown} is {_get_type_name(key)}, not a string")
        name = str.__str__(key)
        try:
            return self._normalize_text(name)
        except _JsonProblem as flaw:
            raise _JsonProblem(f"key {_quote(name)}: {flaw.problem}") from None

    def _normalize_array(
        self, value: object, size: int, items: Iterator[object]
    ) -> list[object]:
        self._enter_container(value)
        self._charge_bytes(2 * size)
        made: list[object] = []
        for item in items:
            try:
                made.append(self.normalize(item))
            except _JsonProblem as flaw:
                flaw.path_parts.append(f"[{len(made)}]")
                raise
        self._enclosing_ids.pop()
        return made

    def _enter_container(self, value: object) -> None:
        if len(self._enclosing_ids) >= self._max_depth:
            # A cycle always reaches the depth limit, so it is searched for only here.
            if len(set(self._enclosing_ids)) < len(self._enclosing_ids):
                raise _JsonProblem("the value contains itself")
            raise _JsonProblem(f"nested deeper than {self._max_depth} levels")
        self._enclosing_ids.append(id(value))


class _JsonStepWalk(_JsonWalk):
    """A walk that yields after every `STEP_LEAVES` items and collects the JSON text."""

    def __init__(self, limits: JsonLimits, path: str) -> None:
        super().__init__(limits, path)
        self.chunks: list[bytes] = []
        self._leaves_in_step = 0

    def encode(self, value: object) -> Generator[None, None, object]:
        """Return the plain form of `value` and add its text to `chunks`."""
        if _is_instance(value, dict):
            return (yield from self._encode_object(value))
        if _is_instance(value, list):
            items = list.__iter__(value)
            return (yield from self._encode_array(value, list.__len__(value), items))
        if _is_instance(value, tuple):
            items = tuple.__iter__(value)
            return (yield from self._encode_array(value, tuple.__len__(value), items))
        made = self.normalize(value)
        self.chunks.append(_ENCODER.encode(made))
        return made

    def _encode_object(self, value: dict[object, object]) -> Generator[None, None, object]:
        self._enter_container(value)
        self._charge_bytes(2 * dict.__len__(value))
        # First all keys, because the text has them in order; then the items in that order.
        named: dict[str, object] = {}
        for key, item in _iter_items(value):
            name = self._normalize_key(key)
            if name in named:
                raise _JsonProblem(f"two keys become {_quote(name)}")
            named[name] = item
            if self._is_step_over():
                yield
        separator = b"{"
        for name in sorted(named):
            self.chunks += (separator, _ENCODER.encode(name), b":")
            separator = b","
            try:
                if _is_shallow(item := named[name]):
                    made = named[name] = self.normalize(item)
                    self.chunks.append(_ENCODER.encode(made))
                else:
                    named[name] = yield from self.encode(item)
            except _JsonProblem as flaw:
                flaw.path_parts.append(
                    f".{name}" if name.isidentifier() else f"[{_quote(name)}]"
                )
                raise
            if self._is_step_over():
                yield
        self.chunks.append(b"}" if named else b"{}")
        self._enclosing_ids.pop()
        return named

    def _encode_array(
        self, value: object, size: int, items: Iterator[object]
    ) -> Generator[None, None, object]:
        self._enter_container(value)
        self._charge_bytes(2 * size)
        made: list[object] = []
        # Shallow items are encoded in runs: one call of the encoder for many items, whose own
        # brackets are cut off. `done` is the number of items whose text is in `chunks`.
        separator, done = b"[", 0
        for item in items:
            try:
                if _is_shallow(item):
                    made.append(self.normalize(item))
                else:
                    if done < len(made):
                        self.chunks += (separator, _ENCODER.encode(made[done:])[1:-1])
                        separator = b","
                    self.chunks.append(separator)
                    separator = b","
                    deep = yield from self.encode(item)
                    made.append(deep)
                    done = len(made)
            except _JsonProblem as flaw:
                flaw.path_parts.append(f"[{len(made)}]")
                raise
            if self._is_step_over():
                if done < len(made):
                    self.chunks += (separator, _ENCODER.encode(made[done:])[1:-1])
                    separator, done = b",", len(made)
                yield
        if done < len(made):
            self.chunks += (separator, _ENCODER.encode(made[done:])[1:-1])
        self.chunks.append(b"]" if made else b"[]")
        self._enclosing_ids.pop()
        return made

    def _is_step_over(self) -> bool:
        self._leaves_in_step = (self._leaves_in_step + 1) % STEP_LEAVES
        return not self._leaves_in_step


def _is_shallow(value: object) -> bool:
    """Tell whether `value` is a leaf, or a small container of leaves."""
    if type(value) in _LEAF_TYPES:
        return True
    if type(value) is dict:
        return len(value) <= SHALLOW_MAX_ITEMS and all(
            type(v) in _LEAF_TYPES for v in value.values()
        )
    if type(value) is list:
        return len(value) <= SHALLOW_MAX_ITEMS and all(type(v) in _LEAF_TYPES for v in value)
    return False


def _is_instance(value: object, kind: type[T]) -> TypeGuard[T]:
    """Tell whether the real type of `value` is a subclass of `kind`.

    `isinstance` also consults `value.__class__`, which user code can override.
    """
    return issubclass(type(value), kind)


def _iter_items(value: dict[object, object]) -> Iterator[tuple[object, object]]:
    try:
        yield from dict.items(value)
    except RuntimeError:
        # Another thread changed it: data of a tool is still reachable for the tool.
        raise _JsonProblem("it was changed while it was read") from None


def _list_items(value: dict[object, object]) -> list[tuple[object, object]]:
    try:
        return list(dict.items(value))
    except RuntimeError:  # as in `_iter_items`
        raise _JsonProblem("it was changed while it was read") from None


def _check_integer(value: int) -> int:
    if -INTEGER_MAX <= value <= INTEGER_MAX:
        return value
    raise _JsonProblem(_INTEGER_TOO_BIG)


def _check_float(value: float) -> float:
    if math.isfinite(value):
        return value
    raise _JsonProblem(f"{value!r} is not a JSON number")


def _refuse_value(value: object) -> NoReturn:
    if type(value) is _RefusedLiteral:
        raise _JsonProblem(value.problem)
    raise _JsonProblem(f"{_get_type_name(value)} is not JSON")


_SHOWN_KEY_TYPES: Final = (int, float, bool, bytes, type(None))
"""Keys of exactly these types are shown in the message; their `__repr__` is safe to call."""

_QUALNAME: Final = type.__dict__["__qualname__"].__get__
_MODULE: Final = type.__dict__["__module__"].__get__


def _get_type_name(value: object) -> str:
    """Return the name of the type of `value`, without the help of its metaclass."""
    kind = type(value)
    module, name = _MODULE(kind), str.__str__(_QUALNAME(kind))
    return f"{module}.{name}" if type(module) is str and module != "builtins" else name


def _quote(text: str) -> str:
    return json.dumps(text[:40])
