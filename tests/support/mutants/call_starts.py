"""Faults in the start and in the repetition of calls."""

from msgspec.structs import replace

from midrun.core import decide as core_decide
from midrun.core import retries, scheduler, session, step_boundary
from midrun.core.decide import calls as decide_calls
from midrun.core.driver_inputs import LeasedInput, TakeLease
from midrun.core.entries import (
    CallFailed,
    CallStarted,
    CallUnknown,
    Entry,
    LateResult,
    RunLifted,
)
from midrun.core.evolve import calls as evolve_calls
from midrun.core.ids import Micros, Seq
from midrun.core.session import Session
from midrun.core.state import CallState, State
from midrun.core.stops import Meter, has_spend_cap
from midrun.core.transitions import Input, Verdict
from midrun.core.values import Phase, Spend
from midrun.stores import validation
from tests.support.mutants.replacements import (
    AdvanceFunction,
    Mutant,
    Replacement,
    allow_advance,
    allow_entry,
    change_advanced,
    drop_entries,
    replace_advance,
    replace_all,
    replace_attribute,
    replace_evolve,
)
from tests.support.simulate.worker import MODEL_RESERVE


def _plant_unfenced_decide() -> Replacement:
    original = core_decide.decide

    def decide(state: State, run_input: Input, now: Micros) -> Verdict:
        if isinstance(run_input, LeasedInput):
            run_input = replace(run_input, epoch=state.epoch)
            state = replace(state, is_leased=True)
        return original(state, run_input, now)

    return replace_attribute(session, "decide", decide)


def _plant_unfenced_session() -> Replacement:
    """Let a session ignore that another worker has taken its lease."""

    def holds_lease(self: Session) -> bool:
        return self.state.is_leased

    return replace_attribute(Session, "holds_lease", property(holds_lease))


def _plant_unfenced_store() -> Replacement:
    original = validation.check_append

    def check(standing: validation.RunRowVersion, after: Seq | None, lease: object) -> None:
        del lease
        original(standing, after, None)

    return replace_attribute(validation, "check_append", check)


def _plant_ungated_start() -> Replacement:
    """Start calls while the run is pausing or cancelling."""
    phases = (Phase.PAUSING, Phase.CANCELLING)

    def wrap_advance(old: AdvanceFunction) -> AdvanceFunction:
        def advance_wrongly(
            state: State,
            now: Micros,
            reserve: scheduler.Reserve,
            may_start: scheduler.MayStart,
            *,
            unjournaled_work: bool,
        ) -> tuple[Entry, ...]:
            entries = old(state, now, reserve, may_start, unjournaled_work=unjournaled_work)
            if state.phase not in phases or state.in_flight or not state.is_leased:
                return entries
            calls = (state.calls[n - 1] for n in state.open_calls)
            call = next((one for one in calls if scheduler.is_startable(one)), None)
            return scheduler._start_call(state, call, "step", Spend()) or entries

        return advance_wrongly

    return replace_all(
        replace_advance(wrap_advance),
        allow_advance({phase: (phase,) for phase in phases}),
        allow_entry(CallStarted, {phase: phase for phase in phases}),
    )


