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

from midrun.core.decision import Refused
from midrun.core.entries import RunStarted
from midrun.core.ids import CallId, call_key
from midrun.core.journaled_text import fate
from midrun.core.state import Call, Stage, State
from midrun.core.transcript import ended
from midrun.core.values import TERMINAL, Actor, Json, Made, Message, Origin

ID: Final = 24
"""Length of the id of an inherited call: a prefix of its key. Providers limit id lengths."""

ROOM: Final = 4 * 1024 * 1024
"""Maximum size of a history. One entry may hold twice as much."""

LONG: Final = 16 * 1024
"""Maximum length of one text or result in a history that must be shortened."""


def fork(state: State, *, by: Actor, instruction: str = "") -> RunStarted | Refused:
    """Return the first entry of a run that continues from `state`.

    Refused if `state` is not at a boundary.
    """
    if state.spec is None or not is_boundary(state):
        return Refused(reason="not_a_boundary", seq=state.seq)
    spec = state.spec
    messages = bounded(tuple(history(state)))
    return replace(
        spec,
        task=instruction or spec.task,
        history=messages,
        steered_by=find_unnamed(state.steered_by, messages, by.name),
        plan=state.plan,
        stop=state.stop,
        by=by.name,
        role=by.role,
        request="",
        digest="",
        parent=None,
        forked=Origin(run=state.run, seq=state.seq),
    )


def find_unnamed(
    steered_by: Iterable[str], told: Sequence[Message], by: str
) -> tuple[str, ...]:
    """Return the people in `steered_by` whose names are not in the history.

    A history contains answers, reasons and summaries without the names of their authors. Four
    eyes must exclude these authors in the new run, too, so their names are passed on.
    """
    named = {by, *(message.by for message in told if message.role != "runtime")}
    return tuple(name for name in dict.fromkeys(steered_by) if name and name not in named)


def is_boundary(state: State) -> bool:
    """Tell whether nothing is in flight and no open call could start."""
    mid_step = any(not state.waits(state.calls[n - 1]) for n in state.open)
    return not (state.in_flight or state.cleaning or mid_step)


def history(state: State, *, inherited: int = 0) -> Iterator[Message]:
    """Yield the conversation as plain messages, with call outcomes as text.

    The first `inherited` messages are left out, unless the summary covers them.
    """
    if state.summary:
        yield Message(role="runtime", text=state.summary, kind="summary")
    # A summary covers the oldest messages, inherited ones included. Then the count of inherited
    # messages no longer applies.
    first = max(state.condensed, 0 if state.condensed else inherited)
    for index in range(first, len(state.messages)):
        message = state.messages[index]
        if message.role == "assistant":
            # An assistant message without text is kept: it has calls, and a scripted model
            # counts the assistant's turns.
            made = message.made or tuple(_made(state, call) for call in message.calls)
            yield replace(message, calls=(), opaque=None, made=made)
            continue
        if message.text or message.thinking:
            yield replace(message, calls=(), opaque=None)
        for call in message.calls:
            yield _result(state, call)
    # The next run of the thread must not take the work of a cancelled run for complete.
    if state.phase in TERMINAL and state.cancel is not None:
        yield Message(role="runtime", text="That run was cancelled; its work is partial.")


def bounded(said: Sequence[Message]) -> tuple[Message, ...]:
    """Return the history, shortened to fit into the first entry of a run.

    First, long texts are cut. If that is not enough, the oldest messages are left out. Both
    leave a note in the text. The journals of the earlier runs keep everything.
    """
    if _size(said) <= ROOM:
        return tuple(said)
    # Keep as many of the newest messages as fit.
    short = [_shortened(message) for message in said]
    room, first = ROOM, len(short)
    while first and (room := room - _size(short[first - 1 : first])) >= 0:
        first -= 1
    if not first:
        return tuple(short)
    left_out = f"{first} earlier messages are left out here: they are too long together."
    return (Message(role="runtime", text=left_out), *short[first:])


def _size(said: Sequence[Message]) -> int:
    return sum(len(msgspec.json.encode(message)) for message in said)


def _shortened(message: Message) -> Message:
    made = tuple(
        replace(
            one, args=_brief(one.args), result=_brief(one.result), problem=_cut(one.problem)
        )
        for one in message.made
    )
    return replace(message, text=_cut(message.text), thinking=_cut(message.thinking), made=made)


def _brief(value: Json) -> Json:
    # A provider accepts only an object as arguments, so shorten the values inside.
    if isinstance(value, dict):
        return {name: _brief(inner) for name, inner in value.items()}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= LONG else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}… ({len(text)} characters)"


def _made(state: State, call_: CallId) -> Made:
    """Return a call with its outcome for the next run, under a new id."""
    call = state.call(call_)
    assert call is not None
    # The result is passed on only if its effect is still there.
    kept = call.stage is Stage.DONE and call.undo.stage not in {"done", "gave_up"}
    id_ = CallId(call_key(state.run, call.id)[:ID])
    if kept:
        return replace(ended(call), call=id_)
    return Made(call=id_, tool=call.use.tool, args=call.use.args, problem=_fate(call))


def _fate(call: Call) -> str:
    """Return the outcome of a call, including its undo, as text."""
    if call.stage is Stage.STARTED:
        return "still under way there"
    came = fate(call) if call.stage is not Stage.DONE else "done"
    if call.undo.stage == "done":
        return f"{came}, then undone"
    if call.undo.stage == "gave_up":
        return f"{came}; its undo failed: {call.undo.error}"
    if call.stage is Stage.DONE:
        return f"done: {msgspec.json.encode(call.result).decode()}"
    return f"{came}: {call.error}" if call.error and call.error != came else came


def _result(state: State, call_: CallId) -> Message:
    call = state.call(call_)
    assert call is not None
    args = msgspec.json.encode(call.use.args).decode()
    said = f"{call.use.tool}({args}) — {_fate(call)}"
    return Message(role="runtime", text=said, by=f"tool:{call.use.tool}", kind="result")
