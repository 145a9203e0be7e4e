"""Faults in requests, asks, approvals, held topics and halts."""

from collections.abc import Sequence

from msgspec.structs import replace

from midrun.core import decide as core_decide
from midrun.core import scheduler, step_boundary
from midrun.core.controls import Control, Lift, Redirect, UseTool
from midrun.core.decide import asks as decide_asks
from midrun.core.decide import conversation
from midrun.core.decide import lifecycle as decide_lifecycle
from midrun.core.driver_inputs import Wake
from midrun.core.entries import (
    AskAnswered,
    AskClosed,
    Entry,
    FramePushed,
    FrameReconstructed,
    FrameResumed,
    RunHalted,
    RunWoken,
    ToolUseRequested,
)
from midrun.core.evolve import asks as evolve_asks
from midrun.core.evolve import calls as evolve_calls
from midrun.core.ids import Micros
from midrun.core.journaled_text import format_resumed_topic
from midrun.core.state import Ask, CallState, State
from midrun.core.transitions import Refused, Verdict
from midrun.core.values import Phase
from tests.support.mutants.replacements import (
    Mutant,
    Replacement,
    drop_entries,
    replace_all,
    replace_attribute,
    replace_evolve,
)


def _forget_requests(state: State, control: Control, now: Micros) -> Verdict:
    return _DECIDE_CONTROL(replace(state, requests={}), control, now)


def _forget_refusal(state: State, control: Control, now: Micros) -> Verdict:
    verdict = _DECIDE_CONTROL(state, control, now)
    return verdict if not isinstance(verdict, Refused) else replace(verdict, entries=())


_DECIDE_CONTROL = core_decide._decide_control
_FIND_REFUSAL = decide_asks._find_refusal


def _accept_second_answer(ask: Ask | None, *rest: object) -> Refused | None:
    if ask is not None and ask.close_reason == "answered":
        ask = replace(ask, close_reason="")
    return _FIND_REFUSAL(ask, *rest)  # type: ignore[arg-type]  # passed through


def _ignore_audience(ask: Ask | None, *rest: object) -> Refused | None:
    if ask is not None:
        ask = replace(ask, audience="", excluded=())
    return _FIND_REFUSAL(ask, *rest)  # type: ignore[arg-type]  # passed through


def _keep_old_arguments(before: State, after: State, entry: Entry) -> State:
    """Ignore the arguments that the approver has edited."""
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
    return FrameResumed(frame=frame.id, text=format_resumed_topic(frame))


def _plant_unlimited_frames() -> Replacement:
    """Ignore the limit of held topics."""
    original = step_boundary.list_boundary_entries

    def unlimited_boundary_entries(
        state: State, active_calls: Sequence[CallState], now: Micros
    ) -> tuple[Entry, ...]:
        spec = replace(state.run_started, frame_depth=99)
        return original(replace(state, run_started=spec), active_calls, now)

    return replace_attribute(scheduler, "list_boundary_entries", unlimited_boundary_entries)


def _forget_phase_after_halt(before: State, after: State, entry: Entry) -> State:
    del before
    assert isinstance(entry, RunHalted)
    return replace(after, phase_after_halt=Phase.QUEUED)


