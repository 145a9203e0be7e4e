"""Going on elsewhere: the history a run hands to the next one of its thread, or to a fork.

A fork starts a new run from a boundary of another. It inherits what was said and planned, not
what was done: the effects of the first run stay the first run's, to keep or to undo.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from midrun.core.entries import RunStarted
from midrun.core.ids import CallId, call_key
from midrun.core.state import Call, Stage, State
from midrun.core.transcript import ended
from midrun.core.values import TERMINAL, Actor, Made, Message, Origin
from midrun.core.verdicts import Refused
from midrun.core.words import fate

ID: Final = 24
"""Characters of a call's key that name it in another run: providers bound the length of ids."""


def fork(state: State, *, by: Actor, instruction: str = "") -> RunStarted | Refused:
    """Return the first entry of a run that continues from `state`, if that is a boundary."""
    mid_step = any(not state.waits(state.calls[n - 1]) for n in state.open)
    if state.in_flight or state.cleaning or mid_step or state.spec is None:
        return Refused(reason="not_a_boundary", seq=state.seq)
    spec = state.spec
    said = tuple(history(state))
    return replace(
        spec,
        task=instruction or spec.task,
        history=said,
        plan=state.plan,
        stop=state.stop,
        by=by.name,
        role=by.role,
        request="",
        digest="",
        parent=None,
        forked=Origin(run=state.run, seq=state.seq),
    )


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
