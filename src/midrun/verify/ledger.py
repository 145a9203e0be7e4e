"""The ledger: a simple model of the run that the checks compare entries with.

It is deliberately not `core.state.State`: plain mutable objects, filled in directly from the
entries. The two are compared at the end of the journal, so a bug in one shows as a
difference. The functions below the classes apply one kind of entry each.
"""

from collections.abc import Callable, Mapping
from typing import Final

from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallStarted,
    CallUnknown,
    CancelRequested,
    CapReached,
    Entry,
    FramePushed,
    HandedBack,
    LateResult,
    LeaseTaken,
    MessageReceived,
    MessageTaken,
    PauseRequested,
    PauseWithdrawn,
    PersonWrote,
    ProgressSaved,
    Record,
    RedirectApplied,
    RedirectRequested,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunImported,
    RunPaused,
    RunResumed,
    RunStarted,
    RunWaiting,
    RunWoken,
    StoodDown,
    TakenOver,
    UndoDone,
    UndoFailed,
    UndoRetried,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.values import Action, AskKind, CallKind, Effect, Json, Traits, Use

PLAIN: Final = Traits()


class Made:
    """One call, over all its attempts."""

    __slots__ = (
        "aborted",
        "args",
        "attempt",
        "by_hand",
        "closed",
        "doubted",
        "entered",
        "flying",
        "id",
        "kind",
        "purpose",
        "saved",
        "sealed",
        "stage",
        "steered_by",
        "tool",
        "traits",
    )

    def __init__(self, call: str, kind: CallKind, use: Use | None = None) -> None:
        self.id = call
        self.kind = kind
        self.tool = use.tool if use else kind
        self.args: Json = use.args if use else None
        self.traits = use.traits if use else PLAIN
        self.purpose = "step"
        self.stage = "proposed"
        self.attempt = 0
        self.by_hand = False  # proposed by an operator who has taken over
        self.closed = 0  # seq of its last end
        self.flying = False  # an attempt is in flight
        self.doubted = False  # an attempt has an unknown outcome that is not settled
        self.aborted = False  # an attempt was aborted, and none was done since
        self.entered = False  # it asked a question while it ran, and was not continued since
        self.saved = False  # it saved progress
        self.sealed = bool(use and use.refused)  # it will never be made
        self.steered_by: set[str] = set()  # actors whose texts the agent had at its proposal

    def __str__(self) -> str:
        return f"{self.id} ({self.tool})"

    @property
    def harmless(self) -> bool:
        """True if making it twice has the same effect as making it once."""
        return self.kind != "tool" or self.traits.effect is not Effect.ONCE

    @property
    def touched(self) -> bool:
        """True if it has had, or may have had, an effect."""
        return self.doubted or self.aborted or self.entered or self.stage == "done"

    @property
    def unfinished(self) -> bool:
        """True if it was started and is neither done nor known to have had no effect."""
        return self.flying or (self.touched and self.stage != "done")

    def close(self, stage: str, seq: int) -> None:
        """Record the end of an attempt."""
        self.stage, self.closed, self.flying = stage, seq, False
        if stage == "done":
            self.doubted = self.aborted = self.entered = False


class Posed:
    """One ask."""

    __slots__ = ("call", "entry", "kind", "open", "seq")

    def __init__(self, seq: int, entry: AskOpened) -> None:
        self.seq = seq
        self.entry = entry
        self.kind: AskKind = entry.ask_kind
        self.call = entry.call
        self.open = True

    @property
    def asks_for_words(self) -> bool:
        """True if an answer steers the agent; not for the outcome of an unsure call."""
        return (self.entry.of or self.kind) != "unsure"

    def is_edited(self, answer: AskAnswered) -> bool:
        """Tell whether an answer changes the arguments of a call under four eyes."""
        changed = answer.args_hash != self.entry.args_hash
        edit = answer.decision.value is not None and changed
        return self.kind == "approval" and self.entry.four_eyes and edit


class Ledger:
    """The run so far, as its entries describe it."""

    def __init__(self) -> None:
        self.spec: RunStarted | None = None
        self.epoch = 0
        self.leased = False
        self.calls: dict[str, Made] = {}
        self.flying: dict[str, Made] = {}
        self.undoing: tuple[str, Action] | None = None
        self.asks: dict[str, Posed] = {}
        self.open_asks: dict[str, Posed] = {}
        self.held = 0  # seq of the pause or cap that is in force
        self.redirected = 0  # seq of the last requested redirect
        self.wheel = ""  # the operator who has taken over
        self.words: dict[int, str] = {}  # seq of a pending text → its author
        self.steered_by: set[str] = set()  # actors whose texts the agent has received
        self.cancel: CancelRequested | None = None
        self.cancelled_at = 0  # seq of the cancel
        self.ended = ""  # "completed" or "cancelled"

    def note(self, record: Record) -> None:
        """Apply one record."""
        arm = ARMS.get(type(record.entry))
        if arm is not None:
            arm(self, record.seq, record.entry)

    def propose(self, use: Use) -> Made:
        """Add a proposed call, with the next number."""
        call = Made(f"c{len(self.calls) + 1}", use.kind, use)
        call.steered_by = set(self.steered_by)
        self.calls[call.id] = call
        return call

    def settles(self, late: LateResult) -> bool:
        """Tell whether a late result decides the outcome of its attempt."""
        call = self.calls.get(late.call)
        if call is None or self.ended or call.kind == "model":
            return False
        if call.sealed and call.stage == "proposed":
            return False  # the call was closed unmade since; the result only makes it doubtful
        return call.stage in {"unknown", "proposed"} and call.attempt == late.attempt


