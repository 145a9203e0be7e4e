"""Compute the three buttons of a run: pause, redirect and cancel.

Each `Button` has a label, a command, and the consequence of pressing it right now. They are
computed from the state in one place, so that the page, the terminal and the command line agree.
The pause button changes its command with the phase: resume, hand back, raise the cap, retry.

The cancel button lists the calls that a cancel with `undo="all"` would undo, release, or could
not undo. It runs the rules of `core.undo` on a hypothetical cancel, so the list is the set
that a real cancel would use.
"""

from typing import Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from midrun.core.entries import CancelRequested
from midrun.core.journaled_text import current, describe_unmade, goal, line, own_plan, place
from midrun.core.state import Call, Stage, State
from midrun.core.stops import caps
from midrun.core.transitions import enabled
from midrun.core.undo import hopeless, remaining, to_undo
from midrun.core.values import Effect, Phase, Value


class Offer(Value, kw_only=True):
    """One button; `consequence` describes the effect of pressing it now."""

    enabled: bool
    command: str  # the control that pressing the button sends now
    label: str
    consequence: str
    undo: tuple[str, ...] = ()  # calls that would be undone; the newest of a long list
    never: tuple[str, ...] = ()  # finished calls that cannot be undone
    unsure: tuple[str, ...] = ()  # calls that may have happened and cannot be undone
    release: tuple[str, ...] = ()  # calls whose resources would be released
    undoes: int = 0  # calls that would be undone; child runs count only if there are no others
    caps: dict[str, float] = {}  # noqa: RUF012 - msgspec copies an empty default
    """Caps that the button raises → new value; money in dollars, time in seconds."""


SCALES: Final = {"cost": 1e6, "time": 1e6}
"""Name of a cap → divisor from its stored integer to dollars or seconds."""

LISTED: Final = 50
"""Maximum number of calls in one list of a button."""

_NAMED: Final = 2  # maximum number of calls named in a sentence; more are counted
_AT_LEAST: Final = {"steps": 10, "tool_calls": 10, "repeats": 2, "tokens": 1000}
_UNITS: Final = {"tool_calls": "tool calls", "time": "s of work", "repeats": "rounds"}
_REST: Final = frozenset({Phase.PAUSED, Phase.FAILED})
_OVER: Final = frozenset({Phase.CANCELLED, Phase.COMPLETED})


def offers(state: State) -> dict[str, Offer]:
    """Return the three buttons of the control bar for a run in `state`."""
    return {"pause": _pause(state), "redirect": _redirect(state), "cancel": _cancel(state)}


def unheard(made: dict[str, Offer]) -> dict[str, Offer]:
    """Return the buttons of a run whose worker sends no heartbeat."""
    then = "when the worker returns, or another takes the run"
    later, on = f"Takes effect {then}.", f"Nothing new starts. Continues {then}."
    heard = {
        name: replace(offer, consequence=later) if offer.enabled else offer
        for name, offer in made.items()
    }
    cancel = heard["cancel"]
    # The disabled button of a cancel in progress normally shows the current action. Without a
    # live worker there is no current action.
    return heard if cancel.enabled else heard | {"cancel": replace(cancel, consequence=on)}


def raised_cap(name: str, cap: float) -> float:
    """Return the value to which one press raises a cap: half more, or a minimum more."""
    more = max(cap / 2, _AT_LEAST.get(name, 0))
    return cap + (round(more, 2) if name == "cost" else round(more))


# ── pause, resume and their variants ─────────────────────────────────────────


def _pause(state: State) -> Offer:
    may = enabled(state.phase)
    match state.phase:
        case Phase.PAUSING:
            text = f"Withdraws the pause. {_waits_for(state)}"
            return _resume("Keep running", text)
        case Phase.PAUSED if state.wheel:
            text = "The agent continues from here, and sees what you did."
            return Offer(enabled=True, command="hand_back", label="Hand back", consequence=text)
        case Phase.PAUSED if state.hold is not None and state.hold.cap:
            return _raise(state, state.hold.cap)
        case Phase.PAUSED:
            return _resume("Resume", _goes_on(state))
        case Phase.FAILED:
            text = "Tries again from the last boundary; finished work is not repeated."
            return _resume(f"Retry {place(state.plan, state.meter.steps)}", text)
        case Phase.CANCELLED if state.residue and not state.residue_accepted:
            text = f"Tries again to {_left(state)}."
            return Offer(
                enabled=True, command="retry_undo", label="Retry undo", consequence=text
            )
    texts = {
        Phase.QUEUED: "Does not start until you resume.",
        Phase.RUNNING: f"{_stops_after(state)} Everything is kept; nothing is spent meanwhile.",
        Phase.WAITING: "Pauses here; the question stays open.",
        Phase.CANCELLING: "A cancel is in progress.",
        Phase.HALTED: "Nothing of this run starts until the halt is lifted.",
    }
    return Offer(
        enabled="pause" in may,
        command="pause",
        label="Pause",
        consequence=texts.get(state.phase, "The run is over."),
    )


