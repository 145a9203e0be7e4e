"""Actors, tools and helpers of the golden scenarios."""

from hashlib import sha256

from midrun.core import driver_inputs as v
from midrun.core.entries import CallDone, LeaseTaken, RunStarted, UndoDone, UndoFailed
from midrun.core.ids import AskId, CallId, Epoch
from midrun.core.values import (
    Actor,
    CleanupAction,
    Effect,
    FileRef,
    RequestedCall,
    Spend,
    Traits,
)
from midrun.testing.scenario import Scenario, given

ANN = Actor(name="ann")
BOB = Actor(name="bob", role="operator")
A1 = AskId("a1")

LOOK = RequestedCall(
    tool="look", args={"url": "https://example.com/ä"}, traits=Traits(effect=Effect.READ)
)
DRAFT = RequestedCall(
    tool="draft",
    args={"title": "Memo", "tags": [1, 2.5, None]},
    why="to show it first",
    traits=Traits(undo=True),
)
LOCK = RequestedCall(tool="lock", args={"table": "t"}, traits=Traits(release=True))
MAIL = RequestedCall(tool="mail", args={"to": "eve"}, traits=Traits(version="3"))
PAY = RequestedCall(tool="pay", args={"amount": 12.5}, traits=Traits(check=True))
POST = RequestedCall(
    tool="post", args={"text": "Hi"}, traits=Traits(approve="queue", audience="operator")
)
CHILD = RequestedCall(tool="researcher", args={"task": "Read"}, kind="child")


def make_file(name: str, size: int = 4) -> FileRef:
    """Return a reference to a file that the journal names."""
    digest = sha256(f"{name} {size}".encode()).hexdigest()
    media_type = "image/png" if name.endswith(".png") else "text/plain"
    return FileRef(name=name, media_type=media_type, size=size, hash=digest)


def start_run(**more: object) -> Scenario:
    """Return a run whose lease was just taken."""
    spec = RunStarted(agent="clerk", task="Sort the mail", by="ann", role="user", **more)  # type: ignore[arg-type]  # fields of RunStarted
    return given(spec, LeaseTaken(epoch=Epoch(1), holder="here"))


def take_lease(run: Scenario) -> Scenario:
    """Let another driver take the lease."""
    return run.after(v.TakeLease(holder="there"))


def finish_call(run: Scenario, call: str, result: object = "ok") -> Scenario:
    """Let a call return `result`."""
    done = CallDone(call=CallId(call), result=result, spent=Spend(tokens=7, cost=21))
    return run.after(v.CloseCall(epoch=run.state.epoch, outcome=done))


def run_undos(run: Scenario, *, failing: str = "") -> Scenario:
    """Run all due undos and releases in order; the undo of `failing` always fails."""
    run = run.advances()
    while (cleanup := run.next_cleanup) is not None:
        call, action = cleanup
        done = _undo_ending(call, action, failing)
        run = run.cleans(call, action)
        run = run.after(v.CloseCleanup(epoch=run.state.epoch, outcome=done)).advances()
    return run


def _undo_ending(call: CallId, action: CleanupAction, failing: str) -> UndoDone | UndoFailed:
    if call == failing:
        return UndoFailed(call=call, action=action, error="the draft is locked")
    return UndoDone(call=call, action=action)