# ── entries about the run ─────────────────────────────────────────────────────────────────


def _started(books: Ledger, _: int, entry: RunStarted) -> None:
    books.spec = entry
    authors = {message.by for message in entry.history if message.role != "runtime"}
    books.steered_by = authors | {entry.by, *entry.steered_by}


def _imported(books: Ledger, _: int, entry: RunImported) -> None:
    # The importing user could have changed the checkpoint, and so counts as an author of all
    # that it contains: with four eyes, they may not approve its calls.
    books.steered_by.add(entry.by)
    for call in books.calls.values():
        call.steered_by.add(entry.by)


def _leased(books: Ledger, _: int, entry: LeaseTaken) -> None:
    books.epoch, books.leased = entry.epoch, True


def _let_go(books: Ledger, *_: object) -> None:
    books.leased = False


def _completed(books: Ledger, *_: object) -> None:
    books.leased, books.ended = False, "completed"


def _cancelled(books: Ledger, *_: object) -> None:
    books.leased, books.ended = False, "cancelled"


def _held(books: Ledger, seq: int, _: object) -> None:
    # The first of several pauses counts: no call may start from there on.
    books.held = books.held or seq


def _free(books: Ledger, *_: object) -> None:
    books.held = 0


def _resumed(books: Ledger, seq: int, entry: RunResumed) -> None:
    books.held = 0
    if entry.instruction:
        books.words[seq] = entry.by


def _woken(books: Ledger, *_: object) -> None:
    # Among the causes of a wake-up, only a redirect after the pause ends that pause.
    if books.redirected > books.held and not books.wheel:
        books.held = 0


def _redirected(books: Ledger, seq: int, entry: RedirectRequested) -> None:
    books.redirected = seq
    books.words[seq] = entry.by


def _said(books: Ledger, seq: int, entry: MessageReceived) -> None:
    books.words[seq] = entry.by


def _applied(books: Ledger, _: int, entry: RedirectApplied) -> None:
    books.steered_by.add(books.words.pop(entry.redirect, ""))


def _heard(books: Ledger, _: int, entry: MessageTaken | FramePushed) -> None:
    books.steered_by.add(books.words.pop(entry.message, ""))


def _wrote(books: Ledger, _: int, entry: PersonWrote) -> None:
    books.steered_by.add(entry.by)


def _cancel(books: Ledger, seq: int, entry: CancelRequested) -> None:
    books.held = 0
    books.ended = ""  # a parent may cancel a child that has ended, to undo its work
    books.cancel, books.cancelled_at = entry, books.cancelled_at or seq


def _retried(books: Ledger, *_: object) -> None:
    books.ended = ""


def _wheel(books: Ledger, _: int, entry: TakenOver) -> None:
    books.wheel = entry.by or "somebody"


def _handed_back(books: Ledger, *_: object) -> None:
    books.wheel = ""


# ── calls ─────────────────────────────────────────────────────────────────────────────────


def _proposed(books: Ledger, _: int, entry: CallProposed) -> None:
    if books.wheel:
        books.steered_by.add(books.wheel)
    books.propose(entry.use).by_hand = bool(books.wheel)


def _call_started(books: Ledger, _: int, entry: CallStarted) -> None:
    call = books.calls.get(entry.call)
    if call is None:
        call = books.calls[entry.call] = Made(entry.call, entry.call_kind)
        call.purpose = entry.purpose
    call.attempt, call.stage, call.flying = entry.attempt, "started", True
    books.flying[call.id] = call


def _call_done(books: Ledger, seq: int, entry: CallDone) -> None:
    books.steered_by.update(entry.steered_by)
    call = _ended(books, seq, entry.call, "done")
    if call is not None and call.purpose == "step" and entry.reply is not None:
        for use in entry.reply.uses:
            books.propose(use)


def _call_failed(books: Ledger, seq: int, entry: CallFailed) -> None:
    _ended(books, seq, entry.call, "failed")


def _call_aborted(books: Ledger, seq: int, entry: CallAborted) -> None:
    call = _ended(books, seq, entry.call, "aborted")
    if call is not None:
        call.aborted = True


def _call_unknown(books: Ledger, seq: int, entry: CallUnknown) -> None:
    call = _ended(books, seq, entry.call, "unknown")
    if call is not None:
        call.doubted = True


def _ended(books: Ledger, seq: int, call: str, stage: str) -> Made | None:
    books.flying.pop(call, None)
    ended = books.calls.get(call)
    if ended is not None:
        ended.close(stage, seq)
    return ended


