"""The pieces of a streamed HTTP answer, and what the three protocols have in common."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import TypeAlias

from msgspec import Struct

from tests.support.providers.script import Answer, Denied

Fields: TypeAlias = dict[str, object]


class Frame(Struct, frozen=True):
    """One server-sent message. `delta` tells whether a client gets a piece of the reply."""

    data: str
    name: str = ""
    delta: bool = False

    def encode(self) -> bytes:
        """Return it as it goes over the wire."""
        name = f"event: {self.name}\n" if self.name else ""
        return f"{name}data: {self.data}\n\n".encode()


class IdSource:
    """Where a provider takes its ids from: every answer of one server gets others."""

    def __init__(self) -> None:
        self._count = count(1)

    def make_id(self, prefix: str) -> str:
        """Return an id that this server has not given out yet."""
        return f"{prefix}_{next(self._count)}"


class Protocol(Struct, frozen=True):
    """A wire protocol: which path it lives at, and how it says yes and no."""

    path: str
    frames: Callable[[Answer, str, IdSource], Iterator[Frame]]
    refusal: Callable[[Denied], Fields]


def encode_json(fields: Fields) -> str:
    """Return compact JSON."""
    return json.dumps(fields, separators=(",", ":"))
