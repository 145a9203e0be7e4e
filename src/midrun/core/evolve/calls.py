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
from midrun.core.ids import call_id, number_of
from midrun.core.retries import NOT_IMPORTABLE, counts
from midrun.core.state import Arms, Call, Stage, State, with_name
from midrun.core.stops import TRAIL, Meter
from midrun.core.values import NOTHING, TERMINAL, Json, Message, Phase, Reply, Spend, Use
from midrun.core.vector import Vector
from midrun.errors import JournalCorrupt


def args_hash(args: Json) -> str:
    """Hash the arguments; an approval is valid only for the same hash."""
    return sha256(msgspec.json.encode(args, order="sorted")).hexdigest()[:32]


def call_proposed(state: State, entry: CallProposed) -> State:
    """Add one call wanted by a hosted agent, or by a person who took over."""
    calls, opened = _proposed(state, (entry.use,), by_hand=bool(state.wheel))
    after = replace(state, calls=calls, open=opened)
    if not state.wheel:
        return after
    # The person acts as the assistant, so the call becomes part of the conversation that the
    # agent reads after the hand-back.
    made = call_id(len(calls))
    return after.saying(
        Message(role="assistant", text="", by=state.wheel, kind="person", calls=(made,))
    )


def _proposed(
    state: State, uses: tuple[Use, ...], *, by_hand: bool = False
) -> tuple[Vector[Call], tuple[int, ...]]:
    """Add the wanted calls; seal at once those with an unknown tool or bad arguments."""
    calls, opened = state.calls, state.open
    for use in uses:
        number = len(calls) + 1
        call = Call(
            number=number,
            call_kind=use.kind,
            step=state.meter.steps,
            use=use,
            by_hand=by_hand,
            steered_by=with_name(state.steered_by, state.wheel if by_hand else ""),
        )
        if use.refused:
            call = replace(call, stage=Stage.SEALED, error=use.refused)
        else:
            opened = (*opened, number)
        calls = calls.append(call)
    return calls, opened


def call_started(state: State, entry: CallStarted) -> State:
    """Put the call in flight and reserve its spend."""
    number = number_of(entry.call)
    # A tool call was proposed before. A model call comes into being with its start.
    new = number == len(state.calls) + 1
    call = (
        Call(number=number, call_kind=entry.call_kind, step=state.meter.steps + 1)
        if new
        else call_of(state, entry.call)
    )
    call = replace(
        call,
        # The stage of the previous attempt is overwritten here. An aborted attempt may have
        # had an effect, whatever the outcome of this one.
        maybe=call.maybe or call.stage is Stage.ABORTED,
        purpose=entry.purpose,
        stage=Stage.STARTED,
        attempt=entry.attempt,
        started=state.seq,
        started_at=state.at,
        seen=entry.seen,
        reserved=entry.reserved,
        again=False,
        retry_at=None,
        error="",
        stopped_by="",
    )
    effects = state.effects
    # Recorded at the start, not at the end: a crash in between must not lose the cleanup.
    if call.attempt == 1 and call.lasting:
        effects = effects.append(number)
    return replace(
        state,
        calls=state.calls.append(call) if new else state.calls.replace(number - 1, call),
        meter=_metered(state.meter, call, transcript.tokens(state) if state.frames else 0),
        in_flight=(*state.in_flight, number),
        open=state.open if number in state.open else (*state.open, number),
        effects=effects,
        answer=None if call.call_kind == "model" else state.answer,
    )


def _metered(meter: Meter, call: Call, told: int) -> Meter:
    reserved = meter.reserved.plus(call.reserved)
    # The tokens of suspended frames are counted for every attempt, because each attempt sends
    # the prompt again.
    if call.call_kind == "model" and told:
        meter = replace(meter, held=meter.held + told)
    # A retry reserves spend again, but counts neither as a step nor as a tool call.
    if call.attempt > 1:
        return replace(meter, reserved=reserved)
    if call.call_kind == "model":
        # Custom conditions are evaluated once per step. Drop their verdicts, so that they are
        # evaluated again before the next step.
        steps = meter.steps + (call.purpose == "step")
        return replace(meter, reserved=reserved, steps=steps, verdicts={})
    print_ = f"{call.use.tool} {args_hash(call.use.args)}"
    trail = (*meter.trail[1 - TRAIL :], print_)
    return replace(meter, reserved=reserved, tool_calls=meter.tool_calls + 1, trail=trail)


def call_done(state: State, entry: CallDone) -> State:
    """Store the result; the call is never made again."""
    call = replace(
        call_of(state, entry.call),
        stage=Stage.DONE,
        maybe=False,
        result=entry.result,
        error=entry.encoding_error,
    )
    state = _closed(state, call, entry.spent)
    for name in entry.steered_by:
        state = replace(state, steered_by=with_name(state.steered_by, name))
    if entry.reply is not None and call.purpose == "step":
        return _replied(state, call, entry.reply)
    return state