def _settled(books: Ledger, seq: int, entry: CallSettled) -> None:
    call = books.calls.get(entry.call)
    if call is None or entry.happened is None:
        return
    if entry.happened:
        call.close("done", seq)
    else:
        # It did not happen: the call may be made again as if it had never been attempted.
        call.stage = "proposed"
        call.doubted = call.aborted = call.entered = False


def _sealed(books: Ledger, _: int, entry: CallSealed) -> None:
    call = books.calls.get(entry.call)
    if call is not None:
        call.sealed = True


def _saved(books: Ledger, _: int, entry: ProgressSaved) -> None:
    call = books.calls.get(entry.call)
    if call is not None:
        call.saved = True


def _late(books: Ledger, seq: int, entry: LateResult) -> None:
    call = books.calls.get(entry.call)
    if books.settles(entry):
        books.calls[entry.call].close("done", seq)
    elif call is not None and call.stage != "done" and not books.ended:
        call.doubted = True  # it had an effect, although the call was treated otherwise since


def _undo_started(books: Ledger, _: int, entry: UndoStarted) -> None:
    books.undoing = (entry.call, entry.action)


def _undo_ended(books: Ledger, *_: object) -> None:
    books.undoing = None


# ── asks ──────────────────────────────────────────────────────────────────────────────────


def _ask_opened(books: Ledger, seq: int, entry: AskOpened) -> None:
    ask = books.asks[entry.ask] = books.open_asks[entry.ask] = Posed(seq, entry)
    call = books.calls.get(entry.call)
    if call is not None and ask.kind != "unsure":
        # The call is parked: no longer in flight, and not made again before a decision. If it
        # was in flight, it asked from inside its code, so part of it has been executed.
        call.stage, call.entered, call.flying = "asking", call.flying, False
        books.flying.pop(call.id, None)


def _ask_answered(books: Ledger, seq: int, entry: AskAnswered) -> None:
    ask, call = _no_longer_open(books, entry.ask)
    has_words = entry.decision.value is not None or bool(entry.decision.reason)
    if ask is not None and ask.asks_for_words and has_words:
        books.steered_by.add(entry.by)
    if call is None or ask is None or call.stage != "asking":
        return
    if ask.is_edited(entry):
        call.steered_by.add(entry.by)
    if ask.kind == "question" and ask.entry.continuation is not None:
        call.stage = "proposed"  # it is made again, with the answer and its continuation
    elif ask.kind == "question":
        call.close("done", seq)  # the answer is the result of the call
    elif ask.kind == "child" or entry.decision.choice == "approve":
        call.stage = "proposed"
        if ask.kind == "approval" and entry.decision.value is not None:
            call.args = entry.decision.value
    else:
        call.sealed, call.closed = True, seq


def _ask_closed(books: Ledger, seq: int, entry: AskClosed) -> None:
    call = _no_longer_open(books, entry.ask)[1]
    if call is None or call.stage != "asking":
        return
    if entry.why == "elsewhere":
        call.stage = "proposed"
    else:
        call.sealed, call.closed = True, seq


def _no_longer_open(books: Ledger, ask_: str) -> tuple[Posed | None, Made | None]:
    books.open_asks.pop(ask_, None)
    ask = books.asks.get(ask_)
    if ask is None:
        return None, None
    ask.open = False
    return ask, books.calls.get(ask.call)


_ARMS = {
    RunStarted: _started,
    RunImported: _imported,
    LeaseTaken: _leased,
    StoodDown: _let_go,
    RunWaiting: _let_go,
    RunPaused: _let_go,
    RunFailed: _let_go,
    RunCompleted: _completed,
    RunCancelled: _cancelled,
    PauseRequested: _held,
    CapReached: _held,
    PauseWithdrawn: _free,
    RunResumed: _resumed,
    RunWoken: _woken,
    RedirectRequested: _redirected,
    RedirectApplied: _applied,
    MessageReceived: _said,
    MessageTaken: _heard,
    FramePushed: _heard,
    PersonWrote: _wrote,
    CancelRequested: _cancel,
    UndoRetried: _retried,
    TakenOver: _wheel,
    HandedBack: _handed_back,
    CallProposed: _proposed,
    CallStarted: _call_started,
    CallDone: _call_done,
    CallFailed: _call_failed,
    CallAborted: _call_aborted,
    CallUnknown: _call_unknown,
    CallSettled: _settled,
    CallSealed: _sealed,
    ProgressSaved: _saved,
    LateResult: _late,
    UndoStarted: _undo_started,
    UndoDone: _undo_ended,
    UndoFailed: _undo_ended,
    UndoUnknown: _undo_ended,
    AskOpened: _ask_opened,
    AskAnswered: _ask_answered,
    AskClosed: _ask_closed,
}

ARMS: Final[Mapping[type[Entry], Callable[[Ledger, int, Entry], None]]] = _ARMS  # type: ignore[assignment]  # each arm takes the one entry it is filed under
