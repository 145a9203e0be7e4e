"""Model calls: build the prompt, stream the reply, and return the outcome for the journal.

A model adapter is user code, so `user_code.UserCode` streams the reply. Its pieces go to `live`
at once and are collected in `_PartialReply`. If the call is stopped midway, the text and
thinking so far are journaled with `CallAborted`, so that the model sees its own unfinished
words when the run continues.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Final, TypeAlias

from msgspec.structs import replace

from midrun.agents.agent import Agent
from midrun.agents.signature import FunctionFailed
from midrun.agents.tool_context import Call
from midrun.core.entries import CallAborted, CallDone, CallFailed
from midrun.core.ids import make_call_key
from midrun.core.retries import (
    choose_model,
    compute_retry_at,
    is_wait_acceptable,
)
from midrun.core.state import State
from midrun.core.stops import has_cost_cap
from midrun.core.transcript import Transcript
from midrun.core.values import Json, Reply, RequestedCall, Spend
from midrun.driver.context import DriverContext
from midrun.driver.delta import Delta
from midrun.driver.user_code import (
    CodeStopped,
    InFlightCall,
    UserCode,
    format_exception,
    must_reraise,
)
from midrun.errors import ContextFailed, FileMissing, Misconfigured, ModelFailed, StoreError
from midrun.ports.model import Finished, Model, Piece, Prompt

log = logging.getLogger("midrun")

CONDENSE_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the task, "
    "what was done and found, decisions, open questions, what comes next. Do not call tools."
)

REPLY_MAX_CALLS: Final = 128
"""The number of calls that one reply may ask for.

