"""Compute the entries that are due at a step boundary.

A boundary is the moment between two steps when nothing is in flight. `scheduler.advance`
appends these entries before it starts calls.

One call returns the entries of the first of these that is due; the next call finds the next:

1. pending redirects,
2. asks that calls need (approvals, unknown outcomes),
3. the result of a tool that is the answer,
4. a handoff to another agent,
5. one pending message,
6. the return to a held topic,
7. the stop condition, or undo attempts to give up before the end.

Asks are also opened while other calls are in flight, because they need no boundary.
"""

from collections.abc import Iterator, Sequence

from midrun.core import journaled_text
from midrun.core.entries import (
    AnswerGiven,
    AskClosed,
    AskCloseReason,
    AskOpened,
    CapReached,
    Entry,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    HandedOff,
    MessageTaken,
    RedirectApplied,
    RunCancelled,
    StopReached,
    UndoGaveUp,
)
from midrun.core.evolve.calls import hash_args
from midrun.core.ids import AskId, FrameId, Micros, add_micros, make_ask_id
from midrun.core.journaled_text import quote_title, seal_call
from midrun.core.state import CallStage, CallState, PendingText, State
from midrun.core.stops import Stop, completes_run, find_cap_name, find_met_stop
from midrun.core.undo import is_undo_unsafe, list_remaining_cleanups
from midrun.core.values import Phase, RequestedCall


def list_boundary_entries(
    state: State, active_calls: Sequence[CallState], now: Micros
) -> tuple[Entry, ...]:
    """Return the entries that are due at this boundary, or (); the run has no failure."""
    # A cancelling run takes no new input; it only gives up undos that cannot succeed.
    if state.phase is Phase.CANCELLING:
        return tuple(_give_up_cleanups(state))
    if state.phase is not Phase.RUNNING:
        return ()
    # A person has taken over: messages, held topics and stop conditions wait for the hand-back.
    # Only the calls that the person requests may need an approval.
    if state.taken_over_by:
        return _open_needed_asks(state, active_calls, now)
    # A redirect comes before everything else, because it closes the asks and calls below. It
    # waits until the calls in flight have ended.
    if state.pending and state.pending_redirects:
        return () if state.in_flight else tuple(_apply_redirects(state))
    # Asks do not wait for calls in flight: a person can decide meanwhile.
    if active_calls and (asks := _open_needed_asks(state, active_calls, now)):
        return asks
    # Everything below needs a boundary: nothing in flight, and no call left to start. Calls
    # that wait for a person may be open; a message can be answered meanwhile.
    if state.in_flight or (active_calls and has_unblocked_call(state, active_calls)):
        return ()
    return _list_entries_between_steps(state, now)


def _list_entries_between_steps(state: State, now: Micros) -> tuple[Entry, ...]:
    if state.pending_final:
        # The other calls of the reply end first, also those that wait for a person. A message
        # waits with them: it would hold a topic that has its answer.
        return () if state.open_calls else (_give_result(state),)
    if state.pending_handoff:
        return (_hand_off(state),)
    if state.pending and (taken := _deliver_message(state, now)):
        return (taken,)
    if state.open_calls:
        return ()
    if state.answer is not None and state.frames:
        return (resume_topic(state, now),)
    if state.answer is None and state.stop is None:
        return ()  # the usual end of a step
    return _check_stop_condition(state)


def has_unblocked_call(state: State, active_calls: Sequence[CallState]) -> bool:
    """Tell whether an active call can continue without a decision of a person."""
    for call in active_calls:
        if call.stage is CallStage.PROPOSED or not state.is_waiting_for_person(call):
            return True
    return False


def _apply_redirects(state: State) -> Iterator[Entry]:
    """Apply every pending redirect; close open asks and seal calls that have not started."""
    yield from close_asks(state, "superseded")
    # Calls of held topics are sealed, too: the new instruction replaces the whole work, and a
    # call of the old plan must not start when its topic is resumed.
    for number in state.open_and_parked_calls:
        call = state.calls[number - 1]
        # The fold of `AskClosed` seals a call that waits on its ask.
        if call.is_open and call.stage is not CallStage.ASKING:
            yield seal_call(call, "the run was redirected")
    minus = journaled_text.format_upcoming(state, state.plan)
    for waiting in state.pending_redirects:
        plus = journaled_text.shorten_to_line(waiting.text)
        yield RedirectApplied(redirect=waiting.seq, minus=minus, plus=plus)


