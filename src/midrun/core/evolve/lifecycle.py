"""Fold the life of a run: start, import, leases, waiting, waking, end."""

from msgspec.structs import replace

from midrun.core.entries import (
    LeaseReleased,
    LeaseTaken,
    RunCompleted,
    RunFailed,
    RunImported,
    RunStarted,
    RunWaiting,
    RunWoken,
)
from midrun.core.ids import parse_call_number
from midrun.core.state import EvolveFunctions, State, add_name, find_speaker
from midrun.core.values import Message, Phase


def run_started(state: State, entry: RunStarted) -> State:
    """Set up the run: task, plan, stop condition, and the history of its thread."""
    task = Message(role="user", text=entry.task, by=entry.by, kind="task", files=entry.files)
    state = replace(state, run_started=entry, stop=entry.stop, plan=entry.plan, goal=entry.task)
    state = replace(
        state,
        speaker=find_speaker(entry, entry.speaker),
        agent_fingerprint=entry.agent_fingerprint,
        steered_by=(entry.by, *entry.steered_by),
        has_files=any(m.files or any(c.files for c in m.made) for m in entry.history),
    ).with_files(entry.files)
    # A fork without a new instruction continues its task, which is in the history already.
    known = entry.forked is not None and any(m.text == entry.task for m in entry.history)
    return state.with_messages(*entry.history, *(() if known else (task,)))


def run_imported(state: State, entry: RunImported) -> State:
    """Void imported approvals; count the importer among the people who steered the run.

    The entries before this one were written outside this store, and the importer could have
    forged them. A call that is still to be made, or made again, therefore needs a new approval.
    For four eyes the importer counts as a person who steered the run.
    """
    # A non-blocking approval keeps its call out of the open calls, so the calls of open asks
    # are added.
    asked = (parse_call_number(state.asks[n - 1].call) for n in state.open_asks)
    for number in {*state.open_and_parked_calls, *asked}:
        call = state.calls[number - 1]
        steered_by = add_name(call.steered_by, entry.by)
        state = state.with_call(replace(call, approval=None, steered_by=steered_by))
    for number in state.open_asks:
        ask = state.asks[number - 1]
        if ask.four_eyes:
            state = state.with_ask(replace(ask, excluded=add_name(ask.excluded, entry.by)))
    return replace(state, steered_by=add_name(state.steered_by, entry.by))


def lease_taken(state: State, entry: LeaseTaken) -> State:
    """Give the lease to a worker under a new epoch.

    If the run is still leased, the previous worker died. Calls in flight count that death in
    `call_unknown`. A check is not a call and has no entry, so it is counted here: a check that
    was due may have killed the worker.
    """
    if state.is_leased and state.phase is Phase.RUNNING:
        for call in state.active_calls:
            if call.needs_settling and call.traits.check:
                state = state.with_call(replace(call, worker_deaths=call.worker_deaths + 1))
        # Nor is the program of a hosted agent a call: between its calls, its code may be fatal.
        if state.run_started.hosted and not state.in_flight:
            state = replace(state, program_deaths=state.program_deaths + 1)
    # An empty fingerprint means that the version of the agent has not changed.
    fingerprint = entry.agent_fingerprint or state.agent_fingerprint
    return replace(
        state,
        epoch=entry.epoch,
        is_leased=True,
        lease_seq=state.seq,
        agent_fingerprint=fingerprint,
    )


def lease_released(state: State, _: LeaseReleased) -> State:
    """Release the lease: the worker's process shuts down or sheds load."""
    return replace(state, is_leased=False)


def run_waiting(state: State, _: RunWaiting) -> State:
    """Release the lease until a person decides an ask."""
    return replace(state, is_leased=False)


def run_woken(state: State, _: RunWoken) -> State:
    """Make the run drivable; keep the pause of a person who has taken over."""
    return state if state.taken_over_by else replace(state, pause=None)


def run_completed(state: State, entry: RunCompleted) -> State:
    """Store the output and its value; the run is completed."""
    return replace(
        state, is_leased=False, has_ended=True, output=entry.output, value=entry.value
    )


def run_failed(state: State, entry: RunFailed) -> State:
    """Store the error; the run can be resumed from its last boundary."""
    return replace(state, is_leased=False, error=entry)


EVOLVE_FUNCTIONS: EvolveFunctions = {
    RunStarted: run_started,
    RunImported: run_imported,
    LeaseTaken: lease_taken,
    LeaseReleased: lease_released,
    RunWaiting: run_waiting,
    RunWoken: run_woken,
    RunCompleted: run_completed,
    RunFailed: run_failed,
}