def _replied(state: State, call: Call, reply: Reply) -> State:
    """Add the reply to the conversation; propose its calls, or take it as the answer."""
    calls, opened = _proposed(state, reply.uses)
    first = len(state.calls) + 1
    text, prefix = _prefixed(state, call, reply.text)
    said = Message(
        role="assistant",
        text=text,
        thinking=reply.thinking,
        calls=tuple(call_id(first + n) for n in range(len(reply.uses))),
        opaque=reply.opaque,
    )
    return replace(
        state,
        calls=calls,
        open=opened,
        messages=state.messages.append(said),
        spoken=state.spoken + 1,
        answer=None if reply.uses else text,
        prefix=prefix,
        window=reply.window,
        meter=replace(state.meter, text=reply.text),
    )


def call_failed(state: State, entry: CallFailed) -> State:
    """Record the error of a call; retry it, pass it to the model, or fail the run.

    A transient error of a model call is retried, any other one fails the run. The model gets
    the error of a tool. A tool that cannot be imported also fails the run, because the model
    cannot repair the program.
    """
    call = call_of(state, entry.call)
    thinking = call.call_kind == "model"
    retried = thinking and entry.transient and call.attempt < state.started.model_attempts
    fails = entry.code == NOT_IMPORTABLE or (thinking and not retried)
    # After a take-over the person sees the error and decides; the run does not fail.
    if fails and not state.wheel:
        state = replace(state, error=RunFailed(error=entry.error, code=entry.code))
    call = replace(
        call, stage=Stage.FAILED, error=entry.error, again=retried, retry_at=entry.retry_at
    )
    state = _closed(state, call, entry.spent)
    return state if retried else _cut_short(state, call, entry.text)


def call_aborted(state: State, entry: CallAborted) -> State:
    """Record a stopped attempt; retry it if that is safe and no redirect is pending."""
    call = call_of(state, entry.call)
    # A model call is not retried as such: after the pause the scheduler starts a new step.
    # A call with saved progress continues from there, so it is safe to start again.
    safe = call.call_kind != "model" and (call.harmless or call.progress is not None)
    again = safe and not entry.final and not any(p.when == "now" for p in state.redirects)
    by = "" if entry.final else _stopper(state, call)
    call = replace(call, stage=Stage.ABORTED, again=again, stopped_by=by)
    return _cut_short(_closed(state, call, entry.spent), call, entry.text, entry.thinking)


def _stopper(state: State, call: Call) -> str:
    """Return the reason of the stop: a pause, a redirect, a halt, or ""."""
    hold = state.hold
    if state.phase is Phase.PAUSING and hold is not None:
        # A pause without `now` lets a tool finish, unless the tool saves its progress. So an
        # abort of any other tool has another cause.
        return "a pause" if hold.now or call.progress is not None else ""
    if state.phase is Phase.RUNNING and any(p.when == "now" for p in state.redirects):
        return "a redirect"
    return "a halt" if state.phase is Phase.HALTED else ""


def _cut_short(state: State, call: Call, text: str, thinking: str = "") -> State:
    """Keep the partial text of a model call as an interrupted message."""
    if call.call_kind != "model" or call.purpose != "step" or not (text or thinking):
        return state
    text, prefix = _prefixed(state, call, text)
    said = Message(role="assistant", text=text, thinking=thinking, interrupted=True)
    return replace(state.saying(said), prefix=prefix)


def _prefixed(state: State, call: Call, text: str) -> tuple[str, str]:
    """Return the reply with the pending prefix, and the prefix that is still pending.

    The prefix announces a resumed frame ("Back to …"). A reply whose call started before the
    frame was resumed does not get the prefix.
    """
    if not state.prefix or call.seen < state.prefixed:
        return text, state.prefix
    return f"{state.prefix}\n\n{text}".rstrip(), ""


def call_unknown(state: State, entry: CallUnknown) -> State:
    """Record an unknown outcome; the reserved spend stays reserved.

    The provider may bill the lost attempt, so its reservation counts against the caps for the
    rest of the run.
    """
    call = call_of(state, entry.call)
    # The call was started under an older lease: its worker died, or was silent for longer
    # than its lease. A call that is merely unresponsive does not count as a death.
    orphan = call.started < state.taken
    call = replace(
        call,
        stage=Stage.UNKNOWN,
        maybe=True,
        again=call.harmless,
        deaths=call.deaths + (orphan and counts(call)),
        closed=state.seq,
        reserved=NOTHING,
    )
    return replace(state.with_call(call), in_flight=_without(state.in_flight, call.number))


