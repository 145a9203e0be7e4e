"""What calls mean for the state: attempts, outcomes, money, and what may have happened."""

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
    """Return what an approval is bound to: the arguments, byte for byte."""
    return sha256(msgspec.json.encode(args, order="sorted")).hexdigest()[:32]


def call_proposed(state: State, entry: CallProposed) -> State:
    """Somebody wants a call made."""
    calls, opened = _proposed(state, (entry.use,), by_hand=bool(state.wheel))
    after = replace(state, calls=calls, open=opened)
    if not state.wheel:
        return after
    made = call_id(len(calls))  # a person made it as the assistant: the agent will know
    return after.saying(
        Message(role="assistant", text="", by=state.wheel, kind="person", calls=(made,))
    )


def _proposed(
    state: State, uses: tuple[Use, ...], *, by_hand: bool = False
) -> tuple[Vector[Call], tuple[int, ...]]:
    """Number the calls that are wanted; one that cannot be made is answered at once."""
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
    """The call is in flight; what it may cost is set aside."""
    number = number_of(entry.call)
    new = number == len(state.calls) + 1
    call = (
        Call(number=number, call_kind=entry.call_kind, step=state.meter.steps + 1)
        if new
        else call_of(state, entry.call)
    )
    call = replace(
        call,
        # An earlier attempt that was stopped may have happened, however this one ends.
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
    if call.call_kind == "model" and told:
        meter = replace(meter, held=meter.held + told)
    if call.attempt > 1:
        return replace(meter, reserved=reserved)
    if call.call_kind == "model":
        # A new step: custom conditions speak anew before the next one.
        steps = meter.steps + (call.purpose == "step")
        return replace(meter, reserved=reserved, steps=steps, verdicts={})
    print_ = f"{call.use.tool} {args_hash(call.use.args)}"
    trail = (*meter.trail[1 - TRAIL :], print_)
    return replace(meter, reserved=reserved, tool_calls=meter.tool_calls + 1, trail=trail)


def call_done(state: State, entry: CallDone) -> State:
    """The call has its result, and will never be made again."""
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
    """The model spoke: what it wants made is proposed; without a wish it is its answer."""
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
    """A tool's error goes to the model; a model's is retried, or fails the run.

    A tool that cannot be imported fails the run, too: the model cannot mend the program.
    """
    call = call_of(state, entry.call)
    thinking = call.call_kind == "model"
    retried = thinking and entry.transient and call.attempt < state.started.model_attempts
    fails = entry.code == NOT_IMPORTABLE or (thinking and not retried)
    if fails and not state.wheel:  # at the wheel, a person goes on
        state = replace(state, error=RunFailed(error=entry.error, code=entry.code))
    call = replace(
        call, stage=Stage.FAILED, error=entry.error, again=retried, retry_at=entry.retry_at
    )
    state = _closed(state, call, entry.spent)
    return state if retried else _cut_short(state, call, entry.text)


def call_aborted(state: State, entry: CallAborted) -> State:
    """Stopped midway. Made again only where that is safe and nobody changed the course."""
    call = call_of(state, entry.call)
    safe = call.call_kind != "model" and (call.harmless or call.progress is not None)
    again = safe and not entry.final and not any(p.when == "now" for p in state.redirects)
    by = "" if entry.final else _stopper(state, call)
    call = replace(call, stage=Stage.ABORTED, again=again, stopped_by=by)
    return _cut_short(_closed(state, call, entry.spent), call, entry.text, entry.thinking)


def _stopper(state: State, call: Call) -> str:
    """Return what `call` is stopped by, if it goes by what was asked before any cancel."""
    hold = state.hold
    if state.phase is Phase.PAUSING and hold is not None:
        # A pause that is not sharp lets a tool finish, unless it saves how far it is.
        return "a pause" if hold.now or call.progress is not None else ""
    if state.phase is Phase.RUNNING and any(p.when == "now" for p in state.redirects):
        return "a redirect"
    return "a halt" if state.phase is Phase.HALTED else ""


def _cut_short(state: State, call: Call, text: str, thinking: str = "") -> State:
    """Keep what a model had said so far, marked as interrupted: it can go on from there."""
    if call.call_kind != "model" or call.purpose != "step" or not (text or thinking):
        return state
    text, prefix = _prefixed(state, call, text)
    said = Message(role="assistant", text=text, thinking=thinking, interrupted=True)
    return replace(state.saying(said), prefix=prefix)


def _prefixed(state: State, call: Call, text: str) -> tuple[str, str]:
    """Return what the agent says, after what the runtime says before it; and what is left.

    "Back to …" is not said by a reply that had been begun before it went back.
    """
    if not state.prefix or call.seen < state.prefixed:
        return text, state.prefix
    return f"{state.prefix}\n\n{text}".rstrip(), ""


def call_unknown(state: State, entry: CallUnknown) -> State:
    """Nobody knows. The reservation is kept, and so is the doubt."""
    call = call_of(state, entry.call)
    orphan = call.started < state.taken  # its driver died, or was silent for too long
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
    """Evidence about an unknown call."""
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
    """The call will not be made, or not again."""
    call = call_of(state, entry.call)
    made = call.stage in {Stage.ABORTED, Stage.UNKNOWN, Stage.FAILED}
    stage = call.stage if made else Stage.SEALED
    call = replace(call, stage=stage, again=False, error=entry.why)
    return out_of_the_way(state.with_call(call), call)


def progress_saved(state: State, entry: ProgressSaved) -> State:
    """A long call remembers how far it is; further than before, it kills nobody."""
    call = call_of(state, entry.call)
    deaths = call.deaths if entry.progress == call.progress else 0
    return state.with_call(replace(call, progress=entry.progress, deaths=deaths))


def late_result(state: State, entry: LateResult) -> State:
    """Late evidence settles its own attempt if nothing was made since; else a doubt stays."""
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
    # It happened, and somebody made it again, or ended the run: that is not forgotten.
    happened = call.stage is not Stage.DONE and state.phase not in TERMINAL
    return state.with_call(replace(call, maybe=call.maybe or happened))


def settles(state: State, call: Call, attempt: int) -> bool:
    """Tell whether a late result of `attempt` says what nobody knew, or knew wrongly.

    A model's late reply does not: what it said is gone with its stream.
    """
    return (
        state.phase not in TERMINAL
        and call.call_kind != "model"
        and call.stage in {Stage.UNKNOWN, Stage.PROPOSED}
        and call.attempt == attempt
        and not call.undo.attempts
    )


def call_of(state: State, call: str) -> Call:
    """Return the call that an entry speaks of.

    Raises:
        JournalCorrupt: there is none of that id.
    """
    found = state.call(call)
    if found is None:
        raise JournalCorrupt(state.run, state.seq, f"there is no call {call}")
    return found


def _closed(state: State, call: Call, spent: Spend | None) -> State:
    """Take the call out of flight and turn its reservation into what it cost.

    A call that was stopped reports nothing, but may well be billed: then it counts as having
    cost what was set aside.
    """
    meter = state.meter
    if spent is not None or call.reserved is not NOTHING:
        meter = replace(
            meter,
            spent=meter.spent.plus(call.reserved if spent is None else spent),
            reserved=meter.reserved.minus(call.reserved),
        )
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
    """Forget a closed call where calls wait; a shelved one reports to the agent."""
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