def close_asks(state: State, reason: AskCloseReason, by: str = "") -> Iterator[AskClosed]:
    """Close every open ask without a decision."""
    for number in state.open_asks:
        yield AskClosed(ask=state.asks[number - 1].id, why=reason, by=by)


def _open_needed_asks(
    state: State, active_calls: Sequence[CallState], now: Micros
) -> tuple[AskOpened, ...]:
    """Open the asks that calls need: approvals, and outcomes that no check can settle."""
    opened: list[AskOpened] = []
    for call in active_calls:
        # Most calls need neither an approval nor to be settled.
        if not call.use.traits.approve and call.stage is not CallStage.UNKNOWN:
            continue
        if any(state.asks[n - 1].call == call.id for n in state.open_asks):
            continue
        # Ask ids are consecutive, so count on from the asks in the state.
        ask_id = make_ask_id(state.asks.size + len(opened) + 1)
        if needs_approval(state, call, now):
            opened.append(make_approval_ask(call, ask_id, now))
        elif call.needs_settling and not call.error and not call.traits.check:
            opened.append(
                AskOpened(
                    ask=ask_id,
                    ask_kind="unsure",
                    call=call.id,
                    question=_ask_about_outcome(call.use),
                    data=call.use.args,
                    audience=call.traits.audience,
                    four_eyes=call.traits.four_eyes,
                )
            )
    return tuple(opened)


def _ask_about_outcome(use: RequestedCall) -> str:
    return f"It is unknown whether this took effect: {use.label}. Did it?"


def _ask_for_approval(use: RequestedCall) -> str:
    return f"Approve {quote_title(use.label)}?"


def needs_approval(state: State, call: CallState, now: Micros) -> bool:
    """Tell whether the call needs an approval that is missing or has expired."""
    # A retry needs no new approval while the old one is valid. A redirect or an import voids
    # the approval of a call that has not started.
    if not call.traits.approve or not (call.must_retry or call.stage is CallStage.PROPOSED):
        return False
    given = state.find_ask(call.approval.ask) if call.approval is not None else None
    return given is None or (given.expires is not None and given.expires <= now)


def make_approval_ask(call: CallState, ask_id: AskId, now: Micros) -> AskOpened:
    """Build the approval ask for `call`, bound to its arguments."""
    return AskOpened(
        ask=ask_id,
        ask_kind="approval",
        call=call.id,
        question=_ask_for_approval(call.use),
        data=call.use.args,
        blocking=call.traits.approve == "block",
        audience=call.traits.audience,
        four_eyes=call.traits.four_eyes,
        args_hash=hash_args(call.use.args),
        expires=add_micros(now, call.traits.ask_ttl) if call.traits.ask_ttl else None,
    )


def _give_result(state: State) -> AnswerGiven:
    """Build the answer from the result of a tool that is declared as final."""
    call = state.find_call(state.pending_final)
    assert call is not None, "the fold of its end has noted it"
    text = "" if call.result is None else journaled_text.format_output(call.result)
    return AnswerGiven(text=text, value=None if isinstance(call.result, str) else call.result)


def _hand_off(state: State) -> HandedOff:
    call = state.find_call(state.pending_handoff)
    assert call is not None, "the fold of its end has noted it"
    return HandedOff(agent=call.use.handoff, call=call.id)


