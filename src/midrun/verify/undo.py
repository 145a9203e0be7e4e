"""Check undo and release: complete, in order, or listed (I18, I19, I28, I29, I30).

Every call of the undo set that may have had an effect is undone before the run is cancelled, in
reverse order of the calls' ends. An undo that failed for good is listed as residue.
"""

from dataclasses import dataclass

from midrun.core import entries as e
from midrun.core.values import CleanupAction
from midrun.verify.checks import JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger, LedgerCall


@dataclass(slots=True)
class CleanupProgress:
    """Progress of the undo, or the release, of one call."""

    attempts: int = 0
    is_done: bool = False
    may_still_run: bool = False  # the last attempt may still be running
    was_given_up: bool = False


class UndoCheck(JournalCheck):
    """Checks undo and release, from the first attempt to the end of the run."""

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._cleanups: dict[tuple[str, CleanupAction], CleanupProgress] = {}
        self._undo_set: frozenset[str] = frozenset()  # unfinished calls at the cancel
        # The end of the last call that was cleaned up, and the call.
        self._last_cleaned: tuple[int, LedgerCall] | None = None
        self._last_cleaned_at = 0  # seq at which that cleanup started
        # Calls with a late result after cleanups had begun.
        self._exempt_from_order: set[str] = set()

    def apply_cancel_requested(self, _: e.Record, __: e.CancelRequested) -> None:
        """Fix the undo set: the calls that are in flight, aborted or unknown now."""
        self._undo_set = frozenset(
            call.id for call in self.ledger.calls.values() if self._is_unfinished(call)
        )
        self._last_cleaned = None

    def _is_unfinished(self, call: LedgerCall) -> bool:
        """Tell whether a call has started and not ended.

        A child run outlives its call; it has ended when it was released.
        """
        if call.kind != "child" or call.in_flight:
            return call.is_unfinished
        ended = self._is_released(call) or self.ledger.undo_in_flight == (call.id, "release")
        return call.attempt > 0 and call.stage != "done" and not ended

    def _is_released(self, call: LedgerCall) -> bool:
        cleaning = self._cleanups.get((call.id, "release"))
        return cleaning is not None and cleaning.is_done

    def apply_undo_retried(self, _: e.Record, __: e.UndoRetried) -> None:
        """Reset the cleanups that were given up: they get all their attempts again."""
        for key, cleaning in self._cleanups.items():
            if cleaning.was_given_up:
                self._cleanups[key] = CleanupProgress()
        self._last_cleaned = None

    # ── one undo ──────────────────────────────────────────────────────────────────────────

    def check_undo_started(self, record: e.Record, entry: e.UndoStarted) -> None:
        """Check that an attempt may start: one at a time, wanted, and in order."""
        call = self.ledger.calls.get(entry.call)
        action = f"The {entry.action} of {call or entry.call}"
        if call is None or not call.attempt or not _has_cleanup(call, entry.action):
            self.report("I30", record.seq, f"{action} was started, but the call has none.")
            return
        if self.ledger.undo_in_flight is not None:
            other = " of ".join(reversed(self.ledger.undo_in_flight))
            text = f"{action} was started while the {other} was not over."
            self.report("I30", record.seq, text)
        cleaning = self._cleanups.setdefault((entry.call, entry.action), CleanupProgress())
        if cleaning.is_done or cleaning.was_given_up:
            over = "succeeded" if cleaning.is_done else "been given up"
            self.report("I30", record.seq, f"{action} was started after it had {over}.")
        elif cleaning.may_still_run:
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
        late = self.ledger.cancel_entry is not None and call.is_unfinished
        if entry.action == "undo" and not (late or self._must_undo(call)):
            text = f"{action} was started, but no cancel requires it."
            self.report("I28", record.seq, text)
        # Only the first attempt has a place in the order; retries may come at any time.
        if not cleaning.attempts:
            self._check_order(record, entry, call)
        cleaning.attempts = entry.attempt

    def _check_order(self, record: e.Record, entry: e.UndoStarted, call: LedgerCall) -> None:
        """Check the order of the cleanups: the call that ended last is cleaned up first.

        A call that ended after the previous cleanup had started is exempt: at that time it
        could not be cleaned up yet.
        """
        if self.ledger.calls_in_flight:
            names = ", ".join(map(str, self.ledger.calls_in_flight.values()))
            text = f"The {entry.action} of {call} was started while {names} was in flight."
            self.report("I29", record.seq, text)
        if call.id in self._exempt_from_order:
            return
        if call.kind == "child" and (call.closed_unmade or self._is_given_up(call)):
            return  # the run continues without this child, which is ended at once, in any order
        if (
            self._last_cleaned is not None
            and self._last_cleaned[0] < call.ended_at < self._last_cleaned_at
        ):
            text = (
                f"The {entry.action} of {call}, which ended at {call.ended_at}, came "
                "after that "
                f"of {self._last_cleaned[1]}, which had ended before it, at "
                f"{self._last_cleaned[0]}."
            )
            self.report("I29", record.seq, text)
        self._last_cleaned, self._last_cleaned_at = (call.ended_at, call), record.seq

    def _is_given_up(self, call: LedgerCall) -> bool:
        """Tell whether the run continues without the call: it was given up, not the run."""
        return self.ledger.cancel_entry is None and call.stage in {"aborted", "unknown"}

    def apply_late_result(self, _: e.Record, entry: e.LateResult) -> None:
        """Exempt a call from the order if its late result comes after cleanups began."""
        if self._cleanups:
            self._exempt_from_order.add(entry.call)

    def check_undo_ended(
        self, record: e.Record, entry: e.UndoDone | e.UndoFailed | e.UndoUnknown
    ) -> None:
        """Check that the attempt that ends was in flight, and record its outcome."""
        if self.ledger.undo_in_flight != (entry.call, entry.action):
            text = f"{type(entry).__name__} of {entry.call}, which was not being cleaned up."
            self.report("I30", record.seq, text)
        elif (cleaning := self._cleanups.get((entry.call, entry.action))) is not None:
            cleaning.is_done = isinstance(entry, e.UndoDone)
            cleaning.may_still_run = isinstance(entry, e.UndoFailed) and entry.final

    def check_undo_gave_up(self, record: e.Record, entry: e.UndoGaveUp) -> None:
        """Check that attempts were made before giving up.

        Giving up is right after all attempts, after one that did not stop, or for the undo of a
        call with an unknown outcome that its tool does not want undone.
        """
        cleaning = self._cleanups.setdefault((entry.call, entry.action), CleanupProgress())
        call = self.ledger.calls.get(entry.call)
        known = call is None or call.stage == "done" or call.traits.undo_unknown
        owed = not cleaning.may_still_run and cleaning.attempts < self._attempts_max()
        if (known or entry.action == "release") and owed:
            self.report(
                "I30",
                record.seq,
                f"The {entry.action} of {call or entry.call} was given up after "
                f"{cleaning.attempts} of {self._attempts_max()} attempts.",
            )
        cleaning.was_given_up = True

    def _attempts_max(self) -> int:
        spec = self.ledger.started_entry
        return spec.undo_attempts if spec is not None else 0

    # ── the end of the run ────────────────────────────────────────────────────────────────

    def check_run_cancelled(self, record: e.Record, entry: e.RunCancelled) -> None:
        """Check that all undos and releases are done or given up, and the residue is right."""
        for call in self.ledger.calls.values():
            if call.traits.undo and self._must_undo(call):
                self._check_cleaned(record, call, "undo")
        self._check_releases(record)
        # The residue must list exactly the cleanups that were given up.
        listed = {(residue.call, residue.action) for residue in entry.residue}
        given_up = {key for key, cleaning in self._cleanups.items() if cleaning.was_given_up}
        for call_id, action in sorted(listed ^ given_up):
            listed_only = (call_id, action) in listed
            what = "is listed, but was not given up" if listed_only else "is not listed"
            text = f"The residue is wrong: the {action} of {call_id} {what}."
            self.report("I30", record.seq, text)

    def check_run_completed(self, record: e.Record, _: e.RunCompleted) -> None:
        """Check that all held resources are released when the run completes."""
        self._check_releases(record)

    def _check_releases(self, record: e.Record) -> None:
        for call in self.ledger.calls.values():
            # A child run that was started and has not completed must be ended. A tool's release
            # is needed if the call may have taken its resource.
            child = call.kind == "child" and call.stage != "done" and call.attempt > 0
            held = call.traits.release and (call.may_have_effect or call.id in self._undo_set)
            if child or held:
                self._check_cleaned(record, call, "release")

    def _must_undo(self, call: LedgerCall) -> bool:
        """Tell whether the cancel requires the undo of a call, by the entries so far."""
        cancel = self.ledger.cancel_entry
        if cancel is None:
            return False
        # A child that this cancel must end is itself cancelled, and undoes its own work. Only a
        # child that had ended before needs an undo from its parent.
        if call.kind == "child":
            over = self._is_released(call) and call.id not in self._undo_set
            return cancel.undo == "all" and (call.stage == "done" or over)
        return call.id in self._undo_set or (call.may_have_effect and cancel.undo == "all")

    def _check_cleaned(self, record: e.Record, call: LedgerCall, action: CleanupAction) -> None:
        cleaning = self._cleanups.get((call.id, action))
        if cleaning is not None and (cleaning.is_done or cleaning.was_given_up):
            return
        # An unknown attempt stays in doubt even if a later attempt failed or was aborted. That
        # rule has its own invariant, I18.
        sticky = (
            action == "undo"
            and call.has_unknown_attempt
            and call.stage not in {"unknown", "done"}
        )
        end = type(record.entry).__name__
        self.report(
            "I18" if sticky else "I28",
            record.seq,
            f"{call} may have happened, and its {action} was neither done nor given up "
            f"before {end}.",
        )

    HANDLERS = merge_handlers(
        {
            e.CancelRequested: apply_cancel_requested,
            e.UndoRetried: apply_undo_retried,
            e.UndoStarted: check_undo_started,
            e.UndoDone: check_undo_ended,
            e.UndoFailed: check_undo_ended,
            e.UndoUnknown: check_undo_ended,
            e.UndoGaveUp: check_undo_gave_up,
            e.LateResult: apply_late_result,
            e.RunCancelled: check_run_cancelled,
            e.RunCompleted: check_run_completed,
        }
    )


def _has_cleanup(call: LedgerCall, action: CleanupAction) -> bool:
    """Tell whether the call has this cleanup; a child run always has a release."""
    if action == "undo":
        return call.traits.undo
    return call.traits.release or call.kind == "child"
