"""Faults in what people ask and decide: requests, asks, messages, frames, time."""

from msgspec.structs import replace

from midrun.core import decide as deciding
from midrun.core import scheduler, step_boundary
from midrun.core.controls import Control, Lift, Redirect, UseTool
from midrun.core.decide import asks as ask_rulings
from midrun.core.decide import conversation
from midrun.core.decide import lifecycle as waking_rules
from midrun.core.driver_inputs import CrossBoundary, Wake
from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    Entry,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    RunHalted,
    RunWoken,
    ToolUsed,
)
from midrun.core.evolve import asks as ask_folds
from midrun.core.evolve import calls as call_folds
from midrun.core.ids import Micros
from midrun.core.journaled_text import format_resumed_topic
from midrun.core.state import Ask, State
from midrun.core.transitions import Input, Refused, Verdict
from midrun.core.values import Phase
from tests.support.mutants.replacements import (
    Mutant,
    Planted,
    Ruling,
    arm,
    filtered,
    in_place_of,
    ruling,
    together,
)


def _never_heard(state: State, control: Control, now: Micros) -> Verdict:
    return _ASKED_FOR(replace(state, requests={}), control, now)


def _not_noted(state: State, control: Control, now: Micros) -> Verdict:
    verdict = _ASKED_FOR(state, control, now)
    return verdict if not isinstance(verdict, Refused) else replace(verdict, entries=())


_ASKED_FOR = deciding._decide_control
_PROBLEM = ask_rulings._find_refusal


def _accept_second_answer(ask: Ask | None, *rest: object) -> Refused | None:
    if ask is not None and ask.close_reason == "answered":
        ask = replace(ask, close_reason="")
    return _PROBLEM(ask, *rest)  # type: ignore[arg-type]  # as it came


def _ignore_audience(ask: Ask | None, *rest: object) -> Refused | None:
    if ask is not None:
        ask = replace(ask, audience="", excluded=())
    return _PROBLEM(ask, *rest)  # type: ignore[arg-type]  # as it came


def _old_arguments(before: State, after: State, entry: Entry) -> State:
    """Keep the arguments that were shown, whatever the person changed."""
    assert isinstance(entry, AskAnswered)
    ask = before.find_ask(entry.ask)
    if ask is None or ask.ask_kind != "approval" or entry.decision.value is None:
        return after
    was, call = before.find_call(ask.call), after.find_call(ask.call)
    assert was is not None
    assert call is not None
    return after.with_call(replace(call, use=was.use))


def _from_below(state: State, now: Micros) -> FrameResumed | FrameReconstructed:
    return _WAY_BACK(replace(state, frames=state.frames[:1]), now)


_WAY_BACK = step_boundary.resume_topic


def _held(state: State, now: Micros) -> FrameResumed:
    del now
    frame = state.frames[-1]
    return FrameResumed(frame=frame.id, words=format_resumed_topic(frame))


def _deep(old: Ruling) -> Ruling:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        spec = replace(state.run_started, frame_depth=99)
        return old(replace(state, started_entry=spec), given, now)

    return rule


def _always_deep() -> Planted:
    """Push frames however many are held."""
    original = step_boundary.boundary_entries

    def crossing(state: State, now: Micros) -> tuple[Entry, ...]:
        spec = replace(state.run_started, frame_depth=99)
        return original(replace(state, started_entry=spec), now)

    return together(
        ruling(CrossBoundary, _deep),
        in_place_of(scheduler, "boundary_entries", crossing),
    )


def _anywhere(before: State, after: State, entry: Entry) -> State:
    del before
    assert isinstance(entry, RunHalted)
    return replace(after, phase_after_halt=Phase.QUEUED)


