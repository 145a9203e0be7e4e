"""Going on elsewhere: the history a run hands to the next one of its thread, or to a fork.

A fork starts a new run from a boundary of another. It inherits what was said and planned, not
what was done: the effects of the first run stay the first run's, to keep or to undo.
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
"""Characters of a call's key that name it in another run: providers bound the length of ids."""

ROOM: Final = 4 * 1024 * 1024
"""Bytes of history that a run is given: half of what one entry holds."""

LONG: Final = 16 * 1024
"""Characters of one text or result that are kept of a history for which there is no room."""


def fork(state: State, *, by: Actor, instruction: str = "") -> RunStarted | Refused:
    """Return the first entry of a run that continues from `state`, if that is a boundary."""
    if state.spec is None or not is_boundary(state):
        return Refused(reason="not_a_boundary", seq=state.seq)
    spec = state.spec
    told = bounded(tuple(history(state)))
    return replace(
        spec,
        task=instruction or spec.task,
        history=told,
        steered_by=find_unnamed(state.steered_by, told, by.name),
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
    """Return the people of `steered_by` whom neither the history `told` nor `by` names.

    A history has answers, reasons and condensed texts without the names of their authors. Four
    eyes exclude the authors from what a run does with that history.
    """
    named = {by, *(message.by for message in told if message.role != "runtime")}
    return tuple(name for name in dict.fromkeys(steered_by) if name and name not in named)


def is_boundary(state: State) -> bool:
    """Tell whether nothing is under way, and nothing has been asked for that could start."""
    mid_step = any(not state.waits(state.calls[n - 1]) for n in state.open)
    return not (state.in_flight or state.cleaning or mid_step)


def history(state: State, *, inherited: int = 0) -> Iterator[Message]:
    """Yield the conversation as plain messages, results in words, partial work marked.

    Without the first `inherited` messages, unless they were condensed with the rest.
    """
    if state.summary:
        yield Message(role="runtime", text=state.summary, kind="summary")
    first = max(state.condensed, 0 if state.condensed else inherited)
    for index in range(first, len(state.messages)):
        message = state.messages[index]
        if message.role == "assistant":
            # Also one that said nothing: it made calls, and a script counts its turns.
            made = message.made or tuple(_made(state, call) for call in message.calls)
            yield replace(message, calls=(), opaque=None, made=made)
            continue
        if message.text or message.thinking:
            yield replace(message, calls=(), opaque=None)
        for call in message.calls:
            yield _result(state, call)
    if state.phase in TERMINAL and state.cancel is not None:
        yield Message(role="runtime", text="That run was cancelled; its work is partial.")


def bounded(said: Sequence[Message]) -> tuple[Message, ...]:
    """Return a history that fits into the first entry of a run.

    One that does not is told with its long texts cut short, and if need be without what is
    oldest; each says so. The journals that it comes from keep everything.
    """
    if _size(said) <= ROOM:
        return tuple(said)
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
    if isinstance(value, dict):  # arguments have to stay some
        return {name: _brief(inner) for name, inner in value.items()}
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return value if len(text) <= LONG else _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]}… ({len(text)} characters)"


def _made(state: State, call_: CallId) -> Made:
    """Return a call as the next run is told of it, under an id that is none of its own."""
    call = state.call(call_)
    assert call is not None
    kept = call.stage is Stage.DONE and call.undo.stage not in {"done", "gave_up"}
    id_ = CallId(call_key(state.run, call.id)[:ID])
    if kept:
        return replace(ended(call), call=id_)
    return Made(call=id_, tool=call.use.tool, args=call.use.args, problem=_fate(call))


def _fate(call: Call) -> str:
    """Return what became of a call, its undo included: the next run must not count on it."""
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
