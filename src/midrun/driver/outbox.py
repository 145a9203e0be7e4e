"""Outboxes: deltas on their way to other processes, gathered for a moment and never for long.

Each listener has one. What a model says in small pieces leaves in larger ones; a listener that
takes nothing loses what it was to be told, and nobody waits for it.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.core.ids import RunId
from midrun.driver.delta import SPOKEN, Delta

CHARS_MAX: Final = 100_000
"""How much text may wait for a listener that takes nothing, beyond what was said before."""

DELTAS_MAX: Final = 256
"""How many deltas, of those that could not be joined to the one before."""

BYTES_PER_CHAR: Final = 6
"""In JSON, at worst: a control character that is escaped."""

_DECODER: Final = msgspec.json.Decoder(Delta)


class Outbox:
    """What one listener has not been sent yet, oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[_Joined] = deque()
        self._newest: dict[RunId, _Joined] = {}
        self._chars = 0
        self._opened = 0  # of these: in openings, which are as long as they are
        self._message = b""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._message)

    def add(self, delta: Delta) -> bool:
        """Add a delta; one that goes on where the last of its run ended is joined to it.

        False if too much waits already: then all of it is lost, and this, too.
        """
        if self._chars > CHARS_MAX + self._opened or len(self._waiting) >= DELTAS_MAX:
            self.clear()
            return False
        last = self._newest.get(delta.run)
        if last is not None and last.goes_on_with(delta):
            last.texts.append(delta.text)
        else:
            last = self._newest[delta.run] = _Joined(delta)
            self._waiting.append(last)
        self._chars += len(delta.text)
        self._opened += len(delta.text) if delta.opening else 0
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._waiting.clear()
        self._newest.clear()
        self._chars, self._opened, self._message = 0, 0, b""

    def message(self) -> bytes:
        """Return what is to be sent next: the same until it is `taken`."""
        if not self._message:
            self._message = self._packed()
        return self._message

    def taken(self) -> None:
        """Forget the message that was sent."""
        self._message = b""

    def _packed(self) -> bytes:
        """Take as many deltas as one message holds."""
        lines: list[bytes] = []
        room = self._limit
        while self._waiting:
            line = self._waiting[0].line(self._limit)
            if lines and len(line) >= room:
                break
            room -= len(line) + 1
            lines.append(line)
            self._let_go(self._waiting[0])
        message = b"\n".join(lines)
        return message if len(message) <= self._limit else b""  # of a tool with an endless name

    def _let_go(self, joined: "_Joined") -> None:
        """Forget the part of a delta that a line has."""
        self._chars -= len(joined.part)
        if joined.rest:
            joined.texts[:] = [joined.rest]
            joined.delta = replace(joined.delta, opening=False)  # the rest goes on from it
            return
        self._waiting.popleft()
        self._opened = self._opened if self._waiting else 0
        if self._newest.get(joined.delta.run) is joined:
            del self._newest[joined.delta.run]


class _Joined:
    """Deltas that go on where the last one ended, as one."""

    __slots__ = ("delta", "part", "rest", "texts")

    def __init__(self, delta: Delta) -> None:
        self.delta = delta
        self.texts = [delta.text]
        self.part = ""
        self.rest = ""

    def goes_on_with(self, delta: Delta) -> bool:
        """Tell whether `delta` says on what this one has begun to say."""
        mine = self.delta
        return (
            delta.kind in SPOKEN
            and not delta.opening
            and (delta.call, delta.kind, delta.tool) == (mine.call, mine.kind, mine.tool)
        )  # fmt: skip

    def line(self, limit: int) -> bytes:
        """Return as much of it as surely fits; what is left is its `rest`."""
        text, most = "".join(self.texts), limit // (BYTES_PER_CHAR + 1)
        self.part, self.rest = text[:most], text[most:]
        try:
            return msgspec.json.encode(replace(self.delta, text=self.part))
        except UnicodeEncodeError:  # half a character: nobody could show it either
            return msgspec.json.encode(replace(self.delta, text=""))


def unpacked(message: bytes) -> Iterator[Delta]:
    """Give the deltas of a message; what is none of ours is passed over."""
    for line in message.split(b"\n"):
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError:
            continue
