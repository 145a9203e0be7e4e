"""The transcript: what a model is given of a run, turn by turn.

It is a view: the state's messages are shared, and a turn is made when somebody looks at it. So
asking for the last turn of a long run costs what it costs in a short one. Every call that the
agent asked for has an outcome here, in words where it has no result: no provider accepts a
history with an unanswered call, and no agent should go on without knowing.
"""

from collections.abc import Sequence
from math import ceil
from typing import Final, Literal, overload

import msgspec

from midrun.core.journaled_text import fate, line
from midrun.core.state import Call, Stage, State
from midrun.core.values import Json, Made, Message, Value

# Held thoughts in a prompt: what a model is told of them, and what telling it costs.
#
# A frame costs tokens in every model call that is made while it is held. What is said of it is
# short whatever its goal is, and counted with each call.

TOKEN: Final = 4
"""Characters that count as one token: providers differ, and this is an estimate."""

FRAME_TOKENS: Final = 60
"""No held thought costs more than this in one call."""


def told(goal: str) -> str:
    """Return what a model is told when a chain of thought is suspended."""
    return f"Held: {line(goal)}. Answer this first; the run comes back to it."


def reminder(goal: str) -> str:
    """Return what a summary of the history says of a thought that is held meanwhile."""
    return f"Held: {line(goal)}"


def tokens(state: State) -> int:
    """Return about how many tokens of the next prompt are there because thoughts are held."""
    said = [told(frame.goal) for frame in state.frames]
    if state.summary:
        said += [reminder(frame.goal) for frame in state.frames]
    return sum(ceil(len(text) / TOKEN) for text in said)


__all__ = ["AWAITING_REVIEW", "HELD", "Made", "Transcript", "Turn", "ended", "summary"]

AWAITING_REVIEW: Final = "proposed, awaiting review; the outcome will come as a message"
HELD: Final = "not finished yet: it waits while another question is answered"


class Turn(Value, kw_only=True):
    """One message, with where it came from. `uses` are an assistant's calls and their ends."""

    role: Literal["user", "assistant", "runtime"]
    text: str
    by: str = ""
    kind: str = ""
    thinking: str = ""
    uses: tuple[Made, ...] = ()
    interrupted: bool = False  # the assistant was stopped in the middle of saying this
    opaque: Json = None  # the provider's own form of it


class Transcript(Sequence[Turn]):
    """The turns of a run in `state`, oldest first. `spoken` counts the assistant's."""

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
        place = range(len(self))[index]  # raises IndexError where it should
        state = self._state
        if state.summary:
            if not place:
                return Turn(role="runtime", text=summary(state), kind="summary")
            place -= 1
        return _turn(state, state.messages[state.condensed + place])


def summary(state: State) -> str:
    """Return what stands for the condensed messages: first what people asked for.

    That must not depend on how well a model sums up.
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
    """Return the call with its outcome as the agent was first told it."""
    use = call.use
    if call.shelved:
        return Made(call=call.id, tool=use.tool, args=use.args, problem=AWAITING_REVIEW)
    return ended(call)


def ended(call: Call) -> Made:
    """Return the call with what came of it in the end."""
    use = call.use
    if call.stage is Stage.DONE:
        result = call.result
        if call.error:  # it happened, but what it returned could not be kept
            result = f"done; its result is not JSON: {call.error}"
        return Made(call=call.id, tool=use.tool, args=use.args, result=result)
    return Made(call=call.id, tool=use.tool, args=use.args, problem=_problem(call))


def _problem(call: Call) -> str:
    if call.unclosed:
        return HELD
    if call.stage is Stage.ABORTED and not call.error:
        return f"{fate(call)}: it may have taken effect in part"
    return call.error or fate(call)


def _late_outcome(call: Call) -> str:
    """Return how the agent hears of a call whose outcome came after it had gone on."""
    made = ended(call)
    said = made.problem or msgspec.json.encode(made.result).decode()
    return f"Outcome of {made.tool}, which was awaiting review: {said}"
