"""Steps that several tests of the core and of the texts share, on top of `Scenario`."""

from midrun.core import driver_inputs as v
from midrun.core.entries import (
    CallAborted,
    CallDone,
    CallFailed,
    CallUnknown,
    UndoDone,
    UndoStarted,
)
from midrun.core.ids import CallId, Epoch
from midrun.core.state import CallStage, CallState
from midrun.core.values import CleanupAction
from midrun.testing.scenario import LEASED_RUN, Scenario, given
from midrun.verify.journal import check_journal

leased_run = given(*LEASED_RUN)


def report_done(call: str, *, epoch: int = 1) -> v.CloseCall:
    """Return the driver input that reports the result of a call."""
    return v.CloseCall(epoch=Epoch(epoch), outcome=CallDone(call=CallId(call), result="ok"))


def report_aborted(call: str, text: str = "") -> v.CloseCall:
    """Return the driver input that reports a call as stopped within its grace."""
    return v.CloseCall(epoch=Epoch(1), outcome=CallAborted(call=CallId(call), text=text))


def end_call(
    run: Scenario, outcome: CallDone | CallFailed | CallAborted | CallUnknown
) -> Scenario:
    """End a call with `outcome`, under the lease that the run has now."""
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=outcome))


def finish_call(run: Scenario, call: str) -> Scenario:
    """End a call with a result."""
    return run.after(report_done(call, epoch=run.state.epoch))


def perform_cleanup(run: Scenario) -> Scenario:
    """Perform every undo and release that is planned; the journal must be sound then."""
    run = run.advances()
    while (cleanup := run.next_cleanup) is not None:
        call, action = cleanup
        outcome = UndoDone(call=call, action=action)
        run = run.cleans(call, action)
        run = run.after(v.CloseCleanup(epoch=run.state.epoch, outcome=outcome)).advances()
    assert check_journal(run.records) == ()
    return run


def list_cleanups(run: Scenario) -> list[tuple[str, CleanupAction]]:
    """Return the undos and releases that were started, in order."""
    return [(e.call, e.action) for e in run.entries if isinstance(e, UndoStarted)]


def get_call(run: Scenario, call: str = "c2") -> CallState:
    """Return the state of a call."""
    found = run.state.find_call(call)
    assert found is not None
    return found


def get_stage(run: Scenario, call: str = "c2") -> CallStage:
    """Return the stage of a call."""
    return get_call(run, call).stage


def is_sound(run: Scenario) -> bool:
    """Tell whether the journal passes every check and has the state of the scenario."""
    return not check_journal(run.records, state=run.state)
