"""Live: what happens between two entries, for whoever watches. Nothing depends on it.

Tokens, notes and signs of life are not stored: what counts of them is in the journal soon.
Those who watch in this process are told at once; for those in others, on the same store, deltas
are gathered and sent through its relay, if it has one. Whoever comes while a call is under way,
or was too slow for what was said, is given all of it so far.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio
import msgspec
from anyio.abc import TaskStatus
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from midrun.core.ids import CallId, RunId
from midrun.driver.delta import SPOKEN, Delta, Saying
from midrun.driver.notifications import Bell
from midrun.driver.redaction import Screen
from midrun.ports.relay import Relay

# Outboxes: deltas on their way to other processes, gathered for a moment and never for long.
#
# Each listener has one. What a model says in small pieces leaves in larger ones; a listener
# that takes nothing loses what it was to be told, and nobody waits for it.

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


__all__ = ["BACKLOG", "Delta", "Live", "append"]

BACKLOG: Final = 1024
"""How many deltas a watcher may be behind before it is told everything again, at once."""

GAP_S: Final = 0.02
"""How long deltas are gathered before they are sent; the first of a burst leaves at once."""

LOOK_S: Final = 0.25
"""How often somebody is looked for who has just begun to listen elsewhere, in a silence."""


class Live:
    """Hands deltas to those who watch a run right now, here and in other processes."""

    def __init__(self, relay: Relay | None = None, screen: Screen | None = None) -> None:
        self._relay = relay
        self._screen = screen
        self._watching: dict[RunId, list[tuple[deque[Delta], Bell]]] = {}
        self._said: dict[RunId, dict[CallId, Saying]] = {}  # by calls that are under way here
        self._heard: dict[RunId, dict[CallId, Saying]] = {}  # from elsewhere, as it was shown
        self._greeted: dict[RunId, dict[str, int]] = {}  # who listens elsewhere, since when
        self._outboxes: dict[str, Outbox] = {}
        self._bell = Bell()

    # ── telling ───────────────────────────────────────────────────────────────────────────

    @contextmanager
    def under_way(self, run: RunId, call: CallId, *, again: bool = False) -> Iterator[None]:
        """Keep what is told of `call`, for those who begin to watch while this is open.

        `again` if it is another attempt: its words take the place of what the last one said.
        """
        saying, calls = Saying(again=again), self._said.setdefault(run, {})
        calls[call] = saying
        try:
            yield
        finally:
            if calls.get(call) is saying:  # not another attempt's, under a newer lease
                del calls[call]
            if not calls and self._said.get(run) is calls:
                del self._said[run]
                self._greeted.pop(run, None)

    def tell(self, delta: Delta) -> None:
        """Tell everybody who watches, without secrets; nobody is waited for."""
        run = delta.run
        saying = self._said.get(run, {}).get(delta.call)
        if saying is not None:
            if self._relay is not None and not saying:
                self._bell.ring()  # from now on somebody may come for it
            saying.add(delta)
        if not self.watched(run):
            return
        told = delta if saying is None else saying.told(delta)
        shown = told if self._screen is None else self._screen.passed(told)
        if shown is not None:
            if saying is not None:
                saying.shown(shown)
            self._hand_on(shown)
        self._tell_elsewhere(run, shown)

    def watched(self, run: RunId) -> bool:
        """Tell whether anybody watches `run`, so that it is worth telling."""
        if run in self._watching:
            return True
        return self._relay is not None and bool(self._relay.listeners(run))

    def _tell_elsewhere(self, run: RunId, shown: Delta | None) -> None:
        """Tell those who have heard the rest, and those who have not, everything so far."""
        if self._relay is None:
            return
        greeted, heard = self._greeted.get(run, {}), dict(self._relay.listeners(run))
        for name, since in tuple(heard.items()):
            begins = run in self._said and greeted.get(name) != since
            told = self._openings(run) if begins else () if shown is None else (shown,)
            if not self._put(self._relay, name, told):
                del heard[name]
        if run in self._said:
            self._greeted[run] = heard

    def _put(self, relay: Relay, name: str, deltas: Iterable[Delta]) -> bool:
        """Have `deltas` sent; False if whoever listens there is too slow, and needs it all."""
        for delta in deltas:
            outbox = self._outboxes.get(name)
            if outbox is None:
                outbox = self._outboxes[name] = Outbox(relay.limit)
            self._bell.ring()
            if not outbox.add(delta):
                for greeted in self._greeted.values():
                    greeted.pop(name, None)
                return False
        return True

    def _openings(self, run: RunId) -> Iterator[Delta]:
        for saying in self._said.get(run, {}).values():
            for delta in saying.openings():
                shown = delta if self._screen is None else self._screen.passed(delta)
                if shown is not None:
                    yield shown
        for saying in self._heard.get(run, {}).values():
            yield from saying.openings()

    def silent_calls(self, run: RunId) -> frozenset[CallId]:
        """Return the calls of `run` that do not respond, as far as this process was told."""
        every = (*self._said.get(run, {}).items(), *self._heard.get(run, {}).items())
        return frozenset(call for call, saying in every if saying.is_silent)

    # ── watching ──────────────────────────────────────────────────────────────────────────

    @contextmanager
    def watch(self, run: RunId, bell: Bell) -> Iterator[deque[Delta]]:
        """Give what was said so far and the deltas of `run` from now on; ring for each."""
        if self._relay is not None and run not in self._watching:
            self._relay.listen(run)
        watching = (deque(self._openings(run), maxlen=BACKLOG), bell)
        self._watching.setdefault(run, []).append(watching)
        try:
            yield watching[0]
        finally:
            left = self._watching[run]
            left.remove(watching)
            if not left:
                del self._watching[run]
                self._heard.pop(run, None)
                if self._relay is not None:
                    self._relay.leave(run)

    def over(self, run: RunId, call: CallId) -> None:
        """Forget what `call` said elsewhere: a watcher has found its end in the journal."""
        self._heard.get(run, {}).pop(call, None)

    def _hand_on(self, delta: Delta) -> None:
        for deltas, bell in self._watching.get(delta.run, ()):
            append(deltas, delta, self._openings(delta.run))
            bell.ring()

    # ── the relay ─────────────────────────────────────────────────────────────────────────

    async def carry(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Carry deltas to other processes, and from them, until cancelled."""
        task_status.started()
        if self._relay is None:
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send, self._relay)
                tasks.start_soon(self._receive, self._relay)
        finally:
            self._relay.close()

    async def _send(self, relay: Relay) -> None:
        while True:
            # Without a bell if somebody has no room: it is tried again after the gap; and if
            # something is said, and somebody may have come for it.
            heard = [run for run, calls in self._said.items() if any(calls.values())]
            await self._bell.wait(GAP_S if self._outboxes else LOOK_S if heard else None)
            for run in heard:
                self._tell_elsewhere(run, None)
            for name, outbox in tuple(self._outboxes.items()):
                while outbox and await relay.send(name, outbox.message()):
                    outbox.taken()
                if not outbox:
                    del self._outboxes[name]
            await anyio.sleep(GAP_S)

    async def _receive(self, relay: Relay) -> None:
        while True:
            for delta in unpacked(await relay.receive()):
                if delta.run in self._watching:
                    calls = self._heard.setdefault(delta.run, {})
                    calls.setdefault(delta.call, Saying()).add(delta)
                    self._hand_on(delta)
            await checkpoint()  # a flood of them is nobody else's problem


def append(deltas: deque[Delta], delta: Delta, openings: Iterable[Delta]) -> None:
    """Append to what a watcher has not taken yet; if that is too much, begin again.

    `openings` is everything so far, `delta` included.
    """
    if len(deltas) < BACKLOG:
        deltas.append(delta)
    else:
        deltas.clear()
        deltas.extend(openings)