def _left(state: State) -> str:
    """Return the number of undos and releases to retry: "undo 2 calls"."""
    counts = {"undo": 0, "release": 0}
    for left in state.residue:
        counts[left.action] += 1
    said = (f"{action} {_count(number, 'call')}" for action, number in counts.items() if number)
    return " and ".join(said)


def _resume(label: str, consequence: str) -> Offer:
    return Offer(enabled=True, command="resume", label=label, consequence=consequence)


def _raise(state: State, name: str) -> Offer:
    _, bound = caps(state.stop, state.metered)[name]
    cap = bound / SCALES.get(name, 1)
    new = raised_cap(name, cap)
    more = f"${new - cap:g}" if name == "cost" else f"{new - cap:g} {_UNITS.get(name, name)}"
    unmade = describe_unmade(state, _name)
    waiting = f" {unmade}." if unmade else ""
    return Offer(
        enabled=True,
        command="resume",
        label="Raise cap, resume",
        consequence=f"Adds {more}, then continues; nothing is repeated.{waiting}",
        caps={name: new},
    )


def _stops_after(state: State) -> str:
    calls = [state.calls[n - 1] for n in state.in_flight]
    tools = [call for call in calls if call.call_kind != "model"]
    if finishing := [call for call in tools if not stoppable(call)]:
        return f"Stops after {_names(finishing)}."
    if tools:
        return "Stops now; continues from its saved progress."
    return "Stops now." if calls else "Stops before the next call."


def stoppable(call: Call) -> bool:
    """Tell whether a pause without `now` stops `call` instead of letting it finish."""
    return call.call_kind == "model" or (call.call_kind == "tool" and call.progress is not None)


def _goes_on(state: State) -> str:
    """Return the consequence of resuming, including calls that were stopped midway."""
    stopped = _stopped(state)
    if not stopped and any(state.asks[number - 1].blocking for number in state.open_asks):
        return "Waits for the answer again; the question stays open."
    if not stopped:
        return f"Continues at {_next(state)}; nothing is repeated."
    # A call with saved progress continues from there; any other one starts from its beginning.
    saved = [call for call in stopped if call.progress is not None]
    anew = [call for call in stopped if call.progress is None]
    said = f"Continues {_names(saved)} from its saved progress." if saved else ""
    if anew:
        said += f" Calls {_names(anew)} again; finished work is not repeated."
    return said.strip()


def _stopped(state: State) -> list[Call]:
    """Return the tool calls that were stopped midway and would be retried."""
    parked = (number for frame in state.frames for number in frame.parked)
    calls = (state.calls[number - 1] for number in (*state.open, *parked))
    return [call for call in calls if call.again]


def _waits_for(state: State) -> str:
    names = _names([state.calls[n - 1] for n in state.in_flight])
    return f"It waits for {names}." if names else "Nothing is in flight."


def _next(state: State) -> str:
    item = current(own_plan(state))
    if item is not None:
        return f"“{line(item.text)}”"
    return f"“{goal(state)}”" if state.frames else "the next step"


def _name(call: Call) -> str:
    return call.use.tool or "the model"


def _names(calls: list[Call]) -> str:
    return ", ".join(_name(call) for call in calls)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ── redirect ─────────────────────────────────────────────────────────────────


def _redirect(state: State) -> Offer:
    hold = state.hold
    if state.phase is Phase.PAUSED and state.wheel:
        text = "A person has taken over; hand back, with an instruction if you like."
        return Offer(enabled=False, command="redirect", label="Redirect", consequence=text)
    if state.phase is Phase.PAUSED and hold is not None and hold.cap:
        offer = _raise(state, hold.cap)
        drops = (
            ", drops the calls that are not made yet" if describe_unmade(state, _name) else ""
        )
        text = f"Raises the cap{drops}, and follows your instruction.{_gives_up(state)}"
        return replace(offer, label="Redirect", consequence=text)
    texts = {
        Phase.QUEUED: "Starts with your instruction.",
        Phase.RUNNING: "Follows your instruction from the next step; finished work stays.",
        Phase.PAUSING: "Pauses, then follows your instruction.",
        Phase.WAITING: "Drops the question and follows your instruction; finished work stays.",
        Phase.CANCELLING: "Nothing new can start.",
        Phase.HALTED: "Nothing of this run starts until the halt is lifted.",
    }
    text = texts.get(state.phase, "The run is over.")
    if state.phase in _REST:
        follows = "Drops the question and follows" if state.open_asks else "Follows"
        text = f"{follows} your instruction; finished work stays.{_gives_up(state)}"
    return Offer(
        enabled="redirect" in enabled(state.phase),
        command="redirect",
        label="Redirect",
        consequence=text,
    )


def _gives_up(state: State) -> str:
    """Return the effect of a redirect on calls that were stopped midway, as a sentence."""
    names = _names(_stopped(state))
    return f" Drops {names}, unless the agent calls it again." if names else ""


# ── cancel ───────────────────────────────────────────────────────────────────