All calls of a reply are planned, journaled and started in one go. A reply with thousands of
them, from a provider that repeats itself, would block every other run of this process.
"""

NO_NAMES: Final[frozenset[str]] = frozenset()
NO_PRICE_TEXT: Final = (
    "Cannot enforce MaxCost: the price of this reply is not known. Use MaxTokens, or a model "
    "that the price list has; a function can yield ModelUsage(cost_usd=…)."
)
"""For a hosted program, whose models are known only with their calls."""

TOO_MANY_CALLS: Final = (
    f"one reply may ask for {REPLY_MAX_CALLS} calls; ask again for what is still needed"
)


def build_prompt(
    agent: Agent,
    state: State,
    *,
    condense: bool = False,
    instructions: str | None = None,
    hidden_tools: frozenset[str] = NO_NAMES,
) -> Prompt:
    """Return the prompt for a model call in `state`; `condense` asks for a summary.

    Without `instructions` it is only good for an estimate of the cost.
    """
    tools, started = agent.specs, state.run_started
    # A summary has all: providers refuse a history with calls of undeclared tools.
    if hidden_tools and not condense:
        tools = tuple(spec for spec in tools if spec.name not in hidden_tools)
    if started.client_tools:
        tools = (*tools, *(tool.spec for tool in agent.list_client_tools(started)))
    return Prompt(
        instructions=agent.estimate_instructions() if instructions is None else instructions,
        transcript=Transcript(state),
        tools=tools,
        runtime_request=CONDENSE_PROMPT if condense else "",
        run_id=state.run,
        settings=agent.model_settings.merge(started.model_settings)
        if started.model_settings
        else agent.model_settings,
        provider_tools=() if condense else agent.provider_tools,
        has_fixed_instructions=isinstance(agent.instructions, str),
    )


class _PartialReply:
    """The part of a reply that has arrived; journaled if the rest does not arrive."""

    __slots__ = ("finished", "refused_tools", "spent", "text_pieces", "thinking_pieces")

    def __init__(self) -> None:
        self.text_pieces: list[str] = []
        self.thinking_pieces: list[str] = []
        self.finished: Finished | None = None
        self.refused_tools: frozenset[str] = frozenset()  # not offered in this call
        self.spent: Spend | None = None  # as the provider reported it at the end of its stream


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
    # A stop may come at any moment of the stream. So everything that arrives goes into
    # `partial_reply` at once, outside of the coroutine that is stopped. Then the text and the
    # usage so far are here however the coroutine ends.
    call = in_flight.call
    partial_reply = _PartialReply()
    model_count, fallback = 1, ""
    try:
        reply_stream = _ReplyStream(context, in_flight, state, partial_reply)
        if open_stream is None:
            models = context.get_models(agent)
            model_count = len(models)
            model = models[choose_model(call.model_failures, model_count) or 0]
            name = model.name
            # Without a `Call` there is no context to open, and one coroutine less to wake up.
            work: Callable[[], Awaitable[object]] = (
                partial(_call_agent_model, agent, model, reply_stream)
                if agent.model_calls_need_context
                else partial(_read_checked_reply, agent, model, reply_stream, None)
            )
            fallback = "" if model is models[0] else name
        else:
            name = "of the program"
            work = partial(reply_stream.read_pieces, open_stream, is_checked_later=False)
        label = f"model {name} (call {call.id} of run {state.run})"
        await UserCode(context.user_tasks, label, agent.grace).run(work, in_flight)
    except CodeStopped:
        pass  # a reply that was complete although it was stopped counts as done: see below
    except (ContextFailed, FunctionFailed) as error:
        return _make_function_failure(in_flight, error, partial_reply)
    except ModelFailed as error:
        return _make_model_failure(context, in_flight, error, partial_reply, model_count)
    except BaseException as error:
        if must_reraise(error):
            raise
        return _make_adapter_failure(in_flight, error, partial_reply)
    # Three ends are left. The stream ended early by itself: that is a failure, and is retried.
    # It was stopped: that is an abort, with the text so far. Or the reply is complete, even if
    # a stop came in the same moment: then its cost was paid, and it is used.
    if partial_reply.finished is None:
        return _end_unfinished_reply(context, agent, in_flight, partial_reply, model_count)
    if open_stream is not None and _lacks_price(state, partial_reply.spent):
        return _make_price_failure(in_flight, partial_reply)
    finished, refused = partial_reply.finished.reply, partial_reply.refused_tools
    reply = _complete_uses(agent, state, finished, refused)
    reply = replace(reply, model=fallback) if fallback else reply
    return CallDone(call=call.id, reply=reply, spent=partial_reply.spent)


def _end_unfinished_reply(
    context: DriverContext,
    agent: Agent,
    in_flight: InFlightCall,
    partial_reply: _PartialReply,
    model_count: int,
) -> CallFailed | CallAborted:
    """Return the outcome of a call whose stream ended before its reply was complete."""
    if not in_flight.stop_reason:
        failure = ModelFailed(agent.name, "broken_stream", "it ended without an end", True)  # noqa: FBT003 - transient
        return _make_model_failure(context, in_flight, failure, partial_reply, model_count)
    return _make_abort(in_flight, partial_reply)


class _ReplyStream:
    """Reads the reply of one model call: shows its pieces, and keeps them."""

    def __init__(
        self,
        context: DriverContext,
        in_flight: InFlightCall,
        state: State,
        partial_reply: _PartialReply,
    ) -> None:
        self.context = context
        self.in_flight = in_flight
        self.state = state
        self.partial_reply = partial_reply

    async def read_pieces(
        self, open_stream: OpenModelStream, *, is_checked_later: bool
    ) -> Finished | None:
        """Read the stream to its end, and return its last item.

        With `is_checked_later` that is not yet kept as the reply. Otherwise the reply counts
        although the stream is still open: if a stop ends the call then, the reply is kept.
        """
        live, run, call = self.context.live_output, self.state.run, self.in_flight.call.id
        prefix, kept = self.state.reply_prefix, self.partial_reply
        finished: Finished | None = None
        if prefix:  # text that the run puts before the reply: show it as part of it
            live.send(Delta(run=run, call=call, kind="text", text=f"{prefix}\n\n"))
        async with open_stream() as stream:
            async for piece in stream:
                if isinstance(piece, Piece):
                    # Partial arguments are shown, but not kept: the finished reply has them.
                    if piece.kind != "args":
                        (
                            kept.text_pieces if piece.kind == "text" else kept.thinking_pieces
                        ).append(piece.text)
                    text, tool = piece.text, piece.tool
                    live.send(Delta(run=run, call=call, kind=piece.kind, text=text, tool=tool))
                else:
                    finished = piece
                    # Kept apart from the reply: a reply that a validator refuses has been paid
                    # for.
                    kept.spent = _check_usage(piece.spent)
                    kept.finished = None if is_checked_later else piece
        return finished


async def _call_agent_model(agent: Agent, model: Model, reply_stream: _ReplyStream) -> None:
    """Call a model of an agent that has functions with a `Call`, with its context open.

    A reply with an output is complete when that is checked. If the call is stopped before that,
    its text is kept as that of an interrupted reply.

    Raises:
        FunctionFailed: The function of the instructions, or a validator, raised.
    """
    call_id, run = reply_stream.in_flight.call.id, reply_stream.state.run
    is_read = False
    try:
        async with _open_call(agent, reply_stream) as call:
            await _read_checked_reply(agent, model, reply_stream, call)
            is_read = True
    except Exception as error:
        if not is_read:
            raise
        # Unlike a tool, the model has changed nothing that the end of the context could undo.
        problem = format_exception(error)
        log.warning("Cannot close the context of call %s of %s: %s", call_id, run, problem)


async def _read_checked_reply(
    agent: Agent, model: Model, reply_stream: _ReplyStream, call: Call | None
) -> None:
    """Make the instructions, read the reply, and check its output if one is declared."""
    in_flight = reply_stream.in_flight
    is_summary = in_flight.call.purpose == "condense"
    text = agent.instructions
    if not isinstance(text, str):
        text = await agent.make_instructions(call)
    offered, refused, hidden = agent.offered_tools, NO_NAMES, NO_NAMES
    if not offered.are_fixed:
        refused = await offered.find_refused(call)
        hidden = refused | offered.find_unfound(Transcript(reply_stream.state))
    prompt = build_prompt(
        agent,
        reply_stream.state,
        condense=is_summary,
        instructions=text,
        hidden_tools=hidden,
    )
    # Only these are refused in the reply. A tool that was merely not found yet
    # (`find_unfound`) may be called by a model that knows its name from before.
    reply_stream.partial_reply.refused_tools = refused
    files: dict[str, bytes] = {}
    if reply_stream.state.has_files:
        try:
            files = await _load_files(reply_stream.context, reply_stream.state)
        except StoreError as error:
            detail = f"the files of the prompt cannot be read: {error}"
            raise ModelFailed(model.name, "store_failed", detail, transient=True) from error
    attempt_id = f"{in_flight.call.id}.{in_flight.attempt}"
    prompt = replace(prompt, attempt_id=attempt_id, files=files)
    if agent.output is None or is_summary:
        await reply_stream.read_pieces(partial(model.stream, prompt), is_checked_later=False)
        return
    finished = await reply_stream.read_pieces(
        partial(model.stream, prompt), is_checked_later=True
    )
    if finished is not None:
        reply = await agent.output.settle(finished.reply, call)
        reply_stream.partial_reply.finished = replace(finished, reply=reply)


async def _load_files(context: DriverContext, state: State) -> dict[str, bytes]:
    """Return the bodies of all files in the transcript of the run, by hash.

    Each step sends all of them again, so they are cached. The key has the run: the store checks
    whether a run may read a file, and the cache must not answer for another run.
    """
    refs = [file for turn in Transcript(state) for file in turn.files]
    refs += [file for turn in Transcript(state) for made in turn.uses for file in made.files]
    bodies: dict[str, bytes] = {}
    for key in dict.fromkeys(ref.hash for ref in refs):
        body = context.file_cache.get((state.run, key))
        if body is None:
            # The model gets the name of such a file, and is told that it cannot be read: a run
            # must not fail for an old attachment.
            with suppress(FileMissing):
                body = await context.store.read_file(state.run, key)
                context.file_cache.put((state.run, key), body, len(body))
        if body is not None:
            bodies[key] = body
    return bodies


@asynccontextmanager
async def _open_call(agent: Agent, reply_stream: _ReplyStream) -> AsyncIterator[Call]:
    """Yield the model call as a `Call`, with its context."""
    in_flight, state = reply_stream.in_flight, reply_stream.state
    live = reply_stream.context.live_output
    run, call_id = state.run, in_flight.call.id

    async def send_note(text: str) -> None:
        live.send(Delta(run=run, call=call_id, kind="note", text=text))

    async def refuse_save(_: Json) -> None:
        problem = "Cannot save progress: a model call has none. Save it in a tool."
        raise Misconfigured("call.save", problem)

    source, contexts = agent.context_source, reply_stream.context.call_contexts
    async with nullcontext() if source is None else contexts.open(source, run) as opened:
        key = make_call_key(run, call_id)
        yield Call(
            key=key,
            original=key,
            run_id=run,
            epoch=state.epoch,
            attempt=in_flight.attempt,
            transcript=Transcript(state),
            saver=refuse_save,
            noter=send_note,
            _context=opened,
        )


def _make_model_failure(
    context: DriverContext,
    in_flight: InFlightCall,
    error: ModelFailed,
    partial_reply: _PartialReply,
    model_count: int,
) -> CallFailed:
    # A provider may ask for a long wait before the next attempt. If it is too long, this model
    # is not tried again.
    lasting = not (error.transient and is_wait_acceptable(error.retry_after))
    # The list of failures is in the journal. The choice of the next model follows from it
    # alone, so another worker continues with the same model after a crash.
    failures = (*in_flight.call.model_failures, lasting)
    can_retry = choose_model(failures, model_count) is not None
    retry_time = None
    # The first attempt at each model has no wait.
    if can_retry and len(failures) >= model_count:
        retry_time = compute_retry_at(
            context.clock(),
            len(failures) - model_count + 1,
            chance=context.random_unit(),
            requested_s=None if lasting else error.retry_after,
        )
    return CallFailed(
        call=in_flight.call.id,
        error=str(error),
        code=error.reason,
        transient=can_retry,
        lasting=lasting and can_retry,
        retry_at=retry_time,
        text="".join(partial_reply.text_pieces),
    )


def _make_abort(in_flight: InFlightCall, partial_reply: _PartialReply) -> CallAborted:
    """Return the outcome of a call that was stopped, with the text and thinking so far."""
    return CallAborted(
        call=in_flight.call.id,
        text="".join(partial_reply.text_pieces),
        thinking="".join(partial_reply.thinking_pieces),
        spent=partial_reply.spent,
    )


def _make_function_failure(
    in_flight: InFlightCall, error: Exception, partial_reply: _PartialReply
) -> CallFailed:
    """Return the outcome of a call in which code of the agent raised."""
    return CallFailed(
        call=in_flight.call.id,
        error=str(error),
        code="agent_code_failed",
        spent=partial_reply.spent,
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


def _make_price_failure(in_flight: InFlightCall, partial_reply: _PartialReply) -> CallFailed:
    """Return the outcome of a call whose reply a cap on the cost cannot count."""
    return CallFailed(
        call=in_flight.call.id,
        error=NO_PRICE_TEXT,
        code="no_price",
        spent=partial_reply.spent,
        text="".join(partial_reply.text_pieces),
    )


def _lacks_price(state: State, spent: Spend | None) -> bool:
    """Tell whether a cap on the cost cannot count a reply.

    The models of an agent are checked when a run starts. Those of a hosted program are known
    only with their calls.
    """
    is_known = spent is not None and not spent.unpriced_tokens
    return not is_known and has_cost_cap(state.stop)


def _complete_uses(
    agent: Agent, state: State, reply: Reply, refused_tools: frozenset[str]
) -> Reply:
    """Return `reply` with the agent's traits on each call, and at most `REPLY_MAX_CALLS` calls.

    The first call beyond the limit is kept as refused, so that the model is told about it. So
    is every handoff after the first one, and every call of a tool that was not offered.
    """
    started, next_agent = state.run_started, ""
    uses: list[RequestedCall] = []
    for requested in reply.uses[:REPLY_MAX_CALLS]:
        use = requested
        if use.tool in refused_tools:
            use = replace(use, refused=f"the tool {use.tool} is not available now")
        client_tool = None
        if started.client_tools:
            client_tool = agent.find_client_tool(started, use.tool)
        use = agent.complete_use(use, client_tool)
        if use.handoff and not use.refused:
            if next_agent:
                use = replace(use, refused=f"not made: {next_agent} continues")
            next_agent = next_agent or use.handoff
        uses.append(use)
    if dropped := reply.uses[REPLY_MAX_CALLS:]:
        problem = f"not made, nor were {len(dropped) - 1} more that followed: {TOO_MANY_CALLS}"
        uses.append(RequestedCall(tool=dropped[0].tool, refused=problem))
    return replace(reply, uses=tuple(uses)) if uses else reply
