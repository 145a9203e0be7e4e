"""The transcript: the conversation of a run as a model receives it.

`Transcript` is a lazy sequence over the state's messages. A turn is built when it is read, so
the last turn of a long run costs as much as that of a short run.

Every call in a transcript has an outcome: a result, or a text that says why there is none.
Providers reject a conversation in which a call has no result.

The texts in this module are part of the prompt and of inherited histories. A change to them
changes the behaviour of agents.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, Literal, overload

import msgspec

from midrun.core.journaled_text import fate, line
from midrun.core.state import Call, Stage, State
from midrun.core.values import Json, Made, Message, Value

# Frames in a prompt. Each suspended frame adds a line to every prompt while it is suspended.
# The line has a maximum length whatever its goal is, and its tokens are counted per call.

TOKEN: Final = 4
"""Estimated characters per token. Providers differ."""

FRAME_TOKENS: Final = 60
"""Maximum number of tokens that one suspended frame adds to a prompt."""


def told(goal: str) -> str:
    """Return the message that tells the model that a topic is suspended."""
    return f"Held: {line(goal)}. Answer this first; the run comes back to it."


def reminder(goal: str) -> str:
    """Return the line about a suspended topic in a summary of the history."""
    return f"Held: {line(goal)}"


def tokens(state: State) -> int:
    """Estimate how many tokens of the next prompt are due to suspended frames."""
    said = [told(frame.goal) for frame in state.frames]
    if state.summary:
        said += [reminder(frame.goal) for frame in state.frames]
    return sum(ceil(len(text) / TOKEN) for text in said)


__all__ = ["AWAITING_REVIEW", "HELD", "Made", "Transcript", "Turn", "ended", "summary"]

AWAITING_REVIEW: Final = "proposed, awaiting review; the outcome will come as a message"
HELD: Final = "not finished yet: it waits while another question is answered"


class Turn(Value, kw_only=True):
    """One message of the transcript; `uses` are an assistant's calls with their outcomes."""

    role: Literal["user", "assistant", "runtime"]
    text: str
    by: str = ""
    kind: str = ""
    thinking: str = ""
    uses: tuple[Made, ...] = ()
    interrupted: bool = False  # the model call was stopped in the middle of this text
    opaque: Json = None  # the message in the provider's own format


class Transcript(Sequence[Turn]):
    """The turns of a run, oldest first, as a lazy sequence.

    `assistant_turn_count` is the number of the assistant's turns, condensed ones included.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.spoken = state.spoken

    def __len__(self) -> int:
        kept = len(self._state.messages) - self._state.condensed
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
                return Turn(role="runtime", text=summary(state), kind="summary")
            place -= 1
        return _turn(state, state.messages[state.condensed + place])


def summary(state: State) -> str:
    """Return the text that replaces the condensed messages.

    Task, instruction, plan and suspended topics come first, word for word: they must not depend
    on the quality of the model's summary.
    """
    lines = [f"Task: {state.started.task}"]
    if state.goal != state.started.task:
        lines.append(f"At the moment: {line(state.goal)}")
    lines += [f"Instruction: {state.course}"] if state.course else []
    lines += [f"Plan: [{item.mark}] {line(item.text)}" for item in state.plan]
    lines += [reminder(frame.goal) for frame in state.frames]
    return "\n".join([*lines, "", "Summary of what was said before:", state.summary])


def _turn(state: State, message: Message) -> Turn:
    calls = [call for id_ in message.calls if (call := state.call(id_)) is not None]
    if message.kind == "outcome" and calls:
        return Turn(role=message.role, text=_late_outcome(calls[0]), kind=message.kind)
    return Turn(
        role=message.role,
        text=message.text,
        by=message.by,
        kind=message.kind,
        thinking=message.thinking,
        uses=message.made or tuple(_made(call) for call in calls),
        interrupted=message.interrupted,
        opaque=message.opaque,
    )


def _made(call: Call) -> Made:
    """Return the call with the outcome that the agent knew first.

    The agent went on while a deferred call waited for its review. Its outcome comes later, as
    a message of its own, so that earlier turns of the prompt never change.
    """
    use = call.use
    if call.shelved:
        return Made(call=call.id, tool=use.tool, args=use.args, problem=AWAITING_REVIEW)
    return ended(call)


def ended(call: Call) -> Made:
    """Return the call with its final outcome."""
    use = call.use
    if call.stage is Stage.DONE:
        result = call.result
        if call.error:  # the call happened, but its result could not be encoded as JSON
            result = f"done; its result is not JSON: {call.error}"
        return Made(call=call.id, tool=use.tool, args=use.args, result=result)
    return Made(call=call.id, tool=use.tool, args=use.args, problem=_problem(call))


def _problem(call: Call) -> str:
    # The call waits with a suspended frame, or for a person, while the model is called.
    if call.unclosed:
        return HELD
    if call.stage is Stage.ABORTED and not call.error:
        return f"{fate(call)}: it may have taken effect in part"
    return call.error or fate(call)


def _late_outcome(call: Call) -> str:
    """Return the message with the outcome of a deferred call."""
    made = ended(call)
    said = made.problem or msgspec.json.encode(made.result).decode()
    return f"Outcome of {made.tool}, which was awaiting review: {said}"
