"""How the life of a run is told: it starts, is driven, waits, wakes and ends."""

from typing import Final

from midrun.core.entries import (
    LeaseTaken,
    RunCompleted,
    RunFailed,
    RunImported,
    RunStarted,
    RunWaiting,
    RunWoken,
    StoodDown,
)
from midrun.core.sentences.phrases import (
    RUN,
    Sentences,
    Told,
    condition,
    fault,
    listed,
    person,
    quoted,
    run_named,
    several,
)
from midrun.core.state import State
from midrun.core.stops import AnyOf, Stop, cap_name

_WOKEN: Final = {
    "answered": "it has its answer",
    "approved": "its call is approved",
    "declined": "its call is declined",
    "edited": "the arguments of its call are changed",
    "child": "its child was answered",
    "evidence": "what was unknown is known",
    "frame": "its thought is at hand again",
    "lifted": "the halt is lifted",
    "message": "somebody spoke to it",
    "redirected": "it has a new course",
    "time": "its time has come",
    "tool": "a call is to be made by hand",
}
_LEFT: Final = {
    "halted": "the run is halted",
    "shutdown": "its process shuts down",
}


def _run_started(entry: RunStarted, _: State, after: State) -> Told:
    run = f"{run_named(after.run)} with the agent {entry.agent}"
    history = len(entry.history)
    said = f", after {several(history, 'earlier message')}" if history else ""
    stop = f"; it goes on {_bounds(entry.stop)}" if entry.stop is not None else ""
    task = quoted(entry.task)
    if entry.forked is not None:
        first = f"{run_named(entry.forked.run)} at entry {entry.forked.seq}"
        what = f"forked {first}: {task} is the task of {run}{said}{stop}"
        return Told(who=person(entry.by), what=what)
    if entry.parent is not None:
        parent = f"the parent {run_named(entry.parent.run)}"
        return Told(who=parent, what=f"started {run}: {task}{said}{stop}")
    return Told(who=person(entry.by), what=f"started {run}: {task}{said}{stop}")


def _run_imported(entry: RunImported, before: State, _: State) -> Told:
    seal = f"signed with the key {entry.kid}" if entry.kid else "not signed"
    of = f" of {run_named(entry.checkpoint)}" if entry.checkpoint != before.run else ""
    above = several(before.seq, "entry", "entries")
    what = f"imported the {above} above with a checkpoint{of}, {seal}"
    return Told(who=person(entry.by), what=what)


def _bounds(stop: Stop) -> str:
    """Return how far a run goes by itself."""
    if isinstance(stop, AnyOf):
        return " or ".join(map(_bounds, stop.parts))
    capped = cap_name(stop) not in {"", "repeats"}
    return condition(f"for {stop}" if capped else f"until {stop}")


def _lease_taken(entry: LeaseTaken, before: State, _: State) -> Told:
    worker = f"worker {entry.holder}" if entry.holder else "a worker"
    how = "took the run"
    if before.leased:
        how = "took the run over from a worker that is gone"
    changed = before.agent_print and entry.agent_print not in {"", before.agent_print}
    return Told(who=worker, what=how + (", with another version of the agent" * bool(changed)))


def _stood_down(entry: StoodDown, _: State, __: State) -> Told:
    why = _LEFT.get(entry.why, entry.why)
    return Told(who="the worker", what="gave the run back" + (f": {why}" if why else ""))


def _run_waiting(_: RunWaiting, before: State, __: State) -> Told:
    asks = [before.asks[n - 1].id for n in before.open_asks]
    what = f"waits for a decision on {listed(asks)}" if asks else "waits"
    return Told(who=RUN, what=what)


def _run_woken(entry: RunWoken, _: State, __: State) -> Told:
    why = _WOKEN.get(entry.why, entry.why)
    return Told(who=RUN, what="can go on" + (f": {why}" if why else ""))


def _run_completed(entry: RunCompleted, before: State, _: State) -> Told:
    if not entry.output.strip():
        return Told(who=RUN, what="completed, without an answer")
    said = before.messages[-1] if len(before.messages) else None
    if said is not None and said.role == "assistant" and said.text.endswith(entry.output):
        return Told(who=RUN, what="completed; its answer is what was said last")
    return Told(who=RUN, what=f"completed with the answer {quoted(entry.output)}")


def _run_failed(entry: RunFailed, before: State, _: State) -> Told:
    if before.error is not None and before.error.error == entry.error:
        return Told(who=RUN, what="failed because of that; it can be resumed")
    return Told(who=RUN, what=f"failed: {fault(entry.error)}; it can be resumed")


LIFECYCLE_TEXTS: Sentences = {
    RunStarted: _run_started,
    RunImported: _run_imported,
    LeaseTaken: _lease_taken,
    StoodDown: _stood_down,
    RunWaiting: _run_waiting,
    RunWoken: _run_woken,
    RunCompleted: _run_completed,
    RunFailed: _run_failed,
}
