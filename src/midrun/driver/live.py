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
from midrun.driver.delta import STREAMED_KINDS, Delta, LiveTranscript
from midrun.driver.notifications import Wakeup
from midrun.driver.redaction import LiveRedactor
from midrun.ports.relay import Relay

# Outboxes: one for each process that listens. Deltas are gathered for a moment, so that the
# small pieces of a model leave in larger messages. If the process does not read, its outbox is
# emptied when it is full; the process gets the whole transcript later.

OUTBOX_MAX_CHARS: Final = 100_000
"""Characters that may wait in an outbox, without those of `opening` deltas."""

OUTBOX_MAX_DELTAS: Final = 256
"""Deltas that may wait in an outbox, after joining."""

JSON_CHAR_MAX_BYTES: Final = 6
"""The most bytes of one character in JSON: an escaped control character."""

_DECODER: Final = msgspec.json.Decoder(Delta)


class Outbox:
    """The deltas that one listening process has not been sent yet, oldest first.

    `message_max_bytes` is the size of a message of the relay, in bytes.
    """

    def __init__(self, message_max_bytes: int) -> None:
        self._message_max_bytes = message_max_bytes
        self._queue: deque[_JoinedDelta] = deque()
        self._newest_by_run: dict[RunId, _JoinedDelta] = {}
        self._char_count = 0
        # How many of these are in `opening` deltas. They do not count towards the limit: a
        # transcript may be longer than that, and would be dropped and sent again for ever.
        self._snapshot_chars = 0
        self._message = b""

    def __bool__(self) -> bool:
        return bool(self._queue or self._message)

    def add(self, delta: Delta) -> bool:
        """Add a delta, joined to the last one of its run if it continues it.

        False if the outbox was full: then it is emptied, and `delta` is dropped as well.
        """
        if (
            self._char_count > OUTBOX_MAX_CHARS + self._snapshot_chars
            or len(self._queue) >= OUTBOX_MAX_DELTAS
        ):
            self.clear()
            return False
        last = self._newest_by_run.get(delta.run)
        if last is not None and last.can_join(delta):
            last.texts.append(delta.text)
        else:
            last = self._newest_by_run[delta.run] = _JoinedDelta(delta)
            self._queue.append(last)
        self._char_count += len(delta.text)
        self._snapshot_chars += len(delta.text) if delta.opening else 0
        return True

    def clear(self) -> None:
        """Drop everything."""
        self._queue.clear()
        self._newest_by_run.clear()
        self._char_count, self._snapshot_chars, self._message = 0, 0, b""

    def get_next_message(self) -> bytes:
        """Return the next message to send; the same one until it is marked as sent."""
        # A message that could not be sent is kept as it is, and sent again: its deltas have
        # left the queue already.
        if not self._message:
            self._message = self._pack_message()
        return self._message

    def mark_sent(self) -> None:
        """Mark the message as sent."""
        self._message = b""

    def _pack_message(self) -> bytes:
        """Remove as many deltas as one message can hold, and return the message."""
        lines: list[bytes] = []
        bytes_left = self._message_max_bytes
        while self._queue:
            line = self._queue[0].encode_line(self._message_max_bytes)
            if lines and len(line) >= bytes_left:
                break
            bytes_left -= len(line) + 1
            lines.append(line)
            self._remove_encoded(self._queue[0])
        message = b"\n".join(lines)
        # A single delta can be too large by the name of its tool: it is dropped.
        return message if len(message) <= self._message_max_bytes else b""

    def _remove_encoded(self, joined: "_JoinedDelta") -> None:
        """Remove the part of a delta that was encoded; its rest stays first in line."""
        self._char_count -= len(joined.encoded_text)
        if joined.remaining_text:
            joined.texts[:] = [joined.remaining_text]
            joined.delta = replace(joined.delta, opening=False)  # the rest continues the part
            return
        self._queue.popleft()
        self._snapshot_chars = self._snapshot_chars if self._queue else 0
        if self._newest_by_run.get(joined.delta.run) is joined:
            del self._newest_by_run[joined.delta.run]


class _JoinedDelta:
    """Consecutive deltas of one call and kind, joined to one."""

    __slots__ = ("delta", "encoded_text", "remaining_text", "texts")

    def __init__(self, delta: Delta) -> None:
        self.delta = delta
        self.texts = [delta.text]
        self.encoded_text = ""
        self.remaining_text = ""

    def can_join(self, delta: Delta) -> bool:
        """Tell whether `delta` continues this one."""
        own = self.delta
        return (
            delta.kind in STREAMED_KINDS
            and not delta.opening
            and (delta.call, delta.kind, delta.tool) == (own.call, own.kind, own.tool)
        )  # fmt: skip

    def encode_line(self, message_max_bytes: int) -> bytes:
        """Encode as much of the text as fits in one message, whatever its characters.

        Sets `encoded_text` and `remaining_text`.
        """
        text, max_chars = "".join(self.texts), message_max_bytes // (JSON_CHAR_MAX_BYTES + 1)
        self.encoded_text, self.remaining_text = text[:max_chars], text[max_chars:]
        try:
            return msgspec.json.encode(replace(self.delta, text=self.encoded_text))
        except UnicodeEncodeError:  # half of a surrogate pair, which cannot be shown
            return msgspec.json.encode(replace(self.delta, text=""))


