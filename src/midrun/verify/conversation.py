"""Check held topics and pending texts: none is lost or used twice (I34 to I36).

A handoff follows from a call that asked for it (I43).
"""

from typing import Final

from midrun.core import entries as e
from midrun.core.ids import MICROS_PER_SECOND
from midrun.verify.checks import JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger

EXPIRY_TOLERANCE_MICROS: Final = MICROS_PER_SECOND
"""Tolerance in microseconds: the store stamps an entry some time after the decision."""


class ConversationCheck(JournalCheck):
    """Checks the stack of held topics, and the pending messages and instructions."""

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._stack: list[e.FramePushed] = []
        self._frame_count = 0
        self._pending_texts: dict[int, str] = {}  # seq of a pending text → its kind

    def check_frame_pushed(self, record: e.Record, entry: e.FramePushed) -> None:
        """Check number and depth of a new held topic, and that its message was pending."""
        self._frame_count += 1
        if entry.frame != f"f{self._frame_count}":
            text = f"A topic was held as {entry.frame}; the next one is f{self._frame_count}."
            self.report("I19", record.seq, text)
        self._stack.append(entry)
        spec = self.ledger.started_entry
        if spec is not None and len(self._stack) > spec.frame_depth:
            count, limit = len(self._stack), spec.frame_depth
            text = f"{entry.frame} is held topic {count}; the limit is {limit}."
            self.report("I35", record.seq, text)
        self._remove_pending(record, entry.message, "a message")

    def check_frame_resumed(self, record: e.Record, entry: e.FrameResumed) -> None:
        """Check that the resumed topic is on top, named, and has not expired."""
        frame = self._pop_frame(record, entry.frame)
        if frame is not None and record.at > frame.expires + EXPIRY_TOLERANCE_MICROS:
            text = f"{entry.frame} was resumed as current although it had expired."
            self.report("I36", record.seq, text)
        self._check_goal_named(record, entry, frame)

    def check_frame_reconstructed(self, record: e.Record, entry: e.FrameReconstructed) -> None:
        """Check that the topic is on top and named; it may have expired."""
        self._check_goal_named(record, entry, self._pop_frame(record, entry.frame))

    def _check_goal_named(
        self,
        record: e.Record,
        entry: e.FrameResumed | e.FrameReconstructed,
        frame: e.FramePushed | None,
    ) -> None:
        if frame is not None and frame.goal not in entry.text:
            text = f"{entry.frame} was resumed without naming {frame.goal!r}."
            self.report("I36", record.seq, text)

    def check_frame_abandoned(self, record: e.Record, entry: e.FrameAbandoned) -> None:
        """Check that the dropped topic is on top."""
        self._pop_frame(record, entry.frame)

    def _pop_frame(self, record: e.Record, frame: str) -> e.FramePushed | None:
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

    # ── handoffs ──────────────────────────────────────────────────────────────────────────

    def check_handed_off(self, record: e.Record, entry: e.HandedOff) -> None:
        """Check that a call asked for the handoff and has ended, as have all other calls."""
        call = self.ledger.calls.get(entry.call)
        if call is None or call.stage != "done" or call.handoff != entry.agent:
            text = f"The run was handed to {entry.agent}, which {entry.call} did not ask for."
            self.report("I43", record.seq, text)
        for other in self.ledger.calls_in_flight:
            text = f"The run was handed to {entry.agent} while {other} was in flight."
            self.report("I43", record.seq, text)

    # ── pending texts ─────────────────────────────────────────────────────────────────────

    def _apply_message_received(self, record: e.Record, _: e.MessageReceived) -> None:
        self._pending_texts[record.seq] = "a message"

    def _apply_redirect_requested(self, record: e.Record, _: e.RedirectRequested) -> None:
        self._pending_texts[record.seq] = "an instruction"

    def _apply_run_resumed(self, record: e.Record, entry: e.RunResumed) -> None:
        if entry.instruction:
            self._pending_texts[record.seq] = "an instruction"

    def check_message_closed(
        self, record: e.Record, entry: e.MessageTaken | e.MessageClosed
    ) -> None:
        """Check that the message that was used, withdrawn or returned was pending."""
        self._remove_pending(record, entry.message, "a message")

    def check_redirect_closed(
        self, record: e.Record, entry: e.RedirectApplied | e.RedirectClosed
    ) -> None:
        """Check that the instruction that was used, withdrawn or returned was pending."""
        self._remove_pending(record, entry.redirect, "an instruction")

    def _remove_pending(self, record: e.Record, seq: int, text_kind: str) -> None:
        if self._pending_texts.pop(seq, "") != text_kind:
            text = (
                f"{type(record.entry).__name__} names {seq}, where {text_kind} is not pending."
            )
            self.report("I35", record.seq, text)

    def check_run_ended(self, record: e.Record, entry: e.RunCompleted | e.RunCancelled) -> None:
        """Check that no topic is held and no text is pending when the run ends."""
        end = type(entry).__name__
        for frame in self._stack:
            text = f"{frame.frame} was neither resumed nor abandoned before {end}."
            self.report("I34", record.seq, text)
        for seq, what in self._pending_texts.items():
            text = f"The run ended with {what} from {seq} that was neither used nor returned."
            self.report("I35", record.seq, text)

    HANDLERS = merge_handlers(
        {
            e.FramePushed: check_frame_pushed,
            e.FrameResumed: check_frame_resumed,
            e.FrameReconstructed: check_frame_reconstructed,
            e.FrameAbandoned: check_frame_abandoned,
            e.HandedOff: check_handed_off,
            e.MessageReceived: _apply_message_received,
            e.RedirectRequested: _apply_redirect_requested,
            e.RunResumed: _apply_run_resumed,
            e.MessageTaken: check_message_closed,
            e.MessageClosed: check_message_closed,
            e.RedirectApplied: check_redirect_closed,
            e.RedirectClosed: check_redirect_closed,
            e.RunCompleted: check_run_ended,
            e.RunCancelled: check_run_ended,
        }
    )
