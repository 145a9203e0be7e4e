"""No thought is lost: what the model is given, what is said of held thoughts, who is told what.

The journal is folded once more, entry by entry, and held against what was decided about frames,
condensed histories, queued approvals and children; most of it has no number.
"""

from collections import Counter
from collections.abc import Iterator

from midrun.core.entries import (
    AskOpened,
    CallAborted,
    CallDone,
    CallFailed,
    CallStarted,
    Entry,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedBack,
    HistoryCondensed,
    LateResult,
    MessageReceived,
    Record,
    RunWoken,
)
from midrun.core.evolve import evolve
from midrun.core.scheduler import CONDENSE_KEEP_MESSAGES
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.core.values import Phase
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Environment


def check_conversation(env: Environment, records: list[Record]) -> None:
    """Check what was thought, said and told.

    Raises:
        Violation: the first thing that is not as decided.
    """
    state, back = State(run=env.desk.run), _ResumedTopic()
    for record, following in _iter_pairs(records):
        entry, before = record.entry, state
        state = evolve(before, entry, record.at)
        back.apply(state, entry)
        match entry:
            case CallStarted(call_kind="model", attempt=1):
                _check_prompt(before, entry)
                _check_child_asks(before)
            case HistoryCondensed():
                _check_condensed_history(before, entry)
            case FramePushed(message=seq):
                _check_not_later(before, seq)
            case MessageReceived():
                _check_wakeup(before, entry, following)
            case AskOpened(ask_kind="approval"):
                _check_queued_approval(before, entry)
            case HandedBack():
                _check_hand_back(before, entry)
            case _:
                continue
    _check_review_outcomes(state, records)


def _iter_pairs(records: list[Record]) -> Iterator[tuple[Record, Entry | None]]:
    """Yield each record with the entry after it."""
    for number, record in enumerate(records, 1):
        yield record, records[number].entry if number < len(records) else None


# ── what the model is given ───────────────────────────────────────────────────────────────


def _check_prompt(state: State, entry: CallStarted) -> None:
    """It is bounded, and holds what people asked for, however much was condensed."""
    spec = state.run_started
    fresh = len(state.messages) - state.condensed_count
    full = 0 < spec.window < state.prompt_tokens and fresh > CONDENSE_KEEP_MESSAGES
    if entry.purpose == "step" and full:
        raise Violation("VIEW", f"{entry.call} is given {fresh} messages of a full window")
    if not state.condensed_count:
        return
    given = "\n".join(turn.text for turn in Transcript(state))
    asked = [spec.task, state.instruction, *(frame.goal for frame in state.frames)]
    if lost := [text for text in asked if text not in given]:
        raise Violation("VIEW", f"{entry.call} is not given {lost[0]!r} any more")


def _check_condensed_history(state: State, entry: HistoryCondensed) -> None:
    """A summary stands for older messages, was asked for, and was made whole."""
    call = state.find_call(entry.call)
    if call is None or call.purpose != "condense" or call.stage != "done":
        raise Violation("VIEW", f"{entry.call} condensed the history, and is no summary")
    if not state.condensed_count < entry.upto <= len(state.messages) - CONDENSE_KEEP_MESSAGES:
        raise Violation("VIEW", f"{entry.call} condensed up to {entry.upto}")
    if not entry.summary.strip():
        raise Violation("VIEW", f"{entry.call} condensed the history to nothing")


# ── held thoughts, and messages ───────────────────────────────────────────────────────────


class _ResumedTopic:
    """What the next reply has to say: that a thought goes on; since when."""

    __slots__ = ("prefix", "seq")

    def __init__(self) -> None:
        self.prefix = ""
        self.seq = 0

    def apply(self, after: State, entry: Entry) -> None:
        """See what was said, and whether it is still to be said."""
        if isinstance(entry, FrameResumed | FrameReconstructed):
            self.prefix, self.seq = entry.words, after.seq
        elif isinstance(entry, FramePushed):
            self.prefix = ""
        elif self.prefix and isinstance(entry, CallDone | CallAborted | CallFailed):
            self._check_reply(after, entry)

    def _check_reply(self, after: State, entry: CallDone | CallAborted | CallFailed) -> None:
        call = after.find_call(entry.call)
        reply = entry.reply is not None if isinstance(entry, CallDone) else bool(entry.text)
        if call is None or not reply or call.purpose != "step" or call.seen_seq < self.seq:
            return
        last = after.messages[-1]
        if last.role == "assistant" and not last.text.startswith(self.prefix):
            raise Violation("I36", f"{entry.call} does not say {self.prefix!r}")
        self.prefix = ""


def _check_not_later(state: State, seq: int) -> None:
    """What can wait suspends nothing (decision 18)."""
    if any(p.seq == seq and p.urgency == "later" for p in state.pending):
        raise Violation("LATER", f"the message at {seq} could wait, and suspended a thought")


def _check_wakeup(state: State, entry: MessageReceived, following: Entry | None) -> None:
    """A run that waits is woken to answer a side question (decision 9)."""
    waits = state.phase is Phase.WAITING and entry.due is None and entry.urgency != "later"
    room = len(state.frames) < state.run_started.frame_depth
    if waits and room and not isinstance(following, RunWoken):
        raise Violation("ASIDE", "a run that waits was asked something, and goes on waiting")


# ── asks, children, a person at the wheel ─────────────────────────────────────────────────


def _check_queued_approval(state: State, entry: AskOpened) -> None:
    """The agent goes on while a queued approval is out (decision 17)."""
    call = state.find_call(entry.call)
    if call is not None and entry.blocking is not (call.traits.approve == "block"):
        raise Violation("QUEUE", f"{entry.ask} is blocking: {entry.blocking}")


def _check_child_asks(state: State) -> None:
    """Nobody thinks on while a child of this chain of thought asks something (decision 20)."""
    parked = {n for frame in state.frames for n in frame.parked_calls}
    for number in state.open_asks:
        ask = state.asks[number - 1]
        call = state.find_call(ask.call)
        if ask.ask_kind == "child" and call is not None and call.number not in parked:
            raise Violation("CHILD", f"the agent goes on, and its child waits for {ask.id}")


def _check_hand_back(state: State, entry: HandedBack) -> None:
    """Only who is at the wheel, or an operator, hands a run back (decision 23)."""
    if entry.by != state.operator_name and entry.role != "operator":
        raise Violation(
            "WHEEL", f"{entry.by} handed back what {state.operator_name} had taken over"
        )


def _check_review_outcomes(state: State, records: list[Record]) -> None:
    """The agent is told what became of a call that was queued for review; again only if new.

    Late evidence is: what was unknown, or given up, has happened.
    """
    told = Counter(call for m in state.messages if m.kind == "outcome" for call in m.calls)
    late = Counter(r.entry.call for r in records if isinstance(r.entry, LateResult))
    for call in state.calls:
        if call.deferred_review and not 1 <= told[call.id] <= 1 + late[call.id]:
            raise Violation("TOLD", f"the outcome of {call.id} was told {told[call.id]} times")
