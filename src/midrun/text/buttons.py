"""Compute the four buttons of a run: pause, redirect, ask and cancel.

Each `Button` has a label, a command, and the consequence of pressing it right now. They are
computed from the state in one place, so that the page, the terminal and the command line agree.
The pause button changes its command with the phase: resume, hand back, raise the cap, retry.

The cancel button lists the calls that a cancel with `undo="all"` would undo, release, or could
not undo. It runs the rules of `core.undo` on a hypothetical cancel, so the list is the set
that a real cancel would use.
"""

from typing import Final, Literal, TypeAlias

from msgspec.structs import replace

from midrun.core.entries import CancelRequested
from midrun.core.journaled_text import (
    describe_unmade,
    find_current_item,
    format_goal,
    format_position,
    get_topic_plan,
    quote_title,
    shorten_to_line,
)
from midrun.core.state import CallStage, CallState, State
from midrun.core.stops import measure_caps
from midrun.core.transitions import list_phase_controls
from midrun.core.undo import is_undo_due, is_undo_unsafe, list_remaining_cleanups
from midrun.core.values import Effect, Phase, Value
from midrun.text.titles import format_title


class Button(Value, kw_only=True):
    """One button; `consequence` describes the effect of pressing it now."""

    enabled: bool
    command: str  # the control that pressing the button sends now
    label: str
    consequence: str
    undo: tuple[str, ...] = ()  # calls that would be undone; the newest of a long list
    irreversible: tuple[str, ...] = ()  # finished calls that cannot be undone
    unsure: tuple[str, ...] = ()  # calls that may have happened and cannot be undone
    release: tuple[str, ...] = ()  # calls whose resources would be released
    undo_count: int = (
        0  # calls that would be undone; child runs count only if there are no others
    )
    caps: dict[str, float] = {}  # noqa: RUF012 - msgspec copies an empty default
    """Caps that the button raises → new value; money in dollars, time in seconds."""


CAP_SCALES: Final = {"cost": 1e6, "time": 1e6}
"""Name of a cap → divisor from its stored integer to dollars or seconds."""

LISTED_CALLS_MAX: Final = 50
"""Maximum number of calls in one list of a button."""

_NAMED_CALLS_MAX: Final = 2  # maximum number of calls named in a sentence; more are counted
_CAP_MIN_RAISE: Final = {"steps": 10, "tool_calls": 10, "repeats": 2, "tokens": 1000}
_CAP_UNITS: Final = {
    "steps": "turns",
    "tool_calls": "tool calls",
    "time": "s of work",
    "repeats": "repetitions",
}
_RESTING_PHASES: Final = frozenset({Phase.PAUSED, Phase.FAILED})
_ASKABLE_PHASES: Final = frozenset({Phase.QUEUED, Phase.RUNNING, Phase.PAUSING, Phase.WAITING})
_OVER_PHASES: Final = frozenset({Phase.CANCELLED, Phase.COMPLETED})


def build_buttons(state: State) -> dict[str, Button]:
    """Return the four buttons of the control bar for a run in `state`."""
    pause = _build_pause_button(state)
    return {
        "pause": pause,
        "redirect": _build_redirect_button(state),
        "ask": _build_ask_button(state, pause),
        "cancel": _build_cancel_button(state),
    }


def mark_worker_lost(buttons: dict[str, Button]) -> dict[str, Button]:
    """Return the buttons of a run whose worker sends no heartbeat."""
    then = "when the worker returns, or another takes the run"
    later, on = f"Takes effect {then}.", f"Nothing new starts. Continues {then}."
    changed = {
        name: replace(button, consequence=later) if button.enabled else button
        for name, button in buttons.items()
    }
    cancel = changed["cancel"]
    # The disabled button of a cancel in progress normally shows the current action. Without a
    # live worker there is no current action.
    return changed if cancel.enabled else changed | {"cancel": replace(cancel, consequence=on)}


def propose_raised_cap(name: str, cap: float) -> float:
    """Return the value to which one press raises a cap: half more, or a minimum more."""
    more = max(cap / 2, _CAP_MIN_RAISE.get(name, 0))
    return cap + (round(more, 2) if name == "cost" else round(more))


# ── pause, resume and their variants ─────────────────────────────────────────


