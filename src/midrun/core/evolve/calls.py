"""Fold calls: attempts, outcomes, spend, and doubts about effects.

A call keeps its number and its key over all attempts. Each attempt ends as done, failed,
aborted (stopped within its grace; it may have had an effect) or unknown (its worker died, or
it did not stop). `may_have_happened` records the doubt: it is set by an unknown end, or by
another attempt after an aborted one, and cleared only by evidence.

The spend of an attempt is reserved when it starts and replaced by the actual spend when it
ends, so that calls in flight together cannot exceed a cap.
"""

from hashlib import sha256

import msgspec
from msgspec.structs import replace

from midrun.core import transcript
from midrun.core.entries import (
    ArtifactShown,
    CallAborted,
    CallDone,
    CallFailed,
    CallProposed,
    CallSealed,
    CallSettled,
    CallStarted,
    CallUnknown,
    LateResult,
    ProgressSaved,
    RunFailed,
)
from midrun.core.ids import CallId, make_call_id, parse_call_number
from midrun.core.retries import (
    INVALID_OUTPUT_CODE,
    MODEL_RETRY_CODE,
    RETRIES_EXHAUSTED_CODE,
    TOOL_NOT_IMPORTABLE_CODE,
    is_death_counted,
    may_retry_output,
    may_retry_tool,
)
from midrun.core.state import Artifact, CallStage, CallState, EvolveFunctions, State, add_name
from midrun.core.stops import RECENT_CALLS_MAX, Meter
from midrun.core.values import (
    NO_SPEND,
    TERMINAL_PHASES,
    Json,
    Message,
    Phase,
    Reply,
    RequestedCall,
    Spend,
)
from midrun.core.vector import Vector
from midrun.errors import JournalCorrupt


def hash_args(args: Json) -> str:
    """Hash the arguments; an approval is valid only for the same hash."""
    return sha256(msgspec.json.encode(args, order="sorted")).hexdigest()[:32]


def call_proposed(state: State, entry: CallProposed) -> State:
    """Add one call wanted by a hosted agent, or by a person who took over."""
    calls, opened = _add_calls(
        state, (entry.use,), requested_by_operator=bool(state.taken_over_by)
    )
    after = replace(state, calls=calls, open_calls=opened)
    made = make_call_id(len(calls))
    if state.taken_over_by:
        # The person acts as the assistant, so the call becomes part of the conversation that
        # the agent reads after the hand-back.
        person = state.taken_over_by
        return after.with_messages(
            Message(role="assistant", text="", by=person, kind="person", calls=(made,))
        )
    return after if entry.use.kind == "model" else _attach_call(after, made)


def _attach_call(state: State, call: CallId) -> State:
    """Add a call of a hosted program to the reply that it follows, or as a message."""
    last = state.messages[-1]
    if last.role != "assistant" or last.kind or last.interrupted:
        return state.with_messages(Message(role="assistant", text="", calls=(call,)))
    last = replace(last, calls=(*last.calls, call))
    return replace(state, messages=state.messages.replace(len(state.messages) - 1, last))


def _add_calls(
    state: State, uses: tuple[RequestedCall, ...], *, requested_by_operator: bool = False
) -> tuple[Vector[CallState], tuple[int, ...]]:
    """Add the wanted calls; seal at once those with an unknown tool or bad arguments."""
    calls, opened = state.calls, state.open_calls
    for use in uses:
        number = calls.size + 1
        call = CallState(
            number=number,
            id=make_call_id(number),
            call_kind=use.kind,
            step=state.meter.steps,
            agent="" if state.speaker is None else state.speaker.agent,
            use=use,
            requested_by_operator=requested_by_operator,
            proposed_message_count=len(state.messages) if use.kind == "model" else 0,
            steered_by=add_name(state.steered_by, state.taken_over_by)
            if requested_by_operator
            else state.steered_by,
        )
        if use.refused:
            call = replace(call, stage=CallStage.SEALED, error=use.refused)
        else:
            opened = (*opened, number)
        calls = calls.append(call)
    return calls, opened


