"""Check undo and release: complete, in order, or listed (I18, I19, I28, I29, I30).

Every call of the undo set that may have had an effect is undone before the run is cancelled, in
reverse order of the calls' ends. An undo that failed for good is listed as residue.
"""

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
    """Progress of the undo, or the release, of one call."""

    __slots__ = ("attempts", "done", "final", "gave_up")

    def __init__(self) -> None:
        self.attempts = 0
        self.done = False
        self.final = False  # the last attempt may still be running
        self.gave_up = False


class Undoing(Watch):
    """Checks undo and release, from the first attempt to the end of the run."""

    __slots__ = ("_cleanings", "_doomed", "_last", "_last_seq", "_loose")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._cleanings: dict[tuple[str, Action], Cleaning] = {}
        self._doomed: frozenset[str] = frozenset()  # unfinished calls at the cancel
        self._last: tuple[int, Made] | None = None  # last call cleaned up, with its end
        self._last_seq = 0  # seq at which that cleanup started
        self._loose: set[str] = set()  # calls with a late result after cleanups had begun

    def cancel(self, _: Record, __: CancelRequested) -> None:
        """Fix the undo set: the calls that are in flight, aborted or unknown now."""
        self._doomed = frozenset(
            call.id for call in self.ledger.calls.values() if self._unfinished(call)
        )
        self._last = None

    def _unfinished(self, made: Made) -> bool:
        """Tell whether a call has started and not ended.

        A child run outlives its call; it has ended when it was released.
        """
        if made.kind != "child" or made.flying:
            return made.unfinished
        ended = self._was_released(made) or self.ledger.undoing == (made.id, "release")
        return made.attempt > 0 and made.stage != "done" and not ended

    def _was_released(self, made: Made) -> bool:
        cleaning = self._cleanings.get((made.id, "release"))
        return cleaning is not None and cleaning.done

    def retried(self, _: Record, __: UndoRetried) -> None:
        """Reset the cleanups that were given up: they get all their attempts again."""
        for key, cleaning in self._cleanings.items():
            if cleaning.gave_up:
                self._cleanings[key] = Cleaning()
        self._last = None

    # ── one undo ──────────────────────────────────────────────────────────────────────────

    def started(self, record: Record, entry: UndoStarted) -> None:
        """Check that an attempt may start: one at a time, wanted, and in order."""
        call = self.ledger.calls.get(entry.call)
        action = f"The {entry.action} of {call or entry.call}"
        if call is None or not call.attempt or not _declared(call, entry.action):
            self.report("I30", record.seq, f"{action} was started, but the call has none.")
            return
        if self.ledger.undoing is not None:
            other = " of ".join(reversed(self.ledger.undoing))
            text = f"{action} was started while the {other} was not over."
            self.report("I30", record.seq, text)
        cleaning = self._cleanings.setdefault((entry.call, entry.action), Cleaning())
        if cleaning.done or cleaning.gave_up:
            over = "succeeded" if cleaning.done else "been given up"
            self.report("I30", record.seq, f"{action} was started after it had {over}.")
        elif cleaning.final:
            text = f"{action} was started although the last attempt did not stop."
            self.report("I30", record.seq, text)
        if entry.attempt != cleaning.attempts + 1:
            text = f"{action} is attempt {entry.attempt} after {cleaning.attempts} attempts."
            self.report("I19", record.seq, text)
        if entry.attempt > self._attempts_max():
            text = f"{action} is attempt {entry.attempt} of at most {self._attempts_max()}."
            self.report("I30", record.seq, text)
        # A late result may show only after the cancel that a call had an effect. Such a call is
        # not in the undo set that was fixed at the cancel.
        late = self.ledger.cancel is not None and call.unfinished
        if entry.action == "undo" and not (late or self._wanted(call)):
            text = f"{action} was started, but no cancel requires it."
            self.report("I28", record.seq, text)
        # Only the first attempt has a place in the order; retries may come at any time.
        if not cleaning.attempts:
            self._in_order(record, entry, call)
        cleaning.attempts = entry.attempt

    def _in_order(self, record: Record, entry: UndoStarted, made: Made) -> None:
        """Check the order of the cleanups: the call that ended last is cleaned up first.

        A call that ended after the previous cleanup had started is exempt: at that time it
        could not be cleaned up yet.
        """
        if self.ledger.flying:
            names = ", ".join(map(str, self.ledger.flying.values()))
            text = f"The {entry.action} of {made} was started while {names} was in flight."
            self.report("I29", record.seq, text)
        if made.id in self._loose:
            return
        if made.kind == "child" and (made.sealed or self._given_up(made)):
            return  # the run goes on without this child, which is ended at once, in any order
        if self._last is not None and self._last[0] < made.closed < self._last_seq:
            text = (
                f"The {entry.action} of {made}, which ended at {made.closed}, came after that "
                f"of {self._last[1]}, which had ended before it, at {self._last[0]}."
            )
            self.report("I29", record.seq, text)
        self._last, self._last_seq = (made.closed, made), record.seq

    def _given_up(self, made: Made) -> bool:
        """Tell whether the run goes on without the call: it was given up, not the run."""
        return self.ledger.cancel is None and made.stage in {"aborted", "unknown"}

    def late(self, _: Record, entry: LateResult) -> None:
        """Exempt a call from the order if its late result comes after cleanups began."""
        if self._cleanings:
            self._loose.add(entry.call)

    def ended(self, record: Record, entry: UndoDone | UndoFailed | UndoUnknown) -> None:
        """Check that the attempt that ends was in flight, and record its outcome."""
        if self.ledger.undoing != (entry.call, entry.action):
            text = f"{type(entry).__name__} of {entry.call}, which was not being cleaned up."
            self.report("I30", record.seq, text)
        elif (cleaning := self._cleanings.get((entry.call, entry.action))) is not None:
            cleaning.done = isinstance(entry, UndoDone)
            cleaning.final = isinstance(entry, UndoFailed) and entry.final

    def gave_up(self, record: Record, entry: UndoGaveUp) -> None:
        """Check that attempts were made before giving up.

        Giving up is right after all attempts, after one that did not stop, or for the undo of a
        call with an unknown outcome that its tool does not want undone.
        """
        cleaning = self._cleanings.setdefault((entry.call, entry.action), Cleaning())
        call = self.ledger.calls.get(entry.call)
        known = call is None or call.stage == "done" or call.traits.undo_unknown
        owed = not cleaning.final and cleaning.attempts < self._attempts_max()
        if (known or entry.action == "release") and owed:
            self.report(
                "I30",
                record.seq,
                f"The {entry.action} of {call or entry.call} was given up after "
                f"{cleaning.attempts} of {self._attempts_max()} attempts.",
            )
        cleaning.gave_up = True

    def _attempts_max(self) -> int:
        spec = self.ledger.spec
        return spec.undo_attempts if spec is not None else 0

    # ── the end of the run ────────────────────────────────────────────────────────────────

    def cancelled(self, record: Record, entry: RunCancelled) -> None:
        """Check that all undos and releases are done or given up, and the residue is right."""
        for call in self.ledger.calls.values():
            if call.traits.undo and self._wanted(call):
                self._clean(record, call, "undo")
        self._released(record)
        # The residue must list exactly the cleanups that were given up.
        listed = {(residue.call, residue.action) for residue in entry.residue}
        given_up = {key for key, cleaning in self._cleanings.items() if cleaning.gave_up}
        for call_id, action in sorted(listed ^ given_up):
            listed_only = (call_id, action) in listed
            what = "is listed, but was not given up" if listed_only else "is not listed"
            text = f"The residue is wrong: the {action} of {call_id} {what}."
            self.report("I30", record.seq, text)

    def completed(self, record: Record, _: RunCompleted) -> None:
        """Check that all held resources are released when the run completes."""
        self._released(record)

    def _released(self, record: Record) -> None:
        for call in self.ledger.calls.values():
            # A child run that was started and has not completed must be ended. A tool's release
            # is needed if the call may have taken its resource.
            child = call.kind == "child" and call.stage != "done" and call.attempt > 0
            held = call.traits.release and (call.touched or call.id in self._doomed)
            if child or held:
                self._clean(record, call, "release")

    def _wanted(self, made: Made) -> bool:
        """Tell whether the cancel requires the undo of a call, by the entries so far."""
        cancel = self.ledger.cancel
        if cancel is None:
            return False
        # A child that this cancel must end is itself cancelled, and undoes its own work. Only a
        # child that had ended before needs an undo from its parent.
        if made.kind == "child":
            over = self._was_released(made) and made.id not in self._doomed
            return cancel.undo == "all" and (made.stage == "done" or over)
        return made.id in self._doomed or (made.touched and cancel.undo == "all")

    def _clean(self, record: Record, made: Made, action: Action) -> None:
        cleaning = self._cleanings.get((made.id, action))
        if cleaning is not None and (cleaning.done or cleaning.gave_up):
            return
        # An unknown attempt stays in doubt even if a later attempt failed or was aborted. That
        # rule has its own invariant, I18.
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
    """Tell whether the call has this cleanup; a child run always has a release."""
    if action == "undo":
        return made.traits.undo
    return made.traits.release or made.kind == "child"
