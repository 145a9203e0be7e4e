"""Check controls: applied once, and honoured by later entries (I20, I21, I23, I32)."""

from hashlib import sha256

import msgspec

from midrun.core import entries as e
from midrun.core.values import Json
from midrun.verify.checks import REQUEST_KINDS, JournalCheck, Problem, merge_handlers
from midrun.verify.ledger import Ledger, LedgerAsk, LedgerCall

NOT_WHILE_CANCELLING = (
    e.PauseRequested,
    e.PauseWithdrawn,
    e.RedirectRequested,
    e.CancelRequested,
    e.MessageReceived,
    e.TakenOver,
    e.PersonWrote,
    e.ToolUseRequested,
    e.HandedBack,
)
"""Requests that are possible only while the run is not being cancelled."""


class ControlCheck(JournalCheck):
    """Checks requests: their ids, their place, and that a pause is honoured."""

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._request_seqs: dict[str, int] = {}  # request id → seq
        self._is_resting = False  # paused or failed, and not resumed since

    def check_request(self, record: e.Record, entry: e.RequestEntry) -> None:
        """Check that the request id was not applied before."""
        if not entry.request_id:
            return
        first = self._request_seqs.setdefault(entry.request_id, record.seq)
        if first != record.seq:
            text = f"Request {entry.request_id!r} was applied at {first} already."
            self.report("I20", record.seq, text)

    def check_interrupt(self, record: e.Record, entry: e.RequestEntry) -> None:
        """Check that no such request is accepted during a cancel; only a halt may stop it."""
        self.check_request(record, entry)
        # Entries after the end of a run are checked by `EndCheck` (I5).
        if self.ledger.cancelled_at and not self.ledger.end_phase:
            since = self.ledger.cancelled_at
            text = f"{type(entry).__name__} came after the cancel at {since}."
            self.report("I32", record.seq, text)

    def check_run_settled(self, record: e.Record, entry: e.RunCompleted | e.RunWaiting) -> None:
        """Check that the run did not complete or wait while a pause was in force."""
        if self.ledger.paused_at:
            pause = f"a pause was accepted at {self.ledger.paused_at}"
            text = f"{type(entry).__name__} although {pause} and the run was not resumed."
            self.report("I21", record.seq, text)

    def _apply_run_rests(self, _: e.Record, __: e.RunPaused | e.RunFailed) -> None:
        self._is_resting = True

    def check_run_resumed(self, record: e.Record, entry: e.RunResumed) -> None:
        """Check that the run had stopped since the last resume."""
        self.check_request(record, entry)
        if not self._is_resting:
            text = "The run was resumed, but it had not stopped since the last time."
            self.report("I23", record.seq, text)
        self._is_resting = False

    def _apply_run_woken(self, _: e.Record, __: e.RunWoken) -> None:
        self._is_resting = False

    HANDLERS = merge_handlers(
        dict.fromkeys(REQUEST_KINDS, check_request),
        dict.fromkeys(NOT_WHILE_CANCELLING, check_interrupt),
        {
            e.RunCompleted: check_run_settled,
            e.RunWaiting: check_run_settled,
            e.RunPaused: _apply_run_rests,
            e.RunFailed: _apply_run_rests,
            e.RunResumed: check_run_resumed,
            e.RunWoken: _apply_run_woken,
        },
    )


# Check asks: decided once, by an allowed actor, and approvals cover the call (I24, I25).


def hash_arguments(args: Json) -> str:
    """Return the hash of the arguments that an approval is bound to."""
    return sha256(msgspec.json.encode(args, order="sorted")).hexdigest()[:32]