def call_started(state: State, entry: CallStarted) -> State:
    """Put the call in flight and reserve its spend."""
    number = parse_call_number(entry.call)
    # A tool call was proposed before. A model call comes into being with its start.
    new = number == state.calls.size + 1
    call = (
        CallState(
            number=number,
            id=entry.call,
            call_kind=entry.call_kind,
            step=state.meter.steps + 1,
            agent="" if state.speaker is None else state.speaker.agent,
        )
        if new
        else get_call(state, entry.call)
    )
    # A model call of a hosted program was proposed, too; it begins a step when it starts.
    is_program_model = call.call_kind == "model" and not new and state.run_started.hosted
    if is_program_model and entry.attempt == 1:
        call = replace(call, step=state.meter.steps + 1)
    call = replace(
        call,
        # The stage of the previous attempt is overwritten here. An aborted attempt may have
        # had an effect, whatever the outcome of this one.
        may_have_happened=call.may_have_happened or call.stage is CallStage.ABORTED,
        purpose=entry.purpose,
        stage=CallStage.STARTED,
        attempt=entry.attempt,
        started_seq=state.seq,
        started_at=state.at,
        seen_seq=entry.seen,
        reserved=entry.reserved,
        prompt_message_count=len(state.messages) if is_program_model else 0,
        must_retry=False,
        retry_at=None,
        error="",
        stopped_by="",
    )
    cleanup_calls = state.cleanup_calls
    # Recorded at the start, not at the end: a crash in between must not lose the cleanup.
    if call.attempt == 1 and call.needs_cleanup:
        cleanup_calls = cleanup_calls.append(number)
    return replace(
        state,
        calls=state.calls.append(call) if new else state.calls.replace(number - 1, call),
        meter=_meter_start(
            state.meter, call, transcript.estimate_frame_tokens(state) if state.frames else 0
        ),
        in_flight=(*state.in_flight, number),
        program_deaths=0,
        open_calls=state.open_calls
        if number in state.open_calls
        else (*state.open_calls, number),
        cleanup_calls=cleanup_calls,
        # The agent speaks again: an answer that it gave before is not its last word.
        answer=None if call.call_kind == "model" else state.answer,
    )


def _meter_start(meter: Meter, call: CallState, held_tokens: int) -> Meter:
    reserved = meter.reserved
    if call.reserved is not NO_SPEND:
        reserved = reserved.plus(call.reserved)
    # The tokens of held topics are counted for every attempt, because each attempt sends the
    # prompt again.
    if call.call_kind == "model" and held_tokens:
        meter = replace(meter, held_tokens=meter.held_tokens + held_tokens)
    # A retry reserves spend again, but counts neither as a step nor as a tool call.
    if call.attempt > 1:
        return replace(meter, reserved=reserved)
    if call.call_kind == "model":
        # Custom conditions are evaluated once per step. Drop their verdicts, so that they are
        # evaluated again before the next step.
        steps = meter.steps + (call.purpose == "step")
        return replace(meter, reserved=reserved, steps=steps, custom_verdicts={})
    fingerprint = f"{call.use.tool} {hash_args(call.use.args)}"
    recent = (*meter.recent_calls[1 - RECENT_CALLS_MAX :], fingerprint)
    return replace(
        meter, reserved=reserved, tool_calls=meter.tool_calls + 1, recent_calls=recent
    )


def call_done(state: State, entry: CallDone) -> State:
    """Store the result; the call is never made again."""
    call = replace(
        get_call(state, entry.call),
        stage=CallStage.DONE,
        may_have_happened=False,
        result=entry.result,
        files=entry.files,
        error=entry.encoding_error,
    )
    if entry.files:
        state = state.with_files(entry.files)
    state = _end_attempt(state, call, entry.spent)
    if call.use.handoff:
        state = replace(state, pending_handoff=call.id)
    if call.traits.final:
        state = _note_final(state, call)
    if call.use.tool in state.tool_retries:
        rest = {tool: n for tool, n in state.tool_retries.items() if tool != call.use.tool}
        state = replace(state, tool_retries=rest)
    for name in entry.steered_by:
        state = replace(state, steered_by=add_name(state.steered_by, name))
    if entry.reply is not None and call.purpose == "step":
        return _add_reply(state, call, entry.reply)
    return state


def _add_reply(state: State, call: CallState, reply: Reply) -> State:
    """Add the reply to the conversation; propose its calls, or take it as the answer.

    A hosted program reads its replies itself: it proposes the calls, and returns the answer.
    """
    if state.run_started.hosted:
        said = Message(
            role="assistant", text=reply.text, thinking=reply.thinking, opaque=reply.opaque
        )
        meter = replace(state.meter, last_text=reply.text, is_output_invalid=False)
        state = replace(state, meter=meter, prompt_tokens=reply.prompt_tokens)
        return _add_program_message(state, call, said)
    calls, opened = _add_calls(state, reply.uses)
    first = state.calls.size + 1
    text, prefix = reply.text, state.reply_prefix
    if prefix:
        text, prefix = _apply_prefix(state, call, text)
    said = Message(
        role="assistant",
        text=text,
        thinking=reply.thinking,
        calls=tuple(map(make_call_id, range(first, first + len(reply.uses)))),
        opaque=reply.opaque,
        agent=call.agent,
    )
    is_invalid = bool(reply.invalid_output)
    is_answer = not (reply.uses or is_invalid)
    state = replace(
        state,
        calls=calls,
        open_calls=opened,
        messages=state.messages.append(said),
        agent_message_count=state.agent_message_count + 1,
        answer=text if is_answer else None,
        answer_value=reply.value,
        reply_prefix=prefix,
        prompt_tokens=reply.prompt_tokens,
        meter=replace(state.meter, last_text=reply.text, is_output_invalid=is_invalid),
        invalid_outputs=0 if is_answer else state.invalid_outputs,
    )
    return _count_invalid_output(state, reply) if reply.invalid_output else state


