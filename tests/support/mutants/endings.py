"""Faults in how a run ends: completion, pause, cancel, undo, release."""

from collections.abc import Iterator

from msgspec.structs import replace

from midrun.core import scheduler, step_boundary, undo
from midrun.core.controls import Cancel, ForcePause
from midrun.core.decide import controls as steering_rulings
from midrun.core.decide import lifecycle as end_rulings
from midrun.core.driver_inputs import SettlePhase, StandDown
from midrun.core.effects import DriverEffect, Settle
from midrun.core.entries import (
    AskOpened,
    CallUnknown,
    CancelRequested,
    Entry,
    FrameAbandoned,
    MessageClosed,
    RunCancelled,
    RunCompleted,
    UndoGaveUp,
)
from midrun.core.ids import Micros
from midrun.core.state import Call, PauseState, State
from midrun.core.transitions import Input, Verdict, accept
from midrun.core.values import CleanupAction, Phase
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


def _completes_in(phase: Phase) -> Planted:
    """Let an answer that is at hand end the run, although somebody asked for something else."""

    def hasty(old: Ruling) -> Ruling:
        def rule(state: State, given: Input, now: Micros) -> Verdict:
            if state.phase is phase and state.answer is not None and not state.in_flight:
                return accept(RunCompleted(output=state.answer))
            return old(state, given, now)

        return rule

    return together(
        ruling(SettlePhase, hasty),
        accepts(SettlePhase, {phase: tuple(Phase)}),
        follows(RunCompleted, {phase: Phase.COMPLETED}),
    )


def _oldest_first(state: State) -> list[tuple[Call, CleanupAction]]:
    return list(reversed(_REMAINING(state)))


_REMAINING = undo.list_remaining_cleanups


def _cancels_at_once(state: State) -> Iterator[DriverEffect]:
    orders = list(_CANCELLING(state))
    yield from orders
    if state.in_flight:
        yield Settle()


_CANCELLING = scheduler._plan_cancelling


def _pauses_at_once(state: State, hold: PauseState) -> Iterator[DriverEffect]:
    orders = list(_STOPPING(state, hold))
    yield from orders
    if state.in_flight and Settle() not in orders:
        yield Settle()


_STOPPING = scheduler._plan_pausing


def _doomed_in_flight_only(before: State, after: State, _: Entry) -> State:
    for number in before.cleanup_calls:
        if number not in before.in_flight:
            after = after.with_call(replace(after.calls[number - 1], in_undo_set=False))
    return after


def _never_attempted(before: State, after: State, entry: Entry) -> State:
    assert isinstance(entry, AskOpened)
    call = after.find_call(entry.call)
    was = before.find_call(entry.call)
    assert call is not None
    assert was is not None
    if entry.ask_kind != "approval" or was.stage != "aborted":
        return after
    return after.with_call(replace(call, may_have_happened=False, asked_from_inside=False))


def _nothing_left(old: Ruling) -> Ruling:
    """Say that the cancel left nothing behind."""

    def rule(state: State, given: Input, now: Micros) -> Verdict:
        verdict = old(state, given, now)
        return replace(
            verdict,
            entries=tuple(
                replace(entry, residue=()) if isinstance(entry, RunCancelled) else entry
                for entry in verdict.entries
            ),
        )

    return rule


def _gives_up_at_once(state: State) -> Iterator[UndoGaveUp]:
    if state.in_flight or state.cleanup_in_flight:
        return
    for call, action in _REMAINING(state):
        if call.get_cleanup(action).stage == "failed":
            yield UndoGaveUp(call=call.id, action=action, error="too hard")
        return


def _lets_go(old: Ruling) -> Ruling:
    """Give the lease back whatever is in flight."""
    return lambda state, given, now: old(
        replace(state, in_flight=(), cleanup_in_flight=None), given, now
    )


def _only_when_halted(old: Ruling) -> Ruling:
    def rule(state: State, given: Input, now: Micros) -> Verdict:
        verdict = old(state, given, now)
        if state.phase is not Phase.HALTED:
            return verdict
        kept = (e for e in verdict.entries if not isinstance(e, FrameAbandoned))
        return replace(verdict, entries=tuple(kept))

    return rule