class AskCheck(JournalCheck):
    """Checks every ask, and every start of a call that needs an approval."""

    def __init__(self, ledger: Ledger, problems: list[Problem]) -> None:
        super().__init__(ledger, problems)
        self._pending_redirects: set[int] = set()  # seqs of instructions to be applied
        self._redirect_applied_at = 0  # seq at which the last instruction was applied
        self._approvals: dict[str, tuple[int, e.AskAnswered]] = {}  # ask → seq, answer

    def check_ask_opened(self, record: e.Record, entry: e.AskOpened) -> None:
        """Check that the ask has the next id."""
        expected = f"a{len(self.ledger.asks) + 1}"
        if entry.ask != expected:
            text = f"An ask was opened as {entry.ask}; the next one of the run is {expected}."
            self.report("I19", record.seq, text)

    def check_ask_answered(self, record: e.Record, entry: e.AskAnswered) -> None:
        """Check that the ask is open and the actor allowed; record an approval."""
        ask = self._find_open(record, entry.ask, "answered")
        if ask is None:
            return
        self._check_decider(record, entry, ask)
        approved = ask.kind == "approval" and entry.decision.choice == "approve"
        if approved and not ask.is_edited(entry):  # an edit needs the approval of another actor
            self._approvals[ask.entry.ask] = (record.seq, entry)

    def check_ask_closed(self, record: e.Record, entry: e.AskClosed) -> None:
        """Check that the ask is open."""
        self._find_open(record, entry.ask, "closed")

    def _find_open(self, record: e.Record, ask_: str, what: str) -> LedgerAsk | None:
        ask = self.ledger.asks.get(ask_)
        if ask is not None and ask.is_open:
            return ask
        why = "was closed already" if ask is not None else "was never opened"
        self.report("I24", record.seq, f"{ask_} was {what}, but it {why}.")
        return None

    def _check_decider(self, record: e.Record, entry: e.AskAnswered, ask: LedgerAsk) -> None:
        audience = ask.entry.audience
        call = self.ledger.calls.get(ask.call)
        steered_by = {*ask.entry.excluded, *(call.steered_by if call is not None else ())}
        if audience not in {"", entry.role, f"user:{entry.by}"}:
            text = f"{entry.ask} is for {audience}, but {entry.by} ({entry.role}) decided it."
            self.report("I25", record.seq, text)
        elif ask.entry.four_eyes and entry.by in steered_by:
            text = f"{entry.ask} needs another actor: {entry.by} steered or imported it."
            self.report("I25", record.seq, text)

    def check_run_ended(self, record: e.Record, entry: e.RunCompleted | e.RunCancelled) -> None:
        """Check that no ask is open when the run ends."""
        for ask in self.ledger.open_asks:
            text = f"{ask} was open at {type(entry).__name__}."
            self.report("I24", record.seq, text)

    def check_call_started(self, record: e.Record, entry: e.CallStarted) -> None:
        """Check that a call that needs an approval cites a valid one."""
        call = self.ledger.calls.get(entry.call)
        if call is None or not call.traits.approve:
            return
        if problem := self._find_approval_problem(record, entry, call):
            self.report("I25", record.seq, f"{call} was started, but {problem}.")

    def _find_approval_problem(
        self, record: e.Record, entry: e.CallStarted, made: LedgerCall
    ) -> str:
        """Return the reason why the cited approval does not cover a start, or ""."""
        if entry.approval is None:
            return "it needs an approval and cites none"
        ask_ = entry.approval.ask
        ask = self.ledger.asks.get(ask_)
        approved = self._approvals.get(ask_)
        if ask is None or approved is None:
            return f"{ask_}, which it cites, was not approved"
        since, answer = approved
        if ask.call != made.id:
            return f"{ask_}, which it cites, was about {ask.call}"
        hashes = {entry.approval.args_hash, answer.args_hash, hash_arguments(made.args)}
        if len(hashes) > 1:
            return f"{ask_} approved other arguments"
        if ask.entry.expires is not None and record.at > ask.entry.expires:
            return f"{ask_} had expired"
        # An approval holds for the instruction under which it was given. A redirect after it,
        # pending or applied, makes it void; a withdrawn one has left `_pending_redirects`
        # again.
        if max(self._redirect_applied_at, *self._pending_redirects, 0) > since:
            return f"the run was redirected after {ask_} had been approved"
        return ""

    def apply_run_imported(self, _: e.Record, __: e.RunImported) -> None:
        """Forget the approvals before an import: this store did not witness them."""
        self._approvals.clear()

    def _apply_redirect_requested(self, record: e.Record, _: e.RedirectRequested) -> None:
        self._pending_redirects.add(record.seq)

    def _apply_run_resumed(self, record: e.Record, entry: e.RunResumed) -> None:
        if entry.instruction:
            self._pending_redirects.add(record.seq)

    def apply_redirect_applied(self, record: e.Record, entry: e.RedirectApplied) -> None:
        """Record that an instruction was applied: earlier approvals are void."""
        self._pending_redirects.discard(entry.redirect)
        self._redirect_applied_at = record.seq

    def _apply_redirect_closed(self, _: e.Record, entry: e.RedirectClosed) -> None:
        self._pending_redirects.discard(entry.redirect)

    HANDLERS = merge_handlers(
        {
            e.AskOpened: check_ask_opened,
            e.AskAnswered: check_ask_answered,
            e.AskClosed: check_ask_closed,
            e.RunCompleted: check_run_ended,
            e.RunCancelled: check_run_ended,
            e.CallStarted: check_call_started,
            e.RunImported: apply_run_imported,
            e.RedirectRequested: _apply_redirect_requested,
            e.RunResumed: _apply_run_resumed,
            e.RedirectApplied: apply_redirect_applied,
            e.RedirectClosed: _apply_redirect_closed,
        }
    )
