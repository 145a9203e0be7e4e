"""Asks: decided once, by who may, for what was shown (I24, I25)."""

from hashlib import sha256

import msgspec

from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    AskOpened,
    CallStarted,
    Record,
    RedirectApplied,
    RedirectClosed,
    RedirectRequested,
    RunCancelled,
    RunCompleted,
    RunImported,
    RunResumed,
)
from midrun.core.values import Json
from midrun.verify.checks import Problem, Watch, arms
from midrun.verify.ledger import Ledger, Made, Posed


def hash_of(args: Json) -> str:
    """Return what an approval of these arguments must be bound to."""
    return sha256(msgspec.json.encode(args, order="sorted")).hexdigest()[:32]


class Asks(Watch):
    """Watches every ask, and every start that needs one."""

    __slots__ = ("_applied", "_approvals", "_redirects")

    def __init__(self, ledger: Ledger, found: list[Problem]) -> None:
        super().__init__(ledger, found)
        self._redirects: set[int] = set()  # instructions that wait for their boundary
        self._applied = 0  # seq of the last one that took effect
        self._approvals: dict[str, tuple[int, AskAnswered]] = {}

    def opened(self, record: Record, entry: AskOpened) -> None:
        """Ids of asks are counted, as those of calls are."""
        expected = f"a{len(self.ledger.asks) + 1}"
        if entry.ask != expected:
            text = f"An ask was opened as {entry.ask}; the next one of the run is {expected}."
            self.report("I19", record.seq, text)

    def answered(self, record: Record, entry: AskAnswered) -> None:
        """The first decision counts, and there is no second one."""
        ask = self._open(record, entry.ask, "answered")
        if ask is None:
            return
        self._principal(record, entry, ask)
        approved = ask.kind == "approval" and entry.decision.choice == "approve"
        if approved and not ask.is_edited(entry):  # an edit is for another person to approve
            self._approvals[ask.entry.ask] = (record.seq, entry)

    def closed(self, record: Record, entry: AskClosed) -> None:
        """An ask is closed once."""
        self._open(record, entry.ask, "closed")

    def _open(self, record: Record, ask_: str, what: str) -> Posed | None:
        ask = self.ledger.asks.get(ask_)
        if ask is not None and ask.open:
            return ask
        why = "was closed already" if ask is not None else "was never opened"
        self.report("I24", record.seq, f"{ask_} was {what}, but it {why}.")
        return None

    def _principal(self, record: Record, entry: AskAnswered, ask: Posed) -> None:
        audience = ask.entry.audience
        made = self.ledger.calls.get(ask.call)
        steered_by = {*ask.entry.excluded, *(made.steered_by if made is not None else ())}
        if audience not in {"", entry.role, f"user:{entry.by}"}:
            text = f"{entry.ask} is for {audience}, but {entry.by} ({entry.role}) decided it."
            self.report("I25", record.seq, text)
        elif ask.entry.four_eyes and entry.by in steered_by:
            text = f"{entry.ask} needs another person: {entry.by} steered or imported it."
            self.report("I25", record.seq, text)

    def ended(self, record: Record, entry: RunCompleted | RunCancelled) -> None:
        """Nobody is asked about a run that is over."""
        for ask in self.ledger.open_asks:
            text = f"{ask} was open at {type(entry).__name__}."
            self.report("I24", record.seq, text)

    def started(self, record: Record, entry: CallStarted) -> None:
        """A call that needs a person's yes cites one that holds."""
        made = self.ledger.calls.get(entry.call)
        if made is None or not made.traits.approve:
            return
        if problem := self._unapproved(record, entry, made):
            self.report("I25", record.seq, f"{made} was started, but {problem}.")

    def _unapproved(self, record: Record, entry: CallStarted, made: Made) -> str:
        """Return why the approval that a start cites does not cover it, or "" if it does."""
        if entry.approval is None:
            return "it needs an approval and cites none"
        ask_ = entry.approval.ask
        ask = self.ledger.asks.get(ask_)
        approved = self._approvals.get(ask_)
        if ask is None or approved is None:
            return f"nobody approved {ask_}, which it cites"
        since, answer = approved
        if ask.call != made.id:
            return f"{ask_}, which it cites, was about {ask.call}"
        if entry.approval.args_hash != answer.args_hash or answer.args_hash != hash_of(
            made.args
        ):
            return f"{ask_} approved other arguments"
        if ask.entry.expires is not None and record.at > ask.entry.expires:
            return f"{ask_} had expired"
        if self._applied > since or any(seq > since for seq in self._redirects):
            return f"the run was redirected after {ask_} had been approved"
        return ""

    def imported(self, _: Record, __: RunImported) -> None:
        """Approvals that came with a checkpoint cover no start after it."""
        self._approvals.clear()

    def redirected(self, record: Record, _: RedirectRequested) -> None:
        """A new instruction waits."""
        self._redirects.add(record.seq)

    def resumed(self, record: Record, entry: RunResumed) -> None:
        """An instruction may come with the resume."""
        if entry.instruction:
            self._redirects.add(record.seq)

    def applied(self, record: Record, entry: RedirectApplied) -> None:
        """What was approved for the old course no longer counts."""
        self._redirects.discard(entry.redirect)
        self._applied = record.seq

    def withdrawn(self, _: Record, entry: RedirectClosed) -> None:
        """An instruction that was taken back changed nothing."""
        self._redirects.discard(entry.redirect)

    ARMS = arms(
        {
            AskOpened: opened,
            AskAnswered: answered,
            AskClosed: closed,
            RunCompleted: ended,
            RunCancelled: ended,
            CallStarted: started,
            RunImported: imported,
            RedirectRequested: redirected,
            RunResumed: resumed,
            RedirectApplied: applied,
            RedirectClosed: withdrawn,
        }
    )
