"""Faults in what may start, and in what is made again."""

from msgspec.structs import replace

from midrun.core import decide as core_decide
from midrun.core import retries, step_boundary
from midrun.core.decide import calls as call_rulings
from midrun.core.driver_inputs import LeasedInput, StartCall, TakeLease
from midrun.core.entries import (
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    LateResult,
    RunLifted,
)
from midrun.core.evolve import calls as call_folds
from midrun.core.ids import SEQ_ZERO, Micros, Seq
from midrun.core.state import Call, State
from midrun.core.stops import Meter
from midrun.core.transitions import Input, Verdict, accept
from midrun.core.values import Phase, Spend
from midrun.stores import validation
from tests.support.mutants.replacements import (
    DecideFunction,
    Mutant,
    Replacement,
    allow_entry,
    allow_input,
    drop_entries,
    replace_all,
    replace_attribute,
    replace_decide,
    replace_evolve,
)
from tests.support.simulate import journal


def _plant_unfenced_decide() -> Replacement:
    original = core_decide.decide

    def decide(state: State, given: Input, now: Micros) -> Verdict:
        if isinstance(given, LeasedInput):
            given = replace(given, epoch=state.epoch)
            state = replace(state, is_leased=True)
        return original(state, given, now)

    return replace_attribute(journal, "decide", decide)


def _plant_unfenced_store() -> Replacement:
    original = validation.check_append

    def check(standing: validation.RunRowVersion, after: Seq | None, lease: object) -> None:
        del lease
        original(standing, after, None)

    return replace_attribute(validation, "check_append", check)


def _plant_ungated_start() -> Replacement:
    """Accept a start in every driven phase, whatever the plan says."""
    driven = (Phase.RUNNING, Phase.PAUSING, Phase.CANCELLING)

    def trusting(_: DecideFunction) -> DecideFunction:
        def rule(state: State, given: Input, _: Micros) -> Verdict:
            assert isinstance(given, StartCall)
            call = state.find_call(given.call)
            return accept(
                CallStarted(
                    call=given.call,
                    call_kind="model" if call is None else call.call_kind,
                    attempt=1 if call is None else call.attempt + 1,
                    seen=given.seen_seq,
                    reserved=given.reserved,
                    approval=None if call is None else call.approval,
                )
            )

        return rule

    return replace_all(
        replace_decide(StartCall, trusting),
        allow_input(StartCall, {phase: (phase,) for phase in driven}),
        allow_entry(CallStarted, {phase: phase for phase in driven}),
    )


def _plant_stale_start() -> Replacement:
    """Forget when somebody last asked for something."""

    def blind(old: DecideFunction) -> DecideFunction:
        return lambda state, given, now: old(
            replace(state, last_control_seq=SEQ_ZERO), given, now
        )

    return replace_decide(StartCall, blind)


def _plant_uncompared_append() -> Replacement:
    original = validation.check_append

    def check(standing: validation.RunRowVersion, after: Seq | None, lease: object) -> None:
        del after
        original(standing, None, lease)  # type: ignore[arg-type]  # as it came

    return replace_attribute(validation, "check_append", check)


def _ignore_reserve(old: DecideFunction) -> DecideFunction:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        assert isinstance(given, StartCall)
        verdict = old(state, replace(given, reserved=Spend()), now)
        started = [e for e in verdict.entries if isinstance(e, CallStarted)]
        return accept(replace(started[0], reserved=given.reserved)) if started else verdict

    return rule


def _meter_without_reserve(meter: Meter, call: Call, _: int) -> Meter:
    steps = meter.steps + (call.call_kind == "model")
    return replace(meter, steps=steps)


def _forget_unknown_attempt(before: State, after: State, entry: Entry) -> State:
    del before
    assert isinstance(entry, CallFailed)
    call = after.find_call(entry.call)
    assert call is not None
    return after.with_call(replace(call, may_have_happened=False))


def _can_settle_any_attempt(state: State, call: Call, attempt: int) -> bool:
    return state.phase is not Phase.COMPLETED and attempt > 0 and call.stage == "unknown"


def _needs_approval_at_zero(state: State, call: Call, _: Micros) -> bool:
    return _NEEDS_APPROVAL(state, call, Micros(0))


_NEEDS_APPROVAL = step_boundary.needs_approval
UNREACHABLE_COUNT = 1_000_000