def _deliver_message(state: State, now: Micros) -> Entry | None:
    """Return the entry that delivers the first deliverable message, or None.

    If the agent has given its answer, no topic has to be held. In the middle of the work a
    topic is held, unless too many are: then the message waits until one is resumed or dropped.
    A "later" message waits for the answer to the task itself.
    """
    at_hand = state.answer is not None and not state.open_calls
    for waiting in state.pending:
        # `due_at` is set while a message waits for its time; `MessageDue` clears it.
        if waiting.kind != "message" or waiting.due_at is not None:
            continue
        if at_hand and (waiting.urgency != "later" or not state.frames):
            return MessageTaken(message=waiting.seq)
        # A "later" message extends the task, so it waits for the answer to the task. With
        # topics held, the answer at hand is that to another message.
        if at_hand or waiting.urgency == "later":
            continue
        # A hosted program reads the message at its next model call. It cannot put its work
        # aside to answer, so no topic is held.
        if state.run_started.hosted:
            return MessageTaken(message=waiting.seq)
        if len(state.frames) < state.run_started.frame_depth:
            return _push_frame(state, waiting, now)
    return None


def _push_frame(state: State, pending: PendingText, now: Micros) -> FramePushed:
    plan = journaled_text.get_topic_plan(state)
    done, total = journaled_text.count_plan_items(plan)
    return FramePushed(
        frame=FrameId(f"f{state.frames_pushed + 1}"),
        message=pending.seq,
        goal=journaled_text.format_goal(state),
        done=done if total else state.meter.steps,
        total=total,
        next=journaled_text.format_upcoming(state, plan),
        expires=add_micros(now, state.run_started.frame_ttl),
    )


def resume_topic(state: State, now: Micros) -> FrameResumed | FrameReconstructed:
    """Resume the topic on top; after its time limit, as a reconstruction."""
    frame = state.frames[-1]
    if now >= frame.expires:
        return FrameReconstructed(
            frame=frame.id, text=journaled_text.format_reconstructed_topic(frame)
        )
    return FrameResumed(frame=frame.id, text=journaled_text.format_resumed_topic(frame))


def _check_stop_condition(state: State) -> tuple[Entry, ...]:
    """Return the entry of a met stop condition before a new step; else ()."""
    if state.answer is not None:
        return tuple(_give_up_cleanups(state))
    # A hosted program makes its next calls by itself. Its step ends when it proposes the next
    # model call: `scheduler` checks the condition then.
    if state.stop is None or state.run_started.hosted:
        return ()
    hit = find_met_stop(state.stop, state.meter_with_time)
    return () if hit is None else (make_stop_entry(hit),)


def make_stop_entry(met_stop: Stop) -> CapReached | StopReached:
    """Build the entry for a met condition: a pause at a cap, or the end."""
    if completes_run(met_stop):
        return StopReached(stop=str(met_stop))
    return CapReached(stop=str(met_stop), cap=find_cap_name(met_stop))


def _give_up_cleanups(state: State) -> Iterator[UndoGaveUp]:
    """Give up undos and releases that will not be tried again, in cleanup order.

    Stops at the first one that has attempts left: the scheduler must try that one before any
    later one is given up.
    """
    if state.in_flight or state.cleanup_in_flight:
        return
    # `UndoGaveUp` for a later effect while an earlier one still has attempts would break the
    # order of undos, newest effect first: the earlier one may depend on it.
    for call, action in list_remaining_cleanups(state):
        cleanup = call.get_cleanup(action)
        why = cleanup.error or "its last attempt was cut short"
        # An unsafe undo is never tried. Any other one has used its last attempt, or the last
        # attempt may still be running.
        if is_undo_unsafe(call, action):
            why = "it may not have happened, and its undo needs to know"
        elif not cleanup.is_final and cleanup.attempts < state.run_started.undo_attempts:
            return
        yield UndoGaveUp(call=call.id, action=action, error=why)


def make_cancel_entries(state: State) -> tuple[Entry, ...]:
    """End a cancelled run: seal its open calls, keep its partial answer."""
    sealed = (seal_call(state.calls[n - 1], "the run was cancelled") for n in state.open_calls)
    return (*sealed, RunCancelled(residue=state.residue, partial=_find_partial_output(state)))


def _find_partial_output(state: State) -> str:
    if state.has_ended:  # the run ended before; this cancel only undoes, so the output stays
        return state.output
    return state.answer if state.answer is not None else _find_last_text(state)


def _find_last_text(state: State) -> str:
    for index in range(len(state.messages) - 1, -1, -1):
        message = state.messages[index]
        if message.role == "assistant" and message.text:
            return message.text
    return ""
