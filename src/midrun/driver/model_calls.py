"""Model calls: build the prompt, stream the reply, and return the outcome for the journal.

The reply is streamed in a user task (`user_tasks`): a model adapter is user code. Its pieces go
to `live` at once and are collected in `_PartialReply`. If the call is stopped midway, the text
and thinking so far are journaled with `CallAborted`, so that the model sees its own unfinished
words when the run continues.
"""

from functools import partial
from typing import Final

from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.core.entries import CallAborted, CallDone, CallFailed
from midrun.core.retries import retry_at, worth_waiting
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.core.values import Reply, Spend, Use
from midrun.driver.context import Means
from midrun.driver.in_flight_call import Flight
from midrun.driver.live import Delta
from midrun.driver.user_code_errors import must_go_on, words
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Model, Piece, Prompt

CONDENSE = (
    "Summarise this conversation so that the work can go on from the summary alone: the task, "
    "what was done and found, decisions, open questions, what comes next. Do not call tools."
)

CALLS_MAX: Final = 128
"""The number of calls that one reply may ask for.

All calls of a reply are planned, journaled and started in one go. A reply with thousands of
them, from a provider that repeats itself, would block every other run of this process.
"""

TOO_MANY: Final = f"one reply may ask for {CALLS_MAX} calls; ask again for what is still needed"


def prompt_for(agent: Agent, state: State, *, condense: bool = False) -> Prompt:
    """Return the prompt for a model call in `state`; `condense` asks for a summary."""
    return Prompt(
        instructions=agent.instructions,
        transcript=Transcript(state),
        tools=agent.specs,  # also for a summary: providers refuse calls of undeclared tools
        asked=CONDENSE if condense else "",
    )


class _Said:
    """The part of a reply that has arrived; journaled if the rest does not arrive."""

    __slots__ = ("finished", "text", "thinking")

    def __init__(self) -> None:
        self.text: list[str] = []
        self.thinking: list[str] = []
        self.finished: Finished | None = None


async def speak(
    means: Means, agent: Agent, flight: Flight, state: State
) -> CallDone | CallFailed | CallAborted:
    """Make a model call and return its outcome.

    If it is stopped midway, the outcome has the text and thinking so far. The tool calls of an
    unfinished reply are never made: their arguments may be incomplete.
    """
    call = flight.call
    partial_reply = _Said()
    try:
        with flight.scope:
            model = means.model_of(agent)
            prompt = prompt_for(agent, state, condense=call.purpose == "condense")
            await means.user_tasks.run(
                partial(_listen, means, flight, state, model, prompt, partial_reply),
                label=f"model {model.name} (call {call.id} of run {state.run})",
                grace=agent.grace,
                flight=flight,
            )
    except ModelFailed as error:
        return _failed(means, flight, error, partial_reply)
    except BaseException as error:
        if must_go_on(error):
            raise
        return _broken(flight, error, partial_reply)
    # A cancelled scope swallows its cancellation: execution continues here in any case. The
    # order matters: a reply that finished although it was cancelled counts as done.
    if partial_reply.finished is None and not flight.scope.cancel_called:
        failure = ModelFailed(agent.name, "broken_stream", "it ended without an end", True)  # noqa: FBT003 - transient
        return _failed(means, flight, failure, partial_reply)
    if partial_reply.finished is None:
        return CallAborted(
            call=call.id,
            text="".join(partial_reply.text),
            thinking="".join(partial_reply.thinking),
        )
    return CallDone(
        call=call.id,
        reply=_completed(agent, partial_reply.finished.reply),
        spent=_believed(partial_reply.finished.spent),
    )


async def _listen(
    means: Means, flight: Flight, state: State, model: Model, prompt: Prompt, said: _Said
) -> None:
    live, run, call = means.live, state.run, flight.call.id
    if state.prefix:  # text that the run puts before the reply: show it as part of it
        live.tell(Delta(run=run, call=call, kind="text", text=f"{state.prefix}\n\n"))
    async with model.stream(prompt) as stream:
        async for piece in stream:
            if isinstance(piece, Piece):
                # Partial arguments are shown, but not kept: the finished reply has them.
                if piece.kind != "args":
                    (said.text if piece.kind == "text" else said.thinking).append(piece.text)
                text, tool = piece.text, piece.tool
                live.tell(Delta(run=run, call=call, kind=piece.kind, text=text, tool=tool))
            else:
                said.finished = piece


def _failed(means: Means, flight: Flight, error: ModelFailed, said: _Said) -> CallFailed:
    # A provider may ask for a long wait before the next attempt. If it is too long, the failure
    # is not retried: the run fails and can be resumed.
    transient = error.transient and worth_waiting(error.retry_after)
    retry_time = None
    if transient:
        retry_time = retry_at(
            means.clock(), flight.attempt, chance=means.chance(), asked=error.retry_after
        )
    return CallFailed(
        call=flight.call.id,
        error=str(error),
        code=error.reason,
        transient=transient,
        retry_at=retry_time,
        text="".join(said.text),
    )


def _broken(flight: Flight, error: BaseException, said: _Said) -> CallFailed:
    """Return the outcome of a model adapter that raised an unexpected error."""
    text = "".join(said.text)
    return CallFailed(call=flight.call.id, error=words(error), code="model_error", text=text)


def _believed(spent: Spend | None) -> Spend | None:
    """Return the usage that a provider reports; None if it is negative."""
    if spent is None or spent.tokens < 0 or spent.cost < 0:
        return None
    return spent


def _completed(agent: Agent, reply: Reply) -> Reply:
    """Return `reply` with the agent's traits on each call, and at most `REPLY_MAX_CALLS` calls.

    The first call beyond the limit is kept as refused, so that the model is told about it.
    """
    uses = tuple(agent.offered(use) for use in reply.uses[:CALLS_MAX])
    if dropped := reply.uses[CALLS_MAX:]:
        problem = f"not made, nor were {len(dropped) - 1} more that followed: {TOO_MANY}"
        uses = (*uses, Use(tool=dropped[0].tool, refused=problem))
    return replace(reply, uses=uses) if uses else reply