def _build_pause_button(state: State) -> Button:
    may = list_phase_controls(state.phase)
    match state.phase:
        case Phase.PAUSING:
            text = f"Withdraws the pause. {_describe_wait(state)}"
            return _build_resume_button("Keep running", text)
        case Phase.PAUSED if state.taken_over_by:
            text = "The agent continues from here, and sees what you did."
            return Button(
                enabled=True, command="hand_back", label="Hand back", consequence=text
            )
        case Phase.PAUSED if state.pause is not None and state.pause.cap_name:
            return _build_raise_cap_button(state, state.pause.cap_name)
        case Phase.PAUSED:
            return _build_resume_button("Resume", _describe_resume(state))
        case Phase.FAILED:
            where = format_position(state.plan, state.meter.steps)
            text = f"Tries again at {where}; finished work is not repeated."
            return _build_resume_button("Retry", text)
        case Phase.CANCELLED if state.residue and not state.residue_accepted:
            text = f"Tries again to {_count_residue(state)}."
            return Button(
                enabled=True, command="retry_undo", label="Retry undo", consequence=text
            )
    texts = {
        Phase.QUEUED: "Does not start until you resume.",
        Phase.RUNNING: (
            f"{_describe_stop(state)} Everything is kept; nothing is spent meanwhile."
        ),
        Phase.WAITING: "Pauses here; the question stays open.",
        Phase.CANCELLING: "A cancel is in progress.",
        Phase.HALTED: "Nothing of this run starts until the halt is lifted.",
    }
    return Button(
        enabled="pause" in may,
        command="pause",
        label="Pause",
        consequence=texts.get(state.phase, "The run is over."),
    )


def _count_residue(state: State) -> str:
    """Return the number of undos and releases to retry: "undo 2 calls"."""
    counts = {"undo": 0, "release": 0}
    for left in state.residue:
        counts[left.action] += 1
    said = (
        f"{action} {_count_noun(number, 'call')}" for action, number in counts.items() if number
    )
    return " and ".join(said)


def _build_resume_button(label: str, consequence: str) -> Button:
    return Button(enabled=True, command="resume", label=label, consequence=consequence)


def _build_raise_cap_button(state: State, cap_name: str) -> Button:
    _, bound = measure_caps(state.stop, state.meter_with_time)[cap_name]
    cap = bound / CAP_SCALES.get(cap_name, 1)
    new = propose_raised_cap(cap_name, cap)
    more = (
        f"${new - cap:g}"
        if cap_name == "cost"
        else f"{new - cap:g} {_CAP_UNITS.get(cap_name, cap_name)}"
    )
    unmade = describe_unmade(state, quote_tool)
    waiting = f" {unmade}." if unmade else ""
    return Button(
        enabled=True,
        command="resume",
        label="Raise cap",
        consequence=f"Adds {more}, then continues; nothing is repeated.{waiting}",
        caps={cap_name: new},
    )


def _describe_stop(state: State) -> str:
    calls = [state.calls[n - 1] for n in state.in_flight]
    tools = [call for call in calls if call.call_kind != "model"]
    if finishing := [call for call in tools if not is_stoppable(call)]:
        return f"Stops after {_join_tools(finishing)}."
    if tools:
        return "Stops now; continues from its saved progress."
    return "Stops now." if calls else "Stops before the next call."


def is_stoppable(call: CallState) -> bool:
    """Tell whether a pause without `now` stops `call` instead of letting it finish."""
    return call.call_kind == "model" or (call.call_kind == "tool" and call.progress is not None)


def _describe_resume(state: State) -> str:
    """Return the consequence of resuming, including calls that were stopped midway."""
    stopped = _list_stopped_calls(state)
    if not stopped and any(state.asks[number - 1].blocking for number in state.open_asks):
        return "Waits for the answer again; the question stays open."
    if not stopped:
        return f"Continues at {_format_next_item(state)}; nothing is repeated."
    # A call with saved progress continues from there; any other one starts from its beginning.
    saved = [call for call in stopped if call.progress is not None]
    anew = [call for call in stopped if call.progress is None]
    said = f"Continues {_join_tools(saved)} from its saved progress." if saved else ""
    if anew:
        said += f" Calls {_join_tools(anew)} again; finished work is not repeated."
    return said.strip()


def _list_stopped_calls(state: State) -> list[CallState]:
    """Return the tool calls that were stopped midway and would be retried."""
    calls = (state.calls[number - 1] for number in state.open_and_parked_calls)
    return [call for call in calls if call.must_retry]


def _describe_wait(state: State) -> str:
    names = _join_tools([state.calls[n - 1] for n in state.in_flight])
    return f"It waits for {names}." if names else "Nothing is in flight."


