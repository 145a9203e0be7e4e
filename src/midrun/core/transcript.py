"""The transcript: the conversation of a run as a model receives it.

`Transcript` is a lazy sequence over the state's messages. A turn is built when it is read, so
the last turn of a long run costs as much as that of a short run.

Every call in a transcript has an outcome: a result, or a text that says why there is none.
Providers reject a conversation in which a call has no result.

The texts in this module are part of the prompt and of inherited histories. A change to them
changes the behaviour of agents.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Final, Literal, overload

import msgspec

from midrun.core.ids import parse_call_number
from midrun.core.journaled_text import WITHHELD_PREFIX, format_outcome_phrase, shorten_to_line
from midrun.core.state import CallStage, CallState, State
from midrun.core.values import CallResult, FileRef, Json, Message, Value

CONDENSE_KEEP_MESSAGES: Final = 8
"""The number of newest messages that stay in the prompt when the history is condensed."""

# Held topics in a prompt. Each adds a line to every prompt as long as it is held.
# The line has a maximum length whatever its goal is, and its tokens are counted per call.

CHARS_PER_TOKEN: Final = 4
"""Estimated characters per token. Providers differ."""

FRAME_MAX_TOKENS: Final = 60
"""Maximum number of tokens that one held topic adds to a prompt."""


HELD_PREFIX: Final = "Held: "
HELD_SUFFIX: Final = ". Answer this first; the run comes back to it."


def format_held_topic(goal: str) -> str:
    """Return the message that tells the model that a topic is held."""
    return f"{HELD_PREFIX}{shorten_to_line(goal)}{HELD_SUFFIX}"


def format_topic_reminder(goal: str) -> str:
    """Return the line about a held topic in a summary of the history."""
    return f"Held: {shorten_to_line(goal)}"


def estimate_frame_tokens(state: State) -> int:
    """Estimate how many tokens of the next prompt are due to held topics."""
    said = [format_held_topic(frame.goal) for frame in state.frames]
    if state.summary:
        said += [format_topic_reminder(frame.goal) for frame in state.frames]
    return sum(ceil(len(text) / CHARS_PER_TOKEN) for text in said)


__all__ = [
    "AWAITING_REVIEW_TEXT",
    "HELD_CALL_TEXT",
    "CallResult",
    "Transcript",
    "Turn",
    "format_summary",
    "make_final_result",
    "make_turn",
]

AWAITING_REVIEW_TEXT: Final = "proposed, awaiting review; the outcome will come as a message"
HELD_CALL_TEXT: Final = "not finished yet: it waits while another question is answered"


class Turn(Value, kw_only=True):
    """One message of the transcript; `uses` are an assistant's calls with their outcomes."""

    role: Literal["user", "assistant", "runtime"]
    text: str
    by: str = ""
    kind: str = ""
    thinking: str = ""
    uses: tuple[CallResult, ...] = ()
    interrupted: bool = False  # the model call was stopped in the middle of this text
    opaque: Json = None  # the message in the provider's own format
    files: tuple[FileRef, ...] = ()  # files of a user's text; `uses` have their own


