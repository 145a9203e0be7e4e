"""Frames and messages: no thought and nobody's words are lost (I34, I35, I36)."""

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
"""Between deciding and the store's stamp on the entry some time passes."""


class Frames(Watch):
    """Watches the stack of suspended thoughts, and the texts that wait to be taken up."""

    __slots__ = ("_inbox", "_pushed", "_stack")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._stack: list[FramePushed] = []
        self._pushed = 0
        self._inbox: dict[int, str] = {}  # seq of what waits, and what it is

    def pushed(self, record: Record, entry: FramePushed) -> None:
        """A chain of thought is suspended."""
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
        """It goes on where it stood, if it was not held for too long."""
        frame = self._popped(record, entry.frame)
        if frame is not None and record.at > frame.expires + SLACK:
            text = f"{entry.frame} was resumed as if it had not been held for too long."
            self.report("I36", record.seq, text)
        self._named(record, entry, frame)

    def reconstructed(self, record: Record, entry: FrameReconstructed) -> None:
        """It goes on, and says that it was held for too long."""
        self._named(record, entry, self._popped(record, entry.frame))

    def _named(
        self,
        record: Record,
        entry: FrameResumed | FrameReconstructed,
        frame: FramePushed | None,
    ) -> None:
        if frame is not None and frame.goal not in entry.words:
            text = f"{entry.frame} went on without naming {frame.goal!r}."
            self.report("I36", record.seq, text)

    def abandoned(self, record: Record, entry: FrameAbandoned) -> None:
        """It is given up, by name."""
        self._popped(record, entry.frame)

    def _popped(self, record: Record, frame: str) -> FramePushed | None:
        """Take `frame` off the stack, wherever it is."""
        for depth, held in enumerate(reversed(self._stack)):
            if held.frame != frame:
                continue
            if depth:
                text = f"{frame} was closed before {self._stack[-1].frame}, which lies on it."
                self.report("I34", record.seq, text)
            self._stack.remove(held)
            return held
        self.report("I34", record.seq, f"{frame} was closed, but it was not open.")
        return None

    # ── what waits to be taken up ─────────────────────────────────────────────────────────

    def message(self, record: Record, _: MessageReceived) -> None:
        """Somebody spoke."""
        self._inbox[record.seq] = "a message"

    def redirect(self, record: Record, _: RedirectRequested) -> None:
        """Somebody wants another course."""
        self._inbox[record.seq] = "an instruction"

    def run_resumed(self, record: Record, entry: RunResumed) -> None:
        """An instruction may come with the resume."""
        if entry.instruction:
            self._inbox[record.seq] = "an instruction"

    def message_gone(self, record: Record, entry: MessageTaken | MessageClosed) -> None:
        """It was taken up, withdrawn or returned."""
        self._taken(record, entry.message, "a message")

    def redirect_gone(self, record: Record, entry: RedirectApplied | RedirectClosed) -> None:
        """It was taken up, withdrawn or returned."""
        self._taken(record, entry.redirect, "an instruction")

    def _taken(self, record: Record, seq: int, what: str) -> None:
        if self._inbox.pop(seq, "") != what:
            text = f"{type(record.entry).__name__} of {seq}, where {what} does not wait."
            self.report("I35", record.seq, text)

    def ended(self, record: Record, entry: RunCompleted | RunCancelled) -> None:
        """Nothing is left on the stack, and nothing in the inbox."""
        end = type(entry).__name__
        for frame in self._stack:
            text = f"{frame.frame} was neither resumed nor abandoned before {end}."
            self.report("I34", record.seq, text)
        for seq, what in self._inbox.items():
            text = f"The run ended with {what} from {seq} that nobody took up or returned."
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