ENDS = (
    Mutant(
        name="complete_over_cancel",
        wrong="a finished answer completes a run whose cancel was accepted",
        plant=lambda: _completes_in(Phase.CANCELLING),
    ),
    Mutant(
        name="complete_over_pause",
        wrong="a finished answer completes a run whose pause was accepted",
        plant=lambda: _completes_in(Phase.PAUSING),
    ),
    Mutant(
        name="undo_in_start_order",
        wrong="what was done first is undone first",
        plant=lambda: together(
            in_place_of(undo, "list_remaining_cleanups", _oldest_first),
            in_place_of(step_boundary, "list_remaining_cleanups", _oldest_first),
        ),
    ),
    Mutant(
        name="cancel_does_not_wait",
        wrong="a run is cancelled while a call is in flight",
        plant=lambda: in_place_of(scheduler, "_plan_cancelling", _cancels_at_once),
    ),
    Mutant(
        name="pause_does_not_wait",
        wrong="a run is paused while a call is in flight",
        plant=lambda: in_place_of(scheduler, "_plan_pausing", _pauses_at_once),
    ),
    Mutant(
        name="undo_set_forgets_the_unknown",
        seed=242,
        wrong="late evidence takes an unknown call out of the undo set",
        plant=lambda: arm(CancelRequested, _doomed_in_flight_only),
        limit=20000,
        strategy="targeted",
    ),
    Mutant(
        name="nothing_is_undone",
        wrong="a cancel undoes nothing",
        plant=lambda: in_place_of(undo, "is_undo_due", lambda _, __: False),
    ),
    Mutant(
        name="nothing_is_released",
        wrong="held resources stay held",
        plant=lambda: in_place_of(undo, "is_release_due", lambda _: False),
    ),
    Mutant(
        name="aborted_counts_as_undone",
        wrong="a call that was stopped midway is taken for one that did nothing",
        plant=lambda: in_place_of(
            Call,
            "may_have_effect",
            property(lambda call: call.may_have_happened or call.stage == "done"),
        ),
    ),
    Mutant(
        name="asking_counts_as_not_entered",
        wrong="what a tool did before it asked a person is forgotten",
        plant=lambda: in_place_of(
            Call,
            "may_have_effect",
            property(
                lambda call: (
                    call.may_have_happened or call.stage in {"done", "aborted", "unknown"}
                )
            ),
        ),
    ),
    Mutant(
        name="asking_again_forgets",
        seed=637,
        wrong="asking for a second yes forgets that an attempt was stopped midway",
        plant=lambda: arm(AskOpened, _never_attempted),
        limit=20000,
    ),
    Mutant(
        name="residue_forgotten",
        wrong="a cancel that left something behind says that it is clean",
        plant=lambda: ruling(SettlePhase, _nothing_left),
    ),
    Mutant(
        name="undo_given_up_at_once",
        wrong="an undo that failed is not tried again",
        plant=lambda: in_place_of(step_boundary, "_give_up_cleanups", _gives_up_at_once),
    ),
    Mutant(
        name="undo_tried_for_ever",
        wrong="an undo that always fails keeps the run cancelling",
        plant=lambda: in_place_of(step_boundary, "_give_up_cleanups", lambda _: iter(())),
        limit=6000,
    ),
    Mutant(
        name="force_pause_forgets_calls",
        seed=1221,
        wrong="a forced pause leaves calls in flight",
        plant=lambda: filtered(ForcePause, CallUnknown),
    ),
    Mutant(
        name="stands_down_in_flight",
        wrong="a lease is given back while a call is in flight",
        plant=lambda: ruling(StandDown, _lets_go),
    ),
    Mutant(
        name="frames_dropped",
        seed=208,
        wrong="a cancel forgets the held thoughts",
        plant=lambda: filtered(Cancel, FrameAbandoned),
    ),
    Mutant(
        name="cancel_while_halted_forgets_frames",
        seed=725,
        wrong="a cancel of a halted run forgets the held thoughts",
        plant=lambda: ruling(Cancel, _only_when_halted),
        limit=12000,
        strategy="random",
    ),
    Mutant(
        name="words_lost_at_the_end",
        seed=247,
        wrong="a message that waits when the run completes is gone",
        plant=lambda: filtered(SettlePhase, MessageClosed),
    ),
    Mutant(
        name="words_lost_at_a_cancel",
        wrong="texts that wait when the run is cancelled are gone",
        plant=lambda: in_place_of(steering_rulings, "return_pending", lambda *_: ()),
    ),
    Mutant(
        name="calls_not_sealed_at_a_cancel",
        wrong="a cancelled run leaves calls open",
        plant=lambda: together(
            in_place_of(end_rulings, "make_cancel_entries", _unsealed),
            in_place_of(steering_rulings, "make_cancel_entries", _unsealed),
        ),
    ),
)


def _unsealed(state: State) -> tuple[Entry, ...]:
    return (RunCancelled(residue=state.residue),)