def _cancel(state: State) -> Offer:
    # A halted run still accepts its first cancel, which takes effect after the halt.
    reach = _reach(state)
    live = "cancel" in enabled(state.phase) and state.cancel is None
    return Offer(
        enabled=live,
        command="cancel",
        label="Cancel",
        consequence=_cancelling(state, reach),
        undo=_listed(reach["undo"], child="the work of {}"),
        never=_listed(reach["never"]),
        unsure=_listed(reach["unsure"]),
        release=_listed(reach["release"]),
        undoes=len(_own(reach["undo"])) or len(reach["undo"]),
    )


def _own(calls: list[Call]) -> list[Call]:
    """Return the calls without child runs: only a child's journal knows its own calls."""
    return [call for call in calls if call.call_kind != "child"]


def _listed(calls: list[Call], child: str = "{}") -> tuple[str, ...]:
    """Format the newest calls of a list; the report has all of them."""
    told = [
        child.format(_told(call)) if call.call_kind == "child" else _told(call)
        for call in calls[-LISTED:]
    ]
    more = len(calls) - len(told)
    return (*told, f"… and {more} before") if more else tuple(told)


Fate = Literal["undo", "never", "unsure", "release"]
Reach: TypeAlias = dict[Fate, list[Call]]


def _cancelling(state: State, reach: Reach) -> str:
    if state.phase in _OVER:
        return "The run is over."
    if state.phase is Phase.HALTED:
        asked = state.cancel is not None
        return f"{'Requested; t' if asked else 'T'}akes effect when the halt is lifted."
    if state.phase is Phase.CANCELLING:
        return f"Nothing new starts. {under_way(state)}".rstrip()
    if state.phase is Phase.QUEUED and not state.calls:
        return "Never starts. Nothing to undo."
    said = ["Stops now"]
    if undo := reach["undo"]:
        said.append(f"can undo {_undoing(undo)}")
    if release := reach["release"]:
        held = _names(release) if len(release) <= _NAMED else _count(len(release), "call")
        said.append(f"releases {held}")
    if never := len(reach["never"]):
        said.append(f"{_count(never, 'call')} can't be undone")
    if unsure := len(reach["unsure"]):
        said.append(f"{_count(unsure, 'call')} may or may not have happened")
    return ", ".join(said) + ". Partial work is saved."


def _undoing(calls: list[Call]) -> str:
    """Describe the calls that can be undone: calls by number, child runs by name."""
    own = _own(calls)
    children = [call for call in calls if call.call_kind == "child"]
    many = len(children) > _NAMED
    work = f"the work of {_count(len(children), 'child run') if many else _names(children)}"
    if not children:
        return _count(len(own), "call")
    return f"{_count(len(own), 'call')}, and {work}" if own else work


def under_way(state: State) -> str:
    """Return the current action of a cancel as a sentence, or ""."""
    if state.cleaning is not None:
        number, action = state.cleaning
        verb = "Undoing" if action == "undo" else "Releasing"
        return f"{verb} {_told(state.calls[number - 1])}."
    if names := _names([state.calls[n - 1] for n in state.in_flight]):
        return f"Stopping {names}."
    left = remaining(state)
    if left and left[0][0].cleanup(left[0][1]).stage == "failed":
        return f"Could not {left[0][1]} {_told(left[0][0])}; it is retried."
    return ""


def _reach(state: State) -> Reach:
    """Sort the calls by the effect that a cancel with undo="all" would have on them."""
    # Ask the rules of `core.undo` as if everything were cancelled. A cancel in progress keeps
    # its own undo set.
    everything = replace(state, cancel=state.cancel or CancelRequested(undo="all"))
    found: Reach = {"undo": [], "never": [], "unsure": [], "release": []}
    for call in state.calls:
        if acts(call) and call.undo.stage != "done":
            found[_fate(everything, call)].append(call)
    return found


def _fate(everything: State, call: Call) -> Fate:
    """Return the group of `call` under a hypothetical cancel with undo="all"."""
    # `to_undo` knows only calls that have ended. A call in flight would join the undo set when
    # the cancel comes.
    if (to_undo(everything, call) or undoable(call)) and not hopeless(call, "undo"):
        return "undo"
    if call.traits.release or call.call_kind == "child":
        return "release"
    return "unsure" if call.maybe or call.stage is Stage.UNKNOWN else "never"


def undoable(call: Call) -> bool:
    """Tell whether `call` is in flight and has an undo."""
    return call.traits.undo and call.stage is Stage.STARTED and not call.undo.over


def acts(call: Call) -> bool:
    """Tell whether `call` has, or may have, an effect outside the run."""
    changed = call.touched or call.stage is Stage.STARTED
    return call.call_kind != "model" and changed and call.traits.effect is not Effect.READ


def _told(call: Call) -> str:
    """Return the tool and the arguments of a call as one line."""
    args = "" if call.use.args is None else msgspec.json.encode(call.use.args).decode()
    return line(f"{_name(call)} {args}".strip())
