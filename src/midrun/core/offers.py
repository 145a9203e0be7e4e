"""Offers: what a person may press now, what the button says, and what pressing it will do.

Computed from the state in one place, so that page, terminal and everybody else say the same.
"""

from typing import Final

from msgspec.structs import replace

from midrun.core.cleanup import hopeless, to_undo
from midrun.core.entries import CancelRequested
from midrun.core.state import Call, Stage, State
from midrun.core.table import enabled
from midrun.core.values import Effect, Phase, Value
from midrun.core.words import line


class Offer(Value, kw_only=True):
    """One button. `consequence` is true of the run as it is now."""

    enabled: bool
    command: str  # the control that pressing it means now
    label: str
    consequence: str
    undo: tuple[str, ...] = ()  # what would be undone
    never: tuple[str, ...] = ()  # what was done and cannot be undone


def offers(state: State) -> dict[str, Offer]:
    """Return the three buttons of the control bar for a run in `state`."""
    return {"pause": _pause(state), "redirect": _redirect(state), "cancel": _cancel(state)}


_REST: Final = frozenset({Phase.PAUSED, Phase.FAILED})


def _pause(state: State) -> Offer:
    may = enabled(state.phase)
    if state.phase is Phase.PAUSING:
        text = f"Goes on at once. {_waits_for(state)}"
        return Offer(enabled=True, command="resume", label="Keep running", consequence=text)
    if state.phase in _REST:
        capped = state.hold is not None and bool(state.hold.cap)
        goes_on = "Goes on from here; nothing is repeated."
        return Offer(
            enabled="resume" in may and not capped,
            command="resume",
            label="Resume",
            consequence="Raise the cap to go on." if capped else goes_on,
        )
    text = "Stops at the next boundary; everything is kept, and nothing is spent while paused."
    return Offer(enabled="pause" in may, command="pause", label="Pause", consequence=text)


def _waits_for(state: State) -> str:
    names = ", ".join(_name(state.calls[n - 1]) for n in state.in_flight)
    return f"Pausing: {names} is finishing first." if names else "Nothing is in flight."


def _name(call: Call) -> str:
    return call.use.tool or "the model"


def _redirect(state: State) -> Offer:
    text = "Changes course at the next step; finished work stays."
    if state.phase in _REST:
        text = "Goes on with your instruction; finished work stays."
    return Offer(
        enabled="redirect" in enabled(state.phase),
        command="redirect",
        label="Redirect",
        consequence=text,
    )


def _cancel(state: State) -> Offer:
    undo, never = _reach(state)
    said = ["Stops now"]
    if undo:
        said.append(f"can undo {len(undo)}")
    if never:
        said.append(f"{len(never)} can't be undone")
    return Offer(
        enabled="cancel" in enabled(state.phase),
        command="cancel",
        label="Cancel",
        consequence=", ".join(said) + ". Partial work is saved.",
        undo=undo,
        never=never,
    )


def _reach(state: State) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what an undo of everything would take back, and what it could not."""
    everything = replace(state, cancel=state.cancel or CancelRequested(undo="all"))
    undo: list[str] = []
    never: list[str] = []
    for call in state.calls:
        changed = call.touched or call.stage is Stage.STARTED
        if call.call_kind == "model" or not changed or call.traits.effect is Effect.READ:
            continue
        if to_undo(everything, call) and not hopeless(call, "undo"):
            undo.append(line(_name(call)))
        elif call.undo.stage != "done" and not call.traits.undo:
            never.append(line(_name(call)))
    return tuple(undo), tuple(never)