ASK_MUTANTS = (
    Mutant(
        name="request_applied_twice",
        description="a repeated request is applied again",
        plant=lambda: replace_attribute(core_decide, "_decide_control", _forget_requests),
    ),
    Mutant(
        name="refusal_not_recorded",
        seed=146,
        description="a refused request is accepted when it is repeated",
        plant=lambda: replace_attribute(core_decide, "_decide_control", _forget_refusal),
    ),
    Mutant(
        name="ask_answered_twice",
        description="an answered ask can be answered again",
        plant=lambda: replace_attribute(decide_asks, "_find_refusal", _accept_second_answer),
    ),
    Mutant(
        name="ask_ignores_its_audience",
        description="an actor outside of its audience decides an ask",
        plant=lambda: replace_attribute(decide_asks, "_find_refusal", _ignore_audience),
    ),
    Mutant(
        name="four_eyes_exclude_the_starter_only",
        seed=955,
        description="an actor who steered the run to a call approves it under four eyes",
        plant=lambda: replace_attribute(evolve_calls, "add_name", lambda names, _: names[:1]),
        rules=("I25",),
    ),
    Mutant(
        name="edit_approves_itself_under_four_eyes",
        description="under four eyes, an actor edits the arguments of a call and approves it",
        plant=lambda: replace_attribute(
            evolve_asks, "is_edit_under_four_eyes", lambda *_: False
        ),
        rules=("I25",),
    ),
    Mutant(
        name="approval_for_other_arguments",
        description="a call is made with other arguments than those that were approved",
        plant=lambda: replace_evolve(AskAnswered, _keep_old_arguments),
    ),
    Mutant(
        name="redirect_keeps_old_approvals",
        seed=314,
        description="an approval from before a redirect is used after it",
        plant=lambda: replace_all(
            drop_entries(Redirect, AskClosed),
            replace_attribute(step_boundary, "_apply_redirects", _keep_approvals),
        ),
    ),
    Mutant(
        name="expired_asks_stay_open",
        description="a run is woken for an expired ask, but the ask stays open",
        plant=lambda: drop_entries(Wake, AskClosed),
    ),
    Mutant(
        name="answers_do_not_wake",
        description="an answer does not wake the run that waits for it",
        plant=lambda: replace_all(
            replace_attribute(decide_asks, "add_wakeup", lambda _, entries, __: entries),
            replace_attribute(decide_lifecycle, "can_continue", lambda _: False),
        ),
    ),
    Mutant(
        name="frame_depth_ignored",
        seed=134,
        description="more topics are held than the frame depth allows",
        plant=_plant_unlimited_frames,
    ),
    Mutant(
        name="oldest_frame_resumed_first",
        description="a held topic is resumed from below another one",
        plant=lambda: replace_all(
            replace_attribute(step_boundary, "resume_topic", _resume_oldest_topic),
            replace_attribute(conversation, "resume_topic", _resume_oldest_topic),
        ),
        limit=6000,
    ),
    Mutant(
        name="expired_frame_resumed",
        seed=2647,
        description="an expired topic is resumed without its reconstruction",
        plant=lambda: replace_all(
            replace_attribute(step_boundary, "resume_topic", _resume_expired_topic),
            replace_attribute(conversation, "resume_topic", _resume_expired_topic),
        ),
        strategy="random",
        limit=6000,
    ),
    Mutant(
        name="held_frame_lost",
        description="the topic that a side question interrupts is not held",
        plant=lambda: replace_evolve(
            FramePushed, lambda before, after, _: replace(after, frames=before.frames)
        ),
    ),
    Mutant(
        name="halt_forgets_the_phase",
        seed=132,
        description="a halted run continues as queued, whatever its phase was",
        plant=lambda: replace_evolve(RunHalted, _forget_phase_after_halt),
    ),
    Mutant(
        name="lift_does_not_wake",
        seed=4267,
        description="a run whose ask was answered during a halt still waits after the lift",
        plant=lambda: drop_entries(Lift, RunWoken),
        limit=20000,
        strategy="pct",
    ),
    Mutant(
        name="tool_use_not_recorded",
        description="a tool call of a person is not recorded, and is made twice",
        plant=lambda: drop_entries(UseTool, ToolUseRequested),
    ),
    Mutant(
        name="pausing_never_settles",
        description="a run that is pausing is never paused",
        plant=lambda: replace_attribute(scheduler, "_make_pause_entries", lambda _: ()),
    ),
)


def _keep_approvals(state: State) -> tuple[Entry, ...]:
    return tuple(
        e
        for e in _APPLY_REDIRECTS(state)
        if type(e).__name__ not in {"AskClosed", "CallSealed"}
    )


_APPLY_REDIRECTS = step_boundary._apply_redirects