def _make_start_stale(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Let a start have seen only the entries before the last control."""
    seen = Seq(max(0, state.last_control_seq - 1))
    return tuple(
        replace(entry, seen=seen) if isinstance(entry, CallStarted) else entry
        for entry in entries
    )


def _plant_uncompared_append() -> Replacement:
    original = validation.check_append

    def check(standing: validation.RunRowVersion, after: Seq | None, lease: object) -> None:
        del after
        original(standing, None, lease)  # type: ignore[arg-type]  # passed through

    return replace_attribute(validation, "check_append", check)


def _ignore_reserve(old: AdvanceFunction) -> AdvanceFunction:
    """Start a call without its reservation, and add the reservation to the entry."""

    def advance_wrongly(
        state: State,
        now: Micros,
        reserve: scheduler.Reserve,
        may_start: scheduler.MayStart,
        *,
        unjournaled_work: bool,
    ) -> tuple[Entry, ...]:
        del reserve
        nothing = scheduler.reserve_nothing
        entries = old(state, now, nothing, may_start, unjournaled_work=unjournaled_work)
        if not has_spend_cap(state.stop):
            return entries
        return tuple(
            replace(entry, reserved=MODEL_RESERVE)
            if isinstance(entry, CallStarted) and entry.call_kind == "model"
            else entry
            for entry in entries
        )

    return advance_wrongly


def _meter_without_reserve(meter: Meter, call: CallState, _: int) -> Meter:
    steps = meter.steps + (call.call_kind == "model")
    return replace(meter, steps=steps)


def _forget_unknown_attempt(before: State, after: State, entry: Entry) -> State:
    del before
    assert isinstance(entry, CallFailed)
    call = after.find_call(entry.call)
    assert call is not None
    return after.with_call(replace(call, may_have_happened=False))


def _can_settle_any_attempt(state: State, call: CallState, attempt: int) -> bool:
    return state.phase is not Phase.COMPLETED and attempt > 0 and call.stage == "unknown"


def _needs_approval_at_zero(state: State, call: CallState, _: Micros) -> bool:
    return _NEEDS_APPROVAL(state, call, Micros(0))


_NEEDS_APPROVAL = step_boundary.needs_approval
UNREACHABLE_COUNT = 1_000_000

CALL_START_MUTANTS = (
    Mutant(
        name="nothing_fences",
        seed=2435,
        description="neither the session nor the core nor the store refuses an older epoch",
        plant=lambda: replace_all(
            _plant_unfenced_session(), _plant_unfenced_decide(), _plant_unfenced_store()
        ),
    ),
    Mutant(
        name="session_and_store_do_not_fence",
        seed=2489,
        description="a session goes on under a lease that is not in force",
        plant=lambda: replace_all(_plant_unfenced_session(), _plant_unfenced_store()),
    ),
    Mutant(
        name="start_not_gated",
        description="a call starts although the run is pausing or cancelling",
        plant=_plant_ungated_start,
        rules=("I10", "I11"),
    ),
    Mutant(
        name="stale_start",
        description="a call starts from a prompt without the last control",
        plant=lambda: change_advanced(_make_start_stale),
    ),
    Mutant(
        name="append_without_compare",
        description="entries that were decided on an outdated state are appended",
        plant=_plant_uncompared_append,
    ),
    Mutant(
        name="unknown_call_is_repeated",
        description="a call that may have happened is repeated, whatever its effect class",
        plant=lambda: replace_attribute(CallState, "safe_to_repeat", property(lambda _: True)),
    ),
    Mutant(
        name="new_lease_keeps_old_calls",
        description="a new lease holder leaves the calls of the old one in flight",
        plant=lambda: drop_entries(TakeLease, CallUnknown),
    ),
    Mutant(
        name="killer_call_repeated_without_end",
        description="a call that kills its process is repeated without end",
        plant=lambda: replace_attribute(retries, "WORKER_DEATHS_MAX", UNREACHABLE_COUNT),
        rules=("DEATHS",),
    ),
    Mutant(
        name="run_fails_after_one_worker_death",
        description="a run fails as soon as one worker has died",
        plant=lambda: replace_attribute(retries, "WORKER_DEATHS_MAX", 1),
        rules=("I41",),
    ),
    Mutant(
        name="denied_call_repeated_without_end",
        description="a call is repeated without end if its check says that it did not happen",
        plant=lambda: replace_attribute(decide_calls, "CHECK_DENIALS_MAX", UNREACHABLE_COUNT),
        rules=("DENIALS",),
    ),
    Mutant(
        name="approval_not_needed",
        description="a call that needs an approval starts without one",
        plant=lambda: replace_attribute(step_boundary, "needs_approval", lambda *_: False),
    ),
    Mutant(
        name="approval_never_expires",
        seed=50,
        description="an approval is used after its expiry",
        plant=lambda: replace_attribute(
            step_boundary, "needs_approval", _needs_approval_at_zero
        ),
    ),
    Mutant(
        name="failure_erases_an_unknown_attempt",
        description="a failed attempt makes the core forget that an earlier one is unknown",
        plant=lambda: replace_evolve(CallFailed, _forget_unknown_attempt),
    ),
    Mutant(
        name="late_result_settles_any_attempt",
        seed=56,
        description="a late result settles another attempt than its own",
        plant=lambda: replace_all(
            replace_attribute(evolve_calls, "can_settle_late", _can_settle_any_attempt),
            replace_attribute(decide_calls, "can_settle_late", _can_settle_any_attempt),
        ),
    ),
    Mutant(
        name="no_reservation",
        description="calls in flight do not count against a cap",
        plant=lambda: replace_all(
            replace_advance(_ignore_reserve),
            replace_attribute(evolve_calls, "_meter_start", _meter_without_reserve),
        ),
    ),
    Mutant(
        name="call_cap_checked_per_step_only",
        description="a reply with many calls exceeds a cap on calls",
        plant=lambda: replace_attribute(scheduler, "find_met_call_cap", lambda *_: None),
        rules=("I37",),
    ),
    Mutant(
        name="redirect_does_not_stop_starts",
        description="calls start while a redirect is pending",
        plant=lambda: replace_attribute(State, "pending_redirects", property(lambda _: ())),
    ),
    Mutant(
        name="lift_forgets_the_phase",
        description="the lift of a halt continues a run that was paused or cancelled",
        plant=lambda: replace_evolve(
            RunLifted, lambda _, after, __: replace(after, phase=Phase.QUEUED, is_leased=False)
        ),
    ),
    Mutant(
        name="agent_acts_during_a_take_over",
        seed=109,
        description="the agent's own calls start while a person has taken over",
        plant=lambda: replace_attribute(
            State,
            "active_calls",
            property(lambda state: [state.calls[number - 1] for number in state.open_calls]),
        ),
    ),
    Mutant(
        name="late_result_leaves_the_call_unknown",
        description="a late result closes its ask, but the call stays unknown",
        plant=lambda: replace_evolve(LateResult, lambda before, _, __: before),
    ),
)
