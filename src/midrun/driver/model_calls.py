"""Model calls: build the prompt, stream the reply, and return the outcome for the journal.

A model adapter is user code, so `user_code.UserCode` streams the reply. Its pieces go to `live`
at once and are collected in `_PartialReply`. If the call is stopped midway, the text and
thinking so far are journaled with `CallAborted`, so that the model sees its own unfinished
words when the run continues.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.core.entries import CallAborted, CallDone, CallFailed
from midrun.core.retries import compute_retry_at, is_wait_acceptable
from midrun.core.state import State
from midrun.core.transcript import Transcript
from midrun.core.values import Reply, RequestedCall, Spend
from midrun.driver.context import DriverContext
from midrun.driver.delta import Delta
from midrun.driver.in_flight_call import InFlightCall
from midrun.driver.user_code import CodeStopped, UserCode, format_exception, must_reraise
from midrun.errors import ModelFailed
from midrun.ports.model import Finished, Piece, Prompt

CONDENSE_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the task, "
    "what was done and found, decisions, open questions, what comes next. Do not call tools."
)

REPLY_MAX_CALLS: Final = 128
"""The number of calls that one reply may ask for.

All calls of a reply are planned, journaled and started in one go. A reply with thousands of
them, from a provider that repeats itself, would block every other run of this process.
"""

TOO_MANY_CALLS: Final = (
    f"one reply may ask for {REPLY_MAX_CALLS} calls; ask again for what is still needed"
)


def build_prompt(agent: Agent, state: State, *, condense: bool = False) -> Prompt:
    """Return the prompt for a model call in `state`; `condense` asks for a summary."""
    return Prompt(
        instructions=agent.instructions,
        transcript=Transcript(state),
        tools=agent.specs,  # also for a summary: providers refuse calls of undeclared tools
        runtime_request=CONDENSE_PROMPT if condense else "",
        run_id=state.run,
    )


class _PartialReply:
    """The part of a reply that has arrived; journaled if the rest does not arrive."""

    __slots__ = ("finished", "text_pieces", "thinking_pieces")

    def __init__(self) -> None:
        self.text_pieces: list[str] = []
        self.thinking_pieces: list[str] = []
        self.finished: Finished | None = None


OpenModelStream: TypeAlias = Callable[
    [], AbstractAsyncContextManager[AsyncIterator[Piece | Finished]]
]
"""Opens the stream of one model call."""


async def call_model(
    context: DriverContext,
    agent: Agent,
    in_flight: InFlightCall,
    state: State,
    open_stream: OpenModelStream | None = None,
) -> CallDone | CallFailed | CallAborted:
    """Make a model call and return its outcome.

    If it is stopped midway, the outcome has the text and thinking so far. The tool calls of an
    unfinished reply are never made: their arguments may be incomplete.

    `open_stream` replaces the agent's model: a hosted program calls its models itself.
    """
    call = in_flight.call
    partial_reply = _PartialReply()
    try:
        name = "of the program"
        if open_stream is None:
            model = context.get_model(agent)
            prompt = build_prompt(agent, state, condense=call.purpose == "condense")
            name, open_stream = model.name, partial(model.stream, prompt)
        label = f"model {name} (call {call.id} of run {state.run})"
        await UserCode(context.user_tasks, label, agent.grace).run(
            partial(_stream_reply, context, in_flight, state, open_stream, partial_reply),
            in_flight,
        )
    except CodeStopped:
        pass  # a reply that was complete although it was stopped counts as done: see below
    except ModelFailed as error:
        return _make_model_failure(context, in_flight, error, partial_reply)
    except BaseException as error:
        if must_reraise(error):
            raise
        return _make_adapter_failure(in_flight, error, partial_reply)
    if partial_reply.finished is None and not in_flight.stop_reason:
        failure = ModelFailed(agent.name, "broken_stream", "it ended without an end", True)  # noqa: FBT003 - transient
        return _make_model_failure(context, in_flight, failure, partial_reply)
    if partial_reply.finished is None:
        return CallAborted(
            call=call.id,
            text="".join(partial_reply.text_pieces),
            thinking="".join(partial_reply.thinking_pieces),
        )
    return CallDone(
        call=call.id,
        reply=_complete_uses(agent, partial_reply.finished.reply),
        spent=_check_usage(partial_reply.finished.spent),
    )


async def _stream_reply(
    context: DriverContext,
    in_flight: InFlightCall,
    state: State,
    open_stream: OpenModelStream,
    partial_reply: _PartialReply,
) -> None:
    live, run, call = context.live_output, state.run, in_flight.call.id
    if state.reply_prefix:  # text that the run puts before the reply: show it as part of it
        live.send(Delta(run=run, call=call, kind="text", text=f"{state.reply_prefix}\n\n"))
    async with open_stream() as stream:
        async for piece in stream:
            if isinstance(piece, Piece):
                # Partial arguments are shown, but not kept: the finished reply has them.
                if piece.kind != "args":
                    (
                        partial_reply.text_pieces
                        if piece.kind == "text"
                        else partial_reply.thinking_pieces
                    ).append(piece.text)
                text, tool = piece.text, piece.tool
                live.send(Delta(run=run, call=call, kind=piece.kind, text=text, tool=tool))
            else:
                partial_reply.finished = piece


def _make_model_failure(
    context: DriverContext,
    in_flight: InFlightCall,
    error: ModelFailed,
    partial_reply: _PartialReply,
) -> CallFailed:
    # A provider may ask for a long wait before the next attempt. If it is too long, the failure
    # is not retried: the run fails and can be resumed.
    transient = error.transient and is_wait_acceptable(error.retry_after)
    retry_time = None
    if transient:
        retry_time = compute_retry_at(
            context.clock(),
            in_flight.attempt,
            chance=context.random_unit(),
            requested_s=error.retry_after,
        )
    return CallFailed(
        call=in_flight.call.id,
        error=str(error),
        code=error.reason,
        transient=transient,
        retry_at=retry_time,
        text="".join(partial_reply.text_pieces),
    )


def _make_adapter_failure(
    in_flight: InFlightCall, error: BaseException, partial_reply: _PartialReply
) -> CallFailed:
    """Return the outcome of a model adapter that raised an unexpected error."""
    text = "".join(partial_reply.text_pieces)
    return CallFailed(
        call=in_flight.call.id, error=format_exception(error), code="model_error", text=text
    )


def _check_usage(spent: Spend | None) -> Spend | None:
    """Return the usage that a provider reports; None if it is negative."""
    if spent is None or spent.tokens < 0 or spent.cost < 0:
        return None
    return spent


def _complete_uses(agent: Agent, reply: Reply) -> Reply:
    """Return `reply` with the agent's traits on each call, and at most `REPLY_MAX_CALLS` calls.

    The first call beyond the limit is kept as refused, so that the model is told about it.
    """
    uses = tuple(map(agent.complete_use, reply.uses[:REPLY_MAX_CALLS]))
    if dropped := reply.uses[REPLY_MAX_CALLS:]:
        problem = f"not made, nor were {len(dropped) - 1} more that followed: {TOO_MANY_CALLS}"
        uses = (*uses, RequestedCall(tool=dropped[0].tool, refused=problem))
    return replace(reply, uses=uses) if uses else reply
