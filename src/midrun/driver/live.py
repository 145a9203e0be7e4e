"""Live output: send deltas to the watchers of a run, here and in other processes.

Tokens, notes and *not responding* are never stored; the journal has the final text soon after.
Nothing depends on them, so they may be dropped, and nothing waits for a slow watcher.

    LiveOutput.send ──► watchers in this process: a deque and a wakeup each
                   └──► one Outbox for each listening process ── relay ──► its LiveOutput

A `LiveTranscript` for each running call holds its output so far. A watcher that begins in the
middle, or that was too slow, gets the whole transcript as `opening` deltas and continues from
there. Secrets are removed before a delta leaves (`LiveRedactor`).
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

# Outboxes: one for each process that listens. Deltas are gathered for a moment, so that the
# small pieces of a model leave in larger messages. If the process does not read, its outbox is
# emptied when it is full; the process gets the whole transcript later.

CHARS_MAX: Final = 100_000
"""Characters that may wait in an outbox, without those of `opening` deltas."""

DELTAS_MAX: Final = 256
"""Deltas that may wait in an outbox, after joining."""

BYTES_PER_CHAR: Final = 6
"""The most bytes of one character in JSON: an escaped control character."""

_DECODER: Final = msgspec.json.Decoder(Delta)


class Outbox:
    """The deltas that one listening process has not been sent yet, oldest first.

    `message_max_bytes` is the size of a message of the relay, in bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[_Joined] = deque()
        self._newest: dict[RunId, _Joined] = {}
        self._chars = 0
        # How many of these are in `opening` deltas. They do not count towards the limit: a
        # transcript may be longer than that, and would be dropped and sent again for ever.
        self._opened = 0
        self._message = b""

    def __bool__(self) -> bool:
        return bool(self._waiting or self._message)

    def add(self, delta: Delta) -> bool:
        """Add a delta, joined to the last one of its run if it continues it.

        False if the outbox was full: then it is emptied, and `delta` is dropped as well.
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
        """Drop everything."""
        self._waiting.clear()
        self._newest.clear()
        self._chars, self._opened, self._message = 0, 0, b""

    def message(self) -> bytes:
        """Return the next message to send; the same one until it is marked as sent."""
        if not self._message:
            self._message = self._packed()
        return self._message

    def taken(self) -> None:
        """Mark the message as sent."""
        self._message = b""

    def _packed(self) -> bytes:
        """Remove as many deltas as one message can hold, and return the message."""
        lines: list[bytes] = []
        bytes_left = self._limit
        while self._waiting:
            line = self._waiting[0].line(self._limit)
            if lines and len(line) >= bytes_left:
                break
            bytes_left -= len(line) + 1
            lines.append(line)
            self._let_go(self._waiting[0])
        message = b"\n".join(lines)
        # A single delta can be too large by the name of its tool: it is dropped.
        return message if len(message) <= self._limit else b""

    def _let_go(self, joined: "_Joined") -> None:
        """Remove the part of a delta that was encoded; its rest stays first in line."""
        self._chars -= len(joined.part)
        if joined.rest:
            joined.texts[:] = [joined.rest]
            joined.delta = replace(joined.delta, opening=False)  # the rest continues the part
            return
        self._waiting.popleft()
        self._opened = self._opened if self._waiting else 0
        if self._newest.get(joined.delta.run) is joined:
            del self._newest[joined.delta.run]


class _Joined:
    """Consecutive deltas of one call and kind, joined to one."""

    __slots__ = ("delta", "part", "rest", "texts")

    def __init__(self, delta: Delta) -> None:
        self.delta = delta
        self.texts = [delta.text]
        self.part = ""
        self.rest = ""

    def goes_on_with(self, delta: Delta) -> bool:
        """Tell whether `delta` continues this one."""
        own = self.delta
        return (
            delta.kind in SPOKEN
            and not delta.opening
            and (delta.call, delta.kind, delta.tool) == (own.call, own.kind, own.tool)
        )  # fmt: skip

    def line(self, limit: int) -> bytes:
        """Encode as much of the text as fits in one message, whatever its characters.

        Sets `encoded_text` and `remaining_text`.
        """
        text, max_chars = "".join(self.texts), limit // (BYTES_PER_CHAR + 1)
        self.part, self.rest = text[:max_chars], text[max_chars:]
        try:
            return msgspec.json.encode(replace(self.delta, text=self.part))
        except UnicodeEncodeError:  # half of a surrogate pair, which cannot be shown
            return msgspec.json.encode(replace(self.delta, text=""))


def unpacked(message: bytes) -> Iterator[Delta]:
    """Yield the deltas of a message; skip lines that are none."""
    for line in message.split(b"\n"):
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError:
            continue


__all__ = ["BACKLOG", "Delta", "Live", "append"]

BACKLOG: Final = 1024
"""Deltas that may wait for a watcher; beyond it, they are replaced by the transcript."""

GAP_S: Final = 0.02
"""Seconds for which deltas are gathered before they are sent to other processes.