def _format_next_item(state: State) -> str:
    item = find_current_item(get_topic_plan(state))
    if item is not None:
        return f"“{shorten_to_line(item.text)}”"
    return f"“{format_goal(state)}”" if state.frames else "the next turn"


def _format_tool(call: CallState) -> str:
    return call.use.label or "the model"


def _join_tools(calls: list[CallState]) -> str:
    return ", ".join(quote_tool(call) for call in calls)


def quote_tool(call: CallState) -> str:
    """Return the name of a call inside a sentence."""
    return quote_title(call.use.label) if call.use.label else "the model"


def _count_noun(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ── redirect ─────────────────────────────────────────────────────────────────


def _build_redirect_button(state: State) -> Button:
    pause = state.pause
    if state.phase is Phase.PAUSED and state.taken_over_by:
        text = "A person has taken over; hand back, with an instruction if you like."
        return Button(enabled=False, command="redirect", label="Redirect", consequence=text)
    if state.phase is Phase.PAUSED and pause is not None and pause.cap_name:
        button = _build_raise_cap_button(state, pause.cap_name)
        drops = (
            ", drops the calls that are not made yet"
            if describe_unmade(state, quote_tool)
            else ""
        )
        text = (
            f"Raises the cap{drops}, and follows your "
            f"instruction.{_describe_dropped_calls(state)}"
        )
        return replace(button, label="Redirect", consequence=text)
    follows = "Drops the question and follows" if state.open_asks else "Follows"
    texts = {
        Phase.QUEUED: "Starts with your instruction.",
        Phase.RUNNING: f"{follows} your instruction from the next turn; finished work stays.",
        Phase.PAUSING: f"Pauses, then {follows[0].lower()}{follows[1:]} your instruction.",
        Phase.WAITING: f"{follows} your instruction; finished work stays.",
        Phase.CANCELLING: "Nothing new can start.",
        Phase.HALTED: "Nothing of this run starts until the halt is lifted.",
    }
    text = texts.get(state.phase, "The run is over.")
    if state.phase in _RESTING_PHASES:
        text = (
            f"{follows} your instruction; finished work stays.{_describe_dropped_calls(state)}"
        )
    return Button(
        enabled="redirect" in list_phase_controls(state.phase),
        command="redirect",
        label="Redirect",
        consequence=text,
    )


def _describe_dropped_calls(state: State) -> str:
    """Return the effect of a redirect on calls that were stopped midway, as a sentence."""
    names = _join_tools(_list_stopped_calls(state))
    return f" Drops {names}, unless the agent calls it again." if names else ""


# ── ask ──────────────────────────────────────────────────────────────────────


def _build_ask_button(state: State, pause: Button) -> Button:
    """Return the button for a side question. A paused run is resumed to answer it.

    That is possible if nothing else has to be decided for the resume, such as a new cap.
    """
    resumes = state.phase is Phase.PAUSED and pause.command == "resume" and not pause.caps
    at_work = state.phase in _ASKABLE_PHASES
    text = "A run that is at work can be asked something."
    if state.phase in _OVER_PHASES:
        text = "The run is over."
    elif resumes:
        text = "Resumes the run: it answers first, then continues where it was."
    elif at_work:
        text = "Answers at the next turn, or now; then continues where it was."
    enabled = (resumes or at_work) and "say" in list_phase_controls(state.phase)
    return Button(enabled=enabled, command="say", label="Ask", consequence=text)


# ── cancel ───────────────────────────────────────────────────────────────────


def _build_cancel_button(state: State) -> Button:
    # A halted run still accepts its first cancel, which takes effect after the halt.
    reach = _group_calls(state)
    live = "cancel" in list_phase_controls(state.phase) and state.cancel_request is None
    return Button(
        enabled=live,
        command="cancel",
        label="Cancel",
        consequence=_describe_cancel(state, reach),
        undo=_format_calls(reach["undo"], child_format="the work of {}"),
        irreversible=_format_calls(reach["never"]),
        unsure=_format_calls(reach["unsure"]),
        release=_format_calls(reach["release"]),
        undo_count=len(_exclude_children(reach["undo"])) or len(reach["undo"]),
    )


def _exclude_children(calls: list[CallState]) -> list[CallState]:
    """Return the calls without child runs: only a child's journal knows its own calls."""
    return [call for call in calls if call.call_kind != "child"]


def _format_calls(calls: list[CallState], child_format: str = "{}") -> tuple[str, ...]:
    """Format the newest calls of a list; the report has all of them."""
    told = [
        child_format.format(_format_tool(call))
        if call.call_kind == "child"
        else _format_call(call)
        for call in calls[-LISTED_CALLS_MAX:]
    ]
    more = len(calls) - len(told)
    return (*told, f"… and {more} before") if more else tuple(told)


CancelGroup = Literal["undo", "never", "unsure", "release"]
CallsByGroup: TypeAlias = dict[CancelGroup, list[CallState]]


def _describe_cancel(state: State, groups: CallsByGroup) -> str:
    if state.phase in _OVER_PHASES:
        return "The run is over."
    if state.phase is Phase.HALTED:
        asked = state.cancel_request is not None
        return f"{'Requested; t' if asked else 'T'}akes effect when the halt is lifted."
    if state.phase is Phase.CANCELLING:
        return f"Nothing new starts. {describe_cancel_action(state)}".rstrip()
    if state.phase is Phase.QUEUED and not state.calls:
        return "Never starts. Nothing to undo."
    said = ["Stops now"]
    if undo := groups["undo"]:
        said.append(f"can undo {_describe_undo(undo)}")
    if release := groups["release"]:
        held = (
            _join_tools(release)
            if len(release) <= _NAMED_CALLS_MAX
            else _count_noun(len(release), "call")
        )
        said.append(f"releases {held}")
    if never := len(groups["never"]):
        said.append(f"{_count_noun(never, 'call')} can't be undone")
    if unsure := len(groups["unsure"]):
        said.append(f"{_count_noun(unsure, 'call')} may or may not have happened")
    return ", ".join(said) + ". Partial work is saved."


def _describe_undo(calls: list[CallState]) -> str:
    """Describe the calls that can be undone: calls by number, child runs by name."""
    own = _exclude_children(calls)
    children = [call for call in calls if call.call_kind == "child"]
    many = len(children) > _NAMED_CALLS_MAX
    work = (
        "the work of "
        f"{_count_noun(len(children), 'child run') if many else _join_tools(children)}"
    )
    if not children:
        return _count_noun(len(own), "call")
    return f"{_count_noun(len(own), 'call')}, and {work}" if own else work


def describe_cancel_action(state: State) -> str:
    """Return the current action of a cancel as a sentence, or ""."""
    if state.cleanup_in_flight is not None:
        number, action = state.cleanup_in_flight
        verb = "Undoing" if action == "undo" else "Releasing"
        return f"{verb} {_format_call(state.calls[number - 1])}."
    if names := _join_tools([state.calls[n - 1] for n in state.in_flight]):
        return f"Stopping {names}."
    left = list_remaining_cleanups(state)
    if left and left[0][0].get_cleanup(left[0][1]).stage == "failed":
        return f"Could not {left[0][1]} {_format_call(left[0][0])}; it is retried."
    return ""


def _group_calls(state: State) -> CallsByGroup:
    """Sort the calls by the effect that a cancel with undo="all" would have on them."""
    # Ask the rules of `core.undo` as if everything were cancelled. A cancel in progress keeps
    # its own undo set.
    everything = replace(
        state, cancel_request=state.cancel_request or CancelRequested(undo="all")
    )
    found: CallsByGroup = {"undo": [], "never": [], "unsure": [], "release": []}
    for call in state.calls:
        if has_effect(call) and call.undo.stage != "done":
            found[_find_cancel_group(everything, call)].append(call)
    return found


def _find_cancel_group(cancelled_state: State, call: CallState) -> CancelGroup:
    """Return the group of `call` under a hypothetical cancel with undo="all"."""
    # `is_undo_due` knows only calls that have ended. A call in flight would join the undo set
    # when the cancel comes.
    if (
        is_undo_due(cancelled_state, call) or is_undoable_in_flight(call)
    ) and not is_undo_unsafe(call, "undo"):
        return "undo"
    if call.traits.release or call.call_kind == "child":
        return "release"
    return "unsure" if call.may_have_happened or call.stage is CallStage.UNKNOWN else "never"


def is_undoable_in_flight(call: CallState) -> bool:
    """Tell whether `call` is in flight and has an undo."""
    return call.traits.undo and call.stage is CallStage.STARTED and not call.undo.is_finished


def has_effect(call: CallState) -> bool:
    """Tell whether `call` has, or may have, an effect outside the run."""
    changed = call.may_have_effect or call.stage is CallStage.STARTED
    return call.call_kind != "model" and changed and call.traits.effect is not Effect.READ


def _format_call(call: CallState) -> str:
    """Return the title of a call."""
    return format_title(call.use)