class Transcript(Sequence[Turn]):
    """The turns of a run, oldest first, as a lazy sequence.

    `assistant_turn_count` is the number of the assistant's turns, condensed ones included; in
    a run with handoffs, of the turns of the agent that speaks.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.assistant_turn_count = state.agent_message_count
        if state.run_started.handoffs:
            self.assistant_turn_count = _count_own_turns(state)

    def __len__(self) -> int:
        kept = len(self._state.messages) - self._state.condensed_count
        return kept + bool(self._state.summary)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: "slice[int | None, int | None, int | None]") -> list[Turn]: ...
    def __getitem__(
        self, index: "int | slice[int | None, int | None, int | None]"
    ) -> Turn | list[Turn]:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(len(self)))]
        place = range(len(self))[index]  # handles negative indexes; raises IndexError
        state = self._state
        if state.summary:
            if not place:
                return Turn(role="runtime", text=format_summary(state), kind="summary")
            place -= 1
        return make_turn(state, state.messages[state.condensed_count + place])

    # A host keeps the converted messages of the last step, and converts only the turns that are
    # new or have changed: a call that was open then may have its outcome now.
    def count_same_turns(self, earlier: "Transcript") -> int:
        """Count the first turns that are the same in an earlier transcript of the run.

        Turns are compared by the objects that they are made of: a turn that was read from the
        store again counts as changed. The cost does not depend on the length of the texts.
        """
        mine, others = self._state, earlier._state  # noqa: SLF001 - of the same class
        if mine.condensed_count != others.condensed_count or mine.summary != others.summary:
            return 0
        if mine.summary and format_summary(mine) != format_summary(others):
            return 0
        # A `Vector` shares the unchanged part of its tree with older versions, so the common
        # beginning is found by comparing references, not texts.
        shared = mine.messages.count_shared(others.messages)
        calls = mine.calls.count_shared(others.calls)
        # A turn shows the outcomes of its calls, so a message has changed if one of its calls
        # has. Find the first such message, from the newest message backwards. A message has
        # calls that are newer than those of all messages before it, except for the late outcome
        # of an earlier call. So the search ends at an unchanged message with calls of its own,
        # and does not take longer in a longer run.
        same = shared
        for at in range(shared - 1, mine.condensed_count - 1, -1):
            message = mine.messages[at]
            if not message.calls:
                continue
            if max(map(parse_call_number, message.calls)) > calls:
                same = at
            elif message.kind != "outcome":
                break
        return max(same - mine.condensed_count, 0) + bool(mine.summary)

    @property
    def has_files(self) -> bool:
        """Whether some turn may have files."""
        return self._state.has_files

    def read_backwards(self) -> Iterator[Turn]:
        """Yield all turns, newest first, also those that the summary replaces in a prompt.

        A host finds the latest fact about its agent here, as the agent that has taken over.
        """
        messages = self._state.messages
        return (make_turn(self._state, messages[n]) for n in reversed(range(len(messages))))


def _count_own_turns(state: State) -> int:
    own = "" if state.speaker is None else state.speaker.agent
    return sum(
        message.role == "assistant" and message.kind != "person" and message.agent == own
        for message in state.messages
    )


def format_summary(state: State) -> str:
    """Return the text that replaces the condensed messages.

    Task, instruction, plan and held topics come first, word for word: they must not depend
    on the quality of the model's summary.
    """
    lines = [f"Task: {state.run_started.task}"]
    if state.goal != state.run_started.task:
        lines.append(f"At the moment: {shorten_to_line(state.goal)}")
    lines += [f"Instruction: {state.instruction}"] if state.instruction else []
    lines += [f"Plan: [{item.state}] {shorten_to_line(item.text)}" for item in state.plan]
    lines += [format_topic_reminder(frame.goal) for frame in state.frames]
    return "\n".join([*lines, "", "Summary of what was said before:", state.summary])


def make_turn(state: State, message: Message) -> Turn:
    """Return `message` as a turn, with the outcomes of its calls."""
    calls = [call for id_ in message.calls if (call := state.find_call(id_)) is not None]
    if message.kind == "outcome" and calls:
        text, files = _format_late_outcome(calls[0]), calls[0].files
        return Turn(role=message.role, text=text, kind=message.kind, files=files)
    return Turn(
        role=message.role,
        text=message.text,
        by=message.by,
        kind=message.kind,
        thinking=message.thinking,
        uses=message.made or tuple(_make_first_result(call) for call in calls),
        interrupted=message.interrupted,
        opaque=message.opaque,
        files=message.files,
    )


def _make_first_result(call: CallState) -> CallResult:
    """Return the call with the outcome that the agent knew first.

    The agent continued while a deferred call waited for its review. Its outcome comes later, as
    a message of its own, so that earlier turns of the prompt never change.
    """
    use = call.use
    if call.deferred_review:
        return CallResult(
            call=call.id, tool=use.tool, args=use.args, problem=AWAITING_REVIEW_TEXT
        )
    return make_final_result(call)


def make_final_result(call: CallState) -> CallResult:
    """Return the call with its final outcome."""
    use = call.use
    if call.stage is CallStage.DONE:
        result = call.result
        if call.error:  # the call happened, but its result could not be stored, or not fully
            result = _explain_lost_result(call)
        return CallResult(
            call=call.id, tool=use.tool, args=use.args, result=result, files=call.files
        )
    return CallResult(
        call=call.id, tool=use.tool, args=use.args, problem=_explain_missing_result(call)
    )


def _explain_lost_result(call: CallState) -> Json:
    if call.error.startswith(WITHHELD_PREFIX):
        return f"done; its result is {call.error}"
    if not call.error.startswith("Cannot take the file"):
        return f"done; its result is not JSON: {call.error}"
    if call.result is not None:  # only its files could not be stored
        return [call.result, call.error]
    return f"done; {call.error}"


def _explain_missing_result(call: CallState) -> str:
    # The call waits with a held topic, or for a person, while the model is called.
    if call.is_open:
        return HELD_CALL_TEXT
    if call.stage is CallStage.ABORTED and not call.error:
        return f"{format_outcome_phrase(call)}: it may have taken effect in part"
    return call.error or format_outcome_phrase(call)


def _format_late_outcome(call: CallState) -> str:
    """Return the message with the outcome of a deferred call."""
    made = make_final_result(call)
    said = made.problem or msgspec.json.encode(made.result).decode()
    return f"Outcome of {made.tool}, which was awaiting review: {said}"
