"""Fold asks: a call that waits for a person, and the effect of the decision.

While its ask is open, a call is in stage `ASKING` and not in flight. The decision makes it
done (an answer), proposed again (an approval, a continuation), or sealed (a decline). A call
with an "unsure" ask stays `UNKNOWN` until `CallSettled` follows.
"""

from typing import cast

from msgspec.structs import replace

from midrun.core.entries import AskAnswered, AskClosed, AskOpened
from midrun.core.evolve.calls import args_hash, call_of, out_of_the_way
from midrun.core.ids import ask_number, number_of
from midrun.core.journaled_text import fate
from midrun.core.state import Arms, Ask, Call, Stage, State, with_name
from midrun.core.values import Approval, Decision, Json, Role
from midrun.errors import JournalCorrupt

BECAUSE = {
    "superseded": "the run was redirected",
    "cancelled": "the run was cancelled",
    "expired": "nobody decided in time",
}


def ask_opened(state: State, entry: AskOpened) -> State:
    """Park the call on the ask; a non-blocking ask does not hold up the step."""
    excluded = entry.excluded
    if entry.four_eyes:
        for name in call_of(state, entry.call).steered_by:
            excluded = with_name(excluded, name)
    ask = Ask(
        id=entry.ask,
        ask_kind=entry.ask_kind,
        call=entry.call,
        opened=state.seq,
        question=entry.question,
        data=entry.data,
        blocking=entry.blocking,
        of=entry.of,
        audience=entry.audience,
        four_eyes=entry.four_eyes,
        excluded=excluded,
        args_hash=entry.args_hash,
        expires=entry.expires,
        continuation=entry.continuation,
    )
    state = state.with_ask(ask)
    number = number_of(entry.call)
    state = replace(
        state,
        open_asks=(*state.open_asks, len(state.asks)),
        in_flight=tuple(n for n in state.in_flight if n != number),
    )
    call = call_of(state, ask.call)
    if entry.ask_kind == "unsure":
        return state  # the call stays unknown while the ask is open
    # The stage is overwritten below. Keep the facts that it implies: an attempt that asked
    # from inside the tool, or was aborted, may have had an effect.
    entered = call.entered or call.stage is Stage.STARTED
    maybe = call.maybe or call.stage is Stage.ABORTED
    call = replace(
        call,
        stage=Stage.ASKING,
        again=False,
        shelved=not entry.blocking,
        entered=entered,
        maybe=maybe,
        # With a continuation the same approved call goes on after the answer. Otherwise a
        # new attempt needs a new approval.
        approval=None if entry.continuation is None else call.approval,
    )
    if call.shelved:
        state = replace(state, open=tuple(n for n in state.open if n != number))
    return state.with_call(call)


def ask_answered(state: State, entry: AskAnswered) -> State:
    """Close the ask; apply the decision to its call."""
    ask = _ask_of(state, entry.ask)
    role = cast("Role", entry.role or "user")
    state = _closed(state, replace(ask, role=role), "answered", entry.by, entry.decision)
    call = call_of(state, ask.call)
    if ask.kind != "unsure" and (entry.decision.value is not None or entry.decision.reason):
        # The agent reads an answer, edited arguments or the reason of a decline. So this actor
        # steers the run, and four eyes exclude them from later approvals.
        state = replace(state, steered_by=with_name(state.steered_by, entry.by))
    match ask.ask_kind:
        case "question" if ask.continuation is not None:
            answered: Json = {
                "continuation": ask.continuation,
                "choice": entry.decision.choice,
                "value": entry.decision.value,
            }
            return state.with_call(replace(call, stage=Stage.PROPOSED, answered=answered))
        case "question":
            call = replace(
                call, stage=Stage.DONE, result=entry.decision.value, closed=state.seq
            )
            return out_of_the_way(state.with_call(call), call)
        case "approval" if entry.decision.choice == "approve":
            return _approved(state, call, ask, entry)
        case "approval":
            why = f"declined by {entry.by}: {entry.decision.reason}".rstrip(": ")
            return _sealed(state, call, why)
        case "child":
            return state.with_call(replace(call, stage=Stage.PROPOSED))
        case "unsure":
            return state  # `CallSettled` follows in the same append


def _approved(state: State, call: Call, ask: Ask, entry: AskAnswered) -> State:
    """Approve the call with its final arguments; an edit under four eyes only proposes."""
    value = entry.decision.value
    args = call.use.args if value is None else value
    approval = Approval(ask=ask.id, args_hash=args_hash(args))
    call = replace(
        call, stage=Stage.PROPOSED, use=replace(call.use, args=args), approval=approval
    )
    if is_edit_under_four_eyes(ask, entry.decision):
        call = replace(call, approval=None, steered_by=with_name(call.steered_by, entry.by))
    # A deferred call left the open calls when its ask was opened. It has to start now.
    opened = (*state.open, call.number) if call.shelved else state.open
    return replace(state.with_call(call), open=opened)


def is_edit_under_four_eyes(ask: Ask, decision: Decision) -> bool:
    """Tell whether `decision` edits arguments that another person must then approve."""
    edited = decision.value is not None and args_hash(decision.value) != ask.args_hash
    return ask.four_eyes and ask.ask_kind == "approval" and edited


def ask_closed(state: State, entry: AskClosed) -> State:
    """Close the ask without a decision; seal its call unless it goes on elsewhere."""
    ask = _ask_of(state, entry.ask)
    state = _closed(state, ask, entry.why, entry.by, None)
    call = call_of(state, ask.call)
    if call.stage is not Stage.ASKING:
        return state
    if entry.why == "elsewhere":
        return state.with_call(replace(call, stage=Stage.PROPOSED))
    return _sealed(state, call, f"{fate(call)}: {BECAUSE[entry.why]}")


def _sealed(state: State, call: Call, why: str) -> State:
    call = replace(call, stage=Stage.SEALED, error=why, closed=state.seq)
    return out_of_the_way(state.with_call(call), call)


def _closed(state: State, ask: Ask, how: str, by: str, decision: Decision | None) -> State:
    number = ask_number(ask.id)
    closed = replace(ask, closed=how, closed_seq=state.seq, by=by, decision=decision)
    open_asks = tuple(n for n in state.open_asks if n != number)
    return replace(state.with_ask(closed), open_asks=open_asks)


def _ask_of(state: State, ask: str) -> Ask:
    found = state.ask(ask)
    if found is None or found.closed:
        raise JournalCorrupt(state.run, state.seq, f"there is no open ask {ask}")
    return found


ARMS: Arms = {
    AskOpened: ask_opened,
    AskAnswered: ask_answered,
    AskClosed: ask_closed,
}