def _count_invalid_output(state: State, reply: Reply) -> State:
    """Count an output that is not valid; tell the agent the problem, or fail the run."""
    state = replace(state, invalid_outputs=state.invalid_outputs + 1)
    # The model reads the problem as the result of its call of the output tool. A text has no
    # call, so the problem follows it as a message.
    if not reply.uses:
        problem = Message(role="runtime", text=reply.invalid_output, kind="output")
        state = state.with_messages(problem)
    if may_retry_output(state) or state.taken_over_by:
        return state
    error = f"no valid output in {state.invalid_outputs} attempts: {reply.invalid_output}"
    return replace(state, error=RunFailed(error=error, code=INVALID_OUTPUT_CODE))


def _add_program_message(state: State, call: CallState, message: Message) -> State:
    """Add the reply of a model call of a hosted program, and note its index in the call."""
    call = replace(get_call(state, call.id), reply_index=len(state.messages))
    return state.with_call(call).with_messages(message)


def call_failed(state: State, entry: CallFailed) -> State:
    """Record the error of a call; retry it, pass it to the model, or fail the run.

    A transient error of a model call is retried, any other one fails the run. The model gets
    the error of a tool. A tool that cannot be imported also fails the run, because the model
    cannot repair the program.
    """
    call = get_call(state, entry.call)
    is_model_call = call.call_kind == "model"
    may_retry = call.attempt < state.run_started.model_attempts
    retried = is_model_call and entry.transient and may_retry
    fails = entry.code == TOOL_NOT_IMPORTABLE_CODE or (is_model_call and not retried)
    # After a take-over the person sees the error and decides; the run does not fail.
    if fails and not state.taken_over_by:
        state = replace(state, error=RunFailed(error=entry.error, code=entry.code))
    call = replace(
        call,
        stage=CallStage.FAILED,
        error=entry.error,
        must_retry=retried,
        retry_at=entry.retry_at,
        model_failures=(*call.model_failures, entry.lasting) if retried else (),
    )
    state = _end_attempt(state, call, entry.spent)
    if entry.code == MODEL_RETRY_CODE:
        state = _count_tool_retry(state, call)
    return state if retried else _keep_partial_text(state, call, entry.text)


def _count_tool_retry(state: State, call: CallState) -> State:
    """Count a step in which a tool asked for another try; fail the run after too many.

    Several calls of one step count once: the model has not read the problem between them.
    """
    tool = call.use.tool
    count, step = state.tool_retries.get(tool, (0, 0))
    count += step != call.step
    state = replace(state, tool_retries={**state.tool_retries, tool: (count, call.step)})
    if may_retry_tool(state, call) or state.taken_over_by:
        return state
    error = f"{tool} asked for another try in {count} steps: {call.error}"
    return replace(state, error=RunFailed(error=error, code=RETRIES_EXHAUSTED_CODE))


def call_aborted(state: State, entry: CallAborted) -> State:
    """Record a stopped attempt; it may be retried if that is safe.

    A redirect that applies now replaces the call, and a cancel closes it without a retry.
    """
    call = get_call(state, entry.call)
    # A model call is not retried as such: after the pause the scheduler starts a new step.
    # A call with saved progress continues from there, so it is safe to start again.
    safe = call.call_kind != "model" and (call.safe_to_repeat or call.progress is not None)
    again = (
        safe and not entry.final and not any(p.timing == "now" for p in state.pending_redirects)
    )
    # `final`: it ended by itself, or its own time was up. No control has stopped it.
    by = "" if entry.final else _find_stop_reason(state, call)
    call = replace(call, stage=CallStage.ABORTED, must_retry=again, stopped_by=by)
    return _keep_partial_text(
        _end_attempt(state, call, entry.spent), call, entry.text, entry.thinking
    )