def call_settled(state: State, entry: CallSettled) -> State:
    """Settle an unknown call: it happened, it did not, or it stays unknown for good."""
    call = call_of(state, entry.call)
    if entry.happened:
        call = replace(
            call, stage=Stage.DONE, maybe=False, closed=state.seq, result=entry.result
        )
    elif entry.happened is False:
        denials = call.denials + 1
        call = replace(call, stage=Stage.PROPOSED, maybe=False, denials=denials)
    else:
        call = replace(call, error="nobody can say whether this call took effect")
    return out_of_the_way(state.with_call(call), call)


def call_sealed(state: State, entry: CallSealed) -> State:
    """Close a call that will not be made, or not again."""
    call = call_of(state, entry.call)
    # A call that was attempted keeps its stage: undo and report depend on it.
    made = call.stage in {Stage.ABORTED, Stage.UNKNOWN, Stage.FAILED}
    stage = call.stage if made else Stage.SEALED
    call = replace(call, stage=stage, again=False, error=entry.why)
    return out_of_the_way(state.with_call(call), call)


def progress_saved(state: State, entry: ProgressSaved) -> State:
    """Store the progress; new progress resets the count of workers that died."""
    call = call_of(state, entry.call)
    deaths = call.deaths if entry.progress == call.progress else 0
    return state.with_call(replace(call, progress=entry.progress, deaths=deaths))


def late_result(state: State, entry: LateResult) -> State:
    """Settle the call with a late result if its attempt is still the last one."""
    call = replace(call_of(state, entry.call), late=entry.attempt)
    if settles(state, call, entry.attempt):
        call = replace(
            call,
            stage=Stage.DONE,
            maybe=False,
            again=False,
            closed=state.seq,
            result=entry.result,
        )
        return out_of_the_way(state.with_call(call), call)
    # The attempt did happen, but another attempt was made since, or the call was closed. Its
    # effect may exist besides the effect of the later attempt: keep the doubt.
    happened = call.stage is not Stage.DONE and state.phase not in TERMINAL
    return state.with_call(replace(call, maybe=call.maybe or happened))


def settles(state: State, call: Call, attempt: int) -> bool:
    """Tell whether a late result of `attempt` settles `call`.

    It does if the outcome is unknown, or if a check wrongly said that the call did not happen
    (then the call is proposed again). The late reply of a model does not count: its text was
    lost with its stream. Nor does a result after the undo was tried.
    """
    return (
        state.phase not in TERMINAL
        and call.call_kind != "model"
        and call.stage in {Stage.UNKNOWN, Stage.PROPOSED}
        and call.attempt == attempt
        and not call.undo.attempts
    )


def call_of(state: State, call: str) -> Call:
    """Return the call that an entry refers to.

    Raises:
        JournalCorrupt: there is no call with this id.
    """
    found = state.call(call)
    if found is None:
        raise JournalCorrupt(state.run, state.seq, f"there is no call {call}")
    return found


def _closed(state: State, call: Call, spent: Spend | None) -> State:
    """Take the call out of flight; replace its reservation by its actual spend.

    A call that was stopped reports no spend (`spent` is None), but the provider may bill it.
    Then the whole reservation counts as spent.
    """
    meter = state.meter
    if spent is not None or call.reserved is not NOTHING:
        meter = replace(
            meter,
            spent=meter.spent.plus(call.reserved if spent is None else spent),
            reserved=meter.reserved.minus(call.reserved),
        )
    # `is_open` depends on the new stage: a failed call that is retried stays in the open calls.
    call = replace(call, closed=state.seq, reserved=NOTHING)
    state = replace(
        state,
        calls=state.calls.replace(call.number - 1, call),
        meter=meter,
        in_flight=_without(state.in_flight, call.number),
        open=state.open if call.unclosed else _without(state.open, call.number),
    )
    return out_of_the_way(state, call) if call.shelved else state


def _without(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    return () if numbers == (number,) else tuple(n for n in numbers if n != number)


def out_of_the_way(state: State, call: Call) -> State:
    """Remove a closed call from the open calls; report a deferred one to the agent.

    The agent went on without the outcome of a deferred call. It gets the outcome as a message,
    and an answer that it gave without knowing the outcome no longer counts.
    """
    if call.unclosed:
        return state
    state = replace(state, open=_without(state.open, call.number))
    if not call.shelved:
        return state
    return replace(state, answer=None).saying(
        Message(role="runtime", text="", kind="outcome", calls=(call.id,))
    )


ARMS: Arms = {
    CallProposed: call_proposed,
    CallStarted: call_started,
    CallDone: call_done,
    CallFailed: call_failed,
    CallAborted: call_aborted,
    CallUnknown: call_unknown,
    CallSettled: call_settled,
    CallSealed: call_sealed,
    ProgressSaved: progress_saved,
    LateResult: late_result,
}
