"""Fold asks: a call that waits for a person, and the effect of the decision.

While its ask is open, a call is in stage `ASKING` and not in flight. The decision makes it
done (an answer), proposed again (an approval, a continuation), or sealed (a decline). A call
with an "unsure" ask stays `UNKNOWN` until `CallSettled` follows.
"""

from typing import cast

from msgspec.structs import replace

from midrun.core.entries import AskAnswered, AskClosed, AskOpened
from midrun.core.evolve.calls import close_call, get_call, hash_args
from midrun.core.ids import parse_ask_number, parse_call_number
from midrun.core.journaled_text import format_outcome_phrase
from midrun.core.state import Ask, CallStage, CallState, EvolveFunctions, State, add_name
from midrun.core.values import Approval, Decision, Json, Role
from midrun.errors import JournalCorrupt

CLOSE_REASON_TEXTS = {
    "superseded": "the run was redirected",
    "cancelled": "the run was cancelled",
    "expired": "no decision in time",
}


def ask_opened(state: State, entry: AskOpened) -> State:
    """Park the call on the ask; a non-blocking ask does not hold up the step."""
    excluded = entry.excluded
    if entry.four_eyes:
        for name in get_call(state, entry.call).steered_by:
            excluded = add_name(excluded, name)
    ask = Ask(
        id=entry.ask,
        ask_kind=entry.ask_kind,
        call=entry.call,
        opened_seq=state.seq,
        question=entry.question,
        data=entry.data,
        blocking=entry.blocking,
        child_ask_kind=entry.child_ask_kind,
        audience=entry.audience,
        four_eyes=entry.four_eyes,
        excluded=excluded,
        args_hash=entry.args_hash,
        expires=entry.expires,
        continuation=entry.continuation,
        files=entry.files,
    )
    state = state.with_ask(ask).with_files(entry.files)
    number = parse_call_number(entry.call)
    state = replace(
        state,
        open_asks=(*state.open_asks, len(state.asks)),
        in_flight=tuple(n for n in state.in_flight if n != number),
    )
    call = get_call(state, ask.call)
    if entry.ask_kind == "unsure":
        return state  # the call stays unknown while the ask is open
    # The stage is overwritten below. Keep the facts that it implies: an attempt that asked
    # from inside the tool, or was aborted, may have had an effect.
    entered = call.asked_from_inside or call.stage is CallStage.STARTED
    maybe = call.may_have_happened or call.stage is CallStage.ABORTED
    call = replace(
        call,
        stage=CallStage.ASKING,
        must_retry=False,
        deferred_review=not entry.blocking,
        asked_from_inside=entered,
        may_have_happened=maybe,
        # With a continuation the same approved call continues after the answer. Otherwise a
        # new attempt needs a new approval.
        approval=None if entry.continuation is None else call.approval,
    )
    if call.deferred_review:
        state = replace(state, open_calls=tuple(n for n in state.open_calls if n != number))
    return state.with_call(call)


def ask_answered(state: State, entry: AskAnswered) -> State:
    """Close the ask; apply the decision to its call."""
    ask = _get_open_ask(state, entry.ask)
    role = cast("Role", entry.role or "user")
    ask = replace(ask, decider_role=role, answer_files=entry.files)
    state = _close_ask(state, ask, "answered", entry.by, entry.decision)
    state = state.with_files(entry.files)
    call = get_call(state, ask.call)
    if ask.effective_kind != "unsure" and (
        entry.decision.value is not None or entry.decision.reason
    ):
        # The agent reads an answer, edited arguments or the reason of a decline. So this actor
        # steers the run, and four eyes exclude them from later approvals.
        state = replace(state, steered_by=add_name(state.steered_by, entry.by))
    match ask.ask_kind:
        case "question" if ask.continuation is not None:
            answered: Json = {
                "continuation": ask.continuation,
                "choice": entry.decision.choice,
                "value": entry.decision.value,
            }
            return state.with_call(
                replace(call, stage=CallStage.PROPOSED, question_answer=answered)
            )
        case "question":
            call = replace(
                call,
                stage=CallStage.DONE,
                result=entry.decision.value,
                files=entry.files,
                closed_seq=state.seq,
            )
            return close_call(state.with_call(call), call)
        case "approval" if entry.decision.choice == "approve":
            return _approve_call(state, call, ask, entry)
        case "approval":
            why = f"declined by {entry.by}: {entry.decision.reason}".rstrip(": ")
            return _seal_call(state, call, why)
        case "child":
            return state.with_call(replace(call, stage=CallStage.PROPOSED))
        case "unsure":
            return state  # `CallSettled` follows in the same append


def _approve_call(state: State, call: CallState, ask: Ask, entry: AskAnswered) -> State:
    """Approve the call with its final arguments; an edit under four eyes only proposes."""
    value = entry.decision.value
    use = call.use
    if value is not None:  # the old title describes the old arguments
        use = replace(use, args=value, title=entry.title)
    approval = Approval(ask=ask.id, args_hash=hash_args(use.args))
    call = replace(call, stage=CallStage.PROPOSED, use=use, approval=approval)
    if is_edit_under_four_eyes(ask, entry.decision):
        call = replace(call, approval=None, steered_by=add_name(call.steered_by, entry.by))
    # A deferred call left the open calls when its ask was opened. It has to start now.
    opened = (*state.open_calls, call.number) if call.deferred_review else state.open_calls
    return replace(state.with_call(call), open_calls=opened)


def is_edit_under_four_eyes(ask: Ask, decision: Decision) -> bool:
    """Tell whether `decision` edits arguments that another person must then approve."""
    edited = decision.value is not None and hash_args(decision.value) != ask.args_hash
    return ask.four_eyes and ask.ask_kind == "approval" and edited


def ask_closed(state: State, entry: AskClosed) -> State:
    """Close the ask without a decision; seal its call unless it continues elsewhere."""
    ask = _get_open_ask(state, entry.ask)
    state = _close_ask(state, ask, entry.why, entry.by, None)
    call = get_call(state, ask.call)
    if call.stage is not CallStage.ASKING:
        return state
    if entry.why == "elsewhere":
        return state.with_call(replace(call, stage=CallStage.PROPOSED))
    return _seal_call(
        state, call, f"{format_outcome_phrase(call)}: {CLOSE_REASON_TEXTS[entry.why]}"
    )


def _seal_call(state: State, call: CallState, why: str) -> State:
    call = replace(call, stage=CallStage.SEALED, error=why, closed_seq=state.seq)
    return close_call(state.with_call(call), call)


def _close_ask(
    state: State, ask: Ask, close_reason: str, decided_by: str, decision: Decision | None
) -> State:
    number = parse_ask_number(ask.id)
    closed = replace(
        ask,
        close_reason=close_reason,
        closed_seq=state.seq,
        decided_by=decided_by,
        decision=decision,
    )
    open_asks = tuple(n for n in state.open_asks if n != number)
    return replace(state.with_ask(closed), open_asks=open_asks)


def _get_open_ask(state: State, ask_id: str) -> Ask:
    found = state.find_ask(ask_id)
    if found is None or found.close_reason:
        raise JournalCorrupt(state.run, state.seq, f"there is no open ask {ask_id}")
    return found


EVOLVE_FUNCTIONS: EvolveFunctions = {
    AskOpened: ask_opened,
    AskAnswered: ask_answered,
    AskClosed: ask_closed,
}