def _find_stop_reason(state: State, call: CallState) -> str:
    """Return the reason of the stop: a pause, a redirect, a halt, or ""."""
    pause = state.pause
    if state.phase is Phase.PAUSING and pause is not None:
        # A pause without `now` lets a tool finish, unless the tool saves its progress. So an
        # abort of any other tool has another cause.
        return "a pause" if pause.now or call.progress is not None else ""
    if state.phase is Phase.RUNNING and any(p.timing == "now" for p in state.pending_redirects):
        return "a redirect"
    return "a halt" if state.phase is Phase.HALTED else ""


def _keep_partial_text(state: State, call: CallState, text: str, thinking: str = "") -> State:
    """Keep the partial text of a model call as an interrupted message."""
    if call.call_kind != "model" or call.purpose != "step" or not (text or thinking):
        return state
    text, prefix = _apply_prefix(state, call, text)
    said = Message(
        role="assistant", text=text, thinking=thinking, interrupted=True, agent=call.agent
    )
    if state.run_started.hosted:
        return _add_program_message(state, call, said)
    return replace(state.with_messages(said), reply_prefix=prefix)


def _apply_prefix(state: State, call: CallState, text: str) -> tuple[str, str]:
    """Return the reply with the pending prefix, and the prefix that is still pending.

    The prefix announces a resumed topic ("Back to …"). A reply whose call started before the
    topic was resumed does not get the prefix.
    """
    if not state.reply_prefix or call.seen_seq < state.reply_prefix_seq:
        return text, state.reply_prefix
    return f"{state.reply_prefix}\n\n{text}".rstrip(), ""


def call_unknown(state: State, entry: CallUnknown) -> State:
    """Record an unknown outcome; the reserved spend stays reserved.

    The provider may bill the lost attempt, so its reservation counts against the caps for the
    rest of the run.
    """
    call = get_call(state, entry.call)
    # The call was started under an older lease: its worker died, or was silent for longer
    # than its lease. A call that is merely unresponsive does not count as a death.
    is_lost = call.started_seq < state.lease_seq
    call = replace(
        call,
        stage=CallStage.UNKNOWN,
        # The doubt stays with the call over later attempts: undo and report depend on it.
        may_have_happened=True,
        must_retry=call.safe_to_repeat,
        worker_deaths=call.worker_deaths + (is_lost and is_death_counted(call)),
        closed_seq=state.seq,
        reserved=NO_SPEND,
    )
    return replace(
        state.with_call(call), in_flight=_remove_number(state.in_flight, call.number)
    )


def call_settled(state: State, entry: CallSettled) -> State:
    """Settle an unknown call: it happened, it did not, or it stays unknown for good."""
    call = get_call(state, entry.call)
    if entry.happened:
        call = replace(
            call,
            stage=CallStage.DONE,
            may_have_happened=False,
            closed_seq=state.seq,
            result=entry.result,
        )
        if call.traits.final and entry.result is not None:
            state = _note_final(state, call)
    elif entry.happened is False:
        # It took no effect, so it is wanted again, under the same key. If that attempt is lost
        # as well, its check is asked again; `decide` seals the call after too many denials.
        denials = call.check_denials + 1
        call = replace(
            call, stage=CallStage.PROPOSED, may_have_happened=False, check_denials=denials
        )
    else:
        call = replace(call, error="it is unknown whether this call took effect")
    return close_call(state.with_call(call), call)


def call_sealed(state: State, entry: CallSealed) -> State:
    """Close a call that will not be made, or not again."""
    call = get_call(state, entry.call)
    # A call that was attempted keeps its stage: undo and report depend on it.
    made = call.stage in {CallStage.ABORTED, CallStage.UNKNOWN, CallStage.FAILED}
    stage = call.stage if made else CallStage.SEALED
    call = replace(call, stage=stage, must_retry=False, error=entry.why)
    return close_call(state.with_call(call), call)


def progress_saved(state: State, entry: ProgressSaved) -> State:
    """Store the progress; new progress resets the count of workers that died."""
    call = get_call(state, entry.call)
    deaths = call.worker_deaths if entry.progress == call.progress else 0
    return state.with_call(replace(call, progress=entry.progress, worker_deaths=deaths))


def artifact_shown(state: State, entry: ArtifactShown) -> State:
    """Add the artifact, and count its file."""
    shown = Artifact(
        call=get_call(state, entry.call).id,
        name=entry.name,
        version=entry.version,
        file=entry.file,
        seq=state.seq,
        at=state.at,
    )
    return replace(state.with_files((entry.file,)), artifacts=(*state.artifacts, shown))


