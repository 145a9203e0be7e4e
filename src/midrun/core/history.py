"""Build the history for a fork or for the next run of a thread.

The history is a tuple of plain messages in the first entry of the new run. Calls appear in it
with their arguments and outcome, under ids that cannot collide with calls of the new run.

A fork starts a new run at a boundary of another run. It inherits the conversation and the
plan, but not the effects: only the first run can undo those.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.core.entries import RunStarted
from midrun.core.ids import CallId, make_call_key
from midrun.core.journaled_text import format_outcome_phrase
from midrun.core.state import CallStage, CallState, State
from midrun.core.transcript import make_final_result
from midrun.core.transitions import Refused
from midrun.core.values import TERMINAL_PHASES, Actor, CallResult, Json, Message, Origin

INHERITED_CALL_ID_CHARS: Final = 24
"""Length of the id of an inherited call: a prefix of its key. Providers limit id lengths."""

HISTORY_MAX_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a history. One entry may hold twice as much."""

SHORTENED_TEXT_MAX_CHARS: Final = 16 * 1024
"""Maximum length of one text or result in a history that must be shortened."""


def make_fork_entry(state: State, *, by: Actor, instruction: str = "") -> RunStarted | Refused:
    """Return the first entry of a run that continues from `state`.

    Refused if `state` is not at a boundary.
    """
    if not state.seq or not is_at_boundary(state):
        return Refused(reason="not_a_boundary", seq=state.seq)
    spec = state.run_started
    messages = limit_history(tuple(iter_history(state)))
    return replace(
        spec,
        task=instruction or spec.task,
        history=messages,
        steered_by=find_unnamed_authors(state.steered_by, messages, by.name),
        plan=state.plan,
        speaker="" if state.speaker is None else state.speaker.agent,
        stop=state.stop,
        by=by.name,
        role=by.role,
        request_id="",
        digest="",
        parent=None,
        files=() if instruction else spec.files,
        forked=Origin(run=state.run, seq=state.seq),
    )


def find_unnamed_authors(
    steered_by: Iterable[str], messages: Sequence[Message], by: str
) -> tuple[str, ...]:
    """Return the people in `steered_by` whose names are not in the history.

    A history contains answers, reasons and summaries without the names of their authors. Four
    eyes must exclude these authors in the new run, too, so their names are passed on.
    """
    named = {by, *(message.by for message in messages if message.role != "runtime")}
    return tuple(name for name in dict.fromkeys(steered_by) if name and name not in named)


def is_at_boundary(state: State) -> bool:
    """Tell whether nothing is in flight and no open call could start."""
    mid_step = any(
        not state.is_waiting_for_person(state.calls[n - 1]) for n in state.open_calls
    )
    return not (state.in_flight or state.cleanup_in_flight or mid_step)


def iter_history(state: State, *, inherited: int = 0) -> Iterator[Message]:
    """Yield the conversation as plain messages, with call outcomes as text.

    The first `inherited` messages are left out, unless the summary covers them.
    """
    if state.summary:
        yield Message(role="runtime", text=state.summary, kind="summary")
    # A summary covers the oldest messages, inherited ones included. Then the count of inherited
    # messages no longer applies.
    first = max(state.condensed_count, 0 if state.condensed_count else inherited)
    for index in range(first, len(state.messages)):
        message = state.messages[index]
        if message.role == "assistant":
            # An assistant message without text is kept: it has calls, and a scripted model
            # counts the assistant's turns.
            made = message.made or tuple(
                _make_inherited_call(state, call) for call in message.calls
            )
            yield replace(message, calls=(), opaque=None, made=made)
            continue
        if message.text or message.thinking or message.files:
            yield replace(message, calls=(), opaque=None)
        for call in message.calls:
            yield _make_result_message(state, call)
    # The next run of the thread must not take the work of a cancelled run for complete.
    if state.phase in TERMINAL_PHASES and state.cancel_request is not None:
        yield Message(role="runtime", text="That run was cancelled; its work is partial.")


def limit_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return the history, shortened to fit into the first entry of a run.

    First, long texts are cut. If that is not enough, the oldest messages are left out. Both
    leave a note in the text. The journals of the earlier runs keep everything.
    """
    if _measure_size(messages) <= HISTORY_MAX_BYTES:
        return tuple(messages)
    # Keep as many of the newest messages as fit.
    short = [_shorten_message(message) for message in messages]
    room, first = HISTORY_MAX_BYTES, len(short)
    while first and (room := room - _measure_size(short[first - 1 : first])) >= 0:
        first -= 1
    if not first:
        return tuple(short)
    left_out = f"{first} earlier messages are left out here: they are too long together."
    return (Message(role="runtime", text=left_out), *short[first:])


def _measure_size(messages: Sequence[Message]) -> int:
    return sum(len(msgspec.json.encode(message)) for message in messages)


def _shorten_message(message: Message) -> Message:
    made = tuple(
        replace(
            one,
            args=_shorten_value(one.args),
            result=_shorten_value(one.result),
            problem=_shorten_text(one.problem),
        )
        for one in message.made
    )
    return replace(
        message,
        text=_shorten_text(message.text),
        thinking=_shorten_text(message.thinking),
        made=made,
    )


def _shorten_value(value: Json) -> Json:
    # A provider accepts only an object as arguments, so shorten the values inside.
    if isinstance(value, dict):
        return {name: _shorten_value(inner) for name, inner in value.items()}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= SHORTENED_TEXT_MAX_CHARS else _shorten_text(text)


def _shorten_text(text: str) -> str:
    return (
        text
        if len(text) <= SHORTENED_TEXT_MAX_CHARS
        else f"{text[:SHORTENED_TEXT_MAX_CHARS]}… ({len(text)} characters)"
    )


def _make_inherited_call(state: State, call_id: CallId) -> CallResult:
    """Return a call with its outcome for the next run, under a new id."""
    call = state.find_call(call_id)
    assert call is not None
    # The result is passed on only if its effect is still there.
    kept = call.stage is CallStage.DONE and call.undo.stage not in {"done", "gave_up"}
    # Each run counts its calls from 1. A prompt of the new run has calls of several runs, and a
    # provider refuses two calls with the same id. So the id is a part of the call key, which is
    # a hash of the run and the call.
    id_ = CallId(make_call_key(state.run, call.id)[:INHERITED_CALL_ID_CHARS])
    if kept:
        return replace(make_final_result(call), call=id_)
    return CallResult(
        call=id_, tool=call.use.tool, args=call.use.args, problem=_describe_outcome(call)
    )


def _describe_outcome(call: CallState) -> str:
    """Return the outcome of a call, including its undo, as text."""
    if call.stage is CallStage.STARTED:
        return "still under way there"
    came = format_outcome_phrase(call) if call.stage is not CallStage.DONE else "done"
    if call.undo.stage == "done":
        return f"{came}, then undone"
    if call.undo.stage == "gave_up":
        return f"{came}; its undo failed: {call.undo.error}"
    if call.stage is CallStage.DONE:
        return f"done: {msgspec.json.encode(call.result).decode()}"
    return f"{came}: {call.error}" if call.error and call.error != came else came


def _make_result_message(state: State, call_id: CallId) -> Message:
    call = state.find_call(call_id)
    assert call is not None
    args = msgspec.json.encode(call.use.args).decode()
    said = f"{call.use.tool}({args}) — {_describe_outcome(call)}"
    return Message(
        role="runtime",
        text=said,
        by=f"tool:{call.use.tool}",
        kind="result",
        files=call.files,
    )