CALL_START_MUTANTS = (
    Mutant(
        name="decide_and_store_do_not_fence",
        seed=150,
        description="an older epoch decides, and the store takes it",
        plant=lambda: replace_all(_plant_unfenced_decide(), _plant_unfenced_store()),
    ),
    Mutant(
        name="store_does_not_fence",
        seed=152,
        description="the store appends under a lease that is not in force",
        plant=_plant_unfenced_store,
    ),
    Mutant(
        name="start_not_gated",
        description="a call starts although the run is pausing or cancelling",
        plant=_plant_ungated_start,
        rules=("I10", "I11"),
    ),
    Mutant(
        name="stale_start",
        description="a call starts from a prompt that does not know the last control",
        plant=_plant_stale_start,
    ),
    Mutant(
        name="appends_are_not_compared",
        description="what was decided on an old state is appended to a new one",
        plant=_plant_uncompared_append,
    ),
    Mutant(
        name="unknown_is_retried",
        description="a call that may have happened is made again, whatever its class",
        plant=lambda: replace_attribute(Call, "safe_to_repeat", property(lambda _: True)),
    ),
    Mutant(
        name="no_orphan_on_takeover",
        description="a new holder leaves the calls of the old one in flight",
        plant=lambda: drop_entries(TakeLease, CallUnknown),
    ),
    Mutant(
        name="a_pill_is_swallowed_for_ever",
        description="a call that ends its processes is made again by every one that comes",
        plant=lambda: replace_attribute(retries, "WORKER_DEATHS_MAX", UNREACHABLE_COUNT),
        rules=("DEATHS",),
    ),
    Mutant(
        name="one_death_is_enough",
        description="a run fails as soon as one machine has gone away",
        plant=lambda: replace_attribute(retries, "WORKER_DEATHS_MAX", 1),
        rules=("I41",),
    ),
    Mutant(
        name="what_is_never_done_is_tried_for_ever",
        description="a call is made again as often as its check says that it was not done",
        plant=lambda: replace_attribute(call_rulings, "CHECK_DENIALS_MAX", UNREACHABLE_COUNT),
        rules=("DENIALS",),
    ),
    Mutant(
        name="approval_not_needed",
        description="a call that needs a person's yes starts without one",
        plant=lambda: replace_all(
            replace_attribute(step_boundary, "needs_approval", lambda *_: False),
            replace_attribute(call_rulings, "needs_approval", lambda *_: False),
        ),
    ),
    Mutant(
        name="a_yes_never_expires",
        description="an approval is used after its time",
        plant=lambda: replace_all(
            replace_attribute(step_boundary, "needs_approval", _needs_approval_at_zero),
            replace_attribute(call_rulings, "needs_approval", _needs_approval_at_zero),
        ),
    ),
    Mutant(
        name="unknown_erased_by_failure",
        seed=225,
        description="a failed second attempt makes the first one, which may have happened, forgotten",
        plant=lambda: replace_evolve(CallFailed, _forget_unknown_attempt),
    ),
    Mutant(
        name="late_evidence_of_any_attempt",
        seed=263,
        description="a late result settles an attempt that it is not about",
        plant=lambda: replace_all(
            replace_attribute(call_folds, "can_settle_late", _can_settle_any_attempt),
            replace_attribute(call_rulings, "can_settle_late", _can_settle_any_attempt),
        ),
    ),
    Mutant(
        name="no_reservation",
        description="calls in flight do not count against a cap",
        plant=lambda: replace_all(
            replace_decide(StartCall, _ignore_reserve),
            replace_attribute(call_folds, "_meter_start", _meter_without_reserve),
        ),
    ),
    Mutant(
        name="caps_on_calls_end_with_the_step",
        description="a reply with many calls goes past a cap on calls",
        plant=lambda: replace_attribute(call_rulings, "find_met_call_cap", lambda *_: None),
        rules=("I37",),
    ),
    Mutant(
        name="redirect_does_not_stop_starts",
        description="calls of the old course start while a new one waits",
        plant=lambda: replace_attribute(State, "pending_redirects", property(lambda _: ())),
    ),
    Mutant(
        name="lift_forgets_where_the_run_was",
        description="lifting a latch lets a paused or cancelled run go on",
        plant=lambda: replace_evolve(
            RunLifted, lambda _, after, __: replace(after, phase=Phase.QUEUED, is_leased=False)
        ),
    ),
    Mutant(
        name="agent_acts_at_the_wheel",
        description="the agent's own calls start while a person is at the wheel",
        plant=lambda: replace_attribute(
            State, "active_calls", property(lambda state: state.open_calls)
        ),
    ),
    Mutant(
        name="late_evidence_leaves_it_unknown",
        description="a late result closes its ask, but the call stays unknown",
        plant=lambda: replace_evolve(LateResult, lambda before, _, __: before),
    ),
)
