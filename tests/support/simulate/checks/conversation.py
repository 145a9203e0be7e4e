"""Checks of prompts, held topics, messages, queued approvals, child asks and take-overs.

The journal is folded once more, entry by entry. Most of these rules are decisions that have no
invariant number.
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
from midrun.core.state import State
from midrun.core.transcript import CONDENSE_KEEP_MESSAGES, Transcript
from midrun.core.values import Phase
from tests.support.simulate.checks import Violation
from tests.support.simulate.environment import Environment


def check_conversation(env: Environment, records: list[Record]) -> None:
    """Check the conversation of a run that has ended.

    Raises:
        Violation: the first rule that is broken.
    """
    state, resumed = State(run=env.journal.run), _ResumedTopic()
    for record, following in _iter_pairs(records):
        entry, before = record.entry, state
        state = evolve(before, entry, record.at)
        resumed.apply(state, entry)
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


# ── prompts ───────────────────────────────────────────────────────────────────────────────


def _check_prompt(state: State, entry: CallStarted) -> None:
    """Check that a prompt fits the window and keeps task, instruction and held topics."""
    spec = state.run_started
    fresh = len(state.messages) - state.condensed_count
    full = 0 < spec.window < state.prompt_tokens and fresh > CONDENSE_KEEP_MESSAGES
    if entry.purpose == "step" and full:
        raise Violation("PROMPT", f"{entry.call} gets {fresh} messages, but its window is full")
    if not state.condensed_count:
        return
    prompt = "\n".join(turn.text for turn in Transcript(state))
    required = [spec.task, state.instruction, *(frame.goal for frame in state.frames)]
    if lost := [text for text in required if text not in prompt]:
        raise Violation("PROMPT", f"the prompt of {entry.call} lacks {lost[0]!r}")


def _check_condensed_history(state: State, entry: HistoryCondensed) -> None:
    """Check that a summary is complete and replaces only older messages."""
    call = state.find_call(entry.call)
    if call is None or call.purpose != "condense" or call.stage != "done":
        raise Violation(
            "PROMPT", f"{entry.call} condensed the history, but is not a summary call"
        )
    if (
        not state.condensed_count
        < entry.message_count
        <= len(state.messages) - CONDENSE_KEEP_MESSAGES
    ):
        raise Violation("PROMPT", f"{entry.call} condensed up to {entry.message_count}")
    if not entry.summary.strip():
        raise Violation("PROMPT", f"{entry.call} condensed the history to nothing")


# ── held topics and messages ──────────────────────────────────────────────────────────────


class _ResumedTopic:
    """The prefix that the next reply must have after a held topic was resumed."""

    __slots__ = ("prefix", "seq")

    def __init__(self) -> None:
        self.prefix = ""
        self.seq = 0

    def apply(self, after: State, entry: Entry) -> None:
        """Remember the prefix of a resumed topic, and check the first reply after it."""
        if isinstance(entry, FrameResumed | FrameReconstructed):
            self.prefix, self.seq = entry.text, after.seq
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
            raise Violation(
                "I36", f"the reply of {entry.call} lacks the prefix {self.prefix!r}"
            )
        self.prefix = ""


def _check_not_later(state: State, seq: int) -> None:
    """Check that a message with urgency "later" suspends no topic (decision 18)."""
    if any(p.seq == seq and p.urgency == "later" for p in state.pending):
        raise Violation("LATER", f"the message at {seq} is for later, but suspended a topic")


def _check_wakeup(state: State, entry: MessageReceived, following: Entry | None) -> None:
    """Check that a side question wakes a run that waits (decision 9)."""
    waits = state.phase is Phase.WAITING and entry.due is None and entry.urgency != "later"
    room = len(state.frames) < state.run_started.frame_depth
    if waits and room and not isinstance(following, RunWoken):
        raise Violation("SIDE", "a side question did not wake a run that waits")


# ── asks, children, take-overs ────────────────────────────────────────────────────────────


def _check_queued_approval(state: State, entry: AskOpened) -> None:
    """Check that a queued approval does not block the agent (decision 17)."""
    call = state.find_call(entry.call)
    if call is not None and entry.blocking is not (call.traits.approve == "block"):
        raise Violation("QUEUE", f"{entry.ask} is blocking: {entry.blocking}")


def _check_child_asks(state: State) -> None:
    """Check that no model call starts while a child of the active topic asks (decision 20)."""
    parked = {n for frame in state.frames for n in frame.parked_calls}
    for number in state.open_asks:
        ask = state.asks[number - 1]
        call = state.find_call(ask.call)
        if ask.ask_kind == "child" and call is not None and call.number not in parked:
            raise Violation("CHILD", f"the agent continues while its child waits for {ask.id}")


def _check_hand_back(state: State, entry: HandedBack) -> None:
    """Check that the person who took over, or an operator, hands back (decision 23)."""
    if entry.by != state.taken_over_by and entry.role != "operator":
        raise Violation(
            "TAKEOVER", f"{entry.by} handed back the take-over of {state.taken_over_by}"
        )


def _check_review_outcomes(state: State, records: list[Record]) -> None:
    """Check that the agent gets the outcome of each queued call once.

    A late result is a new outcome, and the agent gets it as well.
    """
    delivered = Counter(call for m in state.messages if m.kind == "outcome" for call in m.calls)
    late = Counter(r.entry.call for r in records if isinstance(r.entry, LateResult))
    for call in state.calls:
        if call.deferred_review and not 1 <= delivered[call.id] <= 1 + late[call.id]:
            raise Violation(
                "OUTCOMES", f"the outcome of {call.id} was delivered {delivered[call.id]} times"
            )