ASKING = (
    Mutant(
        name="request_applied_twice",
        wrong="a request that is sent again is applied again",
        plant=lambda: in_place_of(deciding, "_decide_control", _never_heard),
    ),
    Mutant(
        name="refusal_not_kept",
        seed=370,
        wrong="a refused request that is sent again may be accepted",
        plant=lambda: in_place_of(deciding, "_decide_control", _not_noted),
    ),
    Mutant(
        name="answer_twice",
        wrong="an ask that was answered can be answered again",
        plant=lambda: in_place_of(ask_rulings, "_find_refusal", _accept_second_answer),
    ),
    Mutant(
        name="anybody_decides",
        seed=377,
        wrong="an ask is decided by somebody whom it is not for",
        plant=lambda: in_place_of(ask_rulings, "_find_refusal", _ignore_audience),
    ),
    Mutant(
        name="four_eyes_forget_who_steered",
        seed=1378,
        wrong="who steered the run to a call approves it, because only the starter may not",
        plant=lambda: in_place_of(call_folds, "add_name", lambda names, _: names[:1]),
        rules=("I25",),
    ),
    Mutant(
        name="an_edit_approves_itself",
        seed=321,
        wrong="who edits the arguments of a call under four eyes approves them as well",
        plant=lambda: in_place_of(ask_folds, "is_edit_under_four_eyes", lambda *_: False),
        rules=("I25",),
    ),
    Mutant(
        name="approval_for_other_arguments",
        seed=204,
        wrong="a person approves other arguments than the call is made with",
        plant=lambda: arm(AskAnswered, _old_arguments),
    ),
    Mutant(
        name="redirect_keeps_old_approvals",
        seed=485,
        wrong="an approval given for the old course counts on the new one",
        plant=lambda: together(
            filtered(Redirect, AskClosed),
            in_place_of(step_boundary, "_apply_redirects", _only_applied),
        ),
    ),
    Mutant(
        name="expired_asks_stay_open",
        wrong="a run is woken for an ask that expired, and leaves it open",
        plant=lambda: filtered(Wake, AskClosed),
    ),
    Mutant(
        name="answers_do_not_wake",
        wrong="a run that waits is not woken by what it waited for",
        plant=lambda: together(
            in_place_of(ask_rulings, "add_wakeup", lambda _, entries, __: entries),
            in_place_of(waking_rules, "can_continue", lambda _: False),
        ),
    ),
    Mutant(
        name="frames_without_bound",
        seed=234,
        wrong="thoughts are held beyond the depth of the stack",
        plant=_always_deep,
    ),
    Mutant(
        name="frame_from_the_middle",
        wrong="a held thought is taken from below another one",
        plant=lambda: together(
            in_place_of(step_boundary, "resume_topic", _from_below),
            in_place_of(conversation, "resume_topic", _from_below),
        ),
        limit=6000,
    ),
    Mutant(
        name="frame_resumed_too_late",
        seed=247,
        wrong="a thought that was held for too long goes on as if it was not",
        plant=lambda: together(
            in_place_of(step_boundary, "resume_topic", _held),
            in_place_of(conversation, "resume_topic", _held),
        ),
        strategy="random",
        limit=6000,
    ),
    Mutant(
        name="held_thought_forgotten",
        wrong="a thought is suspended and nobody remembers it",
        plant=lambda: arm(
            FramePushed, lambda before, after, _: replace(after, frames=before.frames)
        ),
    ),
    Mutant(
        name="halt_forgets_where_the_run_was",
        wrong="a halted run goes on as queued, wherever it was",
        plant=lambda: arm(RunHalted, _anywhere),
    ),
    Mutant(
        name="lift_does_not_wake",
        seed=294,
        wrong="a run that got what it waited for while halted waits on after the lift",
        plant=lambda: filtered(Lift, RunWoken),
        limit=20000,
        strategy="pct",
    ),
    Mutant(
        name="use_of_a_tool_not_recorded",
        wrong="a person's call leaves no trace of who asked for it, and is made twice",
        plant=lambda: filtered(UseTool, ToolUsed),
    ),
    Mutant(
        name="pause_at_a_cap_forgets_to_settle",
        wrong="a run that is pausing is never paused",
        plant=lambda: in_place_of(scheduler, "_plan_pausing", lambda _, __: iter(())),
    ),
)


def _only_applied(state: State) -> tuple[Entry, ...]:
    return tuple(
        e for e in _REDIRECTED(state) if type(e).__name__ not in {"AskClosed", "CallSealed"}
    )


_REDIRECTED = step_boundary._apply_redirects
