"""Faults in completion, pause, cancel, undo and release."""

from collections.abc import Iterator

from msgspec.structs import replace

from midrun.core import scheduler, step_boundary, undo
from midrun.core.controls import Cancel, ForcePause
from midrun.core.decide import controls as decide_controls
from midrun.core.driver_inputs import StandDown
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
from midrun.core.state import CallState, State
from midrun.core.transitions import Input, Verdict
from midrun.core.values import CleanupAction, Phase
from tests.support.mutants.replacements import (
    DecideFunction,
    Mutant,
    Replacement,
    allow_advance,
    allow_entry,
    change_advanced,
    drop_entries,
    replace_all,
    replace_attribute,
    replace_decide,
    replace_evolve,
)


def _plant_completion_in(phase: Phase) -> Replacement:
    """Complete a run that has its answer in a phase in which it must not complete."""

    def complete(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if state.phase is phase and state.answer is not None and not state.in_flight:
            return (RunCompleted(output=state.answer),)
        return entries

    return replace_all(
        change_advanced(complete),
        allow_advance({phase: (Phase.COMPLETED,)}),
        allow_entry(RunCompleted, {phase: Phase.COMPLETED}),
    )


def _list_oldest_first(state: State) -> list[tuple[CallState, CleanupAction]]:
    return list(reversed(_LIST_REMAINING_CLEANUPS(state)))


_LIST_REMAINING_CLEANUPS = undo.list_remaining_cleanups


def _cancel_at_once(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if state.phase is Phase.CANCELLING and state.in_flight:
        return step_boundary.make_cancel_entries(state)
    return entries


def _pause_at_once(state: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    if state.phase is Phase.PAUSING and state.in_flight:
        return scheduler._make_pause_entries(state)
    return entries


def _undo_in_flight_only(before: State, after: State, _: Entry) -> State:
    for number in before.cleanup_calls:
        if number not in before.in_flight:
            after = after.with_call(replace(after.calls[number - 1], in_undo_set=False))
    return after


def _forget_aborted_attempt(before: State, after: State, entry: Entry) -> State:
    assert isinstance(entry, AskOpened)
    call = after.find_call(entry.call)
    was = before.find_call(entry.call)
    assert call is not None
    assert was is not None
    if entry.ask_kind != "approval" or was.stage != "aborted":
        return after
    return after.with_call(replace(call, may_have_happened=False, asked_from_inside=False))


def _forget_residue(_: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Drop the residue from `RunCancelled`."""
    return tuple(
        replace(entry, residue=()) if isinstance(entry, RunCancelled) else entry
        for entry in entries
    )


def _lose_messages(_: State, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if not isinstance(entry, MessageClosed))


def _give_up_at_once(state: State) -> Iterator[UndoGaveUp]:
    if state.in_flight or state.cleanup_in_flight:
        return
    for call, action in _LIST_REMAINING_CLEANUPS(state):
        if call.get_cleanup(action).stage == "failed":
            yield UndoGaveUp(call=call.id, action=action, error="too hard")
        return


def _ignore_calls_in_flight(old: DecideFunction) -> DecideFunction:
    """Return the lease although calls are in flight."""
    return lambda state, run_input, now: old(
        replace(state, in_flight=(), cleanup_in_flight=None), run_input, now
    )


def _forget_frames_when_halted(old: DecideFunction) -> DecideFunction:
    def decide_wrongly(state: State, run_input: Input, now: Micros) -> Verdict:
        verdict = old(state, run_input, now)
        if state.phase is not Phase.HALTED:
            return verdict
        kept = (e for e in verdict.entries if not isinstance(e, FrameAbandoned))
        return replace(verdict, entries=tuple(kept))

    return decide_wrongly


ENDING_MUTANTS = (
    Mutant(
        name="complete_over_cancel",
        description="a run completes after its cancel was accepted",
        plant=lambda: _plant_completion_in(Phase.CANCELLING),
    ),
    Mutant(
        name="complete_over_pause",
        seed=346,
        description="a run completes after its pause was accepted",
        plant=lambda: _plant_completion_in(Phase.PAUSING),
    ),
    Mutant(
        name="undo_in_start_order",
        description="calls are undone in the order of their starts",
        plant=lambda: replace_all(
            replace_attribute(undo, "list_remaining_cleanups", _list_oldest_first),
            replace_attribute(step_boundary, "list_remaining_cleanups", _list_oldest_first),
        ),
    ),
    Mutant(
        name="cancel_does_not_wait",
        description="a run is cancelled while a call is in flight",
        plant=lambda: change_advanced(_cancel_at_once),
    ),
    Mutant(
        name="pause_does_not_wait",
        description="a run is paused while a call is in flight",
        plant=lambda: change_advanced(_pause_at_once),
    ),
    Mutant(
        name="undo_set_lacks_unknown_calls",
        seed=245,
        description="a call with an unknown outcome is not in the undo set",
        plant=lambda: replace_evolve(CancelRequested, _undo_in_flight_only),
        limit=20000,
        strategy="targeted",
    ),
    Mutant(
        name="nothing_is_undone",
        description="a cancel undoes no call",
        plant=lambda: replace_attribute(undo, "is_undo_due", lambda _, __: False),
    ),
    Mutant(
        name="nothing_is_released",
        description="resources are not released",
        plant=lambda: replace_attribute(undo, "is_release_due", lambda _: False),
    ),
    Mutant(
        name="aborted_counts_as_undone",
        description="an aborted call is treated as a call without an effect",
        plant=lambda: replace_attribute(
            CallState,
            "may_have_effect",
            property(lambda call: call.may_have_happened or call.stage == "done"),
        ),
    ),
    Mutant(
        name="effect_before_an_ask_forgotten",
        seed=302,
        description="the effect of a tool before it asked a person is not undone",
        plant=lambda: replace_attribute(
            CallState,
            "may_have_effect",
            property(
                lambda call: (
                    call.may_have_happened or call.stage in {"done", "aborted", "unknown"}
                )
            ),
        ),
    ),
    Mutant(
        name="second_approval_forgets_an_abort",
        seed=1651,
        description="a second approval makes the core forget that an attempt was aborted",
        plant=lambda: replace_evolve(AskOpened, _forget_aborted_attempt),
        strategy="targeted+pct",
    ),
    Mutant(
        name="residue_forgotten",
        description="a cancel with residue reports none",
        plant=lambda: change_advanced(_forget_residue),
    ),
    Mutant(
        name="undo_given_up_at_once",
        description="a failed undo is not retried",
        plant=lambda: replace_attribute(step_boundary, "_give_up_cleanups", _give_up_at_once),
    ),
    Mutant(
        name="undo_retried_without_end",
        description="an undo that always fails keeps the run cancelling",
        plant=lambda: replace_attribute(step_boundary, "_give_up_cleanups", lambda _: iter(())),
        limit=6000,
    ),
    Mutant(
        name="force_pause_forgets_calls",
        seed=75,
        description="a forced pause leaves calls in flight",
        plant=lambda: drop_entries(ForcePause, CallUnknown),
    ),
    Mutant(
        name="stands_down_in_flight",
        description="a lease is returned while a call is in flight",
        plant=lambda: replace_decide(StandDown, _ignore_calls_in_flight),
    ),
    Mutant(
        name="cancel_forgets_frames",
        seed=73,
        description="a cancel does not abandon the held topics",
        plant=lambda: drop_entries(Cancel, FrameAbandoned),
    ),
    Mutant(
        name="cancel_while_halted_forgets_frames",
        seed=82,
        description="a cancel of a halted run does not abandon the held topics",
        plant=lambda: replace_decide(Cancel, _forget_frames_when_halted),
        limit=12000,
        strategy="random",
    ),
    Mutant(
        name="messages_lost_at_completion",
        seed=350,
        description="a message that is pending when the run completes is lost",
        plant=lambda: change_advanced(_lose_messages),
    ),
    Mutant(
        name="messages_lost_at_a_cancel",
        seed=88,
        description="messages that are pending when the run is cancelled are lost",
        plant=lambda: replace_attribute(decide_controls, "return_pending", lambda *_: ()),
    ),
    Mutant(
        name="calls_not_sealed_at_a_cancel",
        description="a cancelled run leaves calls open",
        plant=lambda: replace_all(
            replace_attribute(scheduler, "make_cancel_entries", _cancel_without_sealing),
            replace_attribute(decide_controls, "make_cancel_entries", _cancel_without_sealing),
        ),
    ),
)


def _cancel_without_sealing(state: State) -> tuple[Entry, ...]:
    return (RunCancelled(residue=state.residue),)
