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
    Mutant,
    Planted,
    Ruling,
    accepts,
    arm,
    filtered,
    follows,
    in_place_of,
    ruling,
    together,
)
from tests.support.simulate import journal


def _unfenced_decide() -> Planted:
    original = core_decide.decide

    def decide(state: State, given: Input, now: Micros) -> Verdict:
        if isinstance(given, LeasedInput):
            given = replace(given, epoch=state.epoch)
            state = replace(state, is_leased=True)
        return original(state, given, now)

    return in_place_of(journal, "decide", decide)


def _unfenced_store() -> Planted:
    original = validation.check_append

    def check(standing: validation.RunRowVersion, after: Seq | None, lease: object) -> None:
        del lease
        original(standing, after, None)

    return in_place_of(validation, "check_append", check)


def _ungated() -> Planted:
    """Accept a start in every driven phase, whatever the plan says."""
    driven = (Phase.RUNNING, Phase.PAUSING, Phase.CANCELLING)

    def trusting(_: Ruling) -> Ruling:
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

    return together(
        ruling(StartCall, trusting),
        accepts(StartCall, {phase: (phase,) for phase in driven}),
        follows(CallStarted, {phase: phase for phase in driven}),
    )


def _unseen() -> Planted:
    """Forget when somebody last asked for something."""

    def blind(old: Ruling) -> Ruling:
        return lambda state, given, now: old(
            replace(state, last_control_seq=SEQ_ZERO), given, now
        )

    return ruling(StartCall, blind)


def _uncompared() -> Planted:
    original = validation.check_append

    def check(standing: validation.RunRowVersion, after: Seq | None, lease: object) -> None:
        del after
        original(standing, None, lease)  # type: ignore[arg-type]  # as it came

    return in_place_of(validation, "check_append", check)


def _unreserved(old: Ruling) -> Ruling:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        assert isinstance(given, StartCall)
        verdict = old(state, replace(given, reserved=Spend()), now)
        started = [e for e in verdict.entries if isinstance(e, CallStarted)]
        return accept(replace(started[0], reserved=given.reserved)) if started else verdict

    return rule


def _reserves_nothing(meter: Meter, call: Call, _: int) -> Meter:
    steps = meter.steps + (call.call_kind == "model")
    return replace(meter, steps=steps)


def _forgets_doubt(before: State, after: State, entry: Entry) -> State:
    del before
    assert isinstance(entry, CallFailed)
    call = after.find_call(entry.call)
    assert call is not None
    return after.with_call(replace(call, may_have_happened=False))


def _any_attempt(state: State, call: Call, attempt: int) -> bool:
    return state.phase is not Phase.COMPLETED and attempt > 0 and call.stage == "unknown"


def _timeless(state: State, call: Call, _: Micros) -> bool:
    return _NEEDS_APPROVAL(state, call, Micros(0))


_NEEDS_APPROVAL = step_boundary.needs_approval
NEVER = 1_000_000

STARTS = (
    Mutant(
        name="decide_and_store_do_not_fence",
        seed=150,
        wrong="an older epoch decides, and the store takes it",
        plant=lambda: together(_unfenced_decide(), _unfenced_store()),
    ),
    Mutant(
        name="store_does_not_fence",
        seed=152,
        wrong="the store appends under a lease that is not in force",
        plant=_unfenced_store,
    ),
    Mutant(
        name="start_not_gated",
        wrong="a call starts although the run is pausing or cancelling",
        plant=_ungated,
        rules=("I10", "I11"),
    ),
    Mutant(
        name="stale_start",
        wrong="a call starts from a prompt that does not know the last control",
        plant=_unseen,
    ),
    Mutant(
        name="appends_are_not_compared",
        wrong="what was decided on an old state is appended to a new one",
        plant=_uncompared,
    ),
    Mutant(
        name="unknown_is_retried",
        wrong="a call that may have happened is made again, whatever its class",
        plant=lambda: in_place_of(Call, "safe_to_repeat", property(lambda _: True)),
    ),
    Mutant(
        name="no_orphan_on_takeover",
        wrong="a new holder leaves the calls of the old one in flight",
        plant=lambda: filtered(TakeLease, CallUnknown),
    ),
    Mutant(
        name="a_pill_is_swallowed_for_ever",
        wrong="a call that ends its processes is made again by every one that comes",
        plant=lambda: in_place_of(retries, "WORKER_DEATHS_MAX", NEVER),
        rules=("DEATHS",),
    ),
    Mutant(
        name="one_death_is_enough",
        wrong="a run fails as soon as one machine has gone away",
        plant=lambda: in_place_of(retries, "WORKER_DEATHS_MAX", 1),
        rules=("I41",),
    ),
    Mutant(
        name="what_is_never_done_is_tried_for_ever",
        wrong="a call is made again as often as its check says that it was not done",
        plant=lambda: in_place_of(call_rulings, "CHECK_DENIALS_MAX", NEVER),
        rules=("DENIALS",),
    ),
    Mutant(
        name="approval_not_needed",
        wrong="a call that needs a person's yes starts without one",
        plant=lambda: together(
            in_place_of(step_boundary, "needs_approval", lambda *_: False),
            in_place_of(call_rulings, "needs_approval", lambda *_: False),
        ),
    ),
    Mutant(
        name="a_yes_never_expires",
        wrong="an approval is used after its time",
        plant=lambda: together(
            in_place_of(step_boundary, "needs_approval", _timeless),
            in_place_of(call_rulings, "needs_approval", _timeless),
        ),
    ),
    Mutant(
        name="unknown_erased_by_failure",
        seed=225,
        wrong="a failed second attempt makes the first one, which may have happened, forgotten",
        plant=lambda: arm(CallFailed, _forgets_doubt),
    ),
    Mutant(
        name="late_evidence_of_any_attempt",
        seed=263,
        wrong="a late result settles an attempt that it is not about",
        plant=lambda: together(
            in_place_of(call_folds, "can_settle_late", _any_attempt),
            in_place_of(call_rulings, "can_settle_late", _any_attempt),
        ),
    ),
    Mutant(
        name="no_reservation",
        wrong="calls in flight do not count against a cap",
        plant=lambda: together(
            ruling(StartCall, _unreserved),
            in_place_of(call_folds, "_meter_start", _reserves_nothing),
        ),
    ),
    Mutant(
        name="caps_on_calls_end_with_the_step",
        wrong="a reply with many calls goes past a cap on calls",
        plant=lambda: in_place_of(call_rulings, "find_met_call_cap", lambda *_: None),
        rules=("I37",),
    ),
    Mutant(
        name="redirect_does_not_stop_starts",
        wrong="calls of the old course start while a new one waits",
        plant=lambda: in_place_of(State, "pending_redirects", property(lambda _: ())),
    ),
    Mutant(
        name="lift_forgets_where_the_run_was",
        wrong="lifting a latch lets a paused or cancelled run go on",
        plant=lambda: arm(
            RunLifted, lambda _, after, __: replace(after, phase=Phase.QUEUED, is_leased=False)
        ),
    ),
    Mutant(
        name="agent_acts_at_the_wheel",
        wrong="the agent's own calls start while a person is at the wheel",
        plant=lambda: in_place_of(
            State, "active_calls", property(lambda state: state.open_calls)
        ),
    ),
    Mutant(
        name="late_evidence_leaves_it_unknown",
        wrong="a late result closes its ask, but the call stays unknown",
        plant=lambda: arm(LateResult, lambda before, _, __: before),
    ),
)