def late_result(state: State, entry: LateResult) -> State:
    """Settle the call with a late result if its attempt is still the last one."""
    state = state.with_files(entry.files)
    call = replace(get_call(state, entry.call), late_attempt=entry.attempt)
    if can_settle_late(state, call, entry.attempt):
        call = replace(
            call,
            stage=CallStage.DONE,
            may_have_happened=False,
            must_retry=False,
            closed_seq=state.seq,
            result=entry.result,
            files=entry.files,
        )
        if call.use.handoff:
            state = replace(state, pending_handoff=call.id)
        if call.traits.final:
            state = _note_final(state, call)
        return close_call(state.with_call(call), call)
    # The attempt did happen, but another attempt was made since, or the call was closed. Its
    # effect may exist besides the effect of the later attempt: keep the doubt.
    happened = call.stage is not CallStage.DONE and state.phase not in TERMINAL_PHASES
    return state.with_call(replace(call, may_have_happened=call.may_have_happened or happened))


def can_settle_late(state: State, call: CallState, attempt: int) -> bool:
    """Tell whether a late result of `attempt` settles `call`.

    It does if the outcome is unknown, or if a check wrongly said that the call did not happen
    (then the call is proposed again). The late reply of a model does not count: its text was
    lost with its stream. Nor does a result after the undo was tried.
    """
    return (
        state.phase not in TERMINAL_PHASES
        and call.call_kind != "model"
        and call.stage in {CallStage.UNKNOWN, CallStage.PROPOSED}
        and call.attempt == attempt
        and not call.undo.attempts
    )


def get_call(state: State, call_id: str) -> CallState:
    """Return the call that an entry refers to.

    Raises:
        JournalCorrupt: there is no call with this id.
    """
    number = parse_call_number(call_id)
    if not 0 < number <= state.calls.size:
        raise JournalCorrupt(state.run, state.seq, f"there is no call {call_id}")
    return state.calls[number - 1]


def _end_attempt(state: State, call: CallState, spent: Spend | None) -> State:
    """Take the call out of flight; replace its reservation by its actual spend.

    A call that was stopped reports no spend (`spent` is None), but the provider may bill it.
    Then the whole reservation counts as spent.
    """
    meter = state.meter
    if spent is not None or call.reserved is not NO_SPEND:
        meter = replace(
            meter,
            spent=meter.spent.plus(call.reserved if spent is None else spent),
            reserved=meter.reserved.minus(call.reserved)
            if call.reserved is not NO_SPEND
            else meter.reserved,
        )
    # `is_open` depends on the new stage: a failed call that is retried stays in the open calls.
    call = replace(call, closed_seq=state.seq, reserved=NO_SPEND)
    state = replace(
        state,
        calls=state.calls.replace(call.number - 1, call),
        meter=meter,
        in_flight=_remove_number(state.in_flight, call.number),
        open_calls=_remove_number(state.open_calls, call.number)
        if call.stage is CallStage.DONE or not call.is_open
        else state.open_calls,
    )
    return close_call(state, call) if call.deferred_review else state


def _remove_number(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    if number not in numbers:
        return numbers
    at = numbers.index(number)
    return numbers[:at] + numbers[at + 1 :]


def _note_final(state: State, call: CallState) -> State:
    """Note that the result of `call` is the answer; of several calls, the first counts.

    It is not if the result could not be stored, if the agent continued without it, or if a
    person made the call in place of the agent. A hosted program decides for itself.
    """
    is_answer = not (
        state.pending_final
        or call.error
        or call.deferred_review
        or state.taken_over_by
        or state.run_started.hosted
    )
    return replace(state, pending_final=call.id) if is_answer else state


def close_call(state: State, call: CallState) -> State:
    """Remove a closed call from the open calls; report a deferred one to the agent.

    The agent continued without the outcome of a deferred call. It gets the outcome as a
    message, and an answer that it gave without knowing the outcome no longer counts.
    """
    if call.is_open:
        return state
    state = replace(state, open_calls=_remove_number(state.open_calls, call.number))
    if not call.deferred_review:
        return state
    return replace(state, answer=None).with_messages(
        Message(role="runtime", text="", kind="outcome", calls=(call.id,))
    )


EVOLVE_FUNCTIONS: EvolveFunctions = {
    CallProposed: call_proposed,
    CallStarted: call_started,
    CallDone: call_done,
    CallFailed: call_failed,
    CallAborted: call_aborted,
    CallUnknown: call_unknown,
    CallSettled: call_settled,
    CallSealed: call_sealed,
    ProgressSaved: progress_saved,
    ArtifactShown: artifact_shown,
    LateResult: late_result,
}
