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
    DecideFunction,
    Mutant,
    Replacement,
    drop_entries,
    replace_all,
    replace_attribute,
    replace_decide,
    replace_evolve,
)


def _forget_requests(state: State, control: Control, now: Micros) -> Verdict:
    return _DECIDE_CONTROL(replace(state, requests={}), control, now)


def _forget_refusal(state: State, control: Control, now: Micros) -> Verdict:
    verdict = _DECIDE_CONTROL(state, control, now)
    return verdict if not isinstance(verdict, Refused) else replace(verdict, entries=())


_DECIDE_CONTROL = deciding._decide_control
_FIND_REFUSAL = ask_rulings._find_refusal


def _accept_second_answer(ask: Ask | None, *rest: object) -> Refused | None:
    if ask is not None and ask.close_reason == "answered":
        ask = replace(ask, close_reason="")
    return _FIND_REFUSAL(ask, *rest)  # type: ignore[arg-type]  # as it came


def _ignore_audience(ask: Ask | None, *rest: object) -> Refused | None:
    if ask is not None:
        ask = replace(ask, audience="", excluded=())
    return _FIND_REFUSAL(ask, *rest)  # type: ignore[arg-type]  # as it came


def _keep_old_arguments(before: State, after: State, entry: Entry) -> State:
    """Keep the arguments that were shown, whatever the person changed."""
    assert isinstance(entry, AskAnswered)
    ask = before.find_ask(entry.ask)
    if ask is None or ask.ask_kind != "approval" or entry.decision.value is None:
        return after
    was, call = before.find_call(ask.call), after.find_call(ask.call)
    assert was is not None
    assert call is not None
    return after.with_call(replace(call, use=was.use))


def _resume_oldest_topic(state: State, now: Micros) -> FrameResumed | FrameReconstructed:
    return _RESUME_TOPIC(replace(state, frames=state.frames[:1]), now)


_RESUME_TOPIC = step_boundary.resume_topic


def _resume_expired_topic(state: State, now: Micros) -> FrameResumed:
    del now
    frame = state.frames[-1]
    return FrameResumed(frame=frame.id, words=format_resumed_topic(frame))


def _allow_deep_frames(old: DecideFunction) -> DecideFunction:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        spec = replace(state.run_started, frame_depth=99)
        return old(replace(state, started_entry=spec), given, now)

    return rule


def _plant_unlimited_frames() -> Replacement:
    """Push frames however many are held."""
    original = step_boundary.boundary_entries

    def crossing(state: State, now: Micros) -> tuple[Entry, ...]:
        spec = replace(state.run_started, frame_depth=99)
        return original(replace(state, started_entry=spec), now)

    return replace_all(
        replace_decide(CrossBoundary, _allow_deep_frames),
        replace_attribute(scheduler, "boundary_entries", crossing),
    )


def _forget_phase_after_halt(before: State, after: State, entry: Entry) -> State:
    del before
    assert isinstance(entry, RunHalted)
    return replace(after, phase_after_halt=Phase.QUEUED)