The first delta after a silence is sent at once.
"""

LOOK_S: Final = 0.25
"""Seconds between two looks for new listeners in other processes while no delta comes."""


class Live:
    """Sends the deltas of runs to their watchers, here and in other processes."""

    def __init__(self, relay: Relay | None = None, screen: Screen | None = None) -> None:
        self._relay = relay
        self._screen = screen
        self._watching: dict[RunId, list[tuple[deque[Delta], Bell]]] = {}
        # Transcripts of calls that run here, with secrets; redacted whenever they are sent.
        self._said: dict[RunId, dict[CallId, Saying]] = {}
        # Transcripts of calls that run in other processes, as received: without secrets.
        self._heard: dict[RunId, dict[CallId, Saying]] = {}
        # The listening processes that have the transcript of a run, and since when each of them
        # listens. One that listens since another time has begun anew and needs it again.
        self._greeted: dict[RunId, dict[str, int]] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._bell = Bell()

    # ── sending ───────────────────────────────────────────────────────────────────────────

    @contextmanager
    def under_way(self, run: RunId, call: CallId, *, again: bool = False) -> Iterator[None]:
        """Keep a transcript of `call` while this context is open, for new watchers.

        `is_retry` says that it is not the first attempt: its text replaces that of the last
        one.
        """
        transcript, calls = Saying(again=again), self._said.setdefault(run, {})
        calls[call] = transcript
        try:
            yield
        finally:
            # An abandoned call may end after its next attempt has begun, under a newer lease.
            if calls.get(call) is transcript:
                del calls[call]
            if not calls and self._said.get(run) is calls:
                del self._said[run]
                self._greeted.pop(run, None)

    def tell(self, delta: Delta) -> None:
        """Send `delta` to all watchers, without secrets; wait for none of them."""
        run = delta.run
        transcript = self._said.get(run, {}).get(delta.call)
        if transcript is not None:
            if self._relay is not None and not transcript:
                self._bell.ring()  # `_send_to_relay` now has to look for new listeners
            transcript.add(delta)
        if not self.watched(run):
            return
        to_send = delta if transcript is None else transcript.told(delta)
        shown = to_send if self._screen is None else self._screen.passed(to_send)
        if shown is not None:
            if transcript is not None:
                transcript.shown(shown)
            self._hand_on(shown)
        self._tell_elsewhere(run, shown)

    def watched(self, run: RunId) -> bool:
        """Tell whether `run` has a watcher, here or in another process."""
        if run in self._watching:
            return True
        return self._relay is not None and bool(self._relay.listeners(run))

    def _tell_elsewhere(self, run: RunId, shown: Delta | None) -> None:
        """Send `shown` to other processes that listen, and the transcript to new ones."""
        if self._relay is None:
            return
        greeted, listeners = self._greeted.get(run, {}), dict(self._relay.listeners(run))
        for name, since in tuple(listeners.items()):
            is_new = run in self._said and greeted.get(name) != since
            deltas = self._openings(run) if is_new else () if shown is None else (shown,)
            if not self._put(self._relay, name, deltas):
                del listeners[name]  # it lost deltas: it counts as new the next time
        if run in self._said:
            self._greeted[run] = listeners

    def _put(self, relay: Relay, name: str, deltas: Iterable[Delta]) -> bool:
        """Put `deltas` into the outbox of `name`; False if it was full and lost them."""
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
        for transcript in self._said.get(run, {}).values():
            for delta in transcript.openings():
                shown = delta if self._screen is None else self._screen.passed(delta)
                if shown is not None:
                    yield shown
        for transcript in self._heard.get(run, {}).values():
            yield from transcript.openings()

    def silent_calls(self, run: RunId) -> frozenset[CallId]:
        """Return the calls of `run` that are known here as not responding."""
        every = (*self._said.get(run, {}).items(), *self._heard.get(run, {}).items())
        return frozenset(call for call, transcript in every if transcript.is_silent)

    # ── watching ──────────────────────────────────────────────────────────────────────────

    @contextmanager
    def watch(self, run: RunId, bell: Bell) -> Iterator[deque[Delta]]:
        """Give a deque with the transcripts of `run`, and add each new delta to it.

        `wakeup` is set for each of them. The watcher removes deltas from the left.
        """
        if self._relay is not None and run not in self._watching:
            self._relay.listen(run)
        watcher = (deque(self._openings(run), maxlen=BACKLOG), bell)
        self._watching.setdefault(run, []).append(watcher)
        try:
            yield watcher[0]
        finally:
            watchers = self._watching[run]
            watchers.remove(watcher)
            if not watchers:
                del self._watching[run]
                self._heard.pop(run, None)
                if self._relay is not None:
                    self._relay.leave(run)

    def over(self, run: RunId, call: CallId) -> None:
        """Drop the transcript of a call in another process whose end is in the journal."""
        self._heard.get(run, {}).pop(call, None)

    def _hand_on(self, delta: Delta) -> None:
        for deltas, wakeup in self._watching.get(delta.run, ()):
            append(deltas, delta, self._openings(delta.run))
            wakeup.ring()

    # ── the relay ─────────────────────────────────────────────────────────────────────────

    async def carry(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Send deltas to other processes and receive theirs, until cancelled."""
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
            # Wait for the next delta. Two things come without one: an outbox that the relay did
            # not take is tried again after the gap; and while a call has output, a process may
            # begin to listen and needs the transcript.
            runs = [run for run, calls in self._said.items() if any(calls.values())]
            await self._bell.wait(GAP_S if self._outboxes else LOOK_S if runs else None)
            for run in runs:
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
            await checkpoint()  # let other tasks run, however many messages are waiting


def append(deltas: deque[Delta], delta: Delta, openings: Iterable[Delta]) -> None:
    """Append `delta` for a watcher; if its deque is full, replace all by `snapshot`.

    `snapshot` is the whole transcript, `delta` included.
    """
    if len(deltas) < BACKLOG:
        deltas.append(delta)
    else:
        deltas.clear()
        deltas.extend(openings)
