"""Undo: what may have happened is taken back, in order, or listed (I18, I28, I29, I30)."""

from midrun.core.entries import (
    CancelRequested,
    LateResult,
    Record,
    RunCancelled,
    RunCompleted,
    UndoDone,
    UndoFailed,
    UndoGaveUp,
    UndoRetried,
    UndoStarted,
    UndoUnknown,
)
from midrun.core.values import Action
from midrun.verify.checks import Problem, Watch, arms
from midrun.verify.ledger import Ledger, Made


class Cleaning:
    """How far the undo, or the release, of one call is."""

    __slots__ = ("attempts", "done", "final", "gave_up")

    def __init__(self) -> None:
        self.attempts = 0
        self.done = False
        self.final = False  # the last attempt may still be running
        self.gave_up = False


class Undoing(Watch):
    """Watches undo and release, from the first attempt to the report."""

    __slots__ = ("_cleanings", "_doomed", "_last", "_last_seq", "_loose")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._cleanings: dict[tuple[str, Action], Cleaning] = {}
        self._doomed: frozenset[str] = frozenset()
        self._last: tuple[int, Made] | None = None  # closing of what was taken up last
        self._last_seq = 0  # and when that was
        self._loose: set[str] = set()  # calls that evidence came for when undo had begun

    def cancel(self, _: Record, __: CancelRequested) -> None:
        """The undo set is fixed now: in flight, stopped midway, or unknown."""
        self._doomed = frozenset(
            made.id for made in self.ledger.calls.values() if self._unfinished(made)
        )
        self._last = None

    def _unfinished(self, made: Made) -> bool:
        """Tell whether it was begun and is not over; a child is over when it was ended."""
        if made.kind != "child" or made.flying:
            return made.unfinished
        ended = self._was_released(made) or self.ledger.undoing == (made.id, "release")
        return made.attempt > 0 and made.stage != "done" and not ended

    def _was_released(self, made: Made) -> bool:
        cleaning = self._cleanings.get((made.id, "release"))
        return cleaning is not None and cleaning.done

    def retried(self, _: Record, __: UndoRetried) -> None:
        """What was given up counts as never tried."""
        for key, cleaning in self._cleanings.items():
            if cleaning.gave_up:
                self._cleanings[key] = Cleaning()
        self._last = None

    # ── one undo ──────────────────────────────────────────────────────────────────────────

    def started(self, record: Record, entry: UndoStarted) -> None:
        """An attempt begins."""
        made = self.ledger.calls.get(entry.call)
        what = f"The {entry.action} of {made or entry.call}"
        if made is None or not made.attempt or not _declared(made, entry.action):
            self.report("I30", record.seq, f"{what} was started, but there is none.")
            return
        if self.ledger.undoing is not None:
            other = " of ".join(reversed(self.ledger.undoing))
            text = f"{what} was started while the {other} was not over."
            self.report("I30", record.seq, text)
        cleaning = self._cleanings.setdefault((entry.call, entry.action), Cleaning())
        if cleaning.done or cleaning.gave_up:
            over = "succeeded" if cleaning.done else "been given up"
            self.report("I30", record.seq, f"{what} was started after it had {over}.")
        elif cleaning.final:
            self.report("I30", record.seq, f"{what} was started beside one that did not stop.")
        if entry.attempt != cleaning.attempts + 1:
            text = f"{what} is attempt {entry.attempt} after {cleaning.attempts} attempts."
            self.report("I19", record.seq, text)
        if entry.attempt > self._attempts_max():
            text = f"{what} is attempt {entry.attempt} of at most {self._attempts_max()}."
            self.report("I30", record.seq, text)
        # Late evidence may show only after the cancel that something did happen.
        late = self.ledger.cancel is not None and made.unfinished
        if entry.action == "undo" and not (late or self._wanted(made)):
            text = f"{what} was started, but no cancel wants it undone."
            self.report("I28", record.seq, text)
        if not cleaning.attempts:
            self._in_order(record, entry, made)
        cleaning.attempts = entry.attempt

    def _in_order(self, record: Record, entry: UndoStarted, made: Made) -> None:
        """What ended last goes first. What ended only after that was taken up is exempt."""
        if self.ledger.flying:
            names = ", ".join(map(str, self.ledger.flying.values()))
            text = f"The {entry.action} of {made} was started while {names} was in flight."
            self.report("I29", record.seq, text)
        if made.id in self._loose:
            return
        if made.kind == "child" and (made.sealed or self._given_up(made)):
            return  # nobody attends to it any more: it is ended as soon as that is so
        if self._last is not None and self._last[0] < made.closed < self._last_seq:
            text = (
                f"The {entry.action} of {made}, which ended at {made.closed}, came after that "
                f"of {self._last[1]}, which had ended before it, at {self._last[0]}."
            )
            self.report("I29", record.seq, text)
        self._last, self._last_seq = (made.closed, made), record.seq

    def _given_up(self, made: Made) -> bool:
        """Tell whether the run goes on without it: it gave up the call, and not itself."""
        return self.ledger.cancel is None and made.stage in {"aborted", "unknown"}

    def late(self, _: Record, entry: LateResult) -> None:
        """Evidence that comes once cleaning up has begun gives its call no place in line."""
        if self._cleanings:
            self._loose.add(entry.call)

    def ended(self, record: Record, entry: UndoDone | UndoFailed | UndoUnknown) -> None:
        """An attempt ends."""
        if self.ledger.undoing != (entry.call, entry.action):
            text = f"{type(entry).__name__} of {entry.call}, which was not being cleaned up."
            self.report("I30", record.seq, text)
        elif (cleaning := self._cleanings.get((entry.call, entry.action))) is not None:
            cleaning.done = isinstance(entry, UndoDone)
            cleaning.final = isinstance(entry, UndoFailed) and entry.final

    def gave_up(self, record: Record, entry: UndoGaveUp) -> None:
        """Only after all attempts, after a final one, or where none may be made."""
        cleaning = self._cleanings.setdefault((entry.call, entry.action), Cleaning())
        made = self.ledger.calls.get(entry.call)
        known = made is None or made.stage == "done" or made.traits.undo_unknown
        owed = not cleaning.final and cleaning.attempts < self._attempts_max()
        if (known or entry.action == "release") and owed:
            self.report(
                "I30",
                record.seq,
                f"The {entry.action} of {made or entry.call} was given up after "
                f"{cleaning.attempts} of {self._attempts_max()} attempts.",
            )
        cleaning.gave_up = True

    def _attempts_max(self) -> int:
        spec = self.ledger.spec
        return spec.undo_attempts if spec is not None else 0

    # ── the report ────────────────────────────────────────────────────────────────────────

    def cancelled(self, record: Record, entry: RunCancelled) -> None:
        """Everything in the undo set is undone or listed; nothing held is kept."""
        for made in self.ledger.calls.values():
            if made.traits.undo and self._wanted(made):
                self._clean(record, made, "undo")
        self._released(record)
        listed = {(residue.call, residue.action) for residue in entry.residue}
        left = {key for key, cleaning in self._cleanings.items() if cleaning.gave_up}
        for call, action in sorted(listed ^ left):
            listed_only = (call, action) in listed
            what = "is listed, but was not given up" if listed_only else "is not listed"
            text = f"The residue is wrong: the {action} of {call} {what}."
            self.report("I30", record.seq, text)

    def completed(self, record: Record, _: RunCompleted) -> None:
        """Nothing held is kept, however the run ends."""
        self._released(record)

    def _released(self, record: Record) -> None:
        for made in self.ledger.calls.values():
            child = made.kind == "child" and made.stage != "done" and made.attempt > 0
            held = made.traits.release and (made.touched or made.id in self._doomed)
            if child or held:
                self._clean(record, made, "release")

    def _wanted(self, made: Made) -> bool:
        """Tell whether the cancel wants `made` undone, as far as is known now."""
        cancel = self.ledger.cancel
        if cancel is None:
            return False
        if made.kind == "child":  # one that this cancel has to end undoes as it is ended
            over = self._was_released(made) and made.id not in self._doomed
            return cancel.undo == "all" and (made.stage == "done" or over)
        return made.id in self._doomed or (made.touched and cancel.undo == "all")

    def _clean(self, record: Record, made: Made, action: Action) -> None:
        cleaning = self._cleanings.get((made.id, action))
        if cleaning is not None and (cleaning.done or cleaning.gave_up):
            return
        # A doubt that a later attempt seemed to end has a name of its own.
        sticky = action == "undo" and made.doubted and made.stage not in {"unknown", "done"}
        end = type(record.entry).__name__
        self.report(
            "I18" if sticky else "I28",
            record.seq,
            f"{made} may have happened, and its {action} was neither done nor given up "
            f"before {end}.",
        )

    ARMS = arms(
        {
            CancelRequested: cancel,
            UndoRetried: retried,
            UndoStarted: started,
            UndoDone: ended,
            UndoFailed: ended,
            UndoUnknown: ended,
            UndoGaveUp: gave_up,
            LateResult: late,
            RunCancelled: cancelled,
            RunCompleted: completed,
        }
    )


def _declared(made: Made, action: Action) -> bool:
    """Tell whether there is such a cleanup: a child run is held whatever its tool says."""
    if action == "undo":
        return made.traits.undo
    return made.traits.release or made.kind == "child"