def unpack_deltas(message: bytes) -> Iterator[Delta]:
    """Yield the deltas of a message; skip lines that are none."""
    for line in message.split(b"\n"):
        try:
            yield _DECODER.decode(line)
        except msgspec.MsgspecError:
            continue


__all__ = ["WATCHER_MAX_DELTAS", "Delta", "LiveOutput", "append_delta"]

WATCHER_MAX_DELTAS: Final = 1024
"""Deltas that may wait for a watcher; beyond it, they are replaced by the transcript."""

SEND_GAP_S: Final = 0.02
"""Seconds for which deltas are gathered before they are sent to other processes.

The first delta after a silence is sent at once.
"""

NEW_LISTENER_POLL_S: Final = 0.25
"""Seconds between two looks for new listeners in other processes while no delta comes."""


class LiveOutput:
    """Sends the deltas of runs to their watchers, here and in other processes."""

    def __init__(
        self, relay: Relay | None = None, redactor: LiveRedactor | None = None
    ) -> None:
        self._relay = relay
        self._redactor = redactor
        self._watchers: dict[RunId, list[tuple[deque[Delta], Wakeup]]] = {}
        # Transcripts of calls that run here, with secrets; redacted whenever they are sent.
        self._local_transcripts: dict[RunId, dict[CallId, LiveTranscript]] = {}
        # Transcripts of calls that run in other processes, as received: without secrets.
        self._remote_transcripts: dict[RunId, dict[CallId, LiveTranscript]] = {}
        # The listening processes that have the transcript of a run, and since when each of them
        # listens. A changed time means that the listener restarted: it needs the transcript
        # again.
        self._listeners_with_snapshot: dict[RunId, dict[str, int]] = {}
        self._outboxes: dict[str, Outbox] = {}
        self._wakeup = Wakeup()

    # ── sending ───────────────────────────────────────────────────────────────────────────

    def begin_call(self, run: RunId, call: CallId, *, is_retry: bool) -> LiveTranscript:
        """Keep a transcript of `call` until `end_call`, for new watchers.

        `is_retry` says that it is not the first attempt: its text replaces that of the last
        one.
        """
        transcript = LiveTranscript(is_retry=is_retry)
        self._local_transcripts.setdefault(run, {})[call] = transcript
        return transcript

    def end_call(self, run: RunId, call: CallId, transcript: LiveTranscript) -> None:
        """Drop the transcript of `call`."""
        calls = self._local_transcripts.get(run)
        # An abandoned call may end after its next attempt has begun, under a newer lease.
        if calls is None or calls.get(call) is not transcript:
            return
        del calls[call]
        if not calls:
            del self._local_transcripts[run]
            self._listeners_with_snapshot.pop(run, None)

    def send(self, delta: Delta) -> None:
        """Send `delta` to all watchers, without secrets; wait for none of them."""
        run = delta.run
        transcript = self._local_transcripts.get(run, {}).get(delta.call)
        if transcript is not None:
            if self._relay is not None and transcript.is_empty:
                self._wakeup.set()  # `_send_to_relay` now has to look for new listeners
            transcript.add(delta)
        # As `is_watched`, without the call: most deltas have no watcher.
        if run not in self._watchers and not (self._relay and self._relay.listeners(run)):
            return
        to_send = delta if transcript is None else transcript.get_delta_to_send(delta)
        shown = to_send if self._redactor is None else self._redactor.redact_delta(to_send)
        if shown is not None:
            if transcript is not None:
                transcript.mark_sent(shown)
            self._send_to_watchers(shown)
        self._send_to_processes(run, shown)

    def is_watched(self, run: RunId) -> bool:
        """Tell whether `run` has a watcher, here or in another process."""
        if run in self._watchers:
            return True
        return self._relay is not None and bool(self._relay.listeners(run))

    def _send_to_processes(self, run: RunId, shown: Delta | None) -> None:
        """Send `shown` to other processes that listen, and the transcript to new ones."""
        if self._relay is None:
            return
        greeted, listeners = (
            self._listeners_with_snapshot.get(run, {}),
            dict(self._relay.listeners(run)),
        )
        for name, since in tuple(listeners.items()):
            is_new = run in self._local_transcripts and greeted.get(name) != since
            deltas = self._snapshot_run(run) if is_new else () if shown is None else (shown,)
            if not self._fill_outbox(self._relay, name, deltas):
                del listeners[name]  # it lost deltas: it counts as new the next time
        if run in self._local_transcripts:
            self._listeners_with_snapshot[run] = listeners

    def _fill_outbox(self, relay: Relay, name: str, deltas: Iterable[Delta]) -> bool:
        """Put `deltas` into the outbox of `name`; False if it was full and lost them."""
        for delta in deltas:
            outbox = self._outboxes.get(name)
            if outbox is None:
                outbox = self._outboxes[name] = Outbox(relay.max_message_bytes)
            self._wakeup.set()
            if not outbox.add(delta):
                for greeted in self._listeners_with_snapshot.values():
                    greeted.pop(name, None)
                return False
        return True

    def _snapshot_run(self, run: RunId) -> Iterator[Delta]:
        for transcript in self._local_transcripts.get(run, {}).values():
            for delta in transcript.snapshot():
                shown = delta if self._redactor is None else self._redactor.redact_delta(delta)
                if shown is not None:
                    yield shown
        for transcript in self._remote_transcripts.get(run, {}).values():
            yield from transcript.snapshot()

    def find_unresponsive_calls(self, run: RunId) -> frozenset[CallId]:
        """Return the calls of `run` that are known here as not responding."""
        every = (
            *self._local_transcripts.get(run, {}).items(),
            *self._remote_transcripts.get(run, {}).items(),
        )
        return frozenset(call for call, transcript in every if transcript.is_not_responding)

    # ── watching ──────────────────────────────────────────────────────────────────────────

    @contextmanager
    def watch(self, run: RunId, wakeup: Wakeup) -> Iterator[deque[Delta]]:
        """Give a deque with the transcripts of `run`, and add each new delta to it.

        `wakeup` is set for each of them. The watcher removes deltas from the left.
        """
        if self._relay is not None and run not in self._watchers:
            self._relay.listen(run)
        watcher = (deque(self._snapshot_run(run), maxlen=WATCHER_MAX_DELTAS), wakeup)
        self._watchers.setdefault(run, []).append(watcher)
        try:
            yield watcher[0]
        finally:
            watchers = self._watchers[run]
            watchers.remove(watcher)
            if not watchers:
                del self._watchers[run]
                self._remote_transcripts.pop(run, None)
                if self._relay is not None:
                    self._relay.stop_listening(run)

    def forget_call(self, run: RunId, call: CallId) -> None:
        """Drop the transcript of a call in another process whose end is in the journal."""
        self._remote_transcripts.get(run, {}).pop(call, None)

    def _send_to_watchers(self, delta: Delta) -> None:
        for deltas, wakeup in self._watchers.get(delta.run, ()):
            append_delta(deltas, delta, self._snapshot_run(delta.run))
            wakeup.set()

    # ── the relay ─────────────────────────────────────────────────────────────────────────

    async def run_relay(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Send deltas to other processes and receive theirs, until cancelled."""
        task_status.started()
        if self._relay is None:
            return
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_to_relay, self._relay)
                tasks.start_soon(self._receive_from_relay, self._relay)
        finally:
            self._relay.close()

    async def _send_to_relay(self, relay: Relay) -> None:
        while True:
            # Wait for the next delta. Two things come without one: an outbox that the relay did
            # not take is tried again after the gap; and while a call has output, a process may
            # begin to listen and needs the transcript.
            runs = [
                run
                for run, calls in self._local_transcripts.items()
                if not all(transcript.is_empty for transcript in calls.values())
            ]
            await self._wakeup.wait(
                SEND_GAP_S if self._outboxes else NEW_LISTENER_POLL_S if runs else None
            )
            for run in runs:
                self._send_to_processes(run, None)
            for name, outbox in tuple(self._outboxes.items()):
                while outbox and await relay.send(name, outbox.get_next_message()):
                    outbox.mark_sent()
                if not outbox:
                    del self._outboxes[name]
            await anyio.sleep(SEND_GAP_S)

    async def _receive_from_relay(self, relay: Relay) -> None:
        while True:
            for delta in unpack_deltas(await relay.receive()):
                if delta.run in self._watchers:
                    calls = self._remote_transcripts.setdefault(delta.run, {})
                    calls.setdefault(delta.call, LiveTranscript()).add(delta)
                    self._send_to_watchers(delta)
            await checkpoint()  # let other tasks run, however many messages are waiting


def append_delta(deltas: deque[Delta], delta: Delta, snapshot: Iterable[Delta]) -> None:
    """Append `delta` for a watcher; if its deque is full, replace all by `snapshot`.

    `snapshot` is the whole transcript, `delta` included.
    """
    if len(deltas) < WATCHER_MAX_DELTAS:
        deltas.append(delta)
    else:
        deltas.clear()
        deltas.extend(snapshot)
