"""The ledger: a simple model of the run that the checks compare entries with.

It is deliberately not `core.state.State`: plain mutable objects, filled in directly from the
entries. The two are compared at the end of the journal, so a bug in one shows as a
difference. The functions below the classes apply one kind of entry each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from midrun.core import entries as e
from midrun.core.values import (
    AskKind,
    CallKind,
    CleanupAction,
    Effect,
    Json,
    RequestedCall,
    Traits,
)

NO_TRAITS: Final = Traits()


@dataclass(slots=True)
class LedgerCall:
    """One call, over all its attempts."""

    id: str
    kind: CallKind
    tool: str
    args: Json = None
    traits: Traits = NO_TRAITS
    handoff: str = ""  # the agent that it hands the run to
    purpose: str = "step"
    stage: str = "proposed"
    attempt: int = 0
    proposed_by_operator: bool = False  # proposed by an operator who has taken over
    ended_at: int = 0  # seq of its last end
    in_flight: bool = False  # an attempt is in flight
    has_unknown_attempt: bool = False  # an outcome is unknown and not settled
    has_aborted_attempt: bool = False  # an attempt was aborted, and none was done since
    asked_from_inside: bool = False  # it asked while it ran, and was not continued since
    has_progress: bool = False  # it saved progress
    closed_unmade: bool = False  # it will never be made
    steered_by: set[str] = field(default_factory=set)  # authors of texts before its proposal

    def __str__(self) -> str:
        return f"{self.id} ({self.tool})"

    @property
    def safe_to_repeat(self) -> bool:
        """True if making it twice has the same effect as making it once."""
        return self.kind != "tool" or self.traits.effect is not Effect.ONCE

    @property
    def may_have_effect(self) -> bool:
        """True if it has had, or may have had, an effect."""
        return (
            self.has_unknown_attempt
            or self.has_aborted_attempt
            or self.asked_from_inside
            or self.stage == "done"
        )

    @property
    def is_unfinished(self) -> bool:
        """True if it was started and is neither done nor known to have had no effect."""
        return self.in_flight or (self.may_have_effect and self.stage != "done")

    def end_attempt(self, stage: str, seq: int) -> None:
        """Record the end of an attempt."""
        self.stage, self.ended_at, self.in_flight = stage, seq, False
        if stage == "done":
            self.has_unknown_attempt = self.has_aborted_attempt = self.asked_from_inside = False


class LedgerAsk:
    """One ask."""

    def __init__(self, seq: int, entry: e.AskOpened) -> None:
        self.seq = seq
        self.entry = entry
        self.kind: AskKind = entry.ask_kind
        self.call = entry.call
        self.is_open = True

    @property
    def steers_agent(self) -> bool:
        """True if an answer steers the agent; not for the outcome of an unsure call."""
        return (self.entry.child_ask_kind or self.kind) != "unsure"

    def is_edited(self, answer: e.AskAnswered) -> bool:
        """Tell whether an answer changes the arguments of a call under four eyes."""
        changed = answer.args_hash != self.entry.args_hash
        edit = answer.decision.value is not None and changed
        return self.kind == "approval" and self.entry.four_eyes and edit


class Ledger:
    """The run so far, as its entries describe it."""

    def __init__(self) -> None:
        self.started_entry: e.RunStarted | None = None
        self.epoch = 0
        self.has_lease = False
        self.calls: dict[str, LedgerCall] = {}
        self.calls_in_flight: dict[str, LedgerCall] = {}
        self.undo_in_flight: tuple[str, CleanupAction] | None = None
        self.asks: dict[str, LedgerAsk] = {}
        self.open_asks: dict[str, LedgerAsk] = {}
        self.paused_at = 0  # seq of the pause or cap that is in force
        self.redirect_requested_at = 0  # seq of the last requested redirect
        self.taken_over_by = ""  # the operator who has taken over
        self.pending_text_authors: dict[int, str] = {}  # seq of a pending text → its author
        self.steered_by: set[str] = set()  # actors whose texts the agent has received
        self.cancel_entry: e.CancelRequested | None = None
        self.cancelled_at = 0  # seq of the cancel
        self.end_phase = ""  # "completed" or "cancelled"

    def apply(self, record: e.Record) -> None:
        """Apply one record."""
        arm = APPLY_BY_KIND.get(type(record.entry))
        if arm is not None:
            arm(self, record.seq, record.entry)

    def add_proposed_call(self, use: RequestedCall) -> LedgerCall:
        """Add a proposed call, with the next number."""
        call = LedgerCall(
            f"c{len(self.calls) + 1}",
            use.kind,
            use.tool,
            use.args,
            use.traits,
            use.handoff,
            closed_unmade=bool(use.refused),
            steered_by=set(self.steered_by),
        )
        self.calls[call.id] = call
        return call

    def settles_attempt(self, late: e.LateResult) -> bool:
        """Tell whether a late result decides the outcome of its attempt."""
        call = self.calls.get(late.call)
        if call is None or self.end_phase or call.kind == "model":
            return False
        if call.closed_unmade and call.stage == "proposed":
            return False  # the call was closed unmade since; the result only makes it doubtful
        return call.stage in {"unknown", "proposed"} and call.attempt == late.attempt


# ── entries about the run ─────────────────────────────────────────────────────────────────


def _apply_run_started(ledger: Ledger, _: int, entry: e.RunStarted) -> None:
    ledger.started_entry = entry
    authors = {message.by for message in entry.history if message.role != "runtime"}
    ledger.steered_by = authors | {entry.by, *entry.steered_by}


def _apply_run_imported(ledger: Ledger, _: int, entry: e.RunImported) -> None:
    # The importing user could have changed the checkpoint, and so counts as an author of all
    # that it contains: with four eyes, they may not approve its calls.
    ledger.steered_by.add(entry.by)
    for call in ledger.calls.values():
        call.steered_by.add(entry.by)


def _apply_lease_taken(ledger: Ledger, _: int, entry: e.LeaseTaken) -> None:
    ledger.epoch, ledger.has_lease = entry.epoch, True


def _apply_lease_released(ledger: Ledger, *_: object) -> None:
    ledger.has_lease = False


def _apply_run_completed(ledger: Ledger, *_: object) -> None:
    ledger.has_lease, ledger.end_phase = False, "completed"


def _apply_run_cancelled(ledger: Ledger, *_: object) -> None:
    ledger.has_lease, ledger.end_phase = False, "cancelled"


def _apply_pause(ledger: Ledger, seq: int, _: object) -> None:
    # The first of several pauses counts: no call may start from there on.
    ledger.paused_at = ledger.paused_at or seq


def _apply_pause_withdrawn(ledger: Ledger, *_: object) -> None:
    ledger.paused_at = 0


def _apply_run_resumed(ledger: Ledger, seq: int, entry: e.RunResumed) -> None:
    ledger.paused_at = 0
    if entry.instruction:
        ledger.pending_text_authors[seq] = entry.by


def _apply_run_woken(ledger: Ledger, *_: object) -> None:
    # Among the causes of a wake-up, only a redirect after the pause ends that pause.
    if ledger.redirect_requested_at > ledger.paused_at and not ledger.taken_over_by:
        ledger.paused_at = 0


def _apply_redirect_requested(ledger: Ledger, seq: int, entry: e.RedirectRequested) -> None:
    ledger.redirect_requested_at = seq
    ledger.pending_text_authors[seq] = entry.by


def _apply_message_received(ledger: Ledger, seq: int, entry: e.MessageReceived) -> None:
    ledger.pending_text_authors[seq] = entry.by


def _apply_redirect_applied(ledger: Ledger, _: int, entry: e.RedirectApplied) -> None:
    ledger.steered_by.add(ledger.pending_text_authors.pop(entry.redirect, ""))


def _apply_message_taken(ledger: Ledger, _: int, entry: e.MessageTaken | e.FramePushed) -> None:
    ledger.steered_by.add(ledger.pending_text_authors.pop(entry.message, ""))


def _apply_person_wrote(ledger: Ledger, _: int, entry: e.PersonWrote) -> None:
    ledger.steered_by.add(entry.by)


def _apply_cancel_requested(ledger: Ledger, seq: int, entry: e.CancelRequested) -> None:
    ledger.paused_at = 0
    ledger.end_phase = ""  # a parent may cancel a child that has ended, to undo its work
    ledger.cancel_entry, ledger.cancelled_at = entry, ledger.cancelled_at or seq


def _apply_undo_retried(ledger: Ledger, *_: object) -> None:
    ledger.end_phase = ""


def _apply_taken_over(ledger: Ledger, _: int, entry: e.TakenOver) -> None:
    ledger.taken_over_by = entry.by or "a person"


def _apply_handed_back(ledger: Ledger, *_: object) -> None:
    ledger.taken_over_by = ""


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def _apply_call_proposed(ledger: Ledger, _: int, entry: e.CallProposed) -> None:
    if ledger.taken_over_by:
        ledger.steered_by.add(ledger.taken_over_by)
    ledger.add_proposed_call(entry.use).proposed_by_operator = bool(ledger.taken_over_by)


def _apply_call_started(ledger: Ledger, _: int, entry: e.CallStarted) -> None:
    call = ledger.calls.get(entry.call)
    if call is None:
        call = LedgerCall(entry.call, kind := entry.call_kind, kind, purpose=entry.purpose)
        ledger.calls[entry.call] = call
    call.attempt, call.stage, call.in_flight = entry.attempt, "started", True
    ledger.calls_in_flight[call.id] = call


def _apply_call_done(ledger: Ledger, seq: int, entry: e.CallDone) -> None:
    ledger.steered_by.update(entry.steered_by)
    call = _end_call(ledger, seq, entry.call, "done")
    if call is not None and call.purpose == "step" and entry.reply is not None:
        for use in entry.reply.uses:
            ledger.add_proposed_call(use)


def _apply_call_failed(ledger: Ledger, seq: int, entry: e.CallFailed) -> None:
    _end_call(ledger, seq, entry.call, "failed")


def _apply_call_aborted(ledger: Ledger, seq: int, entry: e.CallAborted) -> None:
    call = _end_call(ledger, seq, entry.call, "aborted")
    if call is not None:
        call.has_aborted_attempt = True


def _apply_call_unknown(ledger: Ledger, seq: int, entry: e.CallUnknown) -> None:
    call = _end_call(ledger, seq, entry.call, "unknown")
    if call is not None:
        call.has_unknown_attempt = True


def _end_call(ledger: Ledger, seq: int, call: str, stage: str) -> LedgerCall | None:
    ledger.calls_in_flight.pop(call, None)
    ended = ledger.calls.get(call)
    if ended is not None:
        ended.end_attempt(stage, seq)
    return ended


def _apply_call_settled(ledger: Ledger, seq: int, entry: e.CallSettled) -> None:
    call = ledger.calls.get(entry.call)
    if call is None or entry.happened is None:
        return
    if entry.happened:
        call.end_attempt("done", seq)
    else:
        # It did not happen: the call may be made again as if it had never been attempted.
        call.stage = "proposed"
        call.has_unknown_attempt = call.has_aborted_attempt = call.asked_from_inside = False


def _apply_call_sealed(ledger: Ledger, _: int, entry: e.CallSealed) -> None:
    call = ledger.calls.get(entry.call)
    if call is not None:
        call.closed_unmade = True


def _apply_progress_saved(ledger: Ledger, _: int, entry: e.ProgressSaved) -> None:
    call = ledger.calls.get(entry.call)
    if call is not None:
        call.has_progress = True


def _apply_late_result(ledger: Ledger, seq: int, entry: e.LateResult) -> None:
    call = ledger.calls.get(entry.call)
    if ledger.settles_attempt(entry):
        ledger.calls[entry.call].end_attempt("done", seq)
    elif call is not None and call.stage != "done" and not ledger.end_phase:
        # It had an effect, although the call was treated otherwise since.
        call.has_unknown_attempt = True


def _apply_undo_started(ledger: Ledger, _: int, entry: e.UndoStarted) -> None:
    ledger.undo_in_flight = (entry.call, entry.action)


def _apply_undo_ended(ledger: Ledger, *_: object) -> None:
    ledger.undo_in_flight = None


# ── asks ──────────────────────────────────────────────────────────────────────────────────


def _apply_ask_opened(ledger: Ledger, seq: int, entry: e.AskOpened) -> None:
    ask = ledger.asks[entry.ask] = ledger.open_asks[entry.ask] = LedgerAsk(seq, entry)
    call = ledger.calls.get(entry.call)
    if call is not None and ask.kind != "unsure":
        # The call is parked: no longer in flight, and not made again before a decision. If it
        # was in flight, it asked from inside its code, so part of it has been executed.
        call.stage, call.asked_from_inside, call.in_flight = "asking", call.in_flight, False
        ledger.calls_in_flight.pop(call.id, None)


def _apply_ask_answered(ledger: Ledger, seq: int, entry: e.AskAnswered) -> None:
    ask, call = _close_ask(ledger, entry.ask)
    has_words = entry.decision.value is not None or bool(entry.decision.reason)
    if ask is not None and ask.steers_agent and has_words:
        ledger.steered_by.add(entry.by)
    if call is None or ask is None or call.stage != "asking":
        return
    if ask.is_edited(entry):
        call.steered_by.add(entry.by)
    if ask.kind == "question" and ask.entry.continuation is not None:
        call.stage = "proposed"  # it is made again, with the answer and its continuation
    elif ask.kind == "question":
        call.end_attempt("done", seq)  # the answer is the result of the call
    elif ask.kind == "child" or entry.decision.choice == "approve":
        call.stage = "proposed"
        if ask.kind == "approval" and entry.decision.value is not None:
            call.args = entry.decision.value
    else:
        call.closed_unmade, call.ended_at = True, seq


def _apply_ask_closed(ledger: Ledger, seq: int, entry: e.AskClosed) -> None:
    call = _close_ask(ledger, entry.ask)[1]
    if call is None or call.stage != "asking":
        return
    if entry.why == "elsewhere":
        call.stage = "proposed"
    else:
        call.closed_unmade, call.ended_at = True, seq


def _close_ask(ledger: Ledger, ask_: str) -> tuple[LedgerAsk | None, LedgerCall | None]:
    ledger.open_asks.pop(ask_, None)
    ask = ledger.asks.get(ask_)
    if ask is None:
        return None, None
    ask.is_open = False
    return ask, ledger.calls.get(ask.call)


_APPLY_BY_KIND = {
    e.RunStarted: _apply_run_started,
    e.RunImported: _apply_run_imported,
    e.LeaseTaken: _apply_lease_taken,
    e.LeaseReleased: _apply_lease_released,
    e.RunWaiting: _apply_lease_released,
    e.RunPaused: _apply_lease_released,
    e.RunFailed: _apply_lease_released,
    e.RunCompleted: _apply_run_completed,
    e.RunCancelled: _apply_run_cancelled,
    e.PauseRequested: _apply_pause,
    e.CapReached: _apply_pause,
    e.PauseWithdrawn: _apply_pause_withdrawn,
    e.RunResumed: _apply_run_resumed,
    e.RunWoken: _apply_run_woken,
    e.RedirectRequested: _apply_redirect_requested,
    e.RedirectApplied: _apply_redirect_applied,
    e.MessageReceived: _apply_message_received,
    e.MessageTaken: _apply_message_taken,
    e.FramePushed: _apply_message_taken,
    e.PersonWrote: _apply_person_wrote,
    e.CancelRequested: _apply_cancel_requested,
    e.UndoRetried: _apply_undo_retried,
    e.TakenOver: _apply_taken_over,
    e.HandedBack: _apply_handed_back,
    e.CallProposed: _apply_call_proposed,
    e.CallStarted: _apply_call_started,
    e.CallDone: _apply_call_done,
    e.CallFailed: _apply_call_failed,
    e.CallAborted: _apply_call_aborted,
    e.CallUnknown: _apply_call_unknown,
    e.CallSettled: _apply_call_settled,
    e.CallSealed: _apply_call_sealed,
    e.ProgressSaved: _apply_progress_saved,
    e.LateResult: _apply_late_result,
    e.UndoStarted: _apply_undo_started,
    e.UndoDone: _apply_undo_ended,
    e.UndoFailed: _apply_undo_ended,
    e.UndoUnknown: _apply_undo_ended,
    e.AskOpened: _apply_ask_opened,
    e.AskAnswered: _apply_ask_answered,
    e.AskClosed: _apply_ask_closed,
}

APPLY_BY_KIND: Final[Mapping[type[e.Entry], Callable[[Ledger, int, e.Entry], None]]] = (
    _APPLY_BY_KIND  # type: ignore[assignment]  # each arm takes the one entry it is filed under
)
