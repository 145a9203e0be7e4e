"""Check held topics and pending texts: none is lost or used twice (I34, I35, I36)."""

from typing import Final

from midrun.core.entries import (
    FrameAbandoned,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    MessageClosed,
    MessageReceived,
    MessageTaken,
    Record,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RunCancelled,
    RunCompleted,
    RunResumed,
)
from midrun.core.ids import SECOND
from midrun.verify.checks import Problem, Watch, arms
from midrun.verify.ledger import Ledger

SLACK: Final = SECOND
"""Tolerance in microseconds: the store stamps an entry some time after the decision."""


class Frames(Watch):
    """Checks the stack of held topics (frames), and the pending messages and instructions."""

    __slots__ = ("_inbox", "_pushed", "_stack")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._stack: list[FramePushed] = []
        self._pushed = 0
        self._inbox: dict[int, str] = {}  # seq of a pending text → its kind

    def pushed(self, record: Record, entry: FramePushed) -> None:
        """Check number and depth of a new frame, and that its message was pending."""
        self._pushed += 1
        if entry.frame != f"f{self._pushed}":
            text = f"A frame was pushed as {entry.frame}; the next one is f{self._pushed}."
            self.report("I19", record.seq, text)
        self._stack.append(entry)
        spec = self.ledger.spec
        if spec is not None and len(self._stack) > spec.frame_depth:
            text = f"{entry.frame} is the {len(self._stack)}th frame of {spec.frame_depth}."
            self.report("I35", record.seq, text)
        self._taken(record, entry.message, "a message")

    def resumed(self, record: Record, entry: FrameResumed) -> None:
        """Check that the resumed frame is on top, named, and has not expired."""
        frame = self._popped(record, entry.frame)
        if frame is not None and record.at > frame.expires + SLACK:
            text = f"{entry.frame} was resumed as current although it had expired."
            self.report("I36", record.seq, text)
        self._named(record, entry, frame)

    def reconstructed(self, record: Record, entry: FrameReconstructed) -> None:
        """Check that the frame is on top and named; it may have expired."""
        self._named(record, entry, self._popped(record, entry.frame))

    def _named(
        self,
        record: Record,
        entry: FrameResumed | FrameReconstructed,
        frame: FramePushed | None,
    ) -> None:
        if frame is not None and frame.goal not in entry.words:
            text = f"{entry.frame} was resumed without naming {frame.goal!r}."
            self.report("I36", record.seq, text)

    def abandoned(self, record: Record, entry: FrameAbandoned) -> None:
        """Check that the dropped frame is on top."""
        self._popped(record, entry.frame)

    def _popped(self, record: Record, frame: str) -> FramePushed | None:
        """Remove `frame` from the stack, and report it if it was not on top."""
        for depth, held in enumerate(reversed(self._stack)):
            if held.frame != frame:
                continue
            if depth:
                text = f"{frame} was closed before {self._stack[-1].frame}, which is above it."
                self.report("I34", record.seq, text)
            self._stack.remove(held)
            return held
        self.report("I34", record.seq, f"{frame} was closed, but it was not open.")
        return None

    # ── pending texts ─────────────────────────────────────────────────────────────────────

    def message(self, record: Record, _: MessageReceived) -> None:
        """Record a pending message."""
        self._inbox[record.seq] = "a message"

    def redirect(self, record: Record, _: RedirectRequested) -> None:
        """Record a pending instruction."""
        self._inbox[record.seq] = "an instruction"

    def run_resumed(self, record: Record, entry: RunResumed) -> None:
        """Record an instruction that came with the resume."""
        if entry.instruction:
            self._inbox[record.seq] = "an instruction"

    def message_gone(self, record: Record, entry: MessageTaken | MessageClosed) -> None:
        """Check that the message that was used, withdrawn or returned was pending."""
        self._taken(record, entry.message, "a message")

    def redirect_gone(self, record: Record, entry: RedirectApplied | RedirectClosed) -> None:
        """Check that the instruction that was used, withdrawn or returned was pending."""
        self._taken(record, entry.redirect, "an instruction")

    def _taken(self, record: Record, seq: int, what: str) -> None:
        if self._inbox.pop(seq, "") != what:
            text = f"{type(record.entry).__name__} names {seq}, where {what} is not pending."
            self.report("I35", record.seq, text)

    def ended(self, record: Record, entry: RunCompleted | RunCancelled) -> None:
        """Check that no frame is held and no text is pending when the run ends."""
        end = type(entry).__name__
        for frame in self._stack:
            text = f"{frame.frame} was neither resumed nor abandoned before {end}."
            self.report("I34", record.seq, text)
        for seq, what in self._inbox.items():
            text = f"The run ended with {what} from {seq} that was neither used nor returned."
            self.report("I35", record.seq, text)

    ARMS = arms(
        {
            FramePushed: pushed,
            FrameResumed: resumed,
            FrameReconstructed: reconstructed,
            FrameAbandoned: abandoned,
            MessageReceived: message,
            RedirectRequested: redirect,
            RunResumed: run_resumed,
            MessageTaken: message_gone,
            MessageClosed: message_gone,
            RedirectApplied: redirect_gone,
            RedirectClosed: redirect_gone,
            RunCompleted: ended,
            RunCancelled: ended,
        }
    )
