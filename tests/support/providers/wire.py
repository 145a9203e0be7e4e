"""Server-sent events, ids and the interface that the protocols share."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeAlias

from msgspec import Struct

from tests.support.providers.script import Answer, HttpError

Fields: TypeAlias = dict[str, object]


class Frame(Struct, frozen=True):
    """One server-sent event; `delta`: it carries a piece of the reply."""

    data: str
    name: str = ""
    delta: bool = False

    def encode(self) -> bytes:
        """Return the bytes of the event."""
        name = f"event: {self.name}\n" if self.name else ""
        return f"{name}data: {self.data}\n\n".encode()


class IdSource:
    """Makes ids that are unique within one server."""

    def __init__(self) -> None:
        self._count = count(1)

    def make_id(self, prefix: str) -> str:
        """Return a new id."""
        return f"{prefix}_{next(self._count)}"


class Protocol(Struct, frozen=True):
    """A wire protocol: the end of its path, and functions that encode answers and errors."""

    path: str
    frames: Callable[[Answer, str, IdSource], Iterator[Frame]]
    refusal: Callable[[HttpError], Fields]


def encode_json(fields: Fields) -> str:
    """Return compact JSON."""
    return json.dumps(fields, separators=(",", ":"))