ASK_MUTANTS = (
    Mutant(
        name="request_applied_twice",
        description="a request that is sent again is applied again",
        plant=lambda: replace_attribute(deciding, "_decide_control", _forget_requests),
    ),
    Mutant(
        name="refusal_not_kept",
        seed=370,
        description="a refused request that is sent again may be accepted",
        plant=lambda: replace_attribute(deciding, "_decide_control", _forget_refusal),
    ),
    Mutant(
        name="answer_twice",
        description="an ask that was answered can be answered again",
        plant=lambda: replace_attribute(ask_rulings, "_find_refusal", _accept_second_answer),
    ),
    Mutant(
        name="anybody_decides",
        seed=377,
        description="an ask is decided by somebody whom it is not for",
        plant=lambda: replace_attribute(ask_rulings, "_find_refusal", _ignore_audience),
    ),
    Mutant(
        name="four_eyes_forget_who_steered",
        seed=1378,
        description="who steered the run to a call approves it, because only the starter may not",
        plant=lambda: replace_attribute(call_folds, "add_name", lambda names, _: names[:1]),
        rules=("I25",),
    ),
    Mutant(
        name="an_edit_approves_itself",
        seed=321,
        description="who edits the arguments of a call under four eyes approves them as well",
        plant=lambda: replace_attribute(ask_folds, "is_edit_under_four_eyes", lambda *_: False),
        rules=("I25",),
    ),
    Mutant(
        name="approval_for_other_arguments",
        seed=204,
        description="a person approves other arguments than the call is made with",
        plant=lambda: replace_evolve(AskAnswered, _keep_old_arguments),
    ),
    Mutant(
        name="redirect_keeps_old_approvals",
        seed=485,
        description="an approval given for the old course counts on the new one",
        plant=lambda: replace_all(
            drop_entries(Redirect, AskClosed),
            replace_attribute(step_boundary, "_apply_redirects", _keep_approvals),
        ),
    ),
    Mutant(
        name="expired_asks_stay_open",
        description="a run is woken for an ask that expired, and leaves it open",
        plant=lambda: drop_entries(Wake, AskClosed),
    ),
    Mutant(
        name="answers_do_not_wake",
        description="a run that waits is not woken by what it waited for",
        plant=lambda: replace_all(
            replace_attribute(ask_rulings, "add_wakeup", lambda _, entries, __: entries),
            replace_attribute(waking_rules, "can_continue", lambda _: False),
        ),
    ),
    Mutant(
        name="frames_without_bound",
        seed=234,
        description="thoughts are held beyond the depth of the stack",
        plant=_plant_unlimited_frames,
    ),
    Mutant(
        name="frame_from_the_middle",
        description="a held thought is taken from below another one",
        plant=lambda: replace_all(
            replace_attribute(step_boundary, "resume_topic", _resume_oldest_topic),
            replace_attribute(conversation, "resume_topic", _resume_oldest_topic),
        ),
        limit=6000,
    ),
    Mutant(
        name="frame_resumed_too_late",
        seed=247,
        description="a thought that was held for too long goes on as if it was not",
        plant=lambda: replace_all(
            replace_attribute(step_boundary, "resume_topic", _resume_expired_topic),
            replace_attribute(conversation, "resume_topic", _resume_expired_topic),
        ),
        strategy="random",
        limit=6000,
    ),
    Mutant(
        name="held_thought_forgotten",
        description="a thought is suspended and nobody remembers it",
        plant=lambda: replace_evolve(
            FramePushed, lambda before, after, _: replace(after, frames=before.frames)
        ),
    ),
    Mutant(
        name="halt_forgets_where_the_run_was",
        description="a halted run goes on as queued, wherever it was",
        plant=lambda: replace_evolve(RunHalted, _forget_phase_after_halt),
    ),
    Mutant(
        name="lift_does_not_wake",
        seed=294,
        description="a run that got what it waited for while halted waits on after the lift",
        plant=lambda: drop_entries(Lift, RunWoken),
        limit=20000,
        strategy="pct",
    ),
    Mutant(
        name="use_of_a_tool_not_recorded",
        description="a person's call leaves no trace of who asked for it, and is made twice",
        plant=lambda: drop_entries(UseTool, ToolUsed),
    ),
    Mutant(
        name="pause_at_a_cap_forgets_to_settle",
        description="a run that is pausing is never paused",
        plant=lambda: replace_attribute(scheduler, "_plan_pausing", lambda _, __: iter(())),
    ),
)


def _keep_approvals(state: State) -> tuple[Entry, ...]:
    return tuple(
        e
        for e in _APPLY_REDIRECTS(state)
        if type(e).__name__ not in {"AskClosed", "CallSealed"}
    )


_APPLY_REDIRECTS = step_boundary._apply_redirects
