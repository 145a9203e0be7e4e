"""What the life of a run means for its state."""

from msgspec.structs import replace

from midrun.core.entries import (
    LeaseTaken,
    RunCompleted,
    RunFailed,
    RunImported,
    RunStarted,
    RunWaiting,
    RunWoken,
    StoodDown,
)
from midrun.core.ids import number_of
from midrun.core.state import Arms, State, with_name
from midrun.core.values import Message, Phase


def run_started(state: State, entry: RunStarted) -> State:
    """The run exists: it knows its task and whatever earlier runs of its thread left it."""
    task = Message(role="user", text=entry.task, by=entry.by, kind="task")
    state = replace(state, spec=entry, stop=entry.stop, plan=entry.plan, goal=entry.task)
    state = replace(
        state, agent_print=entry.agent_print, steered_by=(entry.by, *entry.steered_by)
    )
    known = entry.forked is not None and any(m.text == entry.task for m in entry.history)
    return state.saying(*entry.history, *(() if known else (task,)))


def run_imported(state: State, entry: RunImported) -> State:
    """The run goes on in this store; no approval that came with it counts any more.

    The lines that say who approved a call were written where this store could not see it.
    A call that is still to be made, or made once more, therefore asks again. They also say who
    steered the run, so the person who brought them counts as one who did.
    """
    parked = (n for frame in state.frames for n in frame.parked)
    asked = (number_of(state.asks[n - 1].call) for n in state.open_asks)
    for number in {*state.open, *parked, *asked}:
        call = state.calls[number - 1]
        steered_by = with_name(call.steered_by, entry.by)
        state = state.with_call(replace(call, approval=None, steered_by=steered_by))
    for number in state.open_asks:
        ask = state.asks[number - 1]
        if ask.four_eyes:
            state = state.with_ask(replace(ask, excluded=with_name(ask.excluded, entry.by)))
    return replace(state, steered_by=with_name(state.steered_by, entry.by))


def lease_taken(state: State, entry: LeaseTaken) -> State:
    """A driver holds the run. If nobody gave it back, a check under way may be the reason."""
    if state.leased and state.phase is Phase.RUNNING:
        for number in state.at_hand:
            call = state.calls[number - 1]
            if call.unsure and call.traits.check:
                state = state.with_call(replace(call, deaths=call.deaths + 1))
    its = entry.agent_print or state.agent_print
    return replace(state, epoch=entry.epoch, leased=True, taken=state.seq, agent_print=its)


def stood_down(state: State, _: StoodDown) -> State:
    """The lease is given back; nobody asked the run to stop."""
    return replace(state, leased=False)


def run_waiting(state: State, _: RunWaiting) -> State:
    """The run leaves memory until a person decides."""
    return replace(state, leased=False)


def run_woken(state: State, _: RunWoken) -> State:
    """The run can be driven again; only a person at the wheel keeps their hold on it."""
    return state if state.wheel else replace(state, hold=None)


def run_completed(state: State, entry: RunCompleted) -> State:
    """The run has its output."""
    return replace(state, leased=False, ended=True, output=entry.output)


def run_failed(state: State, entry: RunFailed) -> State:
    """The run rests at its last boundary."""
    return replace(state, leased=False, error=entry)


ARMS: Arms = {
    RunStarted: run_started,
    RunImported: run_imported,
    LeaseTaken: lease_taken,
    StoodDown: stood_down,
    RunWaiting: run_waiting,
    RunWoken: run_woken,
    RunCompleted: run_completed,
    RunFailed: run_failed,
}
